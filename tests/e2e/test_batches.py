"""Protects: requests of many inputs run in windows. As many as OpenAI's API takes are taken, neither the queue nor a key's limit refuses
them, what comes is what each input gives alone, a client that leaves takes the rest along, and a drain waits for what was begun."""
import concurrent.futures
import json
import re
import socket
import threading
import time

import openai
import pytest

from bare import Bare
from conftest import metric, wait_for

WORDS = "one bear house river night song stone happy little old green far small bird king".split()


def prompts(count):
    return [" ".join(WORDS[(i * k + k) % len(WORDS)] for k in range(1, 4)) + f" {i}" for i in range(count)]


def client(server, key="none"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0, timeout=120)


def inside(server):
    """Requests in the engine and its queue, now."""
    page = server.metrics()
    return metric(page, "vllm:num_requests_running") + metric(page, "vllm:num_requests_waiting")


def finished(server):
    return sum(float(line.split()[-1]) for line in server.metrics().splitlines() if line.startswith("vllm:request_success_total{"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Room for four that run and four that wait; a key that may have two requests open."""
    run = tmp_path_factory.mktemp("small")
    (run / "keys").write_text("all sk-all\ntwo sk-two max-concurrency=2\n")
    (run / "keys").chmod(0o600)
    s = Bare(run, "--api-key-file", run / "keys", "--max-num-seqs", 4, "--max-num-queued-reqs", 4, "--enable-log-requests")
    yield s
    s.stop()


@pytest.mark.parametrize("count", [129, 1000, pytest.param(2048, marks=pytest.mark.long)])
def test_embeddings(small, count):
    texts = prompts(count)
    got = client(small, "sk-all").embeddings.create(model="tiny", input=texts)
    assert [d.index for d in got.data] == list(range(count))
    for i in (0, 4, 127, 128, count - 1):
        alone = client(small, "sk-all").embeddings.create(model="tiny", input=texts[i]).data[0].embedding
        assert got.data[i].embedding == alone, i
    tokens = got.usage.prompt_tokens
    assert tokens == sum(len(json.loads(small.ask("/tokenize", "POST", json.dumps({"prompt": t}), {"Authorization": "Bearer sk-all"})[2])["tokens"])
                         for t in texts[:20]) + tokens_of(small, texts[20:])


def tokens_of(small, texts):
    return sum(client(small, "sk-all").embeddings.create(model="tiny", input=texts[i:i + 200]).usage.prompt_tokens for i in range(0, len(texts), 200))


def test_too_many(small):
    for path, field in (("/v1/embeddings", "input"), ("/v1/completions", "prompt")):
        status, _, text = small.ask(path, "POST", json.dumps({"model": "tiny", field: ["a"] * 2049}), {"Authorization": "Bearer sk-all"})
        assert status == 400 and json.loads(text)["error"]["param"] == field and "2048" in text.decode()


@pytest.mark.parametrize("how", [{}, {"n": 2, "temperature": 1, "seed": 5}, {"echo": True, "logprobs": 2}])
def test_completions(small, how):
    """A queue with room for four took none of it at once."""
    texts = prompts(150)
    how = {"model": "tiny", "max_tokens": 4, "temperature": 0, **how}
    got = client(small, "sk-all").completions.create(prompt=texts, **how)
    n = how.get("n", 1)
    assert [c.index for c in got.choices] == list(range(150 * n))
    for i in (0, 7, 149):
        alone = client(small, "sk-all").completions.create(prompt=texts[i], **how)
        assert [c.text for c in alone.choices] == [c.text for c in got.choices[i * n:(i + 1) * n]]
        assert alone.choices[0].logprobs == got.choices[i * n].logprobs
    assert got.usage.completion_tokens <= 150 * n * 4


def test_stream(small):
    texts = prompts(300)
    whole = client(small, "sk-all").completions.create(model="tiny", prompt=texts, max_tokens=3, temperature=0)
    stream = client(small, "sk-all").completions.create(model="tiny", prompt=texts, max_tokens=3, temperature=0, stream=True,
                                                        stream_options={"include_usage": True, "continuous_usage_stats": True})
    said, ends = [""] * 300, [None] * 300
    for chunk in stream:
        for c in chunk.choices:
            said[c.index] += c.text
            ends[c.index] = c.finish_reason or ends[c.index]
        assert chunk.usage.total_tokens == chunk.usage.prompt_tokens + chunk.usage.completion_tokens
    assert said == [c.text for c in whole.choices] and ends == [c.finish_reason for c in whole.choices]
    assert chunk.usage == whole.usage or chunk.usage.total_tokens == whole.usage.total_tokens


def most_of(server, key, figure):
    """The most that the figure was while a batch of the key ran. Where 1,200 tokens are made faster than a page is read, more are asked for."""
    most = 0
    for length in 30, 300, 1500:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(lambda: client(server, key).completions.create(model="tiny", prompt=prompts(40), max_tokens=length, temperature=0,
                                                                             extra_body={"ignore_eos": True}))
            while not job.done():
                most = max(most, figure())
            assert len(job.result().choices) == 40
        if most >= 2:
            break
    return most


def test_key_limit(small):
    """A key with two requests at once: its batch has two answers in the engine at once, and is not refused."""
    assert most_of(small, "sk-two", lambda: inside(small)) == 2


def test_others_fill_the_queue(small):
    """What is in the middle when the queue is full waits for room; nothing of it is refused."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        batches = [pool.submit(lambda: client(small, "sk-all").completions.create(model="tiny", prompt=prompts(60), max_tokens=6, temperature=0))
                   for _ in range(3)]
        refused = 0
        while not all(b.done() for b in batches):
            try:
                client(small, "sk-all").completions.create(model="tiny", prompt="Once", max_tokens=2)
            except openai.RateLimitError:
                refused += 1
        done = [b.exception() for b in batches]
        assert all(e is None or isinstance(e, openai.RateLimitError) for e in done) and None in done, done
        answers = [[c.text for c in b.result().choices] for b in batches if b.exception() is None]
        assert all(a == answers[0] for a in answers)


def test_client_leaves(small):
    before = finished(small)
    body = json.dumps({"model": "tiny", "prompt": prompts(2048), "max_tokens": 20, "ignore_eos": True}).encode()
    s = socket.create_connection(("127.0.0.1", small.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-all\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("some of it has run", lambda: finished(small) > before + 20)
    s.close()
    wait_for("it is gone", lambda: inside(small) == 0, 60)
    time.sleep(1)  # who was done is counted by the thread that answers, a little later
    assert inside(small) == 0 and finished(small) < before + 1500


def crowd(server, key, ended):
    """One of many that come again as soon as they are refused: all together some two thousand times a second."""
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 1900, "ignore_eos": True})
    while not ended.is_set():
        server.ask("/v1/completions", "POST", body, {"Authorization": f"Bearer {key}"})
        ended.wait(0.008)


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
def test_gives_up(tmp_path, stream):
    """A batch that the queue has no room for, and of which nothing runs, ends after the deadline of the queue."""
    (tmp_path / "keys").write_text("all sk-all queue-share=1\ntwo sk-two max-concurrency=2\n")
    (tmp_path / "keys").chmod(0o600)
    s = Bare(tmp_path, "--api-key-file", tmp_path / "keys", "--max-num-seqs", 2, "--max-num-queued-reqs", 2, "--queue-deadline", 1)
    ended, many = threading.Event(), []
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            def batch():  # of some minutes, had it the server for itself
                got = client(s, "sk-two").completions.create(model="tiny", prompt=prompts(2000), max_tokens=400, temperature=0, stream=stream,
                                                             extra_body={"ignore_eos": True})
                return [c for c in got] if stream else got
            job = pool.submit(batch)
            wait_for("some of it has run", lambda: finished(s) > 4)
            many = [threading.Thread(target=crowd, args=(s, "sk-all", ended)) for _ in range(16)]
            for t in many:
                t.start()
            wait_for("it has ended", job.done, 60)
            error = job.exception()
            assert isinstance(error, openai.APIError) and re.search("busy|longer than the deadline|deadline of the queue", str(error)), error
            assert stream or isinstance(error, openai.RateLimitError) and "retry-after" in error.response.headers
    finally:
        ended.set()
        for t in many:
            t.join()
        s.stop()


@pytest.mark.long
def test_key_share(tmp_path):
    """A batch takes no more of the queue than its key's share, goes on nevertheless, and leaves room for others."""
    (tmp_path / "keys").write_text("all sk-all\nquarter sk-quarter queue-share=0.25\n")
    (tmp_path / "keys").chmod(0o600)
    s = Bare(tmp_path, "--api-key-file", tmp_path / "keys", "--max-num-seqs", 1, "--max-num-queued-reqs", 16)
    try:
        assert 2 <= most_of(s, "sk-quarter", lambda: metric(s.metrics(), "vllm:num_requests_waiting")) <= 5
        assert 2 <= most_of(s, "sk-quarter", lambda: metric(s.metrics(), "evenkeel_key_waiting_requests", key="quarter")) <= 5
        assert metric(s.metrics(), "evenkeel_key_waiting_requests", key="quarter") == 0
    finally:
        s.stop()


def test_times_of_later_ones(small):
    """What waited for its turn in a batch has not waited for the server: times begin when it is handed over."""
    def ttft(what):
        return metric(small.metrics(), f"vllm:time_to_first_token_seconds_{what}", model_name="tiny")
    count, total = ttft("count"), ttft("sum")
    began = time.monotonic()
    client(small, "sk-two").completions.create(model="tiny", prompt=prompts(60), max_tokens=30, temperature=0, extra_body={"ignore_eos": True})
    took = time.monotonic() - began
    assert ttft("count") == count + 60 and (ttft("sum") - total) / 60 < took / 6


def test_drain_waits(tmp_path):
    s = Bare(tmp_path, "--max-num-seqs", 4)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(lambda: client(s).completions.create(model="tiny", prompt=prompts(400), max_tokens=8, temperature=0))
            wait_for("some of it has run", lambda: finished(s) > 10)
            s.process.terminate()
            assert len(job.result().choices) == 400
        s.process.wait(60)
        assert s.process.returncode == 0
    finally:
        s.stop()
