"""Protects: every state of a server's life is one that another evenkeeld goes on from, with the real programs; the whole table is in
tests/unit/law/test_life.c. Whichever process is killed or replaced in the middle of a drain, a restart or a wait: nothing is lost, nothing is
called a crash, `resume` works, and a breaker closes when its cause is gone."""
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import ptrace
from bare import Bare, parse, read_all
from conftest import BUILD, MODEL, ROOT, Appliance, get, gone, metric, paced, slower, wait_for
from test_faults import LONG, Stream


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Where evenkeeld was killed in the middle nobody else ends its server."""
    yield
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                if f"{tmp_path}/" in f.read():
                    os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def reasons(a):
    return [d["reason"] for d in a.decisions()]


def state(a):
    return a.server()["state"]


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "fake_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/fake_clock.c"], check=True)
    return library


@pytest.fixture(params=["killed", "upgraded", "a day later", "a day earlier"])
def how(request, monkeypatch, tmp_path):
    """How an evenkeeld is followed by the next: it was killed, it left its servers to it, and the wall clock may jump between them."""
    if request.param.startswith("a day"):
        if "san-" in str(BUILD):
            pytest.skip("sanitizers want to be loaded first")
        (tmp_path / "offset").write_text(f"{86400 if request.param.endswith('later') else -86400} 0\n")
        library = request.getfixturevalue("clock")

        def jump():
            monkeypatch.setenv("LD_PRELOAD", str(library))
            monkeypatch.setenv("FAKE_CLOCK", str(tmp_path / "offset"))
        return signal.SIGKILL, jump
    return (signal.SIGUSR1 if request.param == "upgraded" else signal.SIGKILL), lambda: None


def replace(a, how=(signal.SIGKILL, lambda: None)):
    """Another evenkeeld instead of this one."""
    a.process.send_signal(how[0])
    a.process.wait(60)
    how[1]()
    a.start()
    wait_for("its page", lambda: a.server()["state"] != "adopting")


def flowing(a, count=4, tokens=1500):
    streams = [Stream(a.port, dict(LONG, max_tokens=tokens)) for _ in range(count)]
    wait_for("streams flow", lambda: all(s.pieces > 2 for s in streams))
    return streams


def whole(streams, tokens=1500):
    for s in streams:
        s.join(300)
        assert s.error is None and s.usage["completion_tokens"] == tokens, (s.error, s.usage)


def test_a_drained_server_stays_drained(appliance, how):
    """It was shown as starting, could not be resumed, and was killed at the deadline of its start."""
    deadline = paced(2)
    a = appliance(extra=f"    start_deadline_s: {deadline}\n")
    pid = a.server()["pid"]
    a.ctl("drain")
    wait_for("drained", lambda: state(a) == "drained")
    replace(a, how)
    wait_for("still drained", lambda: state(a) == "drained")
    time.sleep(deadline + 3.5)  # past start_deadline_s, and past what an adopted process is given to answer
    assert a.server()["pid"] == pid and state(a) == "drained" and "CRASH" not in reasons(a)
    a.ctl("resume")
    wait_for("ready again", lambda: a.server()["ready"])
    whole([Stream(a.port, dict(LONG, max_tokens=8))], 8)


def test_a_restart_goes_on_under_the_next_evenkeeld(appliance, how):
    """Its start deadline is shorter than the drain: every stream was lost, and the clean end was called a crash."""
    a = appliance(extra=f"    start_deadline_s: {paced(1)}\n    hang_s: 60\n", server_flags=["--max-num-seqs", "4"])
    pid = a.server()["pid"]
    streams = flowing(a)
    a.ctl("restart")
    wait_for("draining", lambda: state(a) == "draining", step=0.005)
    replace(a, how)
    now = a.server()
    assert (now["state"] == "draining" and now["pid"] == pid) or not any(s.join(60) or s.is_alive() for s in streams), now  # a fast machine is done by now
    waits = Stream(a.port, dict(LONG, max_tokens=8))  # refused by nobody: it waits for the next process
    whole(streams)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    whole([waits], 8)
    assert "CRASH" not in reasons(a) and "BACKOFF" not in reasons(a), reasons(a)
    # one that was over within two seconds may have been counted by the evenkeeld before, if that waited for it
    counted = metric(a.metrics(a.page), "evenkeel_supervisor_restarts_total", cause="operator")
    assert counted == 1 or (counted == 0 and now["pid"] != pid and how[0] != signal.SIGKILL)


@pytest.mark.long
def test_a_signal_holds_what_comes_for_the_next_process(appliance):
    """evenkeeld keeps the listening socket: a SIGTERM, its own at a drain's deadline or anybody's, refuses nobody."""
    a = appliance()
    pid = a.server()["pid"]
    streams = flowing(a)
    os.kill(pid, signal.SIGTERM)
    wait_for("it drains", lambda: "SIGTERM: draining" in (a.run / "server.log").read_text())
    waits = Stream(a.port, dict(LONG, max_tokens=8))
    whole(streams)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    whole([waits], 8)


def told_to_restart(a):
    """A drain for a restart is under way, and written down, when evenkeeld dies; the server stands still meanwhile, or a fast one had ended."""
    pid = a.server()["pid"]
    a.ctl("restart")
    wait_for("it was told", lambda: "Draining: holding" in (a.run / "server.log").read_text(), step=0.002)
    os.kill(pid, signal.SIGSTOP)
    wait_for("written", lambda: '"want":"restart"' in (a.run / "state/state.json").read_text())
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGCONT)


def test_a_drained_server_leaves_nobody_in_a_socket_without_an_owner(appliance):
    """It was drained and ended while evenkeeld was dead: what waited in the socket was reset."""
    a = appliance()
    pid = a.server()["pid"]
    streams = flowing(a, 8)
    told_to_restart(a)
    waits = Stream(a.port, dict(LONG, max_tokens=8))
    whole(streams)
    wait_for("it says so", lambda: "nobody else keeps the listening socket" in (a.run / "server.log").read_text())
    time.sleep(1)
    assert not gone(pid)
    a.start()
    whole([waits], 8)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert "CRASH" not in reasons(a)


def test_where_no_evenkeeld_comes_clients_are_told(appliance):
    """Some time after the deadline of its drain it leaves; who waits is not reset but answered."""
    deadline = min(paced(5), 60)  # its stream ends within it
    a = appliance(steady=True, extra=f"    drain_deadline_s: {deadline}\n")
    pid = a.server()["pid"]
    streams = flowing(a, 1, 100)
    begin = time.monotonic()
    told_to_restart(a)
    whole(streams, 100)
    request = urllib.request.Request(f"http://127.0.0.1:{a.port}/v1/completions", b'{"model":"tiny","prompt":"a"}', {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 503 and refused.value.headers["Retry-After"]
    assert deadline < time.monotonic() - begin < (deadline + 37) * slower()
    wait_for("it ended", lambda: gone(pid))


DUMPABLE = [] if os.geteuid() == 0 else ["--dumpable"]  # else another user's debugger is refused


@contextlib.contextmanager
def without_a_processor(pid):
    """The threads of a server that speak HTTP stand still, as on a machine whose host is busy, until its first thread waits for them: the
    last thing that it does before it ends."""
    threads, first = ptrace.threads_of(pid, "http"), pathlib.Path(f"/proc/{pid}/wchan")
    if not first.exists() or all(first.read_text() == "0" for _ in range(100)):
        pytest.skip("this kernel does not say where a process waits")
    with contextlib.ExitStack() as stack:
        if not all([stack.enter_context(ptrace.held(tid)) for tid in threads]):
            pytest.skip("tracing is not allowed")
        yield
        wait_for("it asks its threads", lambda: [ptrace.reap(tid) for tid in threads] and (gone(pid) or "nanosleep" in first.read_text()), step=0.01)


def test_what_came_is_answered_however_late_its_thread_looks(tmp_path):
    """The process left while a request that had come was unread: it had asked how many were known, not whether all had been looked at."""
    s = Bare(tmp_path, *DUMPABLE)
    try:
        kept = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * slower())
        kept.request("GET", "/v1/models")
        assert kept.getresponse().read()
        # One that is held with a lock would hold the first thread, too: so none has anything left to do.
        tasks = [pathlib.Path(f"/proc/{s.process.pid}/task/{tid}/wchan") for tid in ptrace.threads_of(s.process.pid, "http")]
        wait_for("they wait for what comes", lambda: all("poll" in t.read_text() for t in tasks) or tasks[0].read_text() == "0", step=0.01)
        with without_a_processor(s.process.pid):
            kept.request("GET", "/v1/models")
            s.process.terminate()
        answer = kept.getresponse()
        assert answer.status in (200, 503) and answer.read()
        assert s.process.wait(60 * slower()) == 0
    finally:
        s.stop()


@pytest.mark.long
def test_who_waits_for_no_evenkeeld_is_told_however_late_a_thread_looks(appliance):
    """The time for the next evenkeeld is over before a thread has taken what came: it is answered, never reset."""
    a = appliance(steady=True, server_flags=DUMPABLE, extra=f"    drain_deadline_s: {paced(10)}\n")
    pid = a.server()["pid"]
    streams = flowing(a, 2, 300)
    told_to_restart(a)
    whole(streams, 300)
    with socket.create_connection(("127.0.0.1", a.port), timeout=60 * slower()) as waits:
        with without_a_processor(pid):
            waits.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert parse(read_all(waits))[0] in (200, 503)
    wait_for("it ended", lambda: gone(pid))


def held(appliance, tmp_path):
    """An appliance whose server does not begin, and so takes no socket, while the file that is returned is there."""
    hold = tmp_path / "hold"
    return appliance(before=("sh", "-c", json.dumps(f'while [ -e {hold} ]; do sleep 0.02; done; exec "$@"'), "sh")), hold


def test_an_upgrade_waits_until_a_new_process_has_its_socket(appliance, tmp_path):
    """evenkeeld left 40 ms after it had started a server: nobody held the listening socket, and clients were refused."""
    a, hold = held(appliance, tmp_path)
    pid = a.server()["pid"]
    refused, over = [], threading.Event()

    def connect():
        while not over.is_set():
            try:
                socket.create_connection(("127.0.0.1", a.port), 5).close()
            except ConnectionRefusedError:
                refused.append(time.monotonic())
            except OSError:
                pass
    asks = threading.Thread(target=connect)
    asks.start()
    hold.touch()
    os.kill(pid, signal.SIGKILL)
    wait_for("the next process", lambda: a.server()["pid"] not in (0, pid))
    a.process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert a.process.poll() is None, "it left while nobody held the socket"
    hold.unlink()
    a.process.wait(60)
    time.sleep(0.3)
    a.start()
    wait_for("ready", lambda: a.server()["ready"])
    over.set()
    asks.join()
    assert not refused, len(refused)


def test_a_stop_while_it_leaves_is_a_stop(appliance, tmp_path):
    """SIGTERM came while evenkeeld waited to leave to the next one: it left all the same, and the server went on."""
    a, hold = held(appliance, tmp_path)
    hold.touch()
    os.kill(a.server()["pid"], signal.SIGKILL)
    wait_for("the next process", lambda: a.server()["state"] == "starting" and a.server()["pid"])
    young = a.server()["pid"]
    a.process.send_signal(signal.SIGUSR1)
    time.sleep(0.2)
    a.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    hold.unlink()
    assert a.process.wait(60) == 0
    wait_for("the server is ended, too", lambda: gone(young))


def test_a_socket_is_given_without_a_descriptor_to_spare(appliance):
    """A server whose descriptors are all in use said that it has no socket, and the next evenkeeld kept none."""
    a = appliance()
    pid = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    held = len(os.listdir(f"/proc/{pid}/fd"))
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={held + 1}:"], check=True)  # one, for the connection that asks
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(next(a.run.glob("**/control.sock"))))
        s.sendall(b"EVENKEEL-FD get listen\n")
        text, fds, _, _ = socket.recv_fds(s, 200, 1)
    assert text == b"OK\n" and len(fds) == 1
    os.close(fds[0])


@pytest.mark.long
def test_a_restart_that_ends_while_nobody_watches(appliance):
    a = appliance(extra=f"    drain_deadline_s: {paced(10)}\n")
    pid = a.server()["pid"]
    streams = flowing(a, 8)
    told_to_restart(a)
    whole(streams)
    wait_for("it ended", lambda: gone(pid), 60)
    a.start()
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert "CRASH" not in reasons(a) and metric(a.metrics(a.page), "evenkeel_supervisor_restarts_total", cause="operator") == 1


def test_a_death_that_nobody_saw_is_told(appliance):
    a = appliance()
    pid = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGKILL)
    wait_for("it ended", lambda: gone(pid))
    a.start().ready()
    said = [d["why"] for d in a.decisions() if d["reason"] == "CRASH"]
    assert said and "while no evenkeeld watched" in said[0]


def told(a):
    """What a client hears while nobody serves: neither silence nor a refused connection."""
    status, body = get(a.port, "/v1/models", timeout=60)
    return status == 503 and "it is started by resume" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("drained", [True, False], ids=["drained", "running"])
def test_one_that_dies_before_it_hands_over_its_socket(appliance, drained):
    """The next evenkeeld had adopted it: nobody had the port until it was started again."""
    a = appliance()
    pid = a.server()["pid"]
    if drained:
        a.ctl("drain")
        wait_for("drained", lambda: state(a) == "drained")
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGSTOP)
    a.start()
    wait_for("its page", lambda: a.server()["pid"] == pid)
    os.kill(pid, signal.SIGKILL)
    wait_for("its end is seen", lambda: "CRASH" in reasons(a), step=0.005)
    for _ in range(100):
        socket.create_connection(("127.0.0.1", a.port), 5).close()
        time.sleep(0.005)
    if drained:
        assert state(a) == "stopped" and told(a)
        a.ctl("resume")
    wait_for("another one", lambda: a.server()["ready"] and a.server()["pid"] != pid)


def test_what_ended_while_it_was_drained_stays_down(appliance):
    a = appliance()
    pid = a.server()["pid"]
    a.ctl("drain")
    wait_for("drained", lambda: state(a) == "drained")
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGKILL)
    a.start()
    wait_for("it is stopped", lambda: state(a) == "stopped")
    assert "resume or restart starts it" in json.dumps(a.decisions())
    assert told(a), "the next evenkeeld binds the port, too"
    a.ctl("resume")
    wait_for("ready", lambda: a.server()["ready"])
    a.ctl("drain")
    wait_for("drained", lambda: state(a) == "drained")
    os.kill(a.server()["pid"], signal.SIGKILL)
    wait_for("it is stopped", lambda: state(a) == "stopped")
    assert told(a)
    a.ctl("resume")
    wait_for("ready", lambda: a.server()["ready"])
    whole([Stream(a.port, dict(LONG, max_tokens=8))], 8)


def test_a_resume_in_the_moment_of_its_death_is_not_lost(appliance):
    a = appliance()
    pid = a.server()["pid"]
    a.ctl("drain")
    wait_for("drained", lambda: state(a) == "drained")
    os.kill(pid, signal.SIGSTOP)  # it hears of the resume no more
    a.ctl("resume")
    os.kill(pid, signal.SIGKILL)
    wait_for("started again", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)


def test_a_restart_that_waits_goes_on_under_the_next_evenkeeld(appliance):
    """Asked for while it starts, and the evenkeeld that promised it is killed."""
    a = appliance(extra="    hang_s: 60\n")
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)
    replace(a)
    assert a.ctl("restart").stdout == "Restarting when it is ready.\n"
    assert a.server()["restart_waits"] == "until it is ready"
    replace(a)
    os.kill(pid, signal.SIGCONT)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert "restart_waits" not in a.server()


def test_a_restart_asked_while_it_starts_refuses_nobody(appliance):
    """SIGTERM made an adopted server, which serves, refuse what came: the restart begins when it is known to be ready."""
    a = appliance(extra="    hang_s: 60\n", server_flags=["--max-num-seqs", "4"])
    pid = a.server()["pid"]
    streams = flowing(a)
    os.kill(pid, signal.SIGSTOP)
    replace(a)
    assert state(a) == "starting"
    a.ctl("restart")
    assert "restart when it is ready" in json.dumps(a.decisions())
    os.kill(pid, signal.SIGCONT)
    wait_for("draining", lambda: state(a) == "draining", step=0.005)
    waits = Stream(a.port, dict(LONG, max_tokens=8))
    whole(streams)
    whole([waits], 8)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert "CRASH" not in reasons(a), reasons(a)


@pytest.fixture
def late(appliance, tmp_path):
    """An appliance whose evenkeel-server is run at once and does nothing while the file that is returned is there."""
    hold, build = tmp_path / "hold", tmp_path / "build"
    build.mkdir()
    (build / "evenkeeld").symlink_to(BUILD / "evenkeeld")
    program = build / "evenkeel-server"
    program.write_text(f'#!/bin/sh\nwhile [ -e {hold} ]; do sleep 0.02; done\nexec {BUILD}/evenkeel-server "$@"\n')
    program.chmod(0o755)
    return appliance(build=build), hold


@pytest.mark.parametrize("back", ["before it listens", "when it serves"])
def test_evenkeeld_is_killed_in_the_first_moment_of_a_server(late, back):
    """Nobody had the listening socket: clients were refused until the next evenkeeld had given the server one. And one that came before the
    server had its control socket took it for ended, and started another beside it."""
    a, hold = late
    pid = a.server()["pid"]
    hold.touch()
    os.kill(pid, signal.SIGKILL)
    wait_for("the next process", lambda: a.server()["state"] == "starting" and a.server()["pid"] not in (0, pid))
    young = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    waits = [Stream(a.port, dict(LONG, max_tokens=8)) for _ in range(4)]
    socket.create_connection(("127.0.0.1", a.port), 10).close()
    if back == "before it listens":
        a.start()
        wait_for("it is taken over", lambda: a.server()["pid"] == young)
        hold.unlink()
    else:
        hold.unlink()
        wait_for("it answers", lambda: not any(s.is_alive() for s in waits))
        a.start()
    whole(waits, 8)
    wait_for("ready", lambda: a.server()["ready"])
    assert a.server()["pid"] == young and reasons(a).count("CRASH") == 1, a.decisions()
    a.ctl("restart", "--wait")
    assert a.server()["pid"] != young and reasons(a).count("CRASH") == 1


@pytest.mark.skipif(os.geteuid() != 0 or not ptrace.allowed(), reason="a socket may not be taken out of another process")
def test_evenkeeld_begins_while_the_server_is_stopped(appliance):
    """It asks the server for the listening socket, which does not answer: when that was then killed, clients were refused."""
    a = appliance()
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)
    a.process.kill()
    a.process.wait()
    a.start()
    wait_for("its page", lambda: a.server()["state"])
    os.kill(pid, signal.SIGKILL)
    while not (a.server()["ready"] and a.server()["pid"] not in (0, pid)):
        socket.create_connection(("127.0.0.1", a.port), 10).close()
    whole([Stream(a.port, dict(LONG, max_tokens=8))], 8)


def taken(port):
    """Connections to it that a process has accepted: until then they have no inode."""
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(r[1].endswith(f":{port:04X}") and r[3] == "01" and r[9] != "0" for r in rows)


@pytest.mark.long
def test_a_restart_with_other_flags_while_it_starts_cuts_nobody(appliance, tmp_path):
    """One that starts with other flags than the next one would have was ended at once, with the connections that it had taken."""
    library = tmp_path / "slow_load.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/slow_load.c"], check=True)
    a = appliance(extra=f"    env: {{LD_PRELOAD: '{library}', SLOW_LOAD_S: '3', ASAN_OPTIONS: verify_asan_link_order=0}}\n")
    a.config.write_text(a.config.read_text().replace("--threads, '1'", "--threads, '1', --max-num-seqs, '3'"))

    def begins():
        """The next process, which has its socket and loads."""
        pid = a.server()["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for("the next process listens", lambda: a.server()["state"] == "starting" and a.server()["pid"] not in (0, pid) and get(a.port, "/livez")[0] == 200)
        return a.server()["pid"]
    young = begins()
    held = [Stream(a.port, dict(LONG, max_tokens=8)) for _ in range(3)]
    wait_for("they are taken", lambda: taken(a.port) >= 3)
    a.ctl("reload")
    a.ctl("restart")
    assert state(a) == "draining", "it was ready too early: nothing was tried"
    later = Stream(a.port, dict(LONG, max_tokens=8))
    whole(held, 8)
    whole([later], 8)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, young), 60)
    assert "--max-num-seqs\0003" in pathlib.Path(f"/proc/{a.server()['pid']}/cmdline").read_text()
    assert reasons(a).count("CRASH") == 1, a.decisions()

    a.config.write_text(a.config.read_text().replace("--max-num-seqs, '3'", "--max-num-seqs, '4'"))
    young = begins()
    a.ctl("reload")
    began = time.monotonic()
    a.ctl("restart")
    wait_for("nothing holds it", lambda: gone(young), 2, step=0.01)
    assert time.monotonic() - began < 2 * slower()
    a.ctl("restart")  # of the next one, which has these flags: when it is ready
    assert "restart when it is ready" in json.dumps(a.decisions(3))


@pytest.mark.parametrize("program", ["evenkeeld", "evenkeel-server"])
def test_a_signal_in_its_first_moment_ends_neither(tmp_path, program):
    """SIGHUP before it was listened to ended the process."""
    os.mkfifo(tmp_path / "config")  # it waits for this, which is before all else
    p = subprocess.Popen([BUILD / program, "--config", tmp_path / "config"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(tmp_path / "config", "w") as f:  # opens when it reads
        p.send_signal(signal.SIGHUP)
        f.write("no-such-key: 1\n")
    assert p.wait(60) > 0, "its own exit code, and not the signal's"


def test_evenkeeld_that_was_to_end_is_followed_by_one_that_serves(appliance):
    """Killed while it drained to stop: the next evenkeeld lets the streams end, then starts the server."""
    a = appliance()
    pid = a.server()["pid"]
    streams = flowing(a, 8, 1200)
    a.process.terminate()
    wait_for("draining", lambda: get(a.port, "/readyz")[0] == 503, step=0.002)
    os.kill(pid, signal.SIGSTOP)  # a fast one had ended before evenkeeld is dead
    wait_for("written", lambda: '"want":"stop"' in (a.run / "state/state.json").read_text())
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGCONT)
    a.start()
    whole(streams, 1200)
    wait_for("the next process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert "CRASH" not in reasons(a)


def test_a_silent_server_is_no_start_that_failed(appliance):
    """It stands still for a moment while evenkeeld is replaced: its start is long over, so its deadline is none of a start."""
    deadline = paced(1)
    a = appliance(extra=f"    start_deadline_s: {deadline}\n    hang_s: 60\n")
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        a.process.kill()
        a.process.wait()
        a.start()
        wait_for("adopted", lambda: a.server()["pid"] == pid)
        time.sleep(deadline + 4.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for("ready", lambda: a.server()["ready"])
    assert a.server()["pid"] == pid


def test_a_drain_that_nobody_wrote_down(appliance):
    """As after an upgrade from a release that wrote no states: it is shown, not killed, and resumed."""
    deadline = paced(1)
    a = appliance(extra=f"    start_deadline_s: {deadline}\n    hang_s: 60\n")
    pid = a.server()["pid"]
    a.ctl("drain")
    wait_for("drained", lambda: state(a) == "drained")
    a.process.kill()
    a.process.wait()
    (a.run / "state/state.json").unlink()
    a.start()
    wait_for("it drains", lambda: state(a) in ("draining", "drained"))
    time.sleep(deadline + 4.5)
    assert a.server()["pid"] == pid
    replace(a)  # what was found is written, and the next one knows it, too
    wait_for("it drains", lambda: state(a) in ("draining", "drained"))
    a.ctl("resume")
    wait_for("ready", lambda: a.server()["ready"] and a.server()["pid"] == pid)


@pytest.mark.long
def test_a_pin_holds_before_the_next_process_serves(appliance):
    """24 streams waited in the kept socket of a planned restart, and all of them ran before the pin of 4 was written again."""
    a = appliance(server_flags=["--max-num-seqs", "32"], mode="advise", extra=f"    drain_deadline_s: {paced(60)}\n")
    wait_for("limits", lambda: a.server()["limits"]["max_num_running_seqs"]["value"])
    a.ctl("limits", "pin", "max_num_running_seqs=4")
    pid = a.server()["pid"]
    streams = flowing(a)
    a.ctl("restart")
    wait_for("draining", lambda: state(a) == "draining", step=0.005)
    streams += [Stream(a.port, dict(LONG, max_tokens=500)) for _ in range(16)]  # for seconds: what runs is seen by looking
    most = 0
    wait_for("the next process", lambda: a.server()["pid"] not in (0, pid), 60)
    while any(s.is_alive() for s in streams):
        try:
            most = max(most, metric(a.metrics(), "vllm:num_requests_running") or 0)
        except OSError:
            pass
        time.sleep(0.02)
    assert 0 < most <= 4 and all(s.error is None and s.usage for s in streams), [s.error for s in streams]
    assert "is 4 from the start" in (a.run / "server.log").read_text()
    wait_for("pinned", lambda: a.server()["limits"]["max_num_running_seqs"] | {"value": 4, "pinned": True} == a.server()["limits"]["max_num_running_seqs"])


def test_a_breaker_whose_cause_vanished_closes(tmp_path):
    """A model directory that is not mounted: the breaker opens, the server comes at once when it is there, and what was remembered
    does not open it at the next crash, nor does an operator's restart leave it open."""
    model, away = tmp_path / "model", tmp_path / "away"
    shutil.copytree(MODEL, model)
    a = Appliance(tmp_path)
    a.config.write_text(a.config.read_text().replace(str(MODEL), str(model)))
    model.rename(away)
    try:
        a.start()
        wait_for("the breaker", lambda: state(a) == "breaker_open")
        replace(a)
        wait_for("the breaker again", lambda: state(a) == "breaker_open")
        away.rename(model)
        begin = time.monotonic()
        wait_for("tried when the files are there", lambda: a.server()["ready"], 15)  # an idle machine: 3 s
        print(f"served {time.monotonic() - begin:.1f} s after the files were there")
        opened = reasons(a).count("BREAKER_OPEN")
        for _ in range(2):
            pid = a.server()["pid"]
            os.kill(pid, signal.SIGKILL)
            wait_for("started again", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
            replace(a)
            a.ready()
        assert reasons(a).count("BREAKER_OPEN") == opened
    finally:
        a.destroy()


def test_an_operators_restart_closes_a_remembered_breaker(appliance):
    a = appliance(server_flags=["--max-num-seqs", "4"])
    last = 0
    for _ in range(5):  # five ends within half an hour
        last = wait_for("a process", lambda: a.server()["ready"] and a.server()["pid"] not in (0, last) and a.server()["pid"], 60)
        os.kill(last, signal.SIGKILL)
    wait_for("the breaker", lambda: state(a) == "breaker_open")
    opened = reasons(a).count("BREAKER_OPEN")
    a.ctl("restart")
    a.ready()
    replace(a)
    a.ready()
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for("started again", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid), 60)
    assert reasons(a).count("BREAKER_OPEN") == opened


def test_a_restart_proves_its_successor_first(tmp_path):
    """A healthy server was drained for one that could not start: its model is away, or a flag of the new configuration is none."""
    model, away = tmp_path / "model", tmp_path / "away"
    shutil.copytree(MODEL, model)
    a = Appliance(tmp_path, server_flags=["--max-num-seqs", "4"])
    a.config.write_text(a.config.read_text().replace(str(MODEL), str(model)))
    try:
        a.start().ready()
        pid = a.server()["pid"]
        model.rename(away)
        for verb in ("restart", "roll"):
            said = a.ctl(verb, check=False)
            assert said.returncode != 0 and "config.json: there is no such file" in said.stderr, said
        assert a.server()["pid"] == pid and a.server()["ready"]
        away.rename(model)

        good = a.config.read_text()
        a.config.write_text(good.replace('"--max-num-seqs", "4"', '"--max-num-seqz", "4"'))
        said = a.ctl("reload", check=False)
        assert said.returncode != 0 and "s1: evenkeel-server does not take its flags: unknown option --max-num-seqz" in said.stderr, said
        assert "needs_restart" not in a.server()
        a.config.write_text(good.replace('"--max-num-seqs", "4"', '"--max-num-seqs", "8"'))
        said = a.ctl("reload")
        assert "s1 needs a restart for --max-num-seqs 8 instead of 4: evenkeelctl -s s1 restart" in said.stdout
        assert a.server()["needs_restart"] == "--max-num-seqs 8 instead of 4" and a.server()["pid"] == pid
        assert "Draining, then starting again with --max-num-seqs 8 instead of 4." in a.ctl("restart").stdout
        wait_for("the next one", lambda: a.server()["ready"] and a.server()["pid"] not in (0, pid))
        assert "needs_restart" not in a.server()
        replace(a)  # what runs is seen of an adopted process, too
        a.ready()
        a.config.write_text(good)
        assert "s1 needs a restart for --max-num-seqs 4 instead of 8" in a.ctl("reload").stdout
    finally:
        a.destroy()
