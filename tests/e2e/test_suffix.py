"""Protects: `suffix` of completions fills a gap as the makers of each family of models ask for it, reads what the tokenizer reads, ends at the
model's marks, and is refused by a sentence where the model has none."""
import json
import shutil

import openai
import pytest

from bare import Bare
from conftest import MODEL

FAMILIES = {
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"),
    "codellama": ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|EOT|>"),
}
FIRST = 4100  # ids of the embedded model that no token has
BEFORE, AFTER = "def middle(a, b):\n    return ", "\n\nprint(middle(1, 3))\n"


def model_of(path, names):
    """The embedded model, whose tokenizer has these tokens besides."""
    model = path / "model"
    shutil.copytree(MODEL, model)
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    for i, name in enumerate(names):
        tokenizer["added_tokens"].append({"id": FIRST + i, "content": name, "special": True, "normalized": False, "single_word": False, "lstrip": False,
                                          "rstrip": False})
    file.write_text(json.dumps(tokenizer))
    return model


def client_of(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gap_is_filled(tmp_path, family):
    s = Bare(tmp_path, model=model_of(tmp_path, FAMILIES[family]))
    try:
        client = client_of(s)

        def ids(text):
            return json.loads(s.ask("/tokenize", "POST", json.dumps({"prompt": text, "add_special_tokens": False}))[2])["tokens"]

        def ask(prompt=BEFORE, suffix=AFTER, **more):
            return client.completions.create(model="tiny", prompt=prompt, suffix=suffix, max_tokens=8, temperature=0,
                                             extra_body={"return_token_ids": True, **more})

        def wanted(before, after):
            return [FIRST, *(ids(before) if before else []), FIRST + 1, *ids(after), FIRST + 2]

        made = ask()
        assert made.choices[0].prompt_token_ids == wanted(BEFORE, AFTER)
        assert made.usage.prompt_tokens == len(wanted(BEFORE, AFTER))
        assert ask("").choices[0].prompt_token_ids == wanted("", AFTER)
        two = ask([BEFORE, "x"], n=2).choices
        assert [c.prompt_token_ids for c in two] == [wanted(BEFORE, AFTER)] * 2 + [wanted("x", AFTER)] * 2
        same = client.completions.create(model="tiny", prompt=wanted(BEFORE, AFTER), max_tokens=8, temperature=0)
        assert same.choices[0].text == made.choices[0].text
        streamed = list(client.completions.create(model="tiny", prompt=BEFORE, suffix=AFTER, max_tokens=8, temperature=0, stream=True))
        assert "".join(c.choices[0].text for c in streamed) == made.choices[0].text
        rendered = json.loads(s.ask("/v1/completions/render", "POST", json.dumps({"prompt": BEFORE, "suffix": AFTER}))[2])
        assert rendered[0]["token_ids"] == wanted(BEFORE, AFTER)
        for mark in (FIRST, FIRST + 2, FIRST + 3):  # each mark ends the answer, and is no part of it
            ended = ask(logit_bias={mark: 100}).choices[0]
            assert (ended.finish_reason, ended.text) == ("stop", ""), ended
        assert ask(logit_bias={FIRST: 100}, ignore_eos=True).usage.completion_tokens == 8
        assert client.completions.create(model="tiny", prompt=BEFORE, suffix="", max_tokens=1).usage.prompt_tokens == len(ids(BEFORE))
        for bad, says in (({"echo": True}, "echo"), ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"), ({"stop_token_ids": list(range(20))}, "stop_token_ids")):
            with pytest.raises(openai.BadRequestError, match="suffix") as e:
                ask(**bad)
            assert e.value.param == says
        for prompt in ([5, 6], [[5], [6]], ["x", [5]]):
            with pytest.raises(openai.BadRequestError, match="text"):
                ask(prompt)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            ask(suffix="word " * 3000)
    finally:
        s.stop()


def test_a_model_without_marks(tmp_path):
    s = Bare(tmp_path, model=model_of(tmp_path, FAMILIES["qwen"][:2]))  # one of three is missing
    try:
        with pytest.raises(openai.BadRequestError, match="no tokens for filling in the middle") as e:
            client_of(s).completions.create(model="tiny", prompt="x", suffix="y")
        assert e.value.param == "suffix"
    finally:
        s.stop()
