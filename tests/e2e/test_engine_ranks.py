"""Protects: the ranks of a model begin and end as a whole in the engine's process: whichever of them is killed, crashes or stands still, at seeded
moments, another group takes its place and every text is the one of an undisturbed server; each rank's part of the host tier outlives it."""
import ctypes
import os
import random
import re
import signal

import pytest

from bare import Bare
from conftest import metric
from engine_faults import EngineFaults
from engines import SHORT, always, another_engine, check_counts, engine, engine_state, make_tokens, order, run_alone, texts_alone
from test_ranks import plan
from test_warm_restart import ask_all, host_cached

DIVIDED = ["--tensor-parallel-size", "--pipeline-parallel-size"]
FLAGS = ["--threads", 2, "--max-num-seqs", 8, "--max-model-len", 512]


def serve(tmp_path, divided, *flags, **more):
    return Bare(tmp_path, divided, 2, *FLAGS, *flags, **more)


@pytest.fixture(scope="module", params=DIVIDED, ids=["shares", "stages"])
def group(request, tmp_path_factory):
    """How it is divided, and what a server of one process says that is divided so."""
    return request.param, texts_alone(tmp_path_factory.mktemp("one"), SHORT, request.param, 2, *FLAGS)


def ranks(pid):
    """The thread of each of them."""
    folder = f"/proc/{pid}/task"
    tids = sorted(int(t) for t in os.listdir(folder) if open(f"{folder}/{t}/comm").read() == "compute\n")
    assert len(tids) == 2, tids
    return tids


def disturb(server, how, draw):
    """Once more tokens were made, one of the two ranks gets the signal, or both; until there is another group."""
    make_tokens(server, draw.randint(10, 120), 120)
    pid = engine(server)
    with another_engine(server):
        if how == signal.SIGKILL:
            os.kill(pid, how)
        else:
            assert ctypes.CDLL(None).tgkill(pid, draw.choice(ranks(pid)), int(how)) == 0
    assert engine(server) != pid and not os.path.exists(f"/proc/{pid}"), "all of it has ended"


def test_texts_go_on(tmp_path, group):
    """Both ranks are killed, one of them crashes, one stands still so that the other waits for it in vain."""
    divided, undisturbed = group
    draw, faults = random.Random(20261128), EngineFaults(tmp_path)
    hows = [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR2, signal.SIGSEGV]
    s = serve(tmp_path, divided, "--engine-process", "--step-deadline", 10, env=faults.env)
    try:
        with always(s, undisturbed, SHORT, stream=True):
            for how in hows:
                disturb(s, how, draw)
                run_alone(s)
        page = s.metrics()
        assert metric(page, "evenkeel_engine_restarts_total", cause="ended") == 3
        lost = metric(page, "evenkeel_engine_restarts_total", cause="device")  # or the step's own deadline came first, on a busy machine
        assert s.log().count("its ranks lost one another in a step") == lost == 1 - metric(page, "evenkeel_engine_restarts_total", cause="hang")
        rows = re.findall(r'^evenkeel_rank_bytes{[^}]*rank="(\d)",device="cpu",item="kv"} (\d+)', page, re.M)
        assert [r for r, _ in rows] == ["0", "1"] and sum(int(b) for _, b in rows) == metric(page, "evenkeel_device_bytes", item="kv") > 0
        check_counts(s, len(hows))
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("divided", DIVIDED, ids=["shares", "stages"])
def test_what_was_cached(tmp_path, divided):
    """The parts of the host tier of both ranks are found again after a signal; a restart that was asked for finds the pool's blocks, too."""
    s = serve(tmp_path, divided, "--engine-process", "--enable-prompt-tokens-details", "--num-gpu-blocks-override", 40, "--kv-offloading-size", 0.05,
              "--max-num-batched-tokens", 512, "--prefix-file", tmp_path / "kept/prefixes")
    try:
        texts = [t for t, _ in ask_all(s)]
        warm = ask_all(s)
        for how in (signal.SIGABRT, "restart"):
            had = host_cached(s)
            with another_engine(s):
                if how == "restart":
                    order(s, how)
                else:
                    os.kill(engine(s), how)
            assert host_cached(s) >= had > 30
            again = ask_all(s)
            assert [t for t, _ in again] == texts and sum(c for _, c in again) > 300, (how, again)
        assert engine_state(s)["restarts"]["planned"] == 1 and sum(c for _, c in again) >= 0.9 * sum(c for _, c in warm)
        assert metric(s.metrics(), "evenkeel_prefix_file_blocks_total", what="restored") > 0
    finally:
        assert s.stop() == 0


def test_what_does_not_go_together():
    for flags, says in [(("--nnodes", "2", "--engine-process"), "--engine-process over several machines"),
                        (("--nnodes", "2", "--engine-command", "mpirun"), "give both"),
                        (("--engine-process", "--engine-command", "mpirun"), "say with --nnodes"),
                        (("--nnodes", "2", "--engine-process", "--engine-command", " "), "--engine-command is empty")]:
        done = plan("-tp", "2", *flags)
        assert done.returncode == 2 and says in done.stderr, (flags, done.stderr)
    done = plan("-tp", "2", "--nnodes", "2", "--engine-process", "--engine-command", "mpirun -n 2 --host a,b")
    assert done.returncode == 0 and "rank" in done.stdout, done.stderr
