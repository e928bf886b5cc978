"""Protects: that no clock that jumps, and no machine that sleeps, makes evenkeeld restart anything, forget a budget or decide differently in a
replay; and what takes a while to see."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from conftest import BUILD, ROOT, metric, wait_for  # noqa: E402
from test_memory import WORN  # noqa: E402
from test_stuck import another  # noqa: E402
from test_supervisor import FAST_LAW, fakes, law_of  # noqa: E402, F401


def test_a_server_that_ignores_sigterm_is_killed(fakes):  # noqa: F811
    f = fakes(a=(["--ignore-term"], "    drain_deadline_s: 0\n")).ready()
    pid = f.all()["a"]["pid"]
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202
    another(f, "a", pid)
    assert "DRAIN_DEADLINE" in f.reasons("a") and "STUCK_UNKILLABLE" not in f.reasons("a")


def test_a_rank_that_stops_ends_all_of_them(fakes, tmp_path):  # noqa: F811
    """F13: the collective stalls, and the watchdog of the engine ends it."""
    f = fakes(a=(["--ranks", str(tmp_path / "device")], "")).ready()
    pid = f.all()["a"]["pid"]
    ranks = [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    os.kill(ranks[1], signal.SIGSTOP)
    another(f, "a", pid)
    assert f.decisions("a", "CRASH")[0]["why"].startswith("COMM") and not any(pathlib.Path(f"/proc/{r}").exists() for r in ranks)


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "fake_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/fake_clock.c"], check=True)
    return library


@pytest.fixture
def jump(clock, tmp_path, monkeypatch):
    """A function that sets how far the wall clock, and the time since boot, are off."""
    if "asan" in str(BUILD) or "san-" in str(BUILD):
        pytest.skip("sanitizers want to be loaded first")
    monkeypatch.setenv("LD_PRELOAD", str(clock))
    monkeypatch.setenv("FAKE_CLOCK", str(tmp_path / "clock"))

    def set_clock(wall, boot=0):
        (tmp_path / "clock.new").write_text(f"{wall} {boot}\n")
        (tmp_path / "clock.new").rename(tmp_path / "clock")
    return set_clock


DAY, HOUR = 86400, 3600


def test_clocks_that_jump_restart_nothing(fakes, jump):  # noqa: F811
    """F30: a day and an hour to and fro. Polls, limits and the process stay; what is decided is stamped with the time that it is said to be."""
    f = fakes(a=(["--load", "4"], "    hang_s: 2\n    start_deadline_s: 60\n")).ready()
    pid = f.all()["a"]["pid"]
    limits = f.all()["a"]["limits"]
    for wall in (DAY, -DAY, HOUR, -HOUR, 0):
        jump(wall)
        polls = metric(f.metrics(), "evenkeel_supervisor_scrapes_total", server="a", result="ok")
        wait_for("it goes on reading", lambda: metric(f.metrics(), "evenkeel_supervisor_scrapes_total", server="a", result="ok") > polls + 4)
        now = f.all()["a"]
        assert now["pid"] == pid and now["ready"] and now["signal_good"] and now["limits"] == limits, wall
    assert not set(f.reasons("a")) & {"CRASH", "HANG_NOPROGRESS", "SIGNAL_DEGRADED", "BACKOFF"}
    jump(DAY)
    os.kill(pid, signal.SIGKILL)
    another(f, "a", pid)


def test_a_machine_that_slept_restarts_nothing(fakes, jump):  # noqa: F811
    """F31: the time since boot leaps, then both processes stand still for longer than hang_s: the window is forgotten, nothing is restarted."""
    f = fakes(a=(["--load", "4"], "    hang_s: 2\n")).ready()
    pid = f.all()["a"]["pid"]
    jump(600, 600)
    for p in (f.process.pid, pid):
        os.kill(p, signal.SIGSTOP)
    time.sleep(4)
    for p in (pid, f.process.pid):
        os.kill(p, signal.SIGCONT)
    polls = metric(f.metrics(), "evenkeel_supervisor_scrapes_total", server="a", result="ok")
    wait_for("it goes on reading", lambda: metric(f.metrics(), "evenkeel_supervisor_scrapes_total", server="a", result="ok") > polls + 12)
    assert f.all()["a"]["pid"] == pid and f.all()["a"]["ready"]
    assert not set(f.reasons("a")) & {"CRASH", "HANG_NOPROGRESS", "BACKOFF"}


@pytest.mark.parametrize("wall", [-DAY, HOUR])
def test_no_jump_gives_a_budget_back(fakes, jump, wall):  # noqa: F811
    """I8: one restart by plan was taken, they must lie 2 hours apart; a clock that goes back a day, or on an hour, with a new evenkeeld, is no
    way to a second one."""
    f = fakes(a=(["--leak"], WORN)).ready()
    pid = f.all()["a"]["pid"]
    another(f, "a", pid)
    wait_for("the next is not allowed", lambda: "RESTART_BUDGET" in f.reasons("a"), 30)
    pid = f.all()["a"]["pid"]
    jump(wall)
    f.process.kill()
    f.process.wait()
    f.start().ready()
    wait_for("nor now", lambda: "RESTART_BUDGET" in f.reasons("a"), 30)
    assert f.all()["a"]["pid"] == pid


def test_a_replay_over_jumps_and_restarts(fakes, jump):  # noqa: F811
    """I23: clocks jump, the server is killed, evenkeeld too: the recording has it all, and a replay says what was said, byte for byte each time."""
    f = fakes(a=(["--load", "24", "--max-num-seqs", "24"], f"    record: {{run}}/rec\n{FAST_LAW}")).ready()
    wait_for("a cut that was written", lambda: any(d["applied"] for d in f.decisions("a", "LOWER_KV_HARM")), 60)
    jump(-DAY, 600)
    os.kill(f.all()["a"]["pid"], signal.SIGKILL)
    wait_for("cuts of the next process", lambda: f.reasons("a").count("LOWER_KV_HARM") >= 3, 60)
    live = f.decisions_all("a")
    jump(DAY, 1200)
    f.process.kill()
    f.process.wait()
    f.start().ready()
    wait_for("cuts of the next evenkeeld", lambda: "LOWER_KV_HARM" in f.reasons("a"), 60)
    assert f.ask("POST", "/api/v1/servers/a/drain")[0] == 202  # the law rests: what is compared does not grow
    wait_for("draining", lambda: f.all()["a"]["state"] in ("draining", "drained"))
    later = f.decisions_all("a")
    run = [BUILD / "evenkeeld", "--replay", f.run / "rec"]
    first, again = (subprocess.run(run, capture_output=True, text=True, timeout=60) for _ in range(2))
    assert first.returncode == 0 and again.stdout == first.stdout, first.stderr
    said, told = law_of(first.stdout), law_of(live[::-1])
    assert said[:len(told)] == told
    assert said[-len(law_of(later)):] == law_of(later[::-1])
