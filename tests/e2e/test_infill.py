"""Protects: /infill answers editors as llama-server does. The gap is the one that `suffix` asks for, other files come before it, and what bounds the
answer (lines, time, fields that are shown) holds whole and streamed alike; models without marks say so."""
import http.client
import json

import pytest

from bare import Bare
from conftest import ROOT, wait_for
from test_answers import hold
from test_suffix import AFTER, BEFORE, FAMILIES, FIRST, client_of, model_of

DIALECT = json.loads((ROOT / "tests/fixtures/dialects.json").read_text())["llama-server"]
ASK = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 8, "temperature": 0, "logit_bias": {"2": -100}}  # no end token
OWN = {"n_indent", "t_max_predict_ms", "response_fields", "return_tokens"}  # refused or ignored elsewhere
REPO = "<|repo_name|>"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("infill")
    s = Bare(path, model=model_of(path, (*FAMILIES["qwen"], REPO)))
    yield s
    s.stop()


def post(server, body):
    """Status, headers (lower case), body; http.client takes pieces of a stream together."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/infill", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, {k.lower(): v for k, v in reply.headers.items()}, text


def infill(server, **more):
    return post(server, {**ASK, **more})


def answer(server, **more):
    status, _, text = infill(server, **more)
    assert status == 200, text
    return json.loads(text)


def events(server, **more):
    status, headers, text = infill(server, stream=True, **more)
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text
    return [json.loads(line[6:]) for line in text.decode().split("\n\n") if line.startswith("data: ")]


def ids(server, text):
    return json.loads(server.ask("/tokenize", "POST", json.dumps({"prompt": text, "add_special_tokens": False}))[2])["tokens"]


def test_it_is_the_gap_of_suffix(server):
    same = client_of(server).completions.create(model="tiny", prompt=BEFORE, suffix=AFTER, max_tokens=8, temperature=0, logit_bias={"2": -100},
                                                extra_body={"return_token_ids": True})
    made = answer(server, return_tokens=True)
    assert made["content"] == same.choices[0].text and made["content"]
    assert made["tokens"] == same.choices[0].token_ids and answer(server)["tokens"] == []
    assert (made["tokens_evaluated"], made["tokens_predicted"]) == (same.usage.prompt_tokens, same.usage.completion_tokens)
    assert (made["stop"], made["stop_type"], made["stopping_word"], made["truncated"], made["index"]) == (True, "limit", "", False, 0)
    assert made["model"] == "tiny" and made["has_new_line"] == ("\n" in made["content"])
    # what was typed goes on where the prefix ends
    typed = answer(server, input_prefix=BEFORE[:-4], prompt=BEFORE[-4:])
    assert (typed["content"], typed["tokens_evaluated"]) == (made["content"], made["tokens_evaluated"])
    times = typed["timings"]
    assert times["cache_n"] + times["prompt_n"] == typed["tokens_evaluated"] and times["predicted_n"] == typed["tokens_predicted"]
    assert times["cache_n"] == typed["tokens_cached"] and times["prompt_ms"] >= 0 and times["predicted_ms"] >= 0


def test_a_stream(server):
    whole, told = answer(server, return_tokens=True), events(server)
    assert [e["stop"] for e in told] == [False] * (len(told) - 1) + [True]
    assert "".join(e["content"] for e in told) == whole["content"] and told[-1]["content"] == ""
    assert sum((e["tokens"] for e in told), []) == whole["tokens"]
    assert {**told[-1], "timings": 0, "tokens": 0, "tokens_cached": 0, "content": 0} == {**whole, "timings": 0, "tokens": 0, "tokens_cached": 0, "content": 0}


def test_it_is_described(server):
    description = json.loads(server.ask("/openapi.json")[2])
    hold(description, "post", "/infill", 200, answer(server, return_tokens=True))
    for event in events(server):
        hold(description, "post", "/infill", 200, event, "text/event-stream")


def test_other_files_come_before(server):
    extra = [{"filename": "a.py", "text": "def one():\n    return 1\n", "time": [1, 2]}, {"text": "x = 2\n"}]
    made = answer(server, input_extra=extra)
    row = (f"{REPO}myproject\n<|file_sep|>a.py\n{extra[0]['text']}<|file_sep|>tmp\n{extra[1]['text']}<|file_sep|>filename\n"
           f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>")
    assert made["tokens_evaluated"] == len(ids(server, row))
    same = client_of(server).completions.create(model="tiny", prompt=row, max_tokens=8, temperature=0, logit_bias={"2": -100},
                                                extra_body={"add_special_tokens": False})
    assert same.choices[0].text == made["content"]
    assert answer(server, input_extra=[])["tokens_evaluated"] == answer(server)["tokens_evaluated"]


def test_other_files_where_there_are_no_marks_for_them(tmp_path):
    s = Bare(tmp_path, model=model_of(tmp_path, FAMILIES["deepseek"]))
    try:
        made = answer(s, input_extra=[{"filename": "a.py", "text": "x = 1"}, {"text": "y = 2\n"}])
        gap = len(ids(s, BEFORE)) + len(ids(s, AFTER)) + 3
        assert made["tokens_evaluated"] == gap + len(ids(s, "x = 1\ny = 2\n"))
    finally:
        s.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_what_ends_it(server, stream):
    """A stop string, a mark of the model, a line that is not indented enough, the end of a line when the time is up."""
    def ask(**more):
        if not stream:
            return answer(server, **more)
        told = events(server, **more)
        return {**told[-1], "content": "".join(e["content"] for e in told)}

    whole = ask()["content"]
    ended = ask(stop=[whole[2:4]])
    assert (ended["content"], ended["stop_type"], ended["stopping_word"]) == (whole[:whole.index(whole[2:4])], "word", whole[2:4])
    ended = ask(logit_bias={str(FIRST): 100})
    assert (ended["content"], ended["stop_type"], ended["stopping_word"]) == ("", "eos", "")
    for text, least, left in (("a\n    b\n  c", 4, "a\n    b\n  "), ("a\n\tb\n\nc", 1, "a\n\tb\n"), (" a\n  b", 2, " a\n  b"), ("a\nb", 0, "a\nb")):
        ended = ask(structured_outputs={"choice": [text]}, n_indent=least, n_predict=60)
        assert (ended["content"], ended["stop_type"]) == (left, "limit" if left != text else ended["stop_type"]), ended
        assert ended["has_new_line"] is True
    lines = "line\n" * 200
    ended = ask(structured_outputs={"choice": [lines]}, t_max_predict_ms=1, n_predict=-1)
    assert ended["stop_type"] == "limit" and lines.startswith(ended["content"]) and ended["content"].endswith("\n"), ended
    assert len(ended["content"]) < len(lines) and ended["truncated"] is False
    assert ask(structured_outputs={"choice": ["a\nb"]}, t_max_predict_ms=-1, n_predict=60)["content"] == "a\nb"


def test_what_an_editor_sends(server):
    """The two requests of llama.vim, as its source has them: the first one is only to have other files in the cache."""
    warm = {"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "a.py"}], "prompt": "", "n_predict": 0,
            "temperature": 0.0, "stream": False, "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
    status, headers, text = post(server, warm)
    assert (status, json.loads(text)) == (200, {}) and "t_max_prompt_ms" in headers["x-ignored-fields"]
    empty = answer(server, n_predict=0, return_tokens=True)
    assert (empty["content"], empty["tokens"], empty["tokens_predicted"], empty["stop_type"], empty["truncated"]) == ("", [], 0, "limit", False)
    figures = [f"{what}_{figure}" for what in ("prompt", "predicted") for figure in ("n", "ms", "per_token_ms", "per_second")]
    shown = ["content", *(f"timings/{f}" for f in figures), "truncated", "tokens_cached"]
    line = {"input_prefix": "def one():\n    return 1\n", "input_suffix": "\n\nprint(two())\n", "input_extra": warm["input_extra"], "prompt": "def two",
            "n_predict": 16, "n_indent": 0, "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
            "t_max_prompt_ms": 500, "t_max_predict_ms": 60000, "response_fields": shown}
    status, headers, text = post(server, line)
    made = json.loads(text)
    assert status == 200 and list(made) == shown and 1 <= made["timings/predicted_n"] <= 16 and made["truncated"] is False, made
    assert set(headers["x-ignored-fields"].split(", ")) == {"samplers", "cache_prompt", "t_max_prompt_ms"}
    # in a stream only the last event is whole, and only it is cut
    told = events(server, response_fields=["stop_type", "timings/cache_n", "nothing", "timings/prompt_n/deeper"])
    assert list(told[-1]) == ["stop_type", "timings/cache_n"] and "content" in told[0]


@pytest.mark.parametrize("change, field", [
    ({"input_prefix": None}, "input_prefix"), ({"input_suffix": None}, "input_suffix"), ({"input_prefix": [1]}, "input_prefix"), ({"input_suffix": 5}, "input_suffix"),
    ({"prompt": ["x"]}, "prompt"), ({"input_extra": {}}, "input_extra"), ({"input_extra": [{}]}, "input_extra"), ({"input_extra": [{"filename": "ok"}]}, "input_extra"),
    ({"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra"), ({"input_extra": [{"filename": 123, "text": 456}]}, "input_extra"),
    ({"response_fields": "content"}, "response_fields"), ({"n_indent": -1}, "n_indent"), ({"t_max_predict_ms": "1"}, "t_max_predict_ms"), ({"n_predict": -3}, "n_predict"),
    ({"n_cmpl": 2}, "n_cmpl"), ({"n": 2}, "n"), ({"mirostat": 1}, "mirostat"), ({"stop_token_ids": list(range(20))}, "stop_token_ids"),
    ({"input_extra": [{"text": "word " * 3000}]}, "input_tokens"), ({"model": "other"}, "model")])
def test_refused(server, change, field):
    status, _, text = infill(server, **change)
    assert status in (400, 404) and json.loads(text)["error"]["param"] == field, text


def test_fields_of_its_dialect(server):
    """As elsewhere: honoured, refused, or named as ignored."""
    for name, cases in DIALECT.items():
        for case in cases:
            status, headers, text = infill(server, **{name: case["value"]})
            what = (name, case, status, text)
            fate = "honoured" if name in OWN else case["fate"]
            assert status == (400 if fate == "refused" else 200), what
            if status == 200:
                assert (name in headers.get("x-ignored-fields", "").split(", ")) == (fate == "free"), what


def test_it_counts(server):
    def count():
        found = [line for line in server.metrics().splitlines() if line.startswith("evenkeel_http_requests_total{") and '/infill"' in line and '"200"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    before = count()
    answer(server)
    wait_for("it is counted", lambda: count() == before + 1, 60)


def test_a_model_without_marks(tmp_path):
    s = Bare(tmp_path, model=model_of(tmp_path, FAMILIES["qwen"][:2]))
    try:
        status, _, text = infill(s)
        error = json.loads(text)["error"]
        assert (status, error["param"]) == (400, "model") and "no tokens for filling in the middle" in error["message"]
    finally:
        s.stop()
