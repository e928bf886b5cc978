"""Protects: an engine's process with a card. The card is a FAKE (tests/cuda: the plug-in's own code and kernels, compiled for the host, under a driver
for tests), so it is slow and says nothing of speed; that a text goes on over its end and a failed call is the same code. On a card what is computed
again comes by other kernels than the first time, so log probabilities agree up to rounding; in float32 that decides no token."""
import concurrent.futures
import os
import signal

import pytest

from bare import Bare
from conftest import metric, wait_for
from test_cuda import FAKE, environment
from test_engine_process import SCHEMA, engine, pauses, text_of, tokens

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")

ASKS = [
    {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True},
    {"prompt": "The little bear", "max_tokens": 12, "temperature": 0.8, "seed": 3, "presence_penalty": 0.7, "logprobs": 2, "ignore_eos": True},
    {"prompt": "One day", "max_tokens": 8, "temperature": 1, "seed": 11, "n": 2, "ignore_eos": True},
    {"prompt": "JSON:", "max_tokens": 14, "temperature": 0.9, "seed": 9, "structured_outputs": {"json": SCHEMA}},
]
FLAGS = ["--device", "cuda", "--dtype", "float32", "--max-num-seqs", 8, "--max-model-len", 256, "--max-num-batched-tokens", 64, "--kv-cache-memory-bytes", 16 << 20]


def serve(run, *flags, **more):
    return Bare(run, *FLAGS, *flags, env=environment(**more))


def said(server, ask):
    return [(text, finish, (logprobs or {}).get("token_logprobs")) for text, finish, logprobs in text_of(server, ask)]


def same(those, these):
    for one, other in zip(those, these, strict=True):
        assert [c[:2] for c in one] == [c[:2] for c in other]
        assert [c[2] for c in one] == [pytest.approx(c[2], abs=1e-3) if c[2] else None for c in other]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a server of one process says on this card."""
    s = serve(tmp_path_factory.mktemp("one"))
    try:
        with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
            return list(pool.map(lambda a: said(s, a), ASKS))
    finally:
        assert s.stop() == 0


def all_said(server, disturb):
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        jobs = [pool.submit(said, server, a) for a in ASKS]
        disturb()
        return [job.result() for job in jobs]


def test_texts_go_on_when_it_is_killed(tmp_path, undisturbed):
    s = serve(tmp_path, "--engine-process")
    try:
        assert "backend cuda: Fake card" in s.log() and "Sandbox: files by Landlock" in s.log() or os.environ.get("SECCOMP_OUTSIDE")
        with open(f"/proc/{s.process.pid}/maps") as f:
            assert s.process.pid != engine(s) and "libfake-cuda" in f.read()  # it asks the driver what there is, and holds nothing there

        def kill():
            before, until = pauses(s), tokens(s) + 8
            wait_for("tokens are made", lambda: tokens(s) >= until, 120, 0.01)
            os.kill(engine(s), signal.SIGKILL)
            wait_for("another engine", lambda: pauses(s) > before, 60)
        same(all_said(s, kill), undisturbed)
        assert metric(s.metrics(), "evenkeel_engine_poison_requests_total") == 0
    finally:
        assert s.stop() == 0


def test_texts_go_on_when_a_call_fails(tmp_path, undisturbed):
    """An illegal address (700) lasts until the process has ended: another engine goes on."""
    s = serve(tmp_path, "--engine-process", FAKE_CUDA_FAIL="cuGraphLaunch:9:700")  # in the next engine, too: fewer are left then
    try:
        same([said(s, ASKS[0])], undisturbed[:1])
        assert metric(s.metrics(), "evenkeel_engine_restarts_total", cause="device") >= 1, [line for line in s.metrics().splitlines() if "engine_restarts" in line] + s.log().splitlines()[-6:]
    finally:
        assert s.stop() == 0
