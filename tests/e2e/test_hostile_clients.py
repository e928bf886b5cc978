"""Protects: evenkeeld's page, its Unix socket and a server's control socket from who speaks to them. Each input is bytes as a client might send
them; after each the same process answers the next one as before, with as many descriptors open and hardly more memory."""
import array
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

import pytest

from bare import Bare
from conftest import BUILD, ROOT, free_port, resident_bytes, slower, wait_for
from test_hostile_server import CSI, TAGS, Watched, harmless

pytestmark = pytest.mark.long

G, H = b"GET /health HTTP/1.1\r\n", b"Host: localhost\r\n"
END = b"Connection: close\r\n\r\n"
P = b"POST /api/v1/servers/a/restart HTTP/1.1\r\n" + H


def path(text):
    return b"GET " + text + b" HTTP/1.1\r\n" + H + END


RAW = {
    "nothing": b"", "zeros": bytes(5000), "half a word": b"GE", "no end": b"GET / HTTP/1.1", "no version": b"GET /\r\n\r\n", "a version of none": b"GET / HTTP/9.9\r\n" + H + END,
    "small letters": b"get / HTTP/1.1\r\n" + H + END, "a long word": b"G" * 60_000 + b" / HTTP/1.1\r\n\r\n", "a long path": path(b"/" + b"a" * 60_000),
    "a long question": path(b"/?" + b"a=b&" * 15_000), "many questions": path(b"/api/v1/servers/a/decisions?" + b"limit=1&" * 1000),
    "ups": path(b"/../../../etc/passwd"), "ups in code": path(b"/api/v1/servers/%2e%2e%2f%2e%2e%2fetc/passwd"), "a zero": path(b"/api/v1/servers/a%00b/decisions"),
    "slashes": path(b"//////"), "a percent": path(b"/%"), "percents": path(b"/%zz%1"), "no number": path(b"/api/v1/servers/a/decisions?limit=x"),
    "less than nothing": path(b"/api/v1/servers/a/decisions?limit=-1"), "more than all": path(b"/api/v1/servers/a/decisions?limit=99999999999999999999"),
    "a time of none": path(b"/api/v1/servers/a/history?since=NaN&every=0"), "an end of none": path(b"/api/v1/servers/a/postmortem?end=0"),
    "for a terminal": path(b"/api/v1/servers/" + CSI.encode().replace(b" ", b"") + b"/decisions"), "for a browser": path(b"/api/v1/servers/%3Cscript%3Ealert(1)%3C/script%3E"),
    "a whole address": b"GET http://localhost/health HTTP/1.1\r\n" + H + END, "another's name": G + b"Host: evil.example\r\n" + END, "two names": G + H + H + END,
    "no name": G + END, "a name for a terminal": G + b"Host: " + CSI.encode() + b"\r\n" + END, "another's page": G + H + b"Origin: http://evil.example\r\n" + END,
    "many lines": G + H + b"A: b\r\n" * 3000 + END, "a long line": G + H + b"A: " + b"b" * 60_000 + b"\r\n" + END, "folded": G + H + b"A: b\r\n c\r\n\td\r\n" + END,
    "no colon": G + H + b"abc\r\n" + END, "a bare end": G.replace(b"\r\n", b"\n") + b"Host: localhost\n\n", "only returns": b"\r" * 5000,
    "a length below none": P + b"Content-Length: -1\r\n" + END, "a length of all": P + b"Content-Length: 999999999999999999\r\n\r\nx", "a length of more": P + b"Content-Length: 99999999999999999999999\r\n\r\nx",
    "two lengths": P + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "length and chunks": P + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a chunk of all": P + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", "a chunk of none": P + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx",
    "a million chunks": P + b"Transfer-Encoding: chunked\r\n" + END + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n", "more than it reads": P + b"Content-Length: 3000000\r\n" + END + b"x" * 3_000_000,
    "waits to be told": P + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", "expects else": P + b"Expect: all\r\nContent-Length: 2\r\n\r\n{}", "another protocol": G + H + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    "the next version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "a handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "a thousand at once": (G + H + b"\r\n") * 1000,
    "a trace": b"TRACE / HTTP/1.1\r\n" + H + END, "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + H + END, "options": b"OPTIONS * HTTP/1.1\r\n" + H + END,
    "a put": b"PUT / HTTP/1.1\r\n" + H + b"Content-Length: 1\r\n" + END + b"x", "a delete": b"DELETE /api/v1/servers/a HTTP/1.1\r\n" + H + END,
    "a restart": P + b"Content-Length: 2\r\n" + END + b"{}", "packed": P + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n" + END + b"\x1f\x8b\x08\0", "a descriptor's verb": b"EVENKEEL-FD get listen\n",
}
BODIES = ["{", "[" * 30_000, "{\"a\":" * 10_000, "null", "1e999", "{\"max_num_running_seqs\":1e308}", "{\"max_num_running_seqs\":-1}", "{\"max_num_running_seqs\":9223372036854775808}",
          "{\"max_num_running_seqs\":\"1\"}", "{\"max_num_running_seqs\":[1]}", "{\"max_num_running_seqs\":1,\"max_num_running_seqs\":2}", "{\"reason\":" + json.dumps(CSI + TAGS) + "}",
          "{\"for_s\":1e308}", "{\"for_s\":-1}", "{\"deadline_s\":1e308}", "{\"deadline_s\":-1e308}", "{\"reason\":\"" + "x" * 60_000 + "\"}", "{\"reason\":\"\\u0000\"}", "{\"reason\":\"\\ud800\"}",
          "\xff", "{}" * 20_000, " " * 65_000, "{\"x\":\"" + "y" * 70_000 + "\"}", "{" + ",".join(f'"k{i}":1' for i in range(5000)) + "}"]
ROUTES = ["PATCH /api/v1/servers/a/limits", "POST /api/v1/servers/a/drain", "POST /api/v1/servers/a/restart", "POST /api/v1/servers/a/roll", "POST /api/v1/servers/a/forget", "POST /api/v1/debug"]


def talk(address, data, fds=(), seconds=5, ends=True):
    """What comes back until the end, or until nothing has come for some seconds; `ends`: no more is sent, which ends a half request."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as s:
        s.settimeout(seconds)
        s.connect(address)
        got = b""
        try:
            if fds:
                s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            else:
                s.sendall(data)
            if ends:
                s.shutdown(socket.SHUT_WR)
            while part := s.recv(65536):
                got += part
        except OSError:
            pass
        return got


def body_of(line, text):
    text = text.encode("utf-8", "surrogateescape") if text != "\xff" else b"\xff"
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    w = Watched(tmp_path_factory.mktemp("clients"))
    yield w
    w.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("control"))
    yield s
    s.stop()


def as_before(address, pid, before, held, at=b"/health"):
    begun = time.monotonic()
    assert talk(address, path(at)).startswith(b"HTTP/1.1 200"), "it does not answer"
    assert time.monotonic() - begun < 2 * slower()
    wait_for("as many descriptors as before", lambda: descriptors(pid) <= before, 20)
    assert resident_bytes(pid) >> 20 < held + 32


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_bytes_for_evenkeeld(watched, where):
    pid, address = watched.process.pid, ("127.0.0.1", watched.page) if where == "tcp" else f"{watched.run}/r/evenkeeld.sock"
    talk(address, path(b"/"))
    before, held = descriptors(pid) + 2, resident_bytes(pid) >> 20
    for name, data in RAW.items():
        begun = time.monotonic()
        got = talk(address, data)
        assert time.monotonic() - begun < 10 * slower(), name
        status = got.split(b" ")[1:2]
        assert not status or status[0][:1] in b"1234" or status[0] in (b"501", b"505"), (name, got[:300])
        assert b"<script>alert" not in got or (b"application/json" in got and b"nosniff" in got), (name, got)
        if name not in ("waits to be told", "a thousand at once"):
            assert got.count(b"HTTP/1.1 200") <= 1, (name, got)
        as_before(address, pid, before, held)
    assert watched.process.poll() is None and watched.servers()["a"]["restarts"] == 0


def test_bodies_for_evenkeeld(watched):
    pid, address = watched.process.pid, f"{watched.run}/r/evenkeeld.sock"
    before, held = descriptors(pid) + 2, resident_bytes(pid) >> 20
    for line in ROUTES:
        for text in BODIES:
            got = talk(address, body_of(line, text), ends=False)
            assert got.startswith(b"HTTP/1.1 ") and (got[9:10] in b"24" or got[9:12] == b"501"), (line, text[:60], got[:300])
            json.loads(got.split(b"\r\n\r\n", 1)[1])
        as_before(address, pid, before, held)
    watched.look()
    harmless(watched.ctl("events") + watched.ctl("-s", "a", "explain"))


def test_descriptors_for_evenkeeld(watched):
    """Who may speak to its socket cannot leave descriptors with it."""
    pid, address = watched.process.pid, f"{watched.run}/r/evenkeeld.sock"
    before, held = descriptors(pid) + 2, resident_bytes(pid) >> 20
    for _ in range(5):
        talk(address, path(b"/health"), fds=[0] * 200)
        as_before(address, pid, before, held)


COLUMNS = "kv_usage,running,waiting,limit_seqs,limit_tokens,preemption_rate,gen_tps,prompt_tps,ttft_p99_s,itl_p99_s,queue_oldest_s,cached_frac"


def charts(file):
    """Two hours of charts: an answer of hundreds of kilobytes, which takes long to write."""
    head, count = f"evenkeel charts 1 {sys.byteorder[0]}e {COLUMNS}\n".encode(), COLUMNS.count(",") + 1
    body, now = bytearray(head.ljust(1024, b"\0") + bytes(7200 * (count + 2) * 4)), int(time.time())
    for t in range(now - 7100, now):
        row = struct.pack(f"=I{count}f", t, *[(t % 977) / 977.1234 * (i + 1) for i in range(count)])
        at = 1024 + t % 7200 * (count + 2) * 4
        body[at:at + len(row) + 4] = row + struct.pack("=I", zlib.crc32(row))
    file.write_bytes(body)


def test_readers_in_crowds(tmp_path):
    """Answers that take long, for as many as may come from four addresses, again and again: the servers are watched meanwhile, and who asks at
    the Unix socket does not wait for them."""
    (tmp_path / "s").mkdir(mode=0o700)
    charts(tmp_path / "s/charts-b.bin")
    w, over, served = Watched(tmp_path), threading.Event(), []
    size = len(w.read("/api/v1/servers/b/history"))
    assert size > 400_000

    def read(i):
        while not over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", w.page), 60, (f"127.0.0.{2 + i % 4}", 0)) as s:
                    while not over.is_set():
                        s.sendall(path(b"/api/v1/servers/b/history").replace(b"close", b"keep-alive"))
                        left = size * 9 // 10
                        while left > 0:
                            part = len(s.recv(1 << 20))
                            if not part:
                                raise OSError
                            left -= part
                        served.append(i)
            except OSError:
                over.wait(0.05)
    readers = [threading.Thread(target=read, args=(i,), daemon=True) for i in range(200)]
    try:
        for r in readers:
            r.start()
        wait_for("they are served", lambda: len(served) > 20)
        asked, took = w.b.asked, []

        def asked_again():
            begun = time.monotonic()
            assert talk(f"{w.run}/r/evenkeeld.sock", path(b"/api/v1/servers")).startswith(b"HTTP/1.1 200")
            took.append(time.monotonic() - begun)
            return w.b.asked >= asked + 20
        wait_for("the other server is watched", asked_again, 30)
        assert sorted(took)[len(took) // 2] < 1 * slower(), took
        assert len(set(served)) > 20, "some are served again and again, and others never"
    finally:
        over.set()
        w.end()


def test_crowds_before_a_server_that_is_down(tmp_path):
    """Clients of a server that will not start come again at once, as many as they like: its operator and a probe are answered meanwhile."""
    port = free_port(29764)
    fake = str(ROOT / "tests/e2e/fake_engine.py")
    w = Watched(tmp_path, f"    command: [{fake}, --exit-code, '78']\n    port: {port}\n    poll_s: 0.2\n    log_file: {tmp_path}/a.log\n")
    crowd = None
    try:
        wait_for("it is not started again", lambda: w.servers()["a"]["state"] == "breaker_open")
        assert talk(("127.0.0.1", port), path(b"/v1/models")).startswith(b"HTTP/1.1 503")
        crowd = subprocess.Popen([BUILD / "tests/tools/crowd", str(port), "128"])
        time.sleep(1)
        for _ in range(5):
            for address, at in ((f"{w.run}/r/evenkeeld.sock", b"/api/v1/servers"), (("127.0.0.1", w.page), b"/livez")):
                begun = time.monotonic()
                assert talk(address, path(at)).startswith(b"HTTP/1.1 200"), at
                assert time.monotonic() - begun < 1 * slower(), at
        assert crowd.poll() is None
    finally:
        if crowd:
            crowd.kill()
            crowd.wait()
        w.end()


def test_the_control_socket_of_a_server(server):
    pid, address = server.process.pid, str(server.control)
    talk(address, path(b"/livez"))
    before, held = descriptors(pid) + 2, resident_bytes(pid) >> 20
    for name, data in RAW.items():
        got = talk(address, data)
        status = got.split(b" ")[1:2]
        assert not status or status[0][:1] in b"1234" or status[0] in (b"501", b"505") or b"ERR" in got or b"OK\n" in got, (name, got[:300])
        as_before(address, pid, before, held, b"/livez")
    for line in ("PATCH /v1/runtime_config", "POST /trim", "POST /resume"):
        for text in BODIES:
            got = talk(address, body_of(line, text), seconds=30, ends=False)
            assert got.startswith(b"HTTP/1.1 ") and got[9:10] in b"24", (line, text[:60], got[:300])
        as_before(address, pid, before, held, b"/livez")
    r, w = os.pipe()
    others = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX), socket.socket(), socket.create_server(("127.0.0.1", 0))]
    try:
        for verb in (b"put listen\n", b"put losses\n", b"get listen\n", b"put \n", b"get " + b"x" * 200, b"\n", b"put listen", b"put losses\nput losses\n"):
            for fds in ([], [r], [w], [0] * 200, *([s.fileno()] for s in others)):
                got = talk(address, b"EVENKEEL-FD " + verb, fds=fds)
                assert got == b"" or got.startswith((b"ERR ", b"OK")), (verb, got)
                as_before(address, pid, before + 1, held, b"/livez")
    finally:
        os.close(r)
        os.close(w)
        for s in others:
            s.close()
    assert talk(("127.0.0.1", server.port), path(b"/v1/models")).startswith(b"HTTP/1.1 200")  # its own socket was not taken
