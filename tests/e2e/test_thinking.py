"""Protects: thinking_token_budget ends the thinking after so many tokens with the model's own mark, in company and over the end of the engine as
alone; it is refused where the server cannot tell thinking from the answer. The embedded model never ends its thinking by itself."""
import concurrent.futures
import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest

from bare import Bare
from engines import engine, replaced


def post(server, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps({"model": "tiny", **body}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def chat(server, budget, field="thinking_token_budget", **more):
    """(tokens, thinking, answer) of each choice."""
    status, text = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me of the river."}], "return_token_ids": True,
                                                         "ignore_eos": True, field: budget, **more})
    assert status == 200, text
    return [(c["token_ids"], c["message"]["reasoning"], c["message"]["content"]) for c in json.loads(text)["choices"]]


def tokens_of(server, text):
    return json.loads(post(server, "/tokenize", {"prompt": text, "add_special_tokens": False})[1])["tokens"]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    server = Bare(tmp_path_factory.mktemp("thinker"), "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, "--reasoning-parser", "deepseek_r1")
    yield server
    server.stop()


@pytest.mark.parametrize("budget", [0, 1, 5, 33])
def test_it_ends_after_so_many_tokens(thinker, budget):
    mark = tokens_of(thinker, "</think>")
    assert 0 < len(mark) <= 16
    for more in ({"temperature": 0}, {"temperature": 0.9, "seed": 3, "n": 2}, {"temperature": 0.7, "seed": 1, "logprobs": True, "repetition_penalty": 1.3}):
        free = chat(thinker, -1, max_tokens=80, **more)
        for (ids, thought, answer), (whole, _, nothing) in zip(chat(thinker, budget, max_tokens=80, **more), free):
            assert ids[:budget] == whole[:budget] and nothing is None
            assert ids[budget:budget + len(mark)] == mark and len(ids) == 80
            assert "</think>" not in (thought or "") + answer and bool(thought) == bool(budget) and answer
    assert [c[0] for c in chat(thinker, budget, "reasoning_budget", max_tokens=80, temperature=0)] == [c[0] for c in chat(thinker, budget, max_tokens=80, temperature=0)]


def test_in_a_stream_and_as_messages(thinker):
    want = chat(thinker, 9, max_tokens=60, temperature=0)[0]
    status, text = post(thinker, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me of the river."}], "stream": True, "ignore_eos": True,
                                                          "max_tokens": 60, "temperature": 0, "thinking_token_budget": 9})
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in text.split("\n") if line.startswith("data: {")]
    assert status == 200 and "".join(d.get("reasoning") or "" for d in deltas) == want[1] and "".join(d.get("content") or "" for d in deltas) == want[2]
    status, text = post(thinker, "/v1/messages", {"messages": [{"role": "user", "content": "Tell me of the river."}], "max_tokens": 60, "temperature": 0,
                                                  "thinking": {"type": "enabled", "budget_tokens": 9}})
    kinds = [c["type"] for c in json.loads(text)["content"]]
    assert status == 200 and kinds[:1] == ["thinking"] and json.loads(text)["content"][0]["thinking"] == want[1], text


def test_in_company_and_over_the_end_of_the_engine(thinker):
    asks = [dict(budget=b, max_tokens=300, temperature=0.9, seed=b, n=1 + b % 2) for b in (0, 7, 40, 90, 150, 151, 220, 299)]
    alone = [chat(thinker, **a) for a in asks]
    before = replaced(thinker)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        said = [pool.submit(chat, thinker, **a) for a in asks]
        for _ in range(2):
            time.sleep(0.15)
            pid = engine(thinker)
            if pid:
                os.kill(pid, signal.SIGKILL)
        said = [s.result() for s in said]
    assert said == alone and replaced(thinker) > before


def test_it_is_refused_where_it_could_not_be_kept(thinker, tmp_path):
    for path, body, field in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "thinking_token_budget": -2}, "thinking_token_budget"),
                              ("/v1/completions", {"prompt": "a", "thinking_token_budget": 5}, "thinking_token_budget")):
        status, text = post(thinker, path, body)
        assert status == 400 and field in json.loads(text)["error"]["message"], text
    assert post(thinker, "/v1/completions", {"prompt": "a", "max_tokens": 1, "thinking_token_budget": -1})[0] == 200
    server = Bare(tmp_path, "--max-model-len", 256)
    try:
        status, text = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "thinking_token_budget": 5})
        assert status == 400 and "--reasoning-parser" in text
        status, text = post(server, "/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "thinking": {"type": "enabled", "budget_tokens": 1024}})
        assert status == 200, "clients send it whatever the model"
    finally:
        server.stop()
