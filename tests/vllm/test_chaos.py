"""Protects: what is promised of a real vLLM with the companion, while programs are killed, stopped and replaced at moments that a seed chose and
clients connect and stream. Never a refused connection; an answer is cut only when the vLLM that gave it was ended by force; each such end
has its true cause; at the end both programs are well. Opt-in (make check-vllm); SEED=N draws another order, SEED= of a failure the same.

What is done is chaos_faults.py: each kind once and the restarts twice, and one follows the other after 0 to 4 s, also while a vLLM starts.
What ends a vLLM waits until it is ready, so that each end has one cause."""
import os
import pathlib
import random
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/e2e")]
from conftest import wait_for  # noqa: E402
from chaos_faults import FAULTS, World  # noqa: E402
from test_supervised import START_S, gone  # noqa: E402

SEED = int(os.environ.get("SEED") or time.strftime("%Y%m%d"))
ONLY = os.environ.get("ONLY", "").split()
MOST_ENDS = 3  # between two restarts that an operator asked for: five open the breaker, rightly
WAIT_MOST_S = 4.0


def draw(seed):
    """[(kind, seconds to wait before it, seed of its own)]; the same for the same seed."""
    rng = random.Random(f"evenkeel vllm {seed}")
    gentle = [name for name, f in FAULTS.items() if not f.ends and name != "restart"]  # upgrade_in_start is one restart more
    fatal = [name for name, f in FAULTS.items() if f.ends]
    rng.shuffle(gentle)
    rng.shuffle(fatal)
    order = fatal[:MOST_ENDS] + ["restart"] + fatal[MOST_ENDS:] + ["restart"]
    for name in gentle:  # anywhere, also while a vLLM starts
        order.insert(rng.randint(0, len(order)), name)
    return [(name, round(rng.uniform(0, WAIT_MOST_S), 1), rng.getrandbits(32)) for name in order if not ONLY or name in ONLY]


def told(schedule):
    return ", ".join(f"{name} after {wait} s" for name, wait, _ in schedule)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    w = World(tmp_path_factory.mktemp("h"))
    yield w
    w.end()


def test_a_seed_draws_one_order():
    drawn = [draw(seed) for seed in range(50)]
    assert drawn == [draw(seed) for seed in range(50)]
    assert ONLY or all({name for name, _, _ in s} == set(FAULTS) for s in drawn)
    for s in drawn:
        ends = "".join("r" if name == "restart" else "x" for name, _, _ in s if name == "restart" or FAULTS[name].ends)
        assert all(len(part) <= MOST_ENDS for part in ends.split("r"))


def test_chaos(world):
    schedule = draw(SEED)
    print(f"\nseed {SEED}: {told(schedule)}")
    world.ready()
    world.clients(connecting=12, streaming=3)
    wait_for("answers", lambda: world.done() > 30, 120)
    begin = time.monotonic()
    for name, wait, seed in schedule:
        time.sleep(wait)
        world.do(name, random.Random(seed))
        print(f"  {time.monotonic() - begin:6.0f} s  {name}: {world.line()}", flush=True)
    world.ready()
    before = world.done()
    wait_for("answers again", lambda: world.done() > before + 30, START_S)
    said = world.asked()
    print(f"  {len(said)} requests: {world.line()}", flush=True)
    refused, wrong = [r for r in said if r.how == "refused"], world.unexplained()
    assert not refused and not wrong and not world.wrong, (refused[:5], wrong[:5], world.wrong)


def test_both_are_well_afterwards(world):
    s = world.ready()
    server = s.server()
    assert server["state"] == "ready" and server["signal_good"], server
    status, limits = s.control("GET", "/v1/runtime_config")
    assert status == 200 and limits["max_num_running_seqs"] == limits["ceiling"]["max_num_running_seqs"] == 8
    wait_for("no preempted request is left behind", lambda: s.series("vllm:num_requests_running") + s.series("vllm:num_requests_waiting") == 0, 120)
    assert s.series("evenkeel_kv_blocks", 'state="used"') == 0
    assert not [line for line in s.output().splitlines() if "evenkeel_vllm" in line and " is off: " in line]
    assert "runs as it is from now on" not in s.said(), "the companion was blamed for a start"
    assert not s.decisions("BREAKER_OPEN")
    left = [pid for pid in world.seen if not gone(pid) and pid not in s.pids().values()]
    assert not left, left
    last = list(s.pids().values())
    assert s.end() == 0
    wait_for("all have ended", lambda: all(gone(p) for p in last), 20)
