"""Protects: an engine's process may end at any moment, and no client notices more than a pause: every text is the one of an undisturbed
server, whatever was asked for; the budget, a hang and a start that fails are told; the server's end takes the engine along."""
import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import threading
import urllib.request

import pytest

from bare import Bare
from conftest import MODEL, metric, wait_for

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


def text_of(server, ask):
    """What an answer says, of a stream put together."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", json.dumps({"model": "tiny", **ask}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
    if not ask.get("stream"):
        return [(c["text"], c["finish_reason"], c["logprobs"]) for c in json.loads(text)["choices"]]
    said = {}
    for line in text.decode().split("\n\n"):
        if line.startswith("data: {"):
            for c in json.loads(line[6:])["choices"]:
                one = said.setdefault(c["index"], ["", None, {}])
                one[0] += c["text"]
                one[1] = c["finish_reason"] or one[1]
                for key, value in (c["logprobs"] or {}).items():
                    one[2].setdefault(key, []).extend(value)
    assert text.decode().count("data: [DONE]") == 1, text[-300:]
    return [(one[0], one[1], one[2] or None) for _, one in sorted(said.items())]


def serve(tmp_path, *flags):
    return Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, *flags)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(c) for c in f.read().split()]


def engine(server):
    """The pid of the engine's process: the launcher's child."""
    pids = [p for c in children(server.process.pid) for p in children(c)]
    return pids[0] if pids else None


def replaced(server):
    page = server.metrics()
    return sum(metric(page, "evenkeel_engine_restarts_total", cause=c) for c in ("fault", "ended"))


def tokens(server):
    return metric(server.metrics(), "vllm:generation_tokens_total")


def end_engine(server, how, after_tokens):
    """Ends the engine once so many tokens more were made, and waits for the next one."""
    before, until = replaced(server), tokens(server) + after_tokens
    wait_for("tokens are made", lambda: tokens(server) >= until, 60, 0.002)
    os.kill(engine(server), how)
    wait_for("another engine", lambda: replaced(server) > before, 60)


@contextlib.contextmanager
def always(server, undisturbed, **more):
    """All is asked for, and each again once it is answered, until the block ends: each answer is that of an undisturbed server."""
    enough = threading.Event()

    def ask_on(i):
        texts = [text_of(server, {**ASKS[i], **more})]
        while not enough.is_set():
            texts.append(text_of(server, {**ASKS[i], **more}))
        return texts

    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        jobs = [pool.submit(ask_on, i) for i in range(len(ASKS))]
        try:
            yield
        finally:
            enough.set()
        for i, job in enumerate(jobs):
            assert all(text == undisturbed[i] for text in job.result()), i


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a server of one process says."""
    s = Bare(tmp_path_factory.mktemp("one"), "--max-num-seqs", 8, "--max-model-len", 1024)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
            yield list(pool.map(lambda ask: text_of(s, ask), ASKS))
    finally:
        s.stop()


@pytest.mark.parametrize("how, stream", [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGSEGV, True)])
def test_texts_go_on(tmp_path, undisturbed, how, stream):
    """Ended four times while all of it runs, again and again: every answer is that of an undisturbed server."""
    draw = random.Random(20261123)
    s = serve(tmp_path)
    try:
        first = engine(s)
        with always(s, undisturbed, stream=stream):
            for _ in range(4):
                end_engine(s, how, draw.randint(20, 250))
        page = s.metrics()
        assert replaced(s) == 4 == metric(page, "evenkeel_engine_restarts_total", cause="ended" if how == signal.SIGKILL else "fault")
        assert metric(page, "evenkeel_engine_replayed_requests_total") >= 1 and metric(page, "evenkeel_engine_pause_seconds_total") > 0
        assert metric(page, "vllm:num_preemptions_total") == 0 == metric(page, "evenkeel_engine_suspect_requests")
        assert engine(s) != first and f"signal {int(how)}" in s.log()
    finally:
        assert s.stop() == 0


def test_small_pool(tmp_path, undisturbed):
    """With preemptions and a host tier, whose content goes with the engine."""
    s = serve(tmp_path, "--num-gpu-blocks-override", 72, "--swap-space", "0.01")
    try:
        with always(s, undisturbed):
            for n in (150, 30):
                end_engine(s, signal.SIGKILL, n)
        wait_for("all blocks are back", lambda: metric(s.metrics(), "vllm:num_requests_running") == 0)
    finally:
        assert s.stop() == 0


def test_a_hang(tmp_path, undisturbed):
    """It stands still: the step's deadline passes, and another one takes over."""
    s = serve(tmp_path, "--step-deadline", 2)
    try:
        stopped = engine(s)
        os.kill(stopped, signal.SIGSTOP)
        assert text_of(s, ASKS[0]) == undisturbed[0]
        assert engine(s) != stopped and not os.path.exists(f"/proc/{stopped}")
        assert "stopped by a signal" in s.log()
    finally:
        assert s.stop() == 0


def test_idle(tmp_path, undisturbed):
    """It ended while nobody asked for anything: another one comes, at once or with the next request."""
    s = serve(tmp_path)
    try:
        assert text_of(s, ASKS[0]) == undisturbed[0]
        os.kill(engine(s), signal.SIGKILL)
        assert text_of(s, ASKS[0]) == undisturbed[0]
        assert replaced(s) == 1
        os.kill(engine(s), signal.SIGKILL)
        wait_for("another engine", lambda: replaced(s) == 2)
    finally:
        assert s.stop() == 0


def test_budget(tmp_path):
    """The second time is one too many: it ends as a server without such a process does, and says why."""
    s = serve(tmp_path, "--engine-restarts", 1)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(s.ask, "/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[0], "max_tokens": 1000}), None, 60)
            end_engine(s, signal.SIGKILL, 20)
            wait_for("tokens are made", lambda: tokens(s) > 60, 60, 0.002)
            os.kill(engine(s), signal.SIGKILL)
            assert job.result()[0] in (0, 200, 500)  # it may have been quicker
        s.process.wait(20)
        assert s.process.returncode == 76 and json.loads((tmp_path / "exit.json").read_text())["code"] == 76
    finally:
        s.stop()


def test_without_its_launcher(tmp_path):
    """Nobody could start another engine: the server ends as one without such a process, and is started again by whoever watches it."""
    s = serve(tmp_path)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(s.ask, "/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[0], "max_tokens": 1000}), None, 60)
            wait_for("tokens are made", lambda: tokens(s) > 20, 60, 0.002)
            os.kill(children(s.process.pid)[0], signal.SIGKILL)
            assert job.result()[0] in (0, 200, 500)  # it may have been quicker
        s.process.wait(20)
        assert s.process.returncode == 76
    finally:
        s.stop()


def test_another_model_is_not_taken(tmp_path):
    """The files were replaced while it served: texts must not go on with other weights."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    s = Bare(tmp_path, "--engine-process", model=model)
    try:
        weights = next(model.glob("*.safetensors"))
        weights.rename(model / "old")
        shutil.copy(model / "old", weights)
        os.kill(engine(s), signal.SIGKILL)
        s.process.wait(20)
        assert s.process.returncode == 76 and "its files are not those that the server has read" in s.log(), s.log()
    finally:
        s.stop()


def test_it_ends_with_its_server(tmp_path):
    s = serve(tmp_path)
    pids = [*children(s.process.pid), engine(s)]
    s.process.kill()
    s.process.wait()
    wait_for("all are gone", lambda: not any(os.path.exists(f"/proc/{p}") for p in pids))


def test_a_start_that_fails(tmp_path):
    """Where it cannot be had that is said."""
    s = Bare(tmp_path, "--engine-process", "--tensor-parallel-size", 2, ready=False)
    s.process.wait(20)
    assert s.process.returncode == 78 and "--engine-process is for one device" in s.log()


def test_limits_move(tmp_path, undisturbed):
    """The pool is made smaller and larger, and the engine that comes has as many blocks."""
    s = serve(tmp_path)
    try:
        for blocks in (200, 400):
            assert s.local("/v1/runtime_config", "PATCH", json.dumps({"num_kv_blocks": blocks}))[0] == 200
            before = replaced(s)
            os.kill(engine(s), signal.SIGKILL)
            assert text_of(s, ASKS[0]) == undisturbed[0]
            assert replaced(s) == before + 1
    finally:
        assert s.stop() == 0
