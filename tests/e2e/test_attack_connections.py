"""Protects: connections that are of no use do not keep out those that would be. Each attack is bounded and goes to this machine only."""
import json
import socket
import threading
import time

import pytest

from bare import Bare, parse
from conftest import metric, slower, wait_for
from test_attack import EVIL, GOOD, asked, chat, post

PLACES = 16
LONG = ["--max-connections", PLACES, "--keep-alive-timeout", 600, "--request-timeout", 600]  # nothing ends by itself here
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-evil\r\nX-Half: "
LIST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-evil\r\n\r\n"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    run = tmp_path_factory.mktemp("connections")
    (run / "keys").write_text("evil sk-evil\ngood sk-good\n")
    (run / "keys").chmod(0o600)
    s = Bare(run, "--api-key-file", run / "keys", *LONG)
    yield s
    s.stop()


class Limited(Bare):
    """With few descriptors."""

    def command(self, args):
        return ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", *args]


def connect(server, data):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=100)
    s.sendall(data)
    return s


def more_of(s):
    part = s.recv(65536)
    if not part:
        raise ConnectionError("closed before the answer's end")
    return part


def answer(s):
    """One whole answer with a Content-Length of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += more_of(s)
    head, _, body = data.partition(b"\r\n\r\n")
    left = int(parse(data)[1]["content-length"]) - len(body)
    while left > 0:
        left -= len(more_of(s))
    return int(head.split()[1])


def has_all_places(server):
    return metric(server.metrics(), "evenkeel_http_connections", role="api") >= PLACES


def test_idle_connections(target):
    """All places are taken by connections that have had their answer and say nothing more: who comes has one soon, and not when their time
    is up (--keep-alive-timeout). One that is used, and a stream, stay."""
    stream = connect(target, asked(json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True})))
    used, over, broken = connect(target, b""), threading.Event(), []

    def use():
        while not over.is_set():
            try:
                used.sendall(LIST)
                if answer(used) != 200:
                    broken.append("not 200")
            except OSError as e:
                broken.append(repr(e))
                return
            time.sleep(0.02)

    user = threading.Thread(target=use)
    user.start()
    idle = []
    try:
        for _ in range(PLACES - 2):
            idle.append(connect(target, LIST))
            assert answer(idle[-1]) == 200
        assert has_all_places(target)
        for _ in range(3):
            status, text, took = post(target, GOOD, chat())
            assert status == 200 and took < 10 * slower(), (took, text)
    finally:
        over.set()
        user.join()
    assert not broken
    got = b""
    while part := stream.recv(65536):
        got += part
        if b"data: [DONE]" in got:
            break
    assert b"[DONE]" in got and b'"error"' not in got
    for s in [*idle, used, stream]:
        s.close()


def test_connections_that_asked_for_health(tmp_path):
    """A route that is open without a key is answered beyond --max-connections: a client that asks for it and stays takes no descriptors from others.
    Without a bound these had places until there were no descriptors, not even for evenkeeld."""
    server = Limited(tmp_path, *LONG)
    idle, refused = [], 0
    try:
        for _ in range(400):
            try:
                idle.append(connect(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
                answer(idle[-1])
            except OSError:
                refused += 1
        for _ in range(3):
            assert server.local("/readyz")[0] == 200
            status, text, took = post(server, {}, chat())
            assert status == 200 and took < 10 * slower(), (took, text)
        assert metric(server.metrics(), "evenkeel_http_connections", role="health") <= 16
        assert "Cannot accept" not in server.log()
    finally:
        for s in idle:
            s.close()
        server.stop()


def test_heads_that_do_not_end(target):
    """All places are taken by requests of which a part has come and a byte follows now and then."""
    closed = metric(target.metrics(), "evenkeel_http_timeouts_total")
    half = [connect(target, HALF) for _ in range(PLACES)]
    over = threading.Event()

    def trickle():
        while not over.wait(0.2):
            for s in half:
                try:
                    s.send(b"x")
                except OSError:
                    pass  # closed, as it has to be

    user = threading.Thread(target=trickle)
    user.start()
    try:
        for _ in range(2):
            status, text, took = post(target, GOOD, chat())
            assert status == 200 and took < 20 * slower(), (took, text)
    finally:
        over.set()
        user.join()
        for s in half:
            s.close()
    assert metric(target.metrics(), "evenkeel_http_timeouts_total") > closed
    wait_for("their places are free", lambda: post(target, EVIL, chat())[0] == 200, 30)
