"""Protects: evenkeeld from what a server that it has started leaves behind: files in its directory, its log, the descriptors that it hands over.
The server is a FAKE (hostile_engine.py) that ends at once; another one is watched beside it all along, and what is said of the end is harmless."""
import os
import pathlib
import signal
import socket
import time

import pytest

from conftest import free_port, wait_for
from test_hostile_server import CSI, TAGS, Watched, harmless

pytestmark = pytest.mark.long

FAKE = pathlib.Path(__file__).with_name("hostile_engine.py")
LINES = """    engine: evenkeel
    command: [{fake}, --model, "{kind}"{more}]
    port: {port}
    log_file: {run}/a.log
    poll_s: 0.2
"""
KINDS = ["words", "links", "fifos", "large", "deep", "numbers", "no lines", "one line", "lines", "crowded", "zeros", "odd bytes", "frames", "brackets",
         "numbers of memory"]


def watched(run, kind, more="", port=None):
    return Watched(run, lines=LINES.format(fake=FAKE, kind=kind, run=run, more=more, port=port or free_port(28700)), env={"WORDS": CSI + TAGS})


@pytest.mark.parametrize("kind", KINDS)
def test_ends(tmp_path, kind):
    w = watched(tmp_path, kind)
    begun, busy = time.monotonic(), w.busy_s()
    try:
        wait_for("its end", lambda: w.json("/api/v1/servers/a/failures")["failures"], step=0.2)
        spent, took = w.busy_s() - busy, time.monotonic() - begun
        print(f"{kind}: {spent:.2f} s of a processor, {w.memory()} MB")
        assert spent < 2 + took / 10  # meanwhile nothing else is looked after
        assert w.memory() < 96
        before = w.scrapes("b", result="ok")
        wait_for("the other one is watched", lambda: w.scrapes("b", result="ok") > before + 2)
        w.look()
        for words in (("status",), ("-s", "a", "explain"), ("-s", "a", "postmortem"), ("events",), ("-s", "a", "top", "--once"), ("status", "--json")):
            harmless(w.ctl(*words))
    finally:
        w.end()


@pytest.mark.parametrize("gives", ["pipe", "file", "port", "local", "unused"])
def test_what_is_given_as_a_listening_socket(tmp_path, gives):
    """It is asked for the socket by the next evenkeeld; what it gives instead is not listened to, and the server after it has the right port."""
    port = free_port(28700)
    w = watched(tmp_path, "serves", f", --gives, {gives}", port)
    try:
        wait_for("it runs", lambda: w.servers()["a"]["ready"])
        pid = w.servers()["a"]["pid"]
        w.process.kill()
        w.process.wait()
        w.start()
        wait_for("it is taken over", lambda: w.servers()["a"]["ready"] and w.servers()["a"]["pid"] == pid)
        assert w.servers()["a"]["url"].endswith(f":{port}")
        assert "is none of port" in (tmp_path / "evenkeeld.log").read_text()
        os.kill(pid, signal.SIGKILL)
        wait_for("another one", lambda: w.servers()["a"]["pid"] not in (0, pid) and w.servers()["a"]["ready"])
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        busy, begun = w.busy_s(), time.monotonic()
        before = w.scrapes("b", result="ok")
        wait_for("it is watched", lambda: w.scrapes("b", result="ok") > before + 5)
        assert w.busy_s() - busy < 0.5 * (time.monotonic() - begun)
    finally:
        w.end()
