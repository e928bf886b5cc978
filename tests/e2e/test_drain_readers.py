"""Protects: while a server drains, a client that takes nothing of its answer does not hold the process, and one that reads slowly has all of
it. Real sockets, plain, over TLS and Unix ones (where what a client takes is not told, so that none is cut)."""
import concurrent.futures
import ctypes
import json
import signal
import socket
import ssl
import struct
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


def reader(port, fields, tls=None, room=4096):
    """A client that has asked, with little room for what it does not read."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    s.connect(("127.0.0.1", port))
    if tls:
        s = tls.wrap_socket(s, server_hostname="localhost")
    s.settimeout(60)
    s.sendall(request(fields))
    return s


def unix_reader(path, fields):
    s = socket.socket(socket.AF_UNIX)
    s.connect(str(path))
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


@pytest.mark.parametrize("over", ["tcp", "tls"])
def test_readers_that_take_nothing(tmp_path, papers, over):  # noqa: F811
    """A stream and a whole answer, both made, of which nothing is read, and one whose client acknowledges nothing any more."""
    words = ["--ssl-certfile", papers / "server.pem", "--ssl-keyfile", papers / "server.key"] if over == "tls" else []
    server = Bare(tmp_path, *words)
    tls = context(papers) if over == "tls" else None
    stuck = [reader(server.port, fields, tls) for fields in (WHOLE, STREAM, STREAM)]
    stuck[2].recv(1)
    program = deaf(stuck[2])
    wait_for("the answers are made", lambda: tokens(server) >= 3 * TOKENS, 120)
    took, code = end(server)
    assert code == 0 and took < END_S * slower(), (code, took, server.log()[-2000:])
    assert program
    for s in stuck:
        s.close()


def slow(s, piece, pause_s):
    """All of it, in small pieces with pauses, faster as the end of the test needs it."""
    data, until = b"", time.monotonic() + 9
    while True:
        try:
            some = s.recv(piece if time.monotonic() < until else 1 << 20)
        except ssl.SSLEOFError:
            return data
        if not some:
            return data
        data += some
        if time.monotonic() < until:
            time.sleep(pause_s)


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_readers_that_are_slow_have_all(tmp_path, over):
    """Who takes 4 KiB a second for longer than a reader may take nothing: a whole answer and a stream come to their ends."""
    path = tmp_path / "api.sock"
    server = Bare(tmp_path) if over == "tcp" else Bare(tmp_path, "--uds", path, port=False)
    clients = [reader(server.port, fields) if over == "tcp" else unix_reader(path, fields) for fields in ({**WHOLE, "n": 8}, STREAM)]
    wait_for("the answers are made", lambda: tokens(server) >= TOKENS + 32, 120)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(slow, s, 4096, 1) for s in clients]
        took, code = end(server)
        whole, stream = (t.result() for t in texts)
    assert code == 0 and took > 7, (code, took)
    status, _, body = parse(whole)
    assert status == 200 and len(json.loads(body)["choices"]) == 8
    assert stream.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), stream[-200:]
