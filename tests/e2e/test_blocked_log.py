"""Protects: a log that nobody reads stops nothing: a pipe that is full, one whose reader is gone, a stopped terminal, a full disk."""
import fcntl
import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import termios
import threading

import pytest

from conftest import BUILD, MODEL, ROOT, Appliance, get, metric, wait_for
from demo import free_port

PIPE_BYTES = 4096  # the least that a pipe can hold: it is full soon


def small_pipe():
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reads, writes


class Into(Appliance):
    """An evenkeeld whose log goes to a descriptor of the test."""

    def start_into(self, fd):
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", self.config], stdout=subprocess.DEVNULL, stderr=fd)
        os.close(fd)
        return self

    def reload(self, times, status=b" 200 "):
        for _ in range(times):
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(10)
                one.connect(str(self.run / "evenkeeld.sock"))
                one.sendall(b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                assert status in one.makefile("rb").readline()

    def fill(self):
        """More lines than the queue takes: of a configuration that is refused at once, for a good one is asked of evenkeel-server."""
        good = self.config.read_text()
        self.config.write_text(f"{'x' * 60}: 1\n{good}")
        wait_for("lines are dropped", lambda: self.reload(100, b" 400 ") or dropped(self) > 0, 60, 0)
        self.config.write_text(good)


@pytest.fixture
def into(tmp_path):
    one = Into(tmp_path)
    yield one
    one.destroy()


def dropped(appliance):
    return metric(appliance.metrics(appliance.page), "evenkeel_supervisor_log_lines_dropped_total")


def test_evenkeeld_goes_on_without_a_reader(into):
    reads, writes = small_pipe()
    into.start_into(writes).ready()
    pid = into.server()["pid"]
    into.fill()
    os.kill(pid, signal.SIGKILL)  # what it is for goes on
    wait_for("another process serves", lambda: into.server()["pid"] not in (0, pid) and into.server()["ready"])

    lost = dropped(into)
    text = []

    def read():
        with os.fdopen(reads, "rb") as pipe:
            text.extend(line.decode() for line in pipe)

    reader = threading.Thread(target=read)
    reader.start()
    said = f"{int(lost)} lines of this log were dropped"
    wait_for("what is missing is said", lambda: any(said in line for line in text))
    into.reload(1)
    assert into.stop() == 0
    reader.join(60)
    assert sum("were dropped" in line for line in text) == 1, "it is said once"
    assert "draining the servers, then ending" in "".join(text[-40:]), "its last lines are out"


def test_evenkeeld_survives_its_reader(into):
    reads, writes = small_pipe()
    into.start_into(writes).ready()
    os.close(reads)
    into.reload(3)
    assert into.process.poll() is None
    wait_for("those are counted, too", lambda: dropped(into) >= 3)
    assert into.stop() == 0


def test_a_stopped_terminal(into):
    ours, theirs = pty.openpty()
    into.start_into(os.dup(theirs)).ready()
    termios.tcflow(theirs, termios.TCOOFF)  # what Ctrl-S does
    into.fill()
    assert into.server()["ready"]
    os.close(ours)
    os.close(theirs)


def test_a_journal_that_does_not_read(into):
    library, opened = into.run / "hung_journal.so", into.run / "journal"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/e2e/hung_journal.c"], check=True)
    with open(into.run / "stderr", "wb") as file:
        stat = os.fstat(file.fileno())
        into.process = subprocess.Popen([BUILD / "evenkeeld", "--config", into.config], stdout=subprocess.DEVNULL, stderr=file, env=os.environ | {
            "LD_PRELOAD": str(library), "HUNG_JOURNAL": str(opened), "JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}",
            "ASAN_OPTIONS": "verify_asan_link_order=0"})
    into.ready()
    into.fill()
    lost = int(dropped(into))
    opened.touch()
    wait_for("what is missing is said", lambda: f"MESSAGE={lost} lines of this log were dropped" in opened.read_text())
    assert into.stop() == 0
    assert "draining the servers, then ending" in opened.read_text()


class Server:
    """An evenkeel-server that logs each request to a descriptor of the test."""

    def __init__(self, run, fd, *flags):
        self.port = free_port(18000)
        self.process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--port", str(self.port), "--host", "127.0.0.1",
                                         "--served-model-name", "tiny", "--enable-log-requests", *flags],
                                        stdout=subprocess.DEVNULL, stderr=fd, cwd=run)
        wait_for("it serves", lambda: get(self.port, "/health")[0] == 200)

    def ask(self, times):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for _ in range(times):
            connection.request("GET", "/v1/models", headers={"x-request-id": "r" * 60})
            assert connection.getresponse().read()
        connection.close()

    def dropped(self):
        return metric(get(self.port, "/metrics")[1].decode(), "evenkeel_log_lines_dropped_total")

    def generate(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 8}),
                           {"Content-Type": "application/json"})
        return connection.getresponse().status


@pytest.fixture
def server(tmp_path):
    made = []

    def make(fd, *flags):
        made.append(Server(tmp_path, fd, *flags))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait(60)


def test_the_server_goes_on_without_a_reader(server):
    reads, writes = small_pipe()
    one = server(writes)
    os.close(writes)
    wait_for("lines are dropped", lambda: one.ask(200) or one.dropped() > 0, 60, 0)
    assert get(one.port, "/health")[0] == 200 and one.generate() == 200
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0, "a log that nobody reads holds up no end"
    os.close(reads)


def test_last_words_are_out_when_somebody_reads(server, tmp_path):
    path = tmp_path / "log"
    with open(path, "wb") as file:
        one = server(file.fileno())
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == 0
    assert "asked to stop; all requests done" in path.read_text().splitlines()[-1]


def test_a_full_disk_under_the_log(server):
    with open("/dev/full", "wb") as full:
        one = server(full.fileno())
    one.ask(3)
    assert one.generate() == 200
    wait_for("they are counted", lambda: one.dropped() >= 3)


@pytest.mark.parametrize("words", [["status"], ["explain"], ["status", "--json"], ["--help"], ["events", "--limit", "100"]])
def test_a_reader_that_has_enough_is_no_error_to_talk_about(shared, words):
    reads, writes = os.pipe()
    os.close(reads)
    for ignored in (signal.SIG_DFL, signal.SIG_IGN):
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", shared.run / "evenkeeld.sock", *words], stdout=writes, stderr=subprocess.PIPE,
                              restore_signals=False, preexec_fn=lambda how=ignored: signal.signal(signal.SIGPIPE, how), timeout=60)
        assert done.stderr == b"", (words, done.returncode, done.stderr)
    os.close(writes)
