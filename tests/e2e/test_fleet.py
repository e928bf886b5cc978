"""Protects: that planned restarts are felt by nobody. Two appliances behind a real HAProxy restart in turn, and one alone does while clients keep
their connections open. The other routers: make check-fleet."""
import http.client
import json
import pathlib
import shutil
import socket
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fleet"))
from fleet import Clients, Fleet, get, haproxy, wait_for  # noqa: E402


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("haproxy"), reason="needs HAProxy (tools/deps.sh test)")
def test_restarts_in_turn_behind_haproxy(tmp_path):
    fleet = Fleet(tmp_path, 2)
    try:
        router = haproxy(fleet)
        clients = Clients(router.port, 16)
        wait_for("answers", lambda: sum(clients.done) > 16)
        assert fleet.roll() == 1
        time.sleep(0.5)
        done, refused, lost = clients.end()
        router.end()
        assert refused == lost == 0 and done > 50, (done, clients.refused[:3], clients.lost[:3])
    finally:
        fleet.end()


@pytest.mark.skipif(not shutil.which("haproxy"), reason="needs HAProxy (tools/deps.sh test)")
def test_what_a_drained_one_refuses_goes_to_the_other(tmp_path):
    """Before HAProxy has seen the drain; also when the body of a request comes after its head, as most clients send it."""
    fleet = Fleet(tmp_path, 2)
    try:
        router = haproxy(fleet, blind=True)
        assert fleet.all[0].ctl("drain").returncode == 0
        wait_for("it refuses", lambda: get(fleet.all[0].port, "/health")[0] == 503)
        body = json.dumps({"model": "tiny", "prompt": "a " * 1000, "max_tokens": 2}).encode()
        codes = []
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", router.port), 30) as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
                time.sleep(0.05)
                s.sendall(body)
                codes.append(int(s.makefile("rb").readline().split()[1]))
        router.end()
        assert codes == [200] * 8
    finally:
        fleet.end()


def test_open_connections_are_answered_while_it_drains(appliance):
    """A client with a pool of connections: what it asks on one of them during a planned restart is answered, and then the connection ends."""
    a = appliance(server_flags=["--max-num-seqs", "16"])
    codes, over, fresh = [], threading.Event(), []

    def run():
        c = None
        while not over.is_set():
            try:
                if c is None:
                    c = http.client.HTTPConnection("127.0.0.1", a.port, timeout=60)
                    c.connect()
                    fresh.append(1)
                c.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 8, "ignore_eos": True}),
                          {"Content-Type": "application/json"})
                answer = c.getresponse()
                answer.read()
                codes.append(answer.status)
                if answer.will_close:
                    c = None
            except (http.client.HTTPException, OSError) as error:
                codes.append(repr(error))
                c = None

    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    wait_for("answers", lambda: len(codes) > 40)
    pid = a.server()["pid"]
    a.ctl("restart")
    wait_for("another process", lambda: a.server()["ready"] and a.server()["pid"] != pid)
    time.sleep(0.5)
    over.set()
    for t in threads:
        t.join(60)
    assert set(codes) == {200}, [c for c in codes if c != 200][:5]
    assert 8 < len(fresh) <= 24, "connections end once, with a word"
