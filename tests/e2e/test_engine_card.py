"""Protects: an engine's process with a card. The card is a FAKE (tests/cuda: the plug-in's own code and kernels, compiled for the host, under a driver
for tests), so it is slow and says nothing of speed; that a text goes on over its end and a failed call is the same code. On a card what is computed
again comes by other kernels than the first time, so log probabilities agree up to rounding; in float32 that decides no token."""
import concurrent.futures
import json
import os
import shutil
import signal

import pytest

from bare import Bare
from conftest import metric, wait_for
from engines import SCHEMA, another_engine, engine, engine_state, make_tokens, order, restart, text_of
from test_cuda import FAKE, environment
from test_warm_restart import host_cached

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
    return [(text, finish, (logprobs or {}).get("token_logprobs")) for text, finish, logprobs in text_of(server, ask, 600)]  # a simulated card is slow


def same(those, these):
    for one, other in zip(those, these, strict=True):
        assert [c[:2] for c in one] == [c[:2] for c in other]
        assert [c[2] for c in one] == [pytest.approx(c[2], abs=1e-3) if c[2] else None for c in other]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a server of one process says on this card."""
    s = serve(tmp_path_factory.mktemp("one"))
    try:
        return all_said(s, ASKS)
    finally:
        assert s.stop() == 0


def all_said(server, asks, disturb=lambda: None):
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        jobs = [pool.submit(said, server, a) for a in asks]
        disturb()
        return [job.result() for job in jobs]


@pytest.mark.long
def test_texts_go_on_when_it_is_killed(tmp_path, undisturbed):
    s = serve(tmp_path, "--engine-process")
    try:
        assert "backend cuda: Fake card" in s.log() and "Sandbox: files by Landlock" in s.log() or os.environ.get("SECCOMP_OUTSIDE")
        with open(f"/proc/{s.process.pid}/maps") as f:
            assert s.process.pid != engine(s) and "libfake-cuda" in f.read()  # it asks the driver what there is, and holds nothing there

        def kill():
            make_tokens(s, 8, 120, 0.01)
            with another_engine(s):
                os.kill(engine(s), signal.SIGKILL)
        same(all_said(s, ASKS, kill), undisturbed)
        assert metric(s.metrics(), "evenkeel_engine_poison_requests_total") == 0
    finally:
        assert s.stop() == 0


def mapped(pid, name):
    """The inodes of libraries of that name in the process."""
    with open(f"/proc/{pid}/maps") as f:
        return {int(line.split()[4]) for line in f if name in line and "(deleted)" not in line}


@pytest.mark.long
def test_another_driver(tmp_path, undisturbed):
    """CUDA's libraries are replaced by an upgrade while texts are made: a restart of the engine alone brings them into use, and no text is lost."""
    driver, newer = tmp_path / "libcuda.so.1", tmp_path / "newer"
    shutil.copy(FAKE, driver)
    s = serve(tmp_path, "--engine-process", EVENKEEL_CUDA_DRIVER=str(driver), EVENKEEL_NCCL=str(driver))
    try:
        before = driver.stat().st_ino
        assert mapped(engine(s), driver.name) == {before}

        def upgrade():
            make_tokens(s, 8, 120, 0.01)
            shutil.copy(FAKE, newer)
            newer.rename(driver)
            restart(s)
        same(all_said(s, ASKS, upgrade), undisturbed)
        assert mapped(engine(s), driver.name) == {driver.stat().st_ino} != {before}
    finally:
        assert s.stop() == 0


@pytest.mark.long
def test_texts_go_on_when_a_call_fails(tmp_path, undisturbed):
    """An illegal address (700) lasts until the process has ended: another engine goes on."""
    s = serve(tmp_path, "--engine-process", FAKE_CUDA_FAIL="cuGraphLaunch:9:700")  # in the next engine, too: fewer are left then
    try:
        same([said(s, ASKS[0])], undisturbed[:1])
        assert metric(s.metrics(), "evenkeel_engine_restarts_total", cause="device") >= 1, [line for line in s.metrics().splitlines() if "engine_restarts" in line] + s.log().splitlines()[-6:]
    finally:
        assert s.stop() == 0


RANKS = [("--tensor-parallel-size", 2), ("--pipeline-parallel-size", 2)]
TWO = {"FAKE_CUDA_CARDS": "8,8"}
SHORT = [
    {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True},
    {"prompt": "One day", "max_tokens": 7, "temperature": 1, "seed": 11, "n": 2, "presence_penalty": 0.7, "ignore_eos": True},
    {"prompt": "JSON:", "max_tokens": 8, "temperature": 0.9, "seed": 9, "structured_outputs": {"json": SCHEMA}},
]


@pytest.fixture(scope="module", params=RANKS, ids=["shares", "stages"])
def group(request, tmp_path_factory):
    """How it is divided between two cards, and what a server of one process says that is divided so."""
    s = serve(tmp_path_factory.mktemp("group"), *request.param, **TWO)
    try:
        return request.param, all_said(s, SHORT)
    finally:
        assert s.stop() == 0


@pytest.mark.long
def test_ranks_begin_again(tmp_path, group):
    """Of two cards: they end and begin as a whole."""
    divided, undisturbed = group
    s = serve(tmp_path, *divided, "--engine-process", **TWO)

    def kill():
        for how in (signal.SIGKILL, signal.SIGSEGV):
            make_tokens(s, 4, 120, 0.01)
            with another_engine(s):
                os.kill(engine(s), how)
    try:
        same(all_said(s, SHORT, kill), undisturbed)
        page = s.metrics()
        assert metric(page, "evenkeel_engine_restarts_total", cause="ended") == 2 and metric(page, "evenkeel_engine_poison_requests_total") == 0
        pools = [metric(page, "evenkeel_rank_bytes", rank=str(r), device=f"cuda:{r}", item="kv") for r in range(2)]
        assert min(pools) > 0 and sum(pools) == metric(page, "evenkeel_device_bytes", item="kv")
    finally:
        assert s.stop() == 0


@pytest.mark.long
def test_one_card_of_two_fails(tmp_path, group):
    """The other one does not go on without it, and both begin again."""
    divided, undisturbed = group
    s = serve(tmp_path, *divided, "--engine-process", **TWO, FAKE_CUDA_FAIL="cuGraphLaunch@1:5:700")
    try:
        same([said(s, SHORT[0])], undisturbed[:1])
        assert metric(s.metrics(), "evenkeel_engine_restarts_total", cause="device") >= 1, s.log().splitlines()[-6:]
        assert metric(s.metrics(), "evenkeel_engine_poison_requests_total") == 0
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("divided", [(), *RANKS], ids=["alone", "shares", "stages"])
def test_host_tier_outlives_the_engine(tmp_path, divided):
    """It lies in memory of the server's that each engine pins: what was in it is found by the next one, but after release."""
    flags = ["--device", "cuda", "--dtype", "float32", "--max-num-seqs", 2, "--max-model-len", 32, "--max-num-batched-tokens", 32, "--block-size", 8]
    s = Bare(tmp_path, *flags, *divided, "--engine-process", "--enable-prompt-tokens-details", "--num-gpu-blocks-override", 5, "--kv-offloading-size", 0.05,
             env=environment(**TWO))

    def ask(n):
        body = {"model": "tiny", "prompt": f"{n} little bears said " + "and so " * 7, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        status, _, answer = s.ask("/v1/completions", "POST", json.dumps(body), None, 120)
        assert status == 200, answer
        answer = json.loads(answer)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    try:
        texts = [ask(n)[0] for n in range(3)]
        for how in (signal.SIGABRT,) if divided else (signal.SIGABRT, "restart", "release"):
            had = host_cached(s)
            assert had > 0
            with another_engine(s):
                if isinstance(how, str):
                    order(s, how)
                else:
                    os.kill(engine(s), how)
                if how == "release":
                    wait_for("no engine", lambda: engine_state(s)["state"] == "released")
                    order(s, "acquire")
            assert host_cached(s) == (0 if how == "release" else had), how
            again = [ask(n) for n in range(3)]
            assert [t for t, _ in again] == texts and (again[0][1] > 0) == (how != "release"), (how, again)
        assert metric(s.metrics(), "evenkeel_offload_hit_tokens_total") > 0
    finally:
        assert s.stop() == 0
