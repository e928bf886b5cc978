"""Protects: top shows evenkeeld's servers and foreign vLLMs beside them, says where each was found, survives what does not answer, and
leaves the terminal as it was."""
import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

from conftest import BUILD, wait_for
from demo import free_port
from test_reload import daemon  # noqa: F401

FAKE = pathlib.Path(__file__).with_name("fake_engine.py")


def page(turn):
    """Two data-parallel engines of one model; the second one is far from balance."""
    rows = []
    for e in (0, 1):
        label = f'engine="{e}",model_name="org/twin"'
        rows += [f"vllm:num_requests_running{{{label}}} {2 + 10 * e}", f"vllm:num_requests_waiting{{{label}}} 0",
                 f"vllm:kv_cache_usage_perc{{{label}}} {0.1 + 0.8 * e}", f"vllm:generation_tokens_total{{{label}}} {turn * 50}",
                 f"vllm:prompt_tokens_total{{{label}}} {turn}"]
        rows += [f'vllm:time_to_first_token_seconds_bucket{{{label},le="{le}"}} {n}' for le, n in (("0.1", turn), ("1", 10 * turn), ("+Inf", 10 * turn))]
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def twin():
    """The port of a server that only has a metrics page."""
    class Handler(http.server.BaseHTTPRequestHandler):
        turn = 0

        def do_GET(self):
            Handler.turn += 1
            body = page(Handler.turn).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def top(daemon, *words):  # noqa: F811
    done = subprocess.run([BUILD / "evenkeelctl", "top", "--socket", daemon.run / "evenkeeld.sock", "--once", "--interval", "0.3", *words],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def rows(daemon, *words):  # noqa: F811
    return {r["name"]: r for r in json.loads(top(daemon, "--json", *words))["servers"]}


def test_ours_beside_foreign_ones(daemon, twin, tmp_path):  # noqa: F811
    daemon.write("one")
    assert daemon.ctl("reload").returncode == 0
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    gone = free_port(28990)
    found = rows(daemon, "--no-host", "--url", f"127.0.0.1:{twin}", "--url", f"http://127.0.0.1:{gone}/", "--price", "3.6")
    assert found["one"]["server"] == "one" and found["one"]["state"] == "ready" and found["one"]["found"] == "evenkeeld"
    assert found["one"]["limit"] == found["one"]["ceiling"] == 16 and found["one"]["evenkeeld"]["last_decision"]["reason"]
    first, second = found[f"twin:{twin}/0"], found[f"twin:{twin}/1"]
    assert first["found"] == "--url" and first["server"] is None and (first["running"], second["running"]) == (2, 12)
    assert 0.1 < first["last"]["ttft_s"]["p95"] <= 1 and first["cost_per_million_tokens"] > 0
    assert found[f"127.0.0.1:{gone}"]["state"] == "DOWN" and found[f"127.0.0.1:{gone}"]["error"]
    text = top(daemon, "--no-host", "--url", f"127.0.0.1:{twin}", "--url", f"127.0.0.1:{gone}")
    assert "4 servers, 3 foreign" in text and "DOWN" in text and "16 of 16" in text and f"out of balance: twin:{twin}/" in text
    assert "one" in top(daemon, "--server", "one") and "twin" not in top(daemon, "--server", "one", "--url", f"127.0.0.1:{twin}")
    lost = subprocess.run([BUILD / "evenkeelctl", "top", "--socket", daemon.run / "evenkeeld.sock", "--server", "two", "--once"],
                          capture_output=True, text=True, timeout=60)
    assert lost.returncode == 1 and "no server 'two'" in lost.stderr


def test_found_on_this_host(daemon, tmp_path):  # noqa: F811
    """A vLLM that nobody told evenkeeld of: seen by its command line and its socket."""
    port = free_port(28900)
    shutil.copy(FAKE, tmp_path / "vllm")
    process = subprocess.Popen([sys.executable, tmp_path / "vllm", "serve", "--port", str(port), "--load", "3"])
    try:
        mine = wait_for("it is found", lambda: [r for r in rows(daemon).values() if r["url"].endswith(f":{port}")])[0]
        assert mine["found"] == f"/proc: pid {process.pid}, vllm serve" and mine["running"] == 3 and mine["state"] == "up"
        assert not [r for r in rows(daemon, "--no-host").values() if r["url"].endswith(f":{port}")]
    finally:
        process.terminate()
        process.wait(60)


def test_without_evenkeeld(twin):
    def run(*words):
        return subprocess.run([BUILD / "evenkeelctl", "top", "--socket", "/nowhere/x.sock", "--no-host", "--interval", "0.2", *words],
                              capture_output=True, text=True, timeout=60)

    done = run("--once", "--url", f"127.0.0.1:{twin}")
    assert done.returncode == 0 and f"twin:{twin}/1" in done.stdout
    done = run("--json", "--count", "3", "--url", f"127.0.0.1:{twin}")
    assert [len(json.loads(line)["servers"]) for line in done.stdout.splitlines()] == [2, 2, 2]
    done = run("--once")
    assert done.returncode == 3 and "/nowhere/x.sock" in done.stderr
    assert run("--interval", "0").returncode == 2


@pytest.mark.parametrize("how, more", [("q", {}), (signal.SIGTERM, {"NO_COLOR": "1"})])
def test_in_a_terminal(twin, how, more):
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(BUILD / "evenkeelctl", ["evenkeelctl", "top", "--socket", "/nowhere/x.sock", "--no-host", "--interval", "0.2", "--url",
                                          f"127.0.0.1:{twin}"], {**os.environ, "LC_ALL": "C.UTF-8", **more})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen = b""

    def shows(what):
        nonlocal seen
        end = time.monotonic() + 20
        while what not in seen and time.monotonic() < end:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                break
        return what in seen

    try:
        assert shows(b"h help") and shows(f"> twin:{twin}/0".encode()), seen[-2000:]
        os.write(fd, b"j")
        assert shows(f"> twin:{twin}/1".encode()), seen[-2000:]
        os.write(fd, b"h")
        assert shows(b"of one minute")
        os.write(fd, b" s")
        assert shows(b"by KV")
        assert (re.search(rb"\x1b\[[0-9;]*m", seen) is None) == bool(more)
        os.write(fd, how.encode()) if isinstance(how, str) else os.kill(pid, how)
        assert shows(b"\x1b[?1049l"), "the terminal was not put back"
        for _ in range(200):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        assert done and os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(fd)
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
