"""Protects: a server that runs out of memory comes back with other settings, of the ladder for its class, and stays up; what was learned is
kept, for a day, and never repeated. The servers are fakes that run out of memory exactly when their flags let them."""
import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

from conftest import free_port, get, gone, metric, wait_for
from test_prestart import library, nvml  # noqa: F401
from test_supervisor import FAKE, Fakes, fakes  # noqa: F401


def argv_of(f, name):
    with open(f"/proc/{f.all()[name]['pid']}/cmdline", "rb") as file:
        return file.read().decode().split("\0")[:-1]


def flag(argv, name):
    """The last one counts, as in the servers."""
    return next((argv[i + 1] for i in range(len(argv) - 2, -1, -1) if argv[i] == name), None)


def whys(f, name, reason):
    return [d["why"] for d in json.loads(get(f.page, f"/api/v1/servers/{name}/decisions?limit=200")[1])["decisions"] if d["reason"] == reason][::-1]


def stays_up(f, name, starts):
    """Ready, with so many starts in all, and still the same process when the time has passed at which it would have failed."""
    wait_for("the last start", lambda: f.reasons(name).count("STARTED") == starts and f.all()[name]["ready"], 60)
    pid = f.all()[name]["pid"]
    wait_for("it has run past its failure", lambda: get(f.ports[name], "/outlived")[0] == 200, 60)
    assert f.all()[name]["pid"] == pid and f.reasons(name).count("STARTED") == starts


def test_startup_oom_lowers_the_token_budget(fakes):  # noqa: F811
    """The guides' first case: it fails while it starts. 2048 -> 1536 (too much) -> 0.87 of the memory -> conservative, 768 fits."""
    f = fakes(a=(["--oom-start", "1200", "--max-num-batched-tokens", "2048", "--max-num-seqs", "16"], ""))
    stays_up(f, "a", 4)
    argv = argv_of(f, "a")
    assert flag(argv, "--max-num-batched-tokens") == "1152" and float(flag(argv, "--gpu-memory-utilization")) == 0.75
    steps = whys(f, "a", "REMEDY")
    assert ["instead of 2048" in steps[0], "0.87 instead of 0.92" in steps[1], "1152 instead of 1536" in steps[2]] == [True] * 3, steps
    assert metric(f.metrics(), "evenkeel_supervisor_exits_total", **{"class": "STARTUP_OOM"}) == 3
    for remedy in ("token_budget", "memory_share", "conservative"):
        assert metric(f.metrics(), "evenkeel_supervisor_remedies_total", remedy=remedy, **{"class": "STARTUP_OOM"}) == 1


def test_burst_oom_lowers_tokens_and_sequences_and_is_remembered(fakes):  # noqa: F811
    """The second: it serves, then long prompts take the memory. The caps outlive the next crash, evenkeeld itself, and end at the ceiling."""
    f = fakes(a=(["--oom-burst", "1600", "--max-num-batched-tokens", "2048", "--max-num-seqs", "20"], ""))
    stays_up(f, "a", 2)
    argv = argv_of(f, "a")
    assert (flag(argv, "--max-num-batched-tokens"), flag(argv, "--max-num-seqs"), flag(argv, "--gpu-memory-utilization")) == ("1536", "16", "0.89")
    assert f.all()["a"]["limits"]["max_num_running_seqs"]["ceiling"] == 16
    pid = f.all()["a"]["pid"]
    os.kill(pid, signal.SIGKILL)  # no matter of memory: the same settings again
    stays_up(f, "a", 3)
    assert argv_of(f, "a") == argv and len(whys(f, "a", "REMEDY")) == 1
    f.process.terminate()
    f.process.wait(60)
    f.start().ready()
    assert argv_of(f, "a") == argv
    state = json.loads((f.run / "s/state.json").read_text())
    assert state["version"] == 2 and state["servers"]["a"]["remedy"]["tokens"] == 1536


def test_fragmentation_gets_expandable_segments(fakes):  # noqa: F811
    """The third, when it crashes: memory was there, in pieces. Fewer sequences are no cure and are not tried."""
    f = fakes(a=(["--oom-frag", "--port", "{port}"], "    engine: vllm\n    env: {PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:512'}\n"))
    stays_up(f, "a", 2)
    with open(f"/proc/{f.all()['a']['pid']}/environ", "rb") as file:
        assert b"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True" in file.read().split(b"\0")
    assert flag(argv_of(f, "a"), "--max-num-seqs") is None
    assert any("FRAG_OOM" in w for w in whys(f, "a", "CRASH"))


@pytest.mark.parametrize("watched", [True, False])
def test_a_start_that_expandable_segments_end_is_made_without_them_by_the_next_evenkeeld_too(tmp_path, watched):
    """That they were tried by plan is in the state file: the next evenkeeld sees the start fail, or finds that it has."""
    remedy = {"until_us": int((time.time() + 3600) * 1e6), "expandable": True}
    f = Fakes(tmp_path, {"a": (["--no-segments", "--start-s", "4", "--port", "{port}"], "    engine: vllm\n")})
    f.ports["a"] = free_port(33310)  # it does not listen for a while: nobody else's fake may
    f.write()
    (f.run / "s").mkdir()
    life = {"boot": 1, "state": "backoff", "want": "run", "pid": 0, "loosened": True}
    (f.run / "s/state.json").write_text(json.dumps({"version": 1, "servers": {"a": {"life": life, "remedy": remedy}}}))
    try:
        f.start()
        pid = wait_for("it starts", lambda: f.all()["a"]["pid"])
        environ = pathlib.Path(f"/proc/{pid}/environ")  # evenkeeld's until it is the program
        wait_for("it may grow", lambda: b"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in environ.read_bytes().split(b"\0"))
        wait_for("it is written", lambda: json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["life"]["pid"] == pid)
        assert json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["life"]["loosened"] is True
        f.process.kill()
        f.process.wait()
        if not watched:
            wait_for("it has ended", lambda: gone(pid))
        f.start().ready()
        assert any("It did not start with expandable_segments:True" in w for w in whys(f, "a", "REMEDY")), f.decisions_all("a")
        with open(f"/proc/{f.all()['a']['pid']}/environ", "rb") as file:
            assert b"expandable_segments:True" not in file.read()
        assert "loosened" not in json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["life"]
    finally:
        f.end()


def test_host_oom_shrinks_the_swap_space(fakes):  # noqa: F811
    f = fakes(a=(["--oom-host", "--swap-space", "4"], ""))
    stays_up(f, "a", 3)
    assert flag(argv_of(f, "a"), "--swap-space") == "0" and flag(argv_of(f, "a"), "--max-num-seqs") is None


def test_when_nothing_helps_it_is_given_up_with_the_numbers(fakes):  # noqa: F811
    f = fakes(a=(["--oom-start", "1", "--max-num-batched-tokens", "2048", "--max-num-seqs", "16"], ""))
    wait_for("given up", lambda: f.all()["a"]["state"] == "breaker_open", 60)
    assert len(whys(f, "a", "REMEDY")) == 3 and f.reasons("a").count("STARTED") == 4
    assert any("2.00 GiB were asked for with 1.00 GiB free" in w for w in whys(f, "a", "CRASH"))
    f.process.terminate()
    f.process.wait(60)
    f.start()  # another evenkeeld tries once, and knows that the breaker was open
    wait_for("given up again", lambda: f.all()["a"]["state"] == "breaker_open", 60)
    said = f.reasons("a")
    assert said[:said.index("UNWATCHED")].count("STARTED") == 1


def test_advice_changes_nothing(fakes):  # noqa: F811
    f = fakes(a=(["--oom-burst", "1600", "--max-num-batched-tokens", "2048"], "    mode: advise\n"))
    wait_for("advice", lambda: whys(f, "a", "REMEDY"), 60)
    assert "in mode act" in whys(f, "a", "REMEDY")[0]
    wait_for("the same again", lambda: f.reasons("a").count("STARTED") >= 2 and flag(argv_of(f, "a"), "--max-num-batched-tokens") == "2048")


WORN = "    policy: {warmup_s: 1, window_s: 2}\n    frag_window_s: 3\n    leak_s: 1\n    restart_jitter_s: 0\n"


def test_fragmentation_is_trimmed_then_restarted_by_plan(fakes):  # noqa: F811
    """The guides' third case: trim, then drain and restart; nobody is refused meanwhile; it did not help, so it is not done again."""
    f = fakes(a=(["--frag"], WORN)).ready()
    pid, refused = f.all()["a"]["pid"], []

    def another():
        try:
            if get(f.ports["a"], "/livez", timeout=60)[0] != 200:
                refused.append("status")
        except OSError as error:
            refused.append(error)
        return f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"]
    wait_for("another process", another, 60)
    assert not refused
    reasons = f.reasons("a")[::-1]
    assert reasons.index("FRAG_TRIM") < reasons.index("FRAG_CHRONIC") < reasons.index("DRAIN_START")
    assert metric(f.metrics(), "evenkeel_supervisor_restarts_total", cause="planned") == 1
    wait_for("the canary", lambda: any("was served" in w for w in whys(f, "a", "FRAG_CHRONIC")))
    wait_for("it did not help", lambda: "FRAG_INEFFECTIVE" in f.reasons("a"), 60)
    state = json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["planned"]
    assert len(state["wall_us"]) == 1 and state["off_until_us"] > time.time() * 1e6 + 86000e6


def test_fragmentation_of_an_engines_process_needs_no_drain(fakes):  # noqa: F811
    """That process alone is started again: the server stays, nothing is drained, and it helped."""
    f = fakes(a=(["--frag", "--engine-process"], WORN)).ready()
    pid = f.all()["a"]["pid"]
    wait_for("the canary", lambda: any("was served" in w for w in whys(f, "a", "ENGINE_RESTART")), 60)
    said, reasons = whys(f, "a", "ENGINE_RESTART"), f.reasons("a")
    assert any("needs no drain: a trim did not help" in w for w in said), said
    assert f.all()["a"]["pid"] == pid and "DRAIN_START" not in reasons and "FRAG_CHRONIC" not in reasons
    engine = f.all()["a"]["engine_process"]
    assert (engine["state"], engine["planned"], engine["lost"]) == ("running", 1, 0)
    assert len(json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["planned"]["wall_us"]) == 1


def test_a_server_that_refuses_to_restart_its_engine_is_restarted(fakes):  # noqa: F811
    """As a whole, and it counts once."""
    f = fakes(a=(["--frag", "--engine-process", "--engine-refuses"], WORN)).ready()
    pid = f.all()["a"]["pid"]
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    assert any("restarted as a whole: not now" in w for w in whys(f, "a", "ENGINE_RESTART")) and "DRAIN_START" in f.reasons("a")
    assert len(json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["planned"]["wall_us"]) == 1


def test_after_a_restart_by_plan_the_load_comes_step_by_step(fakes):  # noqa: F811
    f = fakes(a=(["--frag", "--max-num-seqs", "32"], WORN + "    ramp_every_s: 0.4\n")).ready()
    pid, seen = f.all()["a"]["pid"], []
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)

    def whole():
        value = f.all()["a"]["limits"]["max_num_running_seqs"]["value"]
        if value and value not in seen:
            seen.append(value)
        return value == 32 and len(whys(f, "a", "RAMP")) == 2
    wait_for("all of it", whole, 20, 0.02)
    ramp = seen[seen.index(8):] if 8 in seen else seen
    assert ramp == sorted(ramp) and set(ramp) <= {8, 12, 16, 20, 24, 28, 32} and len(ramp) >= 4, seen
    said = whys(f, "a", "RAMP")
    assert "from 8 to 32" in said[0] and "all of it" in said[1]


@pytest.mark.long
@pytest.mark.parametrize("grows", [8, 0])
def test_memory_that_grows_is_told(fakes, grows):  # noqa: F811
    """Five days are 20 s here. It is any engine's memory, without a word from the engine; one that stands still is not named."""
    f = fakes("memory_every_s: 1\n", a=(["--grow", str(grows)], "    memory_trend_s: 20\n")).ready()
    pid = f.all()["a"]["pid"]
    if not grows:
        time.sleep(30)
        assert "MEMORY_GROWS" not in f.reasons("a") and "exhaustion_seconds{" not in f.metrics()
        return
    wait_for("it is told", lambda: "MEMORY_GROWS" in f.reasons("a"), 60)
    said = whys(f, "a", "MEMORY_GROWS")[0]
    assert said.startswith("host memory grows by ") and " MiB an hour" in said
    rate = float(said.split("grows by ")[1].split()[0]) / 3600
    assert 4 < rate < 12, said
    assert metric(f.metrics(), "evenkeel_supervisor_server_memory_exhaustion_seconds", server="a") > 60
    assert f.all()["a"]["pid"] == pid  # much is left


@pytest.mark.long
def test_memory_of_an_engines_process_counts(fakes, nvml, tmp_path):  # noqa: F811
    """Without a cgroup of its own, too: what grows is a child of the process that was started, on the host and, as NVML has it, on a device.
    What another process has there is not its."""
    nvml.write_text("80000 1000 0 0\n")
    f = fakes("memory_every_s: 1\n", a=(["--grow", "8", "--grow-apart"], "    memory_trend_s: 20\n"),
              b=([], "    memory_trend_s: 20\n")).ready()
    apart = int((tmp_path / "a.log").read_text().split("grows apart ")[1].split()[0])
    begin, new = time.monotonic(), nvml.with_name("new")

    def both():
        grown = int(20 * (time.monotonic() - begin))
        new.write_text(f"80000 {1000 + grown} {apart} {500 + grown}\n")
        new.rename(nvml)
        said = " ".join(whys(f, "a", "MEMORY_GROWS"))
        return "host memory grows by" in said and "device 0 grows by" in said
    wait_for("both are told", both, 60, 0.3)
    rates = {w.split(" grows by ")[0]: float(w.split("grows by ")[1].split()[0]) / 3600 for w in whys(f, "a", "MEMORY_GROWS") if " grows by " in w}
    assert 4 < rates["host memory"] < 12 and 10 < rates["device 0"] < 30, rates
    assert "MEMORY_GROWS" not in f.reasons("b")
    assert metric(f.metrics(), "evenkeel_supervisor_server_memory_bytes", server="a", kind="own") \
        > metric(f.metrics(), "evenkeel_supervisor_server_memory_bytes", server="a", kind="resident") + (50 << 20)
    assert ", with 1 others " in (tmp_path / "evenkeeld.log").read_text()


@pytest.mark.long
@pytest.mark.parametrize("apart", [True, False])
def test_memory_that_grows_in_an_engines_process(fakes, apart):  # noqa: F811
    """What grows there needs no drain: that process alone is started again, and it is gone. In the server's own process it needs one."""
    f = fakes("memory_every_s: 1\n", a=(["--engine-process", "--grow", "48", *(["--grow-apart"] if apart else [])], WORN + "    memory_trend_s: 20\n")).ready()
    pid = f.all()["a"]["pid"]
    if apart:
        said = wait_for("its engine is started again", lambda: [w for w in whys(f, "a", "ENGINE_RESTART") if "needs no drain" in w], 90)
        assert "needs no drain: host memory grows by " in said[0]
        wait_for("the canary", lambda: any("was served" in w for w in whys(f, "a", "ENGINE_RESTART")), 60)
        assert f.all()["a"]["pid"] == pid and f.all()["a"]["engine_process"]["planned"] == 1 and "DRAIN_START" not in f.reasons("a")
    else:
        wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 90)
        assert "ENGINE_RESTART" not in f.reasons("a") and "DRAIN_START" in f.reasons("a")
    assert len(json.loads((f.run / "s/state.json").read_text())["servers"]["a"]["planned"]["wall_us"]) == 1


@pytest.mark.long
def test_memory_of_somebody_elses_server_is_told(tmp_path):
    """An attached one of this machine: it is found by its port, told, and left alone; another process begins anew."""
    port = free_port(27400)
    f = Fakes(tmp_path, {"a": (None, f"    attach: http://127.0.0.1:{port}\n    engine: vllm\n    mode: act\n    memory_trend_s: 20\n")})
    f.write("memory_every_s: 1\n")

    def somebody_else():
        return subprocess.Popen([str(FAKE), "--port", str(port), "--grow", "8", "--grow-apart"], stdout=subprocess.DEVNULL)
    theirs = somebody_else()
    try:
        f.start().ready()
        wait_for("it is told", lambda: "MEMORY_GROWS" in f.reasons("a"), 60)
        wait_for("what somebody should do", lambda: any(w.startswith("Somebody else runs it, and should restart it: host memory grows by ")
                                                        for w in whys(f, "a", "MEMORY_GROWS")), 60)
        assert metric(f.metrics(), "evenkeel_supervisor_server_memory_exhaustion_seconds", server="a") > 60
        assert theirs.poll() is None and f.all()["a"]["pid"] == 0 and "DRAIN_START" not in f.reasons("a")
        theirs.kill()
        theirs.wait()
        theirs = somebody_else()
        wait_for("it is another", lambda: "exhaustion_seconds{" not in f.metrics(), 20)
        wait_for("whose memory is read", lambda: metric(f.metrics(), "evenkeel_supervisor_server_memory_bytes", server="a", kind="own"), 60)
    finally:
        f.end()
        theirs.kill()
        theirs.wait()


def test_a_trim_that_helps_is_enough(fakes):  # noqa: F811
    f = fakes(a=(["--frag", "--frag-trims"], WORN)).ready()
    pid = f.all()["a"]["pid"]
    wait_for("a trim", lambda: "FRAG_TRIM" in f.reasons("a"), 60)
    time.sleep(3)  # longer than the wait after a trim
    assert f.all()["a"]["pid"] == pid and "FRAG_CHRONIC" not in f.reasons("a")


@pytest.mark.parametrize("rule, reason", [("restart_budget: 0", "RESTART_BUDGET"), ("restart_hours: never", "RESTART_HOURS"),
                                          ("mode: advise", "BLOCK_LEAK")])
def test_a_leak_waits_for_leave_to_restart(fakes, rule, reason):  # noqa: F811
    f = fakes(a=(["--leak"], WORN + f"    {rule}\n")).ready()
    pid = f.all()["a"]["pid"]
    wait_for("it says why it waits", lambda: reason in f.reasons("a"), 60)
    assert f.all()["a"]["pid"] == pid and f.reasons("a").count(reason) == 1


def test_no_restart_by_plan_while_the_state_cannot_be_written(fakes):  # noqa: F811
    """F24: a restart that could not be counted does not happen; it does when the disk is there again, and the budget is whole."""
    f = fakes(a=(["--leak"], WORN)).ready()
    pid, state = f.all()["a"]["pid"], f.run / "s"
    state.rename(f.run / "away")
    state.write_text("no directory")
    wait_for("it says why it waits", lambda: any("without the state file" in w for w in whys(f, "a", "RESTART_BUDGET")), 60)
    assert f.all()["a"]["pid"] == pid and f.all()["a"]["ready"]
    state.unlink()
    (f.run / "away").rename(state)
    wait_for("the restart", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    assert len(json.loads((state / "state.json").read_text())["servers"]["a"]["planned"]["wall_us"]) == 1


def test_planned_restarts_happen_one_at_a_time(fakes, tmp_path):  # noqa: F811
    """The lease: held by somebody else, then by one server after the other; each restarts once, since they must lie apart."""
    import fcntl
    (tmp_path / "r").mkdir()
    with open(tmp_path / "r/restart.lease", "w") as lease:
        lease.write("a test")
        lease.flush()
        fcntl.flock(lease, fcntl.LOCK_EX)
        f = fakes(a=(["--leak"], WORN), b=(["--leak"], WORN)).ready()
        before = {n: s["pid"] for n, s in f.all().items()}
        wait_for("both wait", lambda: all(any("a test has the lease" in w for w in whys(f, n, "LEASE_WAIT")) for n in "ab"), 60)
        assert {n: s["pid"] for n, s in f.all().items()} == before
    down = []

    def both_anew():
        now = f.all()
        down.append(sum(not s["ready"] for s in now.values()))
        return all(now[n]["ready"] and now[n]["pid"] != before[n] for n in "ab")
    wait_for("both restarted", both_anew, 40, 0.02)
    assert max(down) == 1
    wait_for("the budget", lambda: all("RESTART_BUDGET" in f.reasons(n) for n in "ab"), 60)
    assert metric(f.metrics(), "evenkeel_supervisor_restarts_total", server="a", cause="planned") == 1


@pytest.fixture
def machines(tmp_path):
    """evenkeelds as on several machines, each with a leaking server and the others as peers; a list of them."""
    made = []

    def make(count, more=()):
        pages = [free_port(25464 + 11 * i) for i in range(count)]
        for i in range(count):
            run = tmp_path / str(i)
            run.mkdir()
            f = Fakes(run, {"a": (["--leak"], WORN)})
            f.page, f.ports["a"] = pages[i], free_port(25100 + 11 * i)
            f.write(f"restart_peers: {json.dumps([f'http://127.0.0.1:{p}' for p in [*pages, *more] if p != pages[i]])}\n")
            made.append(f)
        return [f.start() for f in made]

    yield make
    for f in made:
        f.end()


@pytest.mark.long
def test_machines_restart_one_at_a_time(machines):
    """The lease among machines: three leak at the same time, none restarts while another one does, and each does once."""
    fleet = [f.ready() for f in machines(3)]
    before = [f.all()["a"]["pid"] for f in fleet]
    down = []

    def all_anew():
        now, again = [f.all()["a"] for f in fleet], [f.all()["a"] for f in fleet]
        # They are asked one after the other: who is down in both rounds was so when the others were asked between.
        down.append(sum(not s["ready"] and not t["ready"] for s, t in zip(now, again)))
        return all(s["ready"] and s["pid"] != pid for s, pid in zip(now, before))
    wait_for("all restarted", all_anew, 90, 0.05)
    assert max(down) == 1
    assert all(metric(f.metrics(), "evenkeel_supervisor_restarts_total", cause="planned") == 1 for f in fleet)
    wait_for("no ticket is left", lambda: all(json.loads(get(f.page, "/api/v1/lease")[1])["ticket"] == 0 for f in fleet), 60)


def test_a_machine_that_is_not_seen_stops_planned_restarts(machines):
    nobody = free_port(25999)
    f = machines(1, [nobody])[0].ready()
    pid = f.all()["a"]["pid"]
    wait_for("it says whom it waits for", lambda: any(f"127.0.0.1:{nobody}/api/v1/lease does not answer" in w for w in whys(f, "a", "LEASE_WAIT")), 60)
    assert f.all()["a"]["pid"] == pid and json.loads(get(f.page, "/api/v1/lease")[1])["ticket"] == 0


def test_a_prefix_cache_that_nobody_hits_is_capped(fakes):  # noqa: F811
    """The guides' fourth case: capped live, no restart: a cold cache would only be slower."""
    f = fakes(a=(["--prefixes"], WORN)).ready()
    pid = f.all()["a"]["pid"]
    why = wait_for("the cap", lambda: whys(f, "a", "PREFIX_CAP"), 20)[0]
    assert "90%" in why and "capped at 0.25" in why
    assert f.all()["a"]["pid"] == pid


@pytest.mark.parametrize("text, aside", [(b'{"version":3,"servers":{}}', True), (b"\0\1\2", True), (b'{"version":1,"servers":{}}', False)])
def test_state_that_cannot_be_read_is_put_aside(tmp_path, text, aside):
    (tmp_path / "s").mkdir()
    (tmp_path / "s/state.json").write_bytes(text)
    f = Fakes(tmp_path, {"a": ([], "")}).start()
    try:
        f.ready()
        assert (tmp_path / "s/state.json.bad").exists() == aside
    finally:
        f.end()
