"""Protects: the official OpenAI client works against the server, streaming and not, and gets the golden answers."""
import json

import openai
import pytest

from conftest import ROOT, get, metric, wait_for

EXPECTED = json.loads((ROOT / "tests/fixtures/expected.json").read_text())
CASES = {c["name"]: c for c in EXPECTED["cases"]}
SURE = [c for c in EXPECTED["cases"] if not c.get("too_long") and c["smallest_margin"] > 0.05]


@pytest.fixture(scope="module")
def client(shared):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{shared.port}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("name", [c["name"] for c in SURE if "messages" in c])
def test_chat_goldens(client, name):
    case = CASES[name]
    extra = {"extra_body": {"tools": case["tools"]}} if "tools" in case else {}
    answer = client.chat.completions.create(model="tiny", messages=case["messages"], temperature=0, max_tokens=160, **extra)
    assert answer.usage.prompt_tokens == len(case["prompt_token_ids"])
    message, reason, text = answer.choices[0].message, answer.choices[0].finish_reason, case["output_text"]
    if message.tool_calls:  # the model's template says how it writes them
        call = message.tool_calls[0].function
        message.content, reason = f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>', "stop"
    assert (message.content, reason) == (text, case["finish_reason"])
    assert answer.usage.completion_tokens == len(case["output_token_ids"])


@pytest.mark.parametrize("name", [c["name"] for c in SURE if "prompt" in c])
def test_completion_goldens(client, name):
    case = CASES[name]
    for prompt in (case["prompt"], case["prompt_token_ids"]):
        answer = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=160)
        assert answer.choices[0].text == case["output_text"]
        assert answer.choices[0].finish_reason == case["finish_reason"]


def test_chat_stream(client):
    case = CASES["kv-cache"]
    chunks = list(client.chat.completions.create(model="tiny", messages=case["messages"], temperature=0, max_tokens=160,
                                                 stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == case["output_text"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(case["output_token_ids"])
    assert len({c.id for c in chunks}) == 1 and all(c.object == "chat.completion.chunk" for c in chunks)


def test_unicode_never_splits_in_a_stream(client):
    ask = dict(model="tiny", messages=CASES["unicode"]["messages"], temperature=0, max_tokens=160)
    whole = client.chat.completions.create(**ask).choices[0].message.content
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(stream=True, **ask) if c.choices]
    assert "".join(pieces) == whole and not any("\ufffd" in p for p in pieces)


def test_stop_strings(client):
    case = CASES["kv-cache"]
    word = "sequence"
    assert word in case["output_text"]
    for streaming in (False, True):
        answer = client.chat.completions.create(model="tiny", messages=case["messages"], temperature=0, max_tokens=160,
                                                stop=[word], stream=streaming)
        if streaming:
            chunks = [c.choices[0] for c in answer if c.choices]
            text, finish = "".join(c.delta.content or "" for c in chunks), chunks[-1].finish_reason
        else:
            text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert text == case["output_text"].split(word)[0] and finish == "stop"


def test_seed_and_sampling(client):
    ask = dict(model="tiny", prompt="Once upon a time", max_tokens=40, temperature=1.2, top_p=0.95)
    one, two, other = (client.completions.create(seed=s, **ask).choices[0].text for s in (7, 7, 8))
    assert one == two and one != other


def test_logprobs(client):
    case = CASES["completion"]
    answer = client.completions.create(model="tiny", prompt=case["prompt"], temperature=0, max_tokens=3, logprobs=2)
    got = answer.choices[0].logprobs
    assert len(got.tokens) == 3 and all(p <= 0 for p in got.token_logprobs) and len(got.top_logprobs[0]) >= 2
    chat = client.chat.completions.create(model="tiny", messages=CASES["kv-cache"]["messages"], temperature=0, max_tokens=3,
                                          logprobs=True, top_logprobs=2)
    assert [len(c.top_logprobs) for c in chat.choices[0].logprobs.content] == [2, 2, 2]


def test_models_and_health(client, shared):
    models = client.models.list().data
    assert [m.id for m in models] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    for path in ("/health", "/livez", "/readyz", "/version", "/metrics"):
        assert get(shared.port, path)[0] == 200, path


def test_a_closed_client_frees_its_blocks(client, shared):
    stream = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=900, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_for("nothing runs and no block is used", lambda: metric(shared.metrics(), "vllm:num_requests_running") == 0
             and metric(shared.metrics(), "evenkeel_kv_blocks", state="used") == 0, 5)
