"""Protects: every sampling field that is accepted does what it says, alone and under load, in all forms of prompts and answers."""
import concurrent.futures
import json

import openai
import pytest

from conftest import get
from test_bad_input import post


@pytest.fixture(scope="module")
def client(shared):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{shared.port}/v1", api_key="none", max_retries=0)


def complete(client, **how):
    extra = {k: how.pop(k) for k in list(how) if k not in ("prompt", "n", "seed", "temperature", "max_tokens", "logprobs", "echo",
                                                          "logit_bias", "frequency_penalty", "presence_penalty", "stop", "stream")}
    return client.completions.create(model="tiny", **{"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, **how},
                                     extra_body={"return_token_ids": True, **extra})


def ids(answer, index=0):
    return answer.choices[index].token_ids


def test_penalties(client):
    few = {"allowed_token_ids": list(range(300, 308)), "max_tokens": 64, "ignore_eos": True}
    most = lambda tokens: max(tokens.count(t) for t in tokens)  # noqa: E731
    assert most(ids(complete(client, **few))) > 12
    assert most(ids(complete(client, **few, frequency_penalty=2))) <= 12  # 64 over 8 tokens, nearly even
    assert set(ids(complete(client, **{**few, "max_tokens": 8}, logit_bias={"300": 1}, presence_penalty=2))) > {300}
    # a large one of everything that has come: no token comes twice, none of the prompt comes at all
    never = ids(complete(client, max_tokens=60, ignore_eos=True, repetition_penalty=100))
    prompt = complete(client).choices[0].prompt_token_ids
    assert len(set(never)) == 60 and not set(never) & set(prompt)


def test_bias_and_lists(client):
    first = ids(complete(client, max_tokens=1))[0]
    assert ids(complete(client, max_tokens=1, logit_bias={str(first): -100}))[0] != first
    assert set(ids(complete(client, max_tokens=8, ignore_eos=True, logit_bias={"300": 100}))) == {300}
    assert set(ids(complete(client, max_tokens=8, temperature=1, seed=1, allowed_token_ids=[300, 301]))) <= {300, 301}
    text = complete(client).choices[0].text
    word = text.split()[1]
    assert word not in complete(client, bad_words=[word], max_tokens=8).choices[0].text.split()


def test_filters(client):
    greedy = ids(complete(client))
    for one in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}):
        assert ids(complete(client, temperature=1.5, seed=5, **one)) == greedy, one
    typical = ids(complete(client, temperature=1.5, seed=5, typical_p=0.3, ignore_eos=True))
    assert typical != ids(complete(client, temperature=1.5, seed=5, ignore_eos=True))


def test_stops(client):
    plain = ids(complete(client, max_tokens=40))
    stop = plain[5]
    at = plain.index(stop)
    short = complete(client, max_tokens=40, stop_token_ids=[stop])
    assert ids(short) == plain[:at + 1] and short.choices[0].finish_reason == "stop" and short.choices[0].stop_reason == stop
    with_it = complete(client, max_tokens=40, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert len(with_it.choices[0].text) > len(short.choices[0].text)
    later = ids(complete(client, max_tokens=40, stop_token_ids=[stop], min_tokens=at + 3))
    assert len(later) >= at + 3 and stop not in later[:at + 3 - 1]
    text = complete(client, max_tokens=40).choices[0].text
    word = text.split()[2]
    assert complete(client, max_tokens=40, stop=[word]).choices[0].text == text[:text.index(word)]
    assert complete(client, max_tokens=40, stop=[word], include_stop_str_in_output=True).choices[0].text == \
        text[:text.index(word) + len(word)]
    assert complete(client, max_tokens=40, stop=[word], min_tokens=30).choices[0].text.startswith(text[:text.index(word) + len(word)])


def test_nothing_left_is_a_clear_error(client):
    with pytest.raises(openai.BadRequestError, match="exclude them all"):
        complete(client, allowed_token_ids=[300], stop_token_ids=[300], min_tokens=4)


def test_prompts_in_all_forms(client):
    texts = ["Once upon a time", "The cat sat on"]
    alone = [complete(client, prompt=p) for p in texts]
    tokens = [a.choices[0].prompt_token_ids for a in alone]
    for prompt in (texts, tokens, [texts[0], tokens[1]]):
        both = complete(client, prompt=prompt)
        assert [c.index for c in both.choices] == [0, 1]
        assert [c.text for c in both.choices] == [a.choices[0].text for a in alone]
        assert both.usage.prompt_tokens == sum(map(len, tokens))
        assert both.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)
    assert complete(client, prompt=tokens[0]).choices[0].text == alone[0].choices[0].text
    assert complete(client, prompt=[texts[1]]).choices[0].text == alone[1].choices[0].text


def test_n(client):
    ask = dict(prompt="word " * 40, n=3, temperature=1.3, seed=11, max_tokens=12)
    whole = complete(client, **ask)
    assert [c.index for c in whole.choices] == [0, 1, 2] and len({c.text for c in whole.choices}) == 3
    # the first is what n = 1 gives, the others follow by seed
    for i, c in enumerate(whole.choices):
        assert complete(client, **{**ask, "n": 1, "seed": 11 + i}).choices[0].text == c.text
    prompt = len(whole.choices[0].prompt_token_ids)
    assert whole.usage.prompt_tokens == prompt
    got = ["", "", ""]
    finish = {}
    for chunk in complete(client, **ask, stream=True):
        for c in chunk.choices:
            assert c.index not in finish
            got[c.index] += c.text
            if c.finish_reason:
                finish[c.index] = c.finish_reason
    assert got == [c.text for c in whole.choices] and set(finish) == {0, 1, 2}


def test_n_shares_the_prompt(client, shared):
    def hits():
        page = get(shared.port, "/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_total{"))
    before = hits()
    answer = complete(client, prompt="n shares this prompt " * 20, n=4, temperature=1, seed=1, max_tokens=2)
    prompt = len(answer.choices[0].prompt_token_ids)
    assert hits() - before >= 3 * (prompt - 32)


def test_chat_n_and_logprobs(client):
    ask = dict(model="tiny", messages=[{"role": "user", "content": "Hello"}], n=2, temperature=1, seed=4, max_tokens=6, logprobs=True,
               top_logprobs=2)
    whole = client.chat.completions.create(**ask)
    assert [c.index for c in whole.choices] == [0, 1]
    assert all(len(c.logprobs.content) == 6 and len(c.logprobs.content[0].top_logprobs) == 2 for c in whole.choices)
    got = ["", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        for c in chunk.choices:
            got[c.index] += c.delta.content or ""
    assert got == [c.message.content for c in whole.choices]


def test_echo_and_scores(client):
    """What lm-eval-harness sends: the prompt's own log probabilities, in one forward."""
    prompt = "Once upon a time, there lived a bear. " * 6
    one = complete(client, prompt=prompt, max_tokens=1, echo=True, logprobs=1)
    lp, tokens = one.choices[0].logprobs, one.choices[0].prompt_token_ids
    assert len(lp.tokens) == len(tokens) + 1 == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
    assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None and all(v <= 0 for v in lp.token_logprobs[1:])
    assert one.choices[0].text.startswith(prompt)
    # the same numbers token by token: each prompt token as it is drawn after the ones before it
    for i in (1, 5, 20):
        step = complete(client, prompt=tokens[:i], max_tokens=1, logprobs=1, allowed_token_ids=[tokens[i]])
        assert abs(step.choices[0].logprobs.token_logprobs[0] - lp.token_logprobs[i]) < 1e-5
    nothing = complete(client, prompt=tokens, max_tokens=0, echo=True, logprobs=1)
    assert nothing.choices[0].logprobs.token_logprobs == lp.token_logprobs[:-1] and nothing.usage.completion_tokens == 0
    stream = list(complete(client, prompt=prompt, max_tokens=1, echo=True, stream=True))
    assert "".join(c.choices[0].text for c in stream) == one.choices[0].text
    ranked = complete(client, prompt=prompt, max_tokens=1, prompt_logprobs=2).choices[0].prompt_logprobs
    assert ranked[0] is None and len(ranked) == len(tokens)
    assert ranked[7][str(tokens[7])]["logprob"] == lp.token_logprobs[7]
    assert sorted(v["rank"] for v in ranked[7].values())[:2] == [1, 2]


def test_truncate(client):
    tokens = complete(client, prompt="one two three four five six").choices[0].prompt_token_ids
    cut = complete(client, prompt=tokens, truncate_prompt_tokens=3, max_tokens=4)
    assert cut.choices[0].prompt_token_ids == tokens[-3:] and cut.usage.prompt_tokens == 3
    assert ids(cut) == ids(complete(client, prompt=tokens[-3:], max_tokens=4))
    long = complete(client, prompt="word " * 5000, truncate_prompt_tokens=-1, max_tokens=4)
    assert long.usage.prompt_tokens == 2048 - 4


def test_continue_the_last_message(client):
    ask = dict(model="tiny", max_tokens=30, temperature=0)
    messages = [{"role": "user", "content": "What is a KV cache?"}]
    whole = client.chat.completions.create(messages=messages, **ask).choices[0].message.content
    begun = whole[:whole.index(" ", len(whole) // 2)]
    more = client.chat.completions.create(messages=messages + [{"role": "assistant", "content": begun}], **ask,
                                          extra_body={"continue_final_message": True, "add_generation_prompt": False, "echo": True})
    assert more.choices[0].message.content.startswith(begun)
    assert more.choices[0].message.content.startswith(whole[:len(begun) + 5])


def test_token_names(client):
    got = complete(client, logprobs=1, max_tokens=3, return_tokens_as_token_ids=True)
    assert got.choices[0].logprobs.tokens == [f"token_id:{t}" for t in ids(got)]


def test_the_same_seed_under_load(client):
    """Penalties and draws keep their state whatever else runs or is preempted."""
    ask = dict(max_tokens=48, temperature=1.2, frequency_penalty=0.7, repetition_penalty=1.2, top_p=0.95, ignore_eos=True)
    alone = {s: ids(complete(client, seed=s, **ask)) for s in range(6)}
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        jobs = [(s % 6, pool.submit(complete, client, seed=s % 6, **ask)) for s in range(48)]
        for seed, job in jobs:
            assert ids(job.result()) == alone[seed]


@pytest.mark.parametrize("change, param", [
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"logit_bias": {"5": 1e9}}, "logit_bias"),
    ({"frequency_penalty": 3}, "frequency_penalty"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"allowed_token_ids": []}, "allowed_token_ids"), ({"bad_words": [1]}, "bad_words"), ({"bad_words": ["x" * 200] * 256}, "bad_words"),
    ({"n": 129}, "n"), ({"prompt": ["a"] * 2049}, "prompt"), ({"max_tokens": 0}, "max_tokens"), ({"truncate_prompt_tokens": 0}, None),
    ({"typical_p": 2}, "typical_p"), ({"prompt_logprobs": 99}, "prompt_logprobs"),
])
def test_wrong_fields(shared, change, param):
    status, text = post(shared.port, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2, **change})
    assert status == 400, text
    assert param is None or json.loads(text)["error"]["param"] == param, text


@pytest.mark.long
def test_one_without_a_token_left_harms_nobody(client, shared):
    """Its next step is in flight when it ends: the others in it go on."""
    pid = shared.server()["pid"]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        good = [pool.submit(complete, client, max_tokens=200, ignore_eos=True) for _ in range(4)]
        bad = [pool.submit(complete, client, allowed_token_ids=[300], stop_token_ids=[300], min_tokens=4) for _ in range(20)]
        assert all(isinstance(job.exception(), openai.BadRequestError) for job in bad)
        assert all(len(ids(job.result())) == 200 for job in good)
    assert shared.server()["pid"] == pid
