"""Protects: what evenkeeld does about processes that do not end as they should, and about ranks that are left behind. What takes longer is in
tests/faults, which `make faults` runs."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import ptrace
from conftest import ROOT, Appliance, cpu_seconds, get, gone, metric, wait_for
from test_memory import whys
from test_supervisor import fakes  # noqa: F401

FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(pid):
    """A process that not even SIGKILL ends: in a freezer of cgroup v1, as a driver holds one that waits for a device."""
    if not os.access(FREEZER / "tasks", os.W_OK):
        pytest.skip("needs root and the freezer of cgroup v1 to hold a process against SIGKILL")
    cell = FREEZER / f"evenkeel-test-{os.getpid()}-{pid}"
    cell.mkdir()

    def thaw():
        (cell / "freezer.state").write_text("THAWED")
    try:
        (cell / "cgroup.procs").write_text(str(pid))
        (cell / "freezer.state").write_text("FROZEN")
        wait_for("it is frozen", lambda: (cell / "freezer.state").read_text().strip() == "FROZEN")
        yield thaw
    finally:
        thaw()
        wait_for("it is empty", lambda: not (cell / "tasks").read_text() or (FREEZER / "tasks").write_text((cell / "tasks").read_text().split()[0]))
        cell.rmdir()


def another(f, name, pid):
    wait_for("another process", lambda: f.all()[name]["pid"] not in (0, pid) and f.all()[name]["ready"], 60)


def test_what_sigkill_does_not_end_is_said_and_not_doubled(fakes):  # noqa: F811
    """F15: said once, down for balancers and alerts, no second copy beside it, nor by the next evenkeeld; when it has ended all goes on."""
    f = fakes(a=(["--load", "4"], "    hang_s: 1\n    kill_wait_s: 1\n")).ready()
    pid = f.all()["a"]["pid"]
    with frozen(pid) as thaw:
        said = wait_for("it is said", lambda: whys(f, "a", "STUCK_UNKILLABLE"), 60)
        assert f"Process {pid} is still there" in said[0] and "after SIGKILL, in state D" in said[0]
        time.sleep(2.5)  # longer than two more tries
        now = f.all()["a"]
        assert now["pid"] == pid and not now["ready"] and f.reasons("a").count("STARTED") == 1 and f.reasons("a").count("STUCK_UNKILLABLE") == 1
        assert metric(f.metrics(), "evenkeel_supervisor_server_ready", server="a") == 0
        f.process.terminate()
        assert f.process.wait(60) == 0, "it ends without it"
        f.start()
        wait_for("it was found", lambda: "ADOPTED" in f.reasons("a"), 60)
        assert "STARTED" not in f.reasons("a")[:f.reasons("a").index("UNWATCHED")]
        thaw()
        another(f, "a", pid)


@pytest.mark.long
def test_a_thread_that_loops_is_ended_and_named(tmp_path, monkeypatch):
    """A thread of HTTP really loops over what a client sent: the server ends itself, evenkeeld calls it by its name and starts it again."""
    library = tmp_path / "looping_json.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/looping_json.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("ASAN_OPTIONS", "verify_asan_link_order=0")
    a = Appliance(tmp_path, ["--http-threads", "2"]).start()
    try:
        a.ready()
        pid = a.server()["pid"]
        with socket.create_connection(("127.0.0.1", a.port), timeout=120) as s:
            body = b'{"model": "tiny", "prompt": "loop for ever", "max_tokens": 1}'
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 120)
        said = [line for line in (tmp_path / "server.log").read_text().splitlines() if "Ending with code 80 (thread_loop)" in line]
        assert len(said) == 1 and "a thread (HTTP) used more than 5 s" in said[0] and "looping_json.so+0x" in said[0], said
        assert "loop for ever" not in said[0], "nothing that a client sent"
        page = a.metrics(a.page)
        assert metric(page, "evenkeel_supervisor_exits_total", server="s1", **{"class": "LOOP"}) == 1
        assert metric(page, "evenkeel_supervisor_exits_total", server="s1", **{"class": "HANG_KILLED"}) in (None, 0)
        assert "did not come round" in a.ctl("explain").stdout
    finally:
        monkeypatch.delenv("LD_PRELOAD")
        a.destroy()


@pytest.mark.long
@pytest.mark.parametrize("lost", [1, 2])
def test_encoders_that_wait_for_ever_are_seen(tmp_path, monkeypatch, lost):
    """No processor time, and the engine goes on: only their age tells. With two no form gets its turn, which the canary's own form proves. With
    one all is served, and after 20 s the server ends itself."""
    library = tmp_path / "looping_json.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/looping_json.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("ASAN_OPTIONS", "verify_asan_link_order=0")
    a = Appliance(tmp_path, extra="    hang_s: 4\n").start()

    def large():
        s = socket.create_connection(("127.0.0.1", a.port), timeout=120)
        body = b'{"model": "tiny", "prompt": "wait for ever", "max_tokens": 1}' + b" " * 70000
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return s
    try:
        a.ready()
        pid = a.server()["pid"]
        log = tmp_path / "evenkeeld.log"
        with large():
            wait_for("a proof that it serves", lambda: "a request of one token with a new form was served" in log.read_text(), 60)
            said = json.loads(get(a.port, "/livez")[1])
            assert said["status"] == "ok" and said["encoder_age_s"] > 4 and said["compile_age_s"] == 0
            assert metric(a.metrics(), "evenkeel_reading_age_seconds") > 4 and a.server()["pid"] == pid
            with large() if lost == 2 else contextlib.nullcontext():
                wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 60)
        assert metric(a.metrics(a.page), "evenkeel_supervisor_exits_total", server="s1", **{"class": "LOOP"}) == 1
        if lost == 1:
            said = [line for line in (tmp_path / "server.log").read_text().splitlines() if "Ending with code 80 (thread_loop)" in line]
            assert len(said) == 1 and "a thread (encoder) did nothing for more than 20 s" in said[0] and "looping_json.so+0x" in said[0], said
            assert "did not come round" in a.ctl("explain").stdout and not whys(a, "s1", "HANG_NOPROGRESS")
            return
        why = whys(a, "s1", "HANG_NOPROGRESS")
        assert len(why) == 1 and "A thread that reads a body or compiles a form has not come back for" in why[0], why
        assert "a request of one token with a new form failed too (no answer)" in why[0]
    finally:
        monkeypatch.delenv("LD_PRELOAD")
        a.destroy()


def test_an_engine_that_was_idle_is_seen(tmp_path):
    """It has published that nothing waits, and never says more: what its clients wait for is counted where they came in."""
    a = Appliance(tmp_path, server_flags=[] if os.geteuid() == 0 else ["--dumpable"], extra="    hang_s: 2\n").start()
    try:
        pid = a.ready().server()["pid"]
        with ptrace.held(ptrace.thread_of(pid, "engine")) as held, socket.create_connection(("127.0.0.1", a.port)) as client:
            if not held:
                pytest.skip("tracing is not allowed")
            body = b'{"model": "tiny", "prompt": "nobody comes", "max_tokens": 4, "stream": true}'
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            wait_for("it counts", lambda: metric(a.metrics(), "vllm:num_requests_waiting") == 1)
            tid = ptrace.thread_of(pid, "engine")
            wait_for("another process", lambda: ptrace.reap(tid) or (a.server()["pid"] not in (0, pid) and a.server()["ready"]), 60)
        why = whys(a, "s1", "HANG_NOPROGRESS")
        assert len(why) == 1 and "with 0 running and" in why[0] and "a request of one token failed too (no answer)" in why[0], why
    finally:
        a.destroy()


TRACER = """
import ctypes, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0, ctypes.get_errno()
print("traced", flush=True)
signal.pause()
"""


def test_a_debugger_that_keeps_the_status_holds_up_nobody(fakes):  # noqa: F811
    """Who traces a process gets its end first. Its descriptor says all the same that it has ended, over and over."""
    f = fakes(a=([], "")).ready()
    pid = f.all()["a"]["pid"]
    tracer = subprocess.Popen([sys.executable, "-c", TRACER, str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        if tracer.stdout.readline() != "traced\n":
            pytest.skip("tracing is not allowed")
        os.kill(pid, signal.SIGKILL)
        another(f, "a", pid)
        before = cpu_seconds(f.process.pid)
        time.sleep(1)
        assert cpu_seconds(f.process.pid) - before < 0.3
    finally:
        tracer.kill()
        tracer.wait()
    assert f.reasons("a").count("STARTED") == 2


def test_a_rank_that_is_lost_ends_all_of_them(fakes, tmp_path):  # noqa: F811
    """F13, F2: the collective stalls, the server ends with 73, the other rank is left behind with the device and is ended before the start."""
    f = fakes(a=(["--ranks", str(tmp_path / "device")], "")).ready()
    pid = f.all()["a"]["pid"]
    ranks = [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    another(f, "a", pid)
    assert whys(f, "a", "CRASH")[0].startswith("COMM") and len(whys(f, "a", "CRASH")) == 1, whys(f, "a", "CRASH")
    assert not any(pathlib.Path(f"/proc/{r}").exists() for r in ranks)


def test_orphans_of_an_earlier_run_are_ended_before_a_start(fakes, tmp_path):  # noqa: F811
    """evenkeeld dies, then the server, and its ranks live on with the device: the next evenkeeld finds and ends them, and starts into a free one."""
    f = fakes(a=(["--ranks", str(tmp_path / "device")], "")).ready()
    pid = f.all()["a"]["pid"]
    ranks = [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    f.process.kill()
    f.process.wait()
    os.kill(pid, signal.SIGKILL)
    wait_for("it is gone", lambda: gone(pid))
    assert all(pathlib.Path(f"/proc/{r}").exists() for r in ranks), "they outlive it"
    f.start().ready()
    assert f.all()["a"]["pid"] != pid
    assert not any(pathlib.Path(f"/proc/{r}/cmdline").exists() and pathlib.Path(f"/proc/{r}/cmdline").read_bytes() for r in ranks)
