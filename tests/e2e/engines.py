"""What tests of engines in processes of their own share: what is asked, what is told of the engine, and what is awaited of it."""
import concurrent.futures
import contextlib
import json
import os
import threading
import urllib.request

from bare import Bare
from conftest import metric, wait_for

LOST = ("fault", "ended", "hang", "oom", "device")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}, "tags":
          {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4}}, "required": ["name", "age", "tags"]}
ASKS = [
    {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0, "ignore_eos": True},
    {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0.9, "seed": 7, "top_p": 0.9, "ignore_eos": True},
    {"prompt": "The little bear", "max_tokens": 250, "temperature": 0.8, "seed": 3, "presence_penalty": 0.7, "frequency_penalty": 0.3,
     "repetition_penalty": 1.2, "ignore_eos": True},
    {"prompt": "One day", "max_tokens": 200, "temperature": 1, "seed": 11, "n": 2, "ignore_eos": True},
    {"prompt": "A river", "max_tokens": 200, "temperature": 0, "logprobs": 4, "echo": True, "ignore_eos": True},
    {"prompt": "The house was", "max_tokens": 250, "temperature": 0.7, "seed": 5, "stop": [" and the", "zzz"], "min_tokens": 20},
    {"prompt": "JSON:", "max_tokens": 200, "temperature": 0.9, "seed": 9, "structured_outputs": {"json": SCHEMA}},
    {"prompt": "Once upon a time there was a small house by the river where " * 12, "max_tokens": 200, "temperature": 0.5, "seed": 2,
     "ignore_eos": True, "bad_words": ["the"]},
]
SHORT = [{**ask, "max_tokens": 80} for ask in (ASKS[0], ASKS[2], ASKS[3], ASKS[4])] + [ASKS[6]]  # greedy, sampled, n = 2, logprobs, a grammar


def text_of(server, ask, seconds=120):
    """What an answer says, of a stream put together."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", json.dumps({"model": "tiny", **ask}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        text = answer.read()
    if not ask.get("stream"):
        return [(c["text"], c["finish_reason"], c["logprobs"]) for c in json.loads(text)["choices"]]
    return said_by(text.decode())


def texts_of(server, asks):
    """All asked at once."""
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(lambda ask: text_of(server, ask), asks))


def said_by(text):
    """A stream put together."""
    said = {}
    for line in text.split("\n\n"):
        if line.startswith("data: {"):
            for c in json.loads(line[6:])["choices"]:
                one = said.setdefault(c["index"], ["", None, {}])
                one[0] += c["text"]
                one[1] = c["finish_reason"] or one[1]
                for key, value in (c["logprobs"] or {}).items():
                    one[2].setdefault(key, []).extend(value)
    assert text.count("data: [DONE]") == 1, text[-300:]
    return [(one[0], one[1], one[2] or None) for _, one in sorted(said.items())]


def serve(tmp_path, *flags, **more):
    return Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, *flags, **more)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(c) for c in f.read().split()]


def engine(server):
    """The pid of the engine's process: the launcher's child."""
    pids = [p for c in children(server.process.pid) for p in children(c)]
    return pids[0] if pids else None


def replaced(server):
    page = server.metrics()
    return sum(metric(page, "evenkeel_engine_restarts_total", cause=c) for c in LOST)


def pauses(server):
    """That are over: each engine that is lost is counted before there is another one."""
    return metric(server.metrics(), "evenkeel_engine_pause_seconds_count")


def tokens(server):
    return metric(server.metrics(), "vllm:generation_tokens_total")


def order(server, word):
    status, _, body = server.local(f"/v1/engine/{word}", "POST", "{}")[:3]
    assert status == 202, body


def engine_state(server):
    return json.loads(server.local("/v1/engine")[2])


def make_tokens(server, more, seconds=60, step=0.002):
    """Returns once so many more were made."""
    until = tokens(server) + more
    wait_for("tokens are made", lambda: tokens(server) >= until, seconds, step)


@contextlib.contextmanager
def another_engine(server, seconds=60):
    """What the block does ends the engine, or all processes of it; afterwards there is another one."""
    before = pauses(server)
    yield
    wait_for("another engine", lambda: pauses(server) > before, seconds)


def restart(server, seconds=60):
    """As an operator asks for it."""
    before = engine_state(server)["restarts"]["planned"]
    order(server, "restart")
    wait_for("another engine", lambda: engine_state(server)["restarts"]["planned"] == before + 1, seconds)


def end_engine(server, how, after_tokens):
    """Ends the engine once so many tokens more were made, and waits for the next one."""
    make_tokens(server, after_tokens)
    with another_engine(server):
        os.kill(engine(server), how)


def run_alone(server):
    """Returns once no request is suspected: each of them has run by itself."""
    wait_for("each request has run alone", lambda: metric(server.metrics(), "evenkeel_engine_suspect_requests") == 0, 60)


def all_free(server):
    wait_for("all blocks are back", lambda: metric(server.metrics(), "evenkeel_kv_blocks", state="used") == 0)


def check_counts(server, losses):
    """So many engines were lost under load, none of them by a request's fault, and nothing is kept of them."""
    page = server.metrics()
    assert replaced(server) == losses, server.log()
    assert metric(page, "evenkeel_engine_poison_requests_total") == 0 < metric(page, "evenkeel_engine_replayed_requests_total")
    all_free(server)


def texts_alone(folder, asks, *flags):
    """What a server of one process says to them."""
    server = Bare(folder, *flags)
    try:
        return texts_of(server, asks)
    finally:
        server.stop()


@contextlib.contextmanager
def always(server, undisturbed, asks=None, **more):
    """All is asked for, and each again once it is answered, until the block ends: each answer is that of an undisturbed server."""
    enough, asks = threading.Event(), asks or ASKS

    def ask_on(i):
        texts = [text_of(server, {**asks[i], **more})]
        while not enough.is_set():
            texts.append(text_of(server, {**asks[i], **more}))
        return texts

    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        jobs = [pool.submit(ask_on, i) for i in range(len(asks))]
        try:
            yield
        finally:
            enough.set()
        for i, job in enumerate(jobs):
            assert all(text == undisturbed[i] for text in job.result()), i
