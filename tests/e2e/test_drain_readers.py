"""Protects: while a server drains, no client holds the process: none that takes nothing of its answer, that takes a little of it again and
again, or whose request trickles in. One that reads slowly, but in time, has all of it. Real sockets, plain, over TLS and Unix ones."""
import concurrent.futures
import ctypes
import json
import signal
import socket
import struct
import threading
import time

import pytest

from bare import Bare, parse
from conftest import slower, wait_for
from engines import tokens
from test_tls import context, papers  # noqa: F401

END_S = 10  # from SIGTERM to the end of the process, with readers that take nothing
# More than sockets hold, of few tokens: a long prompt, which the cache has, 64 times.
WHOLE = {"model": "tiny", "prompt": "Once upon a time there was a dragon. " * 40, "echo": True, "max_tokens": 4, "ignore_eos": True, "logprobs": 5,
         "n": 64}
TOKENS = WHOLE["n"] * WHOLE["max_tokens"]
STREAM = {**WHOLE, "stream": True}


def request(fields):
    body = json.dumps(fields)
    return f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def started(run, papers, over):
    """A server on that kind of socket, and what makes a connection to it, with little room for what is not read."""
    path = run / "api.sock"
    if over == "unix":
        server, tls = Bare(run, "--uds", path, port=False), None
    elif over == "tls":
        server, tls = Bare(run, "--ssl-certfile", papers / "server.pem", "--ssl-keyfile", papers / "server.key"), context(papers)
    else:
        server, tls = Bare(run), None

    def connect():
        s = socket.socket(socket.AF_UNIX if over == "unix" else socket.AF_INET)
        if over != "unix":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(str(path) if over == "unix" else ("127.0.0.1", server.port))
        s = tls.wrap_socket(s, server_hostname="localhost") if tls else s
        s.settimeout(60)
        return s
    return server, connect


def reader(connect, fields):
    """A client that has asked."""
    s = connect()
    s.sendall(request(fields))
    return s


def deaf(s):
    """What comes for this socket is dropped from now on: nothing is acknowledged, as behind a cable that was pulled."""
    nothing = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0
    program = ctypes.create_string_buffer(nothing)
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(program)))  # SO_ATTACH_FILTER
    return program


def end(server):
    """Ends it. How long that took, and the exit code."""
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(80 * slower())
        return time.monotonic() - begun, code
    finally:
        server.process.kill()


OVER = pytest.mark.parametrize("over", ["tcp", "tls", "unix"])


@OVER
def test_readers_that_take_nothing(tmp_path, papers, over):  # noqa: F811
    """A stream and a whole answer, both made, of which nothing is read, and over TCP one whose client acknowledges nothing any more."""
    server, connect = started(tmp_path, papers, over)
    stuck = [reader(connect, fields) for fields in (WHOLE, STREAM, STREAM)]
    stuck[2].recv(1)
    program = deaf(stuck[2]) if over != "unix" else None
    wait_for("the answers are made", lambda: tokens(server) >= 3 * TOKENS, 120)
    took, code = end(server)
    assert code == 0 and took < END_S * slower(), (code, took, server.log()[-2000:])
    assert program or over == "unix"
    for s in stuck:
        s.close()


def slowly(s, piece, pause_s, seconds):
    """What comes, in small pieces with pauses for so long, then as fast as it comes."""
    data, until = b"", time.monotonic() + seconds
    while True:
        slow = time.monotonic() < until
        try:
            some = s.recv(piece if slow else 1 << 20)
        except OSError:  # cut, or closed by the test
            return data
        if not some:
            return data
        data += some
        if slow:
            time.sleep(pause_s)


@OVER
def test_readers_that_trickle(tmp_path, papers, over):  # noqa: F811
    """Who takes a little of an answer that is made, again and again, loses the rest of it when its time is over."""
    server, connect = started(tmp_path, papers, over)
    clients = [reader(connect, fields) for fields in (WHOLE, STREAM)]
    wait_for("the answers are made", lambda: tokens(server) >= 2 * TOKENS, 120)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(slowly, s, 4096, 0.1, 60) for s in clients]
        took, code = end(server)
        assert code == 0 and 5 < took < END_S * slower(), (code, took, server.log()[-2000:])
        for s in clients:
            s.close()
        assert all(t.result() for t in texts)


@OVER
def test_readers_that_are_slow_have_all(tmp_path, papers, over):  # noqa: F811
    """Who takes 4 KiB a second for most of the time that there is: a whole answer and a stream come to their ends."""
    server, connect = started(tmp_path, papers, over)
    clients = [reader(connect, fields) for fields in ({**WHOLE, "n": 8}, STREAM)]
    wait_for("the answers are made", lambda: tokens(server) >= TOKENS + 32, 120)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(slowly, s, 4096, 1, 3) for s in clients]
        took, code = end(server)
        whole, stream = (t.result() for t in texts)
    assert code == 0 and took > 2, (code, took)
    status, _, body = parse(whole)
    assert status == 200 and len(json.loads(body)["choices"]) == 8
    assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), stream[-200:]


@pytest.mark.parametrize("mode", ["refuse", "hold"])
@OVER
def test_requests_that_trickle_in(tmp_path, papers, over, mode):  # noqa: F811
    """Heads and bodies of which a byte comes now and then, and connections on which nothing comes, do not hold the process at all."""
    server, connect = started(tmp_path, papers, over)
    whole = request(WHOLE)
    sent = [whole.index(b"\r\n\r\n") + 10, 30, 0]
    clients = [connect() for _ in sent]
    for s, n in zip(clients, sent):
        s.sendall(whole[:n])
    over_now = threading.Event()

    def trickle(s, n):
        while not over_now.wait(0.2):
            try:
                s.sendall(whole[n:n + 1])
            except OSError:
                return
            n += 1
    assert server.local("/drain", "POST", json.dumps({"deadline_s": 60, "mode": mode}))[0] == 200
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        going = [pool.submit(trickle, s, n) for s, n in zip(clients[:2], sent)]
        took, code = end(server)
        over_now.set()
        assert code == 0 and took < END_S * slower(), (code, took, server.log()[-2000:])
        assert all(g.result() is None for g in going)
