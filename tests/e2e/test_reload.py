"""Protects: servers from files of their own; reading the configuration again, all or nothing; ending for the next evenkeeld."""
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BUILD, MODEL, get, wait_for
from demo import free_port


class Daemon:
    """evenkeeld with a servers_dir that is empty at first."""

    def __init__(self, run):
        self.run, self.page, self.dir, self.port = run, free_port(19464), run / "servers", free_port(18000)
        self.dir.mkdir()
        self.config = run / "evenkeeld.yaml"
        self.config.write_text(f"listen: 127.0.0.1:{self.page}\nsocket: {run}/evenkeeld.sock\nrun_dir: {run}\nstate_dir: {run}/state\n"
                               f"servers_dir: {self.dir}:{run}/vendor\n")
        self.start()

    def start(self):
        self.log = open(self.run / "evenkeeld.log", "ab")
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", self.config], stdout=self.log, stderr=self.log)
        wait_for("the page", lambda: get(self.page, "/")[0] == 200)

    def servers(self):
        return {s["name"]: s for s in json.loads(get(self.page, "/api/v1/servers")[1])["servers"]}

    def ctl(self, *words):
        return subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "evenkeeld.sock", *words], capture_output=True, text=True, timeout=60)

    def reload(self):
        said = self.ctl("reload")
        assert said.returncode == 0, said.stderr + (self.run / "evenkeeld.log").read_text()

    def write(self, name, text=None):
        (self.dir / f"{name}.yaml").write_text(text if text is not None else
                                               f"model: {MODEL}\nserved-model-name: tiny\nport: {self.port}\nmax-num-seqs: 16\n")


@pytest.fixture
def daemon(tmp_path):
    d = Daemon(tmp_path)
    yield d
    if d.process.poll() is None:
        d.process.terminate()
        d.process.wait(60)


def test_starts_without_servers_and_says_what_to_do(daemon):
    page = get(daemon.page, "/")[1].decode()
    said = daemon.ctl("status")
    for text in (page, said.stdout):
        assert "No server is configured" in text and str(daemon.dir) in text
    assert said.returncode == 0 and daemon.servers() == {}
    assert get(daemon.page, "/metrics")[0] == 200


def test_a_pipe_among_the_files_holds_up_nothing(daemon):
    """Whoever may write there could stop the watching of all servers."""
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    os.mkfifo(daemon.dir / "two.yaml")
    said = daemon.ctl("reload")
    assert said.returncode != 0 and "two.yaml is no regular file" in said.stdout + said.stderr
    assert daemon.servers()["one"]["ready"]
    (daemon.dir / "two.yaml").unlink()
    daemon.reload()


def test_adds_and_removes_a_server(daemon):
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    assert get(daemon.port, "/v1/models")[0] == 200
    pid = daemon.servers()["one"]["pid"]

    daemon.write("two", f"model: {MODEL}\nport: {free_port(18200)}\n")
    daemon.reload()
    wait_for("two is ready", lambda: daemon.servers()["two"]["ready"])
    assert daemon.servers()["one"]["pid"] == pid, "a server that stays is not restarted"

    (daemon.dir / "two.yaml").unlink()
    daemon.reload()
    wait_for("two is gone", lambda: "two" not in daemon.servers())
    assert daemon.servers()["one"]["pid"] == pid


@pytest.mark.parametrize("text, says", [
    ("port: 18999\n", "names no `model`"), ("model: [\n", "line 2"), (f"model: {MODEL}\nuds: /x\n", "host and port"),
    (f"model: {MODEL}\nport: 99999\n", "port"), (f"model: {MODEL}\nport: PORT\n", "both have port")])
def test_keeps_what_runs_when_a_file_is_bad(daemon, text, says):
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    daemon.write("bad", text.replace("PORT", str(daemon.port)))
    said = daemon.ctl("reload")
    assert said.returncode == 1 and says in said.stderr and "stays as it was" in said.stderr, said.stderr
    assert list(daemon.servers()) == ["one"] and daemon.servers()["one"]["ready"]
    assert b"evenkeel_supervisor_config_last_reload_successful 0" in get(daemon.page, "/metrics")[1]
    daemon.write("bad", "")
    daemon.reload()  # an empty file hides the server
    assert list(daemon.servers()) == ["one"]


def test_what_cannot_change_is_named(daemon):
    """And another name for the same port: it waits for the server that ends, which is ours and no stranger."""
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    daemon.write("one", f"model: {MODEL}\nport: {free_port(18500)}\n")
    said = daemon.ctl("reload")
    assert said.returncode == 1 and "server 'one' has another port, which needs a restart of evenkeeld" in said.stderr, said
    (daemon.dir / "one.yaml").unlink()
    daemon.write("two")
    daemon.reload()
    wait_for("two is ready", lambda: daemon.servers()["two"]["ready"])
    log = (daemon.run / "evenkeeld.log").read_text()
    assert f"port {daemon.port} of 127.0.0.1 is kept by this evenkeeld for a server that ends" in log and "is taken by process" not in log


def test_a_file_hides_the_same_name_further_back(daemon, tmp_path):
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor/tiny.yaml").write_text(f"model: /nowhere\nport: {daemon.port}\n")
    daemon.write("tiny")
    daemon.reload()
    wait_for("ours is ready", lambda: daemon.servers()["tiny"]["ready"])


def test_settings_without_a_file_wait_for_it(daemon):
    daemon.config.write_text(daemon.config.read_text() + "servers:\n  one:\n    mode: observe\n")
    daemon.reload()
    assert daemon.servers() == {}
    assert "'one' below servers: has no file" in (daemon.run / "evenkeeld.log").read_text()
    daemon.write("one")
    daemon.reload()
    assert daemon.servers()["one"]["mode"] == "observe"


def test_hands_over_to_the_next(daemon):
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    pid = daemon.servers()["one"]["pid"]
    daemon.process.send_signal(signal.SIGUSR1)
    assert daemon.process.wait(60) == 77
    os.kill(pid, 0)
    assert get(daemon.port, "/health")[0] == 200
    daemon.start()
    wait_for("the next has it", lambda: daemon.servers()["one"]["ready"])
    assert daemon.servers()["one"]["pid"] == pid


@pytest.mark.parametrize("how", ["killed", "restarted"])
def test_hands_over_while_a_server_is_not_there(daemon, how):
    """Between the end of a server and the start of the next one evenkeeld alone has its socket: it stays until the server has it."""
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    pid, refused, enough = daemon.servers()["one"]["pid"], [], threading.Event()

    def connect():
        while not enough.is_set():
            try:
                socket.create_connection(("127.0.0.1", daemon.port), 10).close()
            except ConnectionRefusedError:
                refused.append(time.monotonic())
            time.sleep(0.002)
    client = threading.Thread(target=connect)
    client.start()
    try:
        if how == "killed":
            os.kill(pid, signal.SIGKILL)
            wait_for("it waits", lambda: daemon.servers()["one"]["state"] == "backoff", 20, 0.005)
        else:
            said = daemon.ctl("restart", "-s", "one")
            assert said.returncode == 0, said.stderr
        daemon.process.send_signal(signal.SIGUSR1)
        assert daemon.process.wait(60) == 77
        daemon.start()
        wait_for("another one", lambda: daemon.servers()["one"]["ready"] and daemon.servers()["one"]["pid"] != pid)
    finally:
        enough.set()
        client.join()
    assert not refused, len(refused)


def test_a_reload_gives_servers_their_new_keys(daemon):
    keys = daemon.run / "keys"
    keys.write_text("old-key-1234567890\n")
    keys.chmod(0o600)
    daemon.write("one", f"model: {MODEL}\nserved-model-name: tiny\nport: {daemon.port}\napi-key-file: {keys}\n")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    pid = daemon.servers()["one"]["pid"]

    def with_key(key):
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status

    assert (with_key("old-key-1234567890"), with_key("new-key-1234567890")) == (200, 401)
    keys.write_text("new-key-1234567890\n")
    daemon.reload()
    wait_for("the new key is known", lambda: with_key("new-key-1234567890") == 200)
    assert with_key("old-key-1234567890") == 401 and daemon.servers()["one"]["pid"] == pid


def test_a_flag_that_the_server_does_not_take_refuses_the_reload(daemon):
    """It stands in the server's own file, which evenkeeld does not read: evenkeel-server is asked."""
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    pid, text = daemon.servers()["one"]["pid"], (daemon.dir / "one.yaml").read_text()
    daemon.write("one", text + "max-num-seqz: 4\n")
    said = daemon.ctl("reload")
    assert said.returncode != 0 and "max-num-seqz" in said.stderr and "one" in said.stderr, said
    said = daemon.ctl("restart")
    assert said.returncode != 0 and "goes on as it is" in said.stderr and daemon.servers()["one"]["pid"] == pid
    daemon.write("one", text.replace("16", "8"))
    said = daemon.ctl("reload")
    assert said.returncode == 0 and f"one needs a restart for its file {daemon.dir}/one.yaml" in said.stdout, said
    assert daemon.ctl("restart").returncode == 0
    wait_for("the next one", lambda: daemon.servers()["one"]["ready"] and daemon.servers()["one"]["pid"] not in (0, pid))
    assert "needs_restart" not in daemon.servers()["one"]


def test_a_hangup_while_it_is_read_is_not_lost(daemon):
    """evenkeel-server is asked for its flags meanwhile; who has written the file again is heard afterwards."""
    daemon.write("one")
    daemon.reload()
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    pid = daemon.servers()["one"]["pid"]
    text = (daemon.dir / "one.yaml").read_text()
    for seqs in range(8, 16):
        (daemon.run / "new").write_text(text.replace("max-num-seqs: 16", f"max-num-seqs: {seqs}"))
        (daemon.run / "new").rename(daemon.dir / "one.yaml")  # never half a file
        daemon.process.send_signal(signal.SIGHUP)
    (daemon.run / "new").write_text(text + "max-num-seqz: 4\n")
    (daemon.run / "new").rename(daemon.dir / "one.yaml")
    daemon.process.send_signal(signal.SIGHUP)
    wait_for("the last one counts", lambda: "max-num-seqz" in (daemon.run / "evenkeeld.log").read_text())
    assert daemon.servers()["one"]["pid"] == pid and daemon.servers()["one"]["ready"]
