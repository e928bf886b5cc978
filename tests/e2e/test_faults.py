"""Protects: nothing is refused while a server or evenkeeld dies; streams break visibly; drains lose nothing; exit codes are true."""
import concurrent.futures
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BUILD, ROOT, Appliance, get, metric, slower, stream, wait_for

LONG = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}


class Stream(threading.Thread):
    def __init__(self, port, body=LONG):
        super().__init__(daemon=True)
        self.port, self.body, self.pieces, self.error, self.usage = port, body, 0, None, None
        self.start()

    def run(self):
        try:
            for _, piece in stream(self.port, "/v1/completions", self.body, timeout=300):  # it may wait for a drain and a start
                if isinstance(piece, dict):
                    self.usage = piece
                else:
                    self.pieces += 1
        except Exception as error:  # noqa: BLE001  # the kind of failure is what the test looks at
            self.error = error


def test_kill_the_server_during_streams(appliance):
    a = appliance()
    pid = a.server()["pid"]
    streams = [Stream(a.port) for _ in range(8)]
    wait_for("8 streams flow", lambda: all(s.pieces > 2 for s in streams))
    os.kill(pid, signal.SIGKILL)
    begin = time.monotonic()
    # the port was never closed: this very request waits in the kept socket and is then served
    text = [p for _, p in stream(a.port, "/v1/completions", dict(LONG, max_tokens=4)) if isinstance(p, str)]
    took = time.monotonic() - begin
    assert text and took < 30 * slower(), took
    for s in streams:
        s.join(300)
        assert s.error or not (s.usage or {}).get("completion_tokens"), "a broken stream must not look like an end"
    assert a.server()["pid"] != pid
    page = a.metrics(a.page)
    assert metric(page, "evenkeel_supervisor_server_up", server="s1") == 1
    print(f"served again {took:.2f} s after the kill")


def test_kill_evenkeeld(appliance):
    a = appliance()
    pid = a.server()["pid"]
    s = Stream(a.port)
    wait_for("the stream flows", lambda: s.pieces > 2)
    a.process.kill()
    a.process.wait()
    assert get(a.port, "/health")[0] == 200
    a.start().ready()
    assert a.server()["pid"] == pid, "the new evenkeeld must adopt, not restart"
    s.join(300)
    assert s.error is None and s.usage["completion_tokens"] == LONG["max_tokens"]
    # and it is in charge again: a crash is repaired
    os.kill(pid, signal.SIGKILL)
    wait_for("restarted", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert get(a.port, "/health")[0] == 200


@pytest.mark.long
def test_sigterm_drains(appliance):
    a = appliance()
    s = Stream(a.port, dict(LONG, max_tokens=1000))
    wait_for("the stream flows", lambda: s.pieces > 2)
    assert a.stop(30) == 0
    s.join(300)
    assert s.error is None and s.usage["completion_tokens"] == 1000


def test_drain_and_resume(appliance):
    a = appliance()
    a.ctl("drain")
    wait_for("not ready", lambda: get(a.port, "/readyz")[0] == 503)
    a.ctl("resume")
    wait_for("ready", lambda: get(a.port, "/readyz")[0] == 200)
    assert [p for _, p in stream(a.port, "/v1/completions", dict(LONG, max_tokens=4)) if isinstance(p, str)]


def with_few_descriptors(tmp_path):
    """evenkeeld, and the server that it starts, under ulimit -n 64."""
    a = Appliance(tmp_path)
    a.log = open(tmp_path / "evenkeeld.log", "ab")
    a.process = subprocess.Popen(["sh", "-c", f"ulimit -n 64; exec {BUILD}/evenkeeld --config {a.config}"], stdout=a.log, stderr=a.log)
    return a


def test_idle_connections_take_no_descriptors_that_evenkeeld_needs(tmp_path):
    """ulimit -n 64 and 100 clients of the page that say nothing: it still looks after its server, answers, and never shows a nan."""
    a = with_few_descriptors(tmp_path)
    idle = []
    try:
        a.ready()
        begun, answers = time.monotonic(), 0
        while time.monotonic() < begun + 6.5 or answers < 6:  # the first line of its memory comes after 5 s
            while len(idle) < 100:
                idle.append(socket.socket())
                idle[-1].setblocking(False)
                idle[-1].connect_ex(("127.0.0.1", a.page))
            asked = time.monotonic()
            said = a.ctl("status").stdout
            assert time.monotonic() < asked + 3 * slower() and " ready " in said and "nan" not in said
            assert len(os.listdir(f"/proc/{a.process.pid}/fd")) <= 60
            for c in idle[:10]:  # some leave, others come
                c.close()
            idle = idle[10:]
            answers += 1
            time.sleep(0.2)
        log = wait_for("its memory", lambda: "memory: process" in (tmp_path / "evenkeeld.log").read_text() and (tmp_path / "evenkeeld.log").read_text())
        assert "nan" not in log and "host 0.0" not in log and "memory: process –" not in log, log[-2000:]
    finally:
        for c in idle:
            c.close()
        a.destroy()


def test_silent_connections_keep_no_place_from_those_who_ask(tmp_path):
    """ulimit -n 64 and 100 clients of the server that say nothing: it took a minute until somebody else was answered."""
    a = with_few_descriptors(tmp_path)
    idle = []
    try:
        a.ready()
        for _ in range(100):
            idle.append(socket.socket())
            idle[-1].setblocking(False)
            idle[-1].connect_ex(("127.0.0.1", a.port))
        asked = time.monotonic()
        assert get(a.port, "/health", timeout=60)[0] == 200 and get(a.port, "/v1/models", timeout=60)[0] == 200
        assert time.monotonic() < asked + 15 * slower()
        s = Stream(a.port, dict(LONG, max_tokens=50))
        s.join(300)
        assert s.error is None and s.usage["completion_tokens"] == 50
        assert len(os.listdir(f"/proc/{a.server()['pid']}/fd")) < 60
    finally:
        for c in idle:
            c.close()
        a.destroy()


def test_one_address_leaves_the_page_to_others(appliance):
    a = appliance()
    held = []
    try:
        for _ in range(300):
            held.append(socket.create_connection(("127.0.0.1", a.page), timeout=60))
        with socket.create_connection(("127.0.0.1", a.page), timeout=60, source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert other.recv(15) == b"HTTP/1.1 200 OK"
        for s in held:
            s.settimeout(0.01)
        assert sum(ended(s) for s in held) >= 200, "its own connections beyond 64 are closed at once"
    finally:
        for s in held:
            s.close()


def ended(s):
    try:
        return s.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def trickle(s, first, piece):
    """How long a connection lives whose peer goes on, but slowly."""
    begun = time.monotonic()
    s.settimeout(0.5)
    try:
        s.sendall(first)
        while time.monotonic() < begun + 60:
            with contextlib.suppress(TimeoutError):  # it may have no room for more
                s.sendall(piece)
            with contextlib.suppress(TimeoutError):
                if not s.recv(64):
                    break
            time.sleep(0.2)
    except OSError:
        pass
    return time.monotonic() - begun


@pytest.mark.long
@pytest.mark.parametrize("local", (False, True))
def test_no_slow_peer_of_the_page_stays(appliance, local):
    """A head, a body and a reader that never cease and never end: each would hold one of its places for ever. Who waits for evenkeeld is not cut."""
    a = appliance()
    head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    post = b"POST /api/v1/servers/s1/drain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n"
    cases = {"head": (head + b"X-A: ", b"a", 9, 25), "body": (post, b"a", 14, 30), "reader": ((head + b"\r\n") * 100, b"G", 29, 50)}

    def lives(case):
        first, piece, _, _ = cases[case]
        with socket.socket(socket.AF_UNIX if local else socket.AF_INET) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.connect(str(a.run / "evenkeeld.sock") if local else ("127.0.0.1", a.page))
            return trickle(s, first, piece)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        took = dict(zip(cases, pool.map(lives, cases), strict=True))
    assert all(cases[c][2] < took[c] < cases[c][3] * slower() for c in cases), took
    assert get(a.page, "/health")[0] == 200


@pytest.mark.long
def test_a_restart_that_drains_can_be_taken_back(appliance):
    """Until the process has ended: it serves on, with all its streams, and TOK/S moves meanwhile."""
    a = appliance(steady=True)
    pid = a.server()["pid"]
    streams = [Stream(a.port, dict(LONG, max_tokens=1500)) for _ in range(4)]
    wait_for("the streams flow", lambda: all(s.pieces > 2 for s in streams))
    a.ctl("restart")
    wait_for("it drains", lambda: a.server()["state"] == "draining")
    rates = []
    wait_for("rates in a drain", lambda: a.server()["state"] == "draining" and rates.append(a.server()["signals"]["generation_tokens_per_s"])
             or len({r for r in rates if r}) > 1, 20)
    a.ctl("resume")
    wait_for("it serves", lambda: a.server()["ready"] and a.server()["state"] == "ready")
    for s in streams:
        s.join(240)
        assert s.error is None and s.usage["completion_tokens"] == 1500
    assert [p for _, p in stream(a.port, "/v1/completions", dict(LONG, max_tokens=4)) if isinstance(p, str)]
    assert a.server()["pid"] == pid and a.server()["restarts"] == 0
    assert "the restart is taken back" in a.decisions()[0]["why"]
    assert a.stop(30) == 0  # and an end that a signal asks for is one


def test_two_evenkeelds(appliance):
    a = appliance()
    second = subprocess.run([BUILD / "evenkeeld", "--config", a.config], capture_output=True, text=True, timeout=60)
    assert second.returncode != 0 and "evenkeeld" in second.stderr
    assert a.server()["ready"]


def test_a_kill_during_a_drain_is_no_clean_end(appliance):
    """A restart that somebody's kill -9 cuts short lost requests: the history says what did it, and no deadline that had not passed."""
    a = appliance()
    s = Stream(a.port)
    wait_for("the stream flows", lambda: s.pieces > 2)
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)  # so that the drain cannot end first
    a.ctl("restart")
    wait_for("it drains", lambda: a.server()["state"] == "draining")
    os.kill(pid, signal.SIGKILL)
    wait_for("another one", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"])
    why = [d["why"] for d in a.decisions() if d["reason"] == "CRASH"]
    assert why and why[0].startswith("SIGNAL: Signal 9"), why
    assert "killed at the deadline" not in (a.run / "evenkeeld.log").read_text()


def test_evenkeeld_without_descriptors_answers_when_there_are_some_again(appliance):
    """Not one more for 1 s while clients ask: afterwards page and socket answer as before."""
    a = appliance()
    pid = a.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    for more in (0, 1, 2):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + more, hard))
        asked = [socket.create_connection(("127.0.0.1", a.page), 5) for _ in range(6)]
        for s in asked:
            s.sendall(b"GET /api/v1/servers HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.5)  # it has tried to take them
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        for s in asked:
            s.close()
        wait_for("the page", lambda: get(a.page, "/api/v1/servers")[0] == 200, 60)
        assert a.ctl("status").returncode == 0


def test_a_start_without_descriptors_is_tried_again(appliance):
    """The server dies while evenkeeld may open nothing: no wrong setting and no breaker, but a start as soon as there are descriptors."""
    a = appliance()
    pid, server = a.process.pid, a.server()["pid"]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))
    os.kill(server, signal.SIGKILL)
    wait_for("it is said", lambda: "The start waits" in (a.run / "evenkeeld.log").read_text())
    time.sleep(4)  # three further tries, after which a breaker would be open
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    wait_for("another one", lambda: a.server()["pid"] not in (0, server) and a.server()["ready"], 60)
    said = [(d["reason"], d["why"]) for d in a.decisions()]
    assert not [w for _, w in said if "CONFIG" in w or "DISK" in w] and "BREAKER_OPEN" not in dict(said), said
    assert ["Too many open files" in w for r, w in said if r == "HOST_WAIT"] == [True], "said once"


def test_a_server_has_more_descriptors_than_who_started_it(tmp_path):
    """It inherits the limit of an evenkeeld that is short of them, and its engine's process needs some as well."""
    a = Appliance(tmp_path, server_flags=["--engine-process"]).start()
    try:
        a.ready()
        pid, server = a.process.pid, a.server()["pid"]
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, hard))
        a.ctl("restart")
        wait_for("another one", lambda: a.server()["pid"] not in (0, server) and a.server()["ready"])
        assert resource.prlimit(a.server()["pid"], resource.RLIMIT_NOFILE)[0] > 40
        assert "CRASH" not in [d["reason"] for d in a.decisions()]
    finally:
        a.destroy()


def test_a_limit_of_file_sizes_ends_neither(appliance):
    """SIGXFSZ ended evenkeeld when it kept what led to the end of a server."""
    a = appliance()
    pid = a.server()["pid"]
    subprocess.run(["prlimit", f"--pid={a.process.pid}", "--fsize=1024:"], check=True)  # the next server has it, too
    os.kill(pid, signal.SIGKILL)
    wait_for("the next one", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid))
    pid = a.server()["pid"]
    for s in [Stream(a.port, dict(LONG, max_tokens=64)) for _ in range(4)]:
        s.join(60)
        assert s.error is None
    time.sleep(2.5)  # rows of a chart, too
    assert a.process.poll() is None and a.server()["pid"] == pid and a.server()["ready"]


def test_a_loop_that_lacks_memory_goes_on(tmp_path, monkeypatch):
    """evenkeeld ended with 70."""
    if "san-" in str(BUILD):
        pytest.skip("sanitizers want to be loaded first")
    library, lacking = tmp_path / "lacking_wait.so", tmp_path / "lacking"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/lacking_wait.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("LACKING", str(lacking))
    a = Appliance(tmp_path)
    try:
        a.start().ready()
        pid = a.server()["pid"]
        lacking.touch()
        os.kill(a.process.pid, signal.SIGHUP)  # wakes it
        wait_for("it lacks memory", lambda: "lacks memory" in (tmp_path / "evenkeeld.log").read_text() or a.process.poll() is not None)
        lacking.unlink()
        assert a.process.poll() is None
        wait_for("it goes on", lambda: a.server()["ready"])
        assert a.server()["pid"] == pid
    finally:
        lacking.unlink(missing_ok=True)
        a.destroy()


def test_bad_server_command_opens_the_breaker(tmp_path):
    a = Appliance(tmp_path, server_flags=["--max-num-seqs", "0"]).start()
    try:
        wait_for("configuration failure is named", lambda: "CONFIG" in json.dumps(a.decisions()), 60)
        assert not a.server()["ready"]
    finally:
        a.destroy()


def test_a_read_only_disk_stops_nothing(tmp_path):
    """F24: where neither the state nor the server's output can be written, it serves and is watched, and says so."""
    a = Appliance(tmp_path)
    a.config.write_text(a.config.read_text().replace(f"    log_file: {tmp_path}/server.log\n", ""))
    (tmp_path / "state").mkdir()
    mount = f"mount -t tmpfs -o ro none {tmp_path}/state"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no mounts without root")
    with open(tmp_path / "evenkeeld.log", "wb") as log:
        a.process = subprocess.Popen(["unshare", "-m", "sh", "-c", f"{mount} && exec {BUILD}/evenkeeld --config {a.config}"], stdout=log, stderr=log)
    try:
        a.ready()
        a.ctl("limits", "set", "max_num_running_seqs=3")
        said = (tmp_path / "evenkeeld.log").read_text()
        assert "is read-only: the state is kept in memory" in said and "s1.log cannot be written" in said, said
        assert a.stop() == 0
    finally:
        a.destroy()
