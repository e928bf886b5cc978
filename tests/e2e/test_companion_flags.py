"""Protects: which servers get the companion for vLLM, by what flags and variables, and that nothing is added where the operator says so or
has something of its own. By --dry-run: a vLLM with it is in tests/vllm/test_companion.py."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
from conftest import BUILD, free_port, get, wait_for

FAKE = pathlib.Path(__file__).parent / "fake_engine.py"

OURS = ("--uds", "--scheduler-cls", "--middleware", "--worker-extension-cls")


def would_run(tmp_path, keys, env=None):
    (tmp_path / "c.yaml").write_text(f"listen: 'off'\nrun_dir: {tmp_path}/r\nstate_dir: {tmp_path}/s\nservers:\n  main:\n"
                                     + "".join(f"    {line}\n" for line in keys))
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--dry-run"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})
    lines = {line.strip().split(": ", 1)[0]: line.strip().split(": ", 1)[1] for line in done.stdout.splitlines() if ": " in line}
    return lines.get("would run", ""), lines.get("with in its environment", ""), done.stdout + done.stderr


BASE = ["engine: vllm", "model: /m", "port: 18471"]


def test_by_default(tmp_path):
    words, env, _ = would_run(tmp_path, BASE)
    assert f"--uds {tmp_path}/r/main/api.sock" in words and "--port 18471" in words
    assert "--scheduler-cls evenkeel_vllm.scheduler.build" in words and "--middleware evenkeel_vllm.front.Admission" in words
    assert f"EVENKEEL_COMPANION_DIR={tmp_path}/r/main" in env
    assert f"PYTHONPATH={BUILD.resolve()}/companion" in env


@pytest.mark.parametrize("keys", [["companion: 'off'"], ["args: [--uds, /x]"], ["actuator: restart"]])
def test_left_as_it_is(tmp_path, keys):
    words, env, _ = would_run(tmp_path, BASE + keys)
    assert "evenkeel" not in words.replace(str(tmp_path), "") and "EVENKEEL" not in env and "PYTHONPATH" not in env
    assert "--host 127.0.0.1 --port 18471" in words


def test_a_command_of_ones_own(tmp_path):
    words, env, _ = would_run(tmp_path, ["engine: vllm", "command: [/bin/true, --port, '18471']"])
    assert not any(flag in words for flag in OURS) and not env


def test_flags_of_ones_own_stay(tmp_path):
    words, _, _ = would_run(tmp_path, BASE + ["args: [--scheduler-cls, mine.S, --worker-extension-cls=mine.W, --middleware, mine.M]"])
    assert words.count("--scheduler-cls") == words.count("--worker-extension-cls") == 1 and "mine.S" in words
    assert words.count("--middleware") == 2


@pytest.mark.parametrize("said, ours", [
    ("scheduler-cls: mine.S", ("--middleware", "--uds", "--worker-extension-cls")),
    ("worker_extension_cls: mine.W", ("--middleware", "--uds", "--scheduler-cls")),
    ("middleware: [mine.M, other.M]", OURS), ("middleware: mine.M", OURS), ("uds: null\nscheduler-cls: ''", OURS),
    ("middleware: [mine.M, evenkeel_vllm.front.Admission]", ("--uds", "--scheduler-cls", "--worker-extension-cls")),
    ("uds: /run/mine.sock", ()), ("- a list", OURS)])
def test_what_the_file_of_its_config_says_stays(tmp_path, said, ours):
    """On the command line ours would win over the file's; of middleware vLLM takes both, and ours only once."""
    (tmp_path / "vllm.yaml").write_text(said + "\n")
    words, env, log = would_run(tmp_path, BASE + [f"args: [--config, {tmp_path}/vllm.yaml]"])
    assert {flag for flag in OURS if flag in words} == set(ours), words
    assert ("EVENKEEL_COMPANION_DIR" in env) == bool(ours)
    assert bool(ours) or "socket of its own" in log


@pytest.mark.parametrize("keys, env", [(["env: {PYTHONPATH: /theirs}"], {}), ([], {"PYTHONPATH": "/theirs"})])
def test_their_python_path_is_kept_behind_ours(tmp_path, keys, env):
    assert "/companion:/theirs" in would_run(tmp_path, BASE + keys, env)[1]


def test_a_word_that_is_neither(tmp_path):
    assert "companion" in would_run(tmp_path, BASE + ["companion: maybe"])[2]


def test_an_engine_that_does_not_know_the_flags_runs_without_it(tmp_path):
    """FAKE: an engine whose parser refuses them, as an old vLLM's does, with its sentence and status."""
    port, page = free_port(28500), free_port(29500)
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--uds*) exec {FAKE} "$@" ;; esac\nexec {FAKE} --port {port}\n')
    program.chmod(0o755)
    (tmp_path / "c.yaml").write_text(f"listen: 127.0.0.1:{page}\nrun_dir: {tmp_path}/r\nstate_dir: {tmp_path}/s\nservers:\n  main:\n    engine: vllm\n"
                                     f"    program: {program}\n    model: /m\n    port: {port}\n    poll_s: 0.2\n    log_file: {tmp_path}/main.log\n")
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml"], stdout=log, stderr=log)
    try:
        def server():
            return json.loads(get(page, "/api/v1/servers")[1])["servers"][0]
        wait_for("ready", lambda: server()["ready"], 60)
        said = (tmp_path / "log").read_text()
        assert "unrecognized arguments: " in (tmp_path / "main.log").read_text()
        assert "vLLM runs as it is from now on" in said
        assert "evenkeel_vllm" not in open(f"/proc/{server()['pid']}/cmdline").read()
        assert "EVENKEEL_COMPANION_DIR" not in open(f"/proc/{server()['pid']}/environ").read()
        before = server()["pid"]
        process.send_signal(signal.SIGHUP)  # a new configuration brings it no second try
        wait_for("it was read", lambda: "read the configuration again" in (tmp_path / "log").read_text(), 60)
        os.kill(before, signal.SIGKILL)
        wait_for("the next", lambda: server()["ready"] and server()["pid"] not in (0, before), 60)
        assert (tmp_path / "main.log").read_text().count("unrecognized arguments") == 1
    finally:
        process.terminate()
        process.wait(60)


SLOW = """#!{python}
# FAKE: a vLLM whose companion opens its control socket when a file is there, for Python takes its time to read a vLLM.
import os, sys, time
sys.path.insert(0, {companion!r})
from evenkeel_vllm import control
while not os.path.exists({go!r}):
    time.sleep(0.05)
kept = control.serve(os.environ["EVENKEEL_COMPANION_DIR"])
time.sleep(600)
"""


def test_evenkeeld_leaves_when_a_slow_start_has_the_socket(tmp_path):
    """Between two evenkeelds somebody has the listening socket, also while a vLLM starts that does not have it yet."""
    port, page = free_port(28600), free_port(29600)
    program = tmp_path / "vllm"
    program.write_text(SLOW.format(python=sys.executable, companion=str(BUILD.resolve() / "companion"), go=str(tmp_path / "go")))
    program.chmod(0o755)
    (tmp_path / "c.yaml").write_text(f"listen: 127.0.0.1:{page}\nrun_dir: {tmp_path}/r\nstate_dir: {tmp_path}/s\nservers:\n  main:\n    engine: vllm\n"
                                     f"    program: {program}\n    model: /m\n    port: {port}\n    poll_s: 0.2\n    log_file: {tmp_path}/main.log\n")

    def connects():
        with socket.create_connection(("127.0.0.1", port), 10):
            return True

    def start():
        with open(tmp_path / "log", "ab") as log:
            return subprocess.Popen([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml"], stdout=log, stderr=log)
    process = start()
    try:
        wait_for("its port", connects, 60)
        process.send_signal(signal.SIGUSR1)
        wait_for("it says what it waits for", lambda: "does not have its listening socket yet" in (tmp_path / "log").read_text(), 20)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        pid = json.loads(get(page, "/api/v1/servers")[1])["servers"][0]["pid"]
        (tmp_path / "go").touch()
        assert process.wait(60) == 77
        assert all(connects() for _ in range(20))
        process = start()
        wait_for("the next one has it", lambda: json.loads(get(page, "/api/v1/servers")[1])["servers"][0]["pid"] == pid, 60)
        assert connects()
    finally:
        process.terminate()
        process.wait(60)


ENDS_SLOWLY = """#!{python}
# FAKE: what evenkeeld sees of a vLLM with the companion, one process for all. Told to end, it answers no more, but stays
# for a while and keeps its socket, as one with several API servers does.
import os, signal, socketserver, sys, threading, time
from http.server import BaseHTTPRequestHandler
sys.path.insert(0, {companion!r})
from evenkeel_vllm import board, control
where = os.environ["EVENKEEL_COMPANION_DIR"]
kept = control.serve(where)
front, engine = board.make(where, "front"), board.make(where, "engine")
for cell, value in (("ceiling_seqs", 8), ("blocks", 100), ("ceiling_tokens", 2048)):
    engine.set(cell, value)

class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        text = b'{{"data": [{{"id": "m"}}]}}' if "models" in self.path else b"vllm:num_requests_running 0\\nvllm:num_requests_waiting 0\\n"
        text = text if self.command == "GET" else b'{{"choices": [{{"text": "a"}}]}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def address_string(self):
        return "-"

api = socketserver.ThreadingUnixStreamServer(where + "/api.sock", Api)
threading.Thread(target=api.serve_forever, daemon=True).start()
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
while not over.wait(0.05):
    front.set("beat", time.monotonic())
    front.set("listening", kept.board.get("drain") != board.HOLDING)
api.shutdown()
time.sleep(6)
os._exit(0)
"""


@pytest.mark.long
def test_a_slow_end_that_was_asked_for_is_no_hang(tmp_path):
    port, page = free_port(28700), free_port(29700)
    program = tmp_path / "vllm"
    program.write_text(ENDS_SLOWLY.format(python=sys.executable, companion=str(BUILD.resolve() / "companion")))
    program.chmod(0o755)
    (tmp_path / "c.yaml").write_text(f"listen: 127.0.0.1:{page}\nrun_dir: {tmp_path}/r\nstate_dir: {tmp_path}/s\nservers:\n  main:\n    engine: vllm\n"
                                     f"    program: {program}\n    model: /m\n    port: {port}\n    poll_s: 0.2\n    hang_s: 1.5\n    log_file: {tmp_path}/main.log\n")
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml"], stdout=log, stderr=log)
    try:
        def server():
            return json.loads(get(page, "/api/v1/servers")[1])["servers"][0]
        wait_for("ready", lambda: server()["ready"], 60)
        before = server()["pid"]
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", tmp_path / "r/evenkeeld.sock", "restart"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        wait_for("the next", lambda: server()["ready"] and server()["pid"] not in (0, before), 60)
        said = (tmp_path / "log").read_text()
        assert "HANG" not in said and "[CRASH]" not in said, said
    finally:
        process.terminate()
        process.wait(60)
