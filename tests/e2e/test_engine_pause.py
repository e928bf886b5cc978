"""Protects: while there is no engine all else goes on: keys are read again, a drain waits and ends, limits move, clients leave or do not
read, evenkeeld's orders are taken, and every text that is still wanted is that of an undisturbed server."""
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import time

import pytest

from bare import Bare, read_all
from conftest import metric, wait_for
from engine_faults import PLACES, EngineFaults
from engines import ASKS, all_free, engine, engine_state, make_tokens, replaced, said_by, text_of
from test_engine_process import undisturbed  # noqa: F401


@contextlib.contextmanager
def paused(server, faults, how=signal.SIGKILL, before=1):
    """The engine ends once tokens are made, and the next one waits before it opens its weights (2: its host tier) until the block ends."""
    make_tokens(server, 60)
    faults.hold = before
    os.kill(engine(server), how)
    wait_for("there is none", lambda: engine_state(server)["state"] == "starting", 60, 0.005)
    try:
        yield
    finally:
        faults.hold = 0
    wait_for("there is one again", lambda: engine_state(server)["state"] == "running", 60)


@pytest.fixture
def held(tmp_path):
    """A server and its faults."""
    faults = EngineFaults(tmp_path)
    s = Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, "--sse-keep-alive", "0.1", env=faults.env)
    try:
        yield s, faults
    finally:
        faults.hold = 0
        assert s.stop() == 0


def all_of(server, pool, **more):
    return [pool.submit(text_of, server, {**ask, **more}) for ask in ASKS]


def test_keys_are_read_again(tmp_path, undisturbed):  # noqa: F811
    faults, keys = EngineFaults(tmp_path), tmp_path / "keys"
    keys.write_text("one sk-one\n")
    keys.chmod(0o600)
    s = Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, "--api-key-file", keys, env=faults.env)

    def ask(i, key):
        return s.ask("/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[i]}), {"Authorization": f"Bearer {key}"}, 120)

    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(ask, i, "sk-one") for i in (0, 1, 2)]
            with paused(s, faults):
                keys.write_text("one sk-one\ntwo sk-two\n")
                s.process.send_signal(signal.SIGHUP)
                wait_for("the new key is taken", lambda: s.ask("/v1/models", headers={"Authorization": "Bearer sk-two"})[0] == 200)
                jobs.append(pool.submit(ask, 3, "sk-two"))
                wait_for("it waits", lambda: engine_state(s)["waiting"] >= 4)
            answers = [job.result() for job in jobs]
        for i, (status, _, body) in enumerate(answers):
            assert status == 200 and [c["text"] for c in json.loads(body)["choices"]] == [t[0] for t in undisturbed[i]], (i, body)
    finally:
        faults.hold = 0
        assert s.stop() == 0


def test_a_drain_waits_for_it(held, undisturbed):  # noqa: F811
    """Who is in is answered in full, who comes is refused; it is over only when all have their texts."""
    s, faults = held
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        jobs = all_of(s, pool, stream=True)
        with paused(s, faults):
            assert s.local("/drain", "POST", "{}")[0] in (200, 202)
            wait_for("it drains", lambda: metric(s.metrics(), "evenkeel_drain_state", state="draining") == 1)
            time.sleep(0.2)
            assert not all(job.done() for job in jobs) and metric(s.metrics(), "evenkeel_drain_state", state="drained") == 0
        assert [job.result() for job in jobs] == undisturbed
    wait_for("it is drained", lambda: metric(s.metrics(), "evenkeel_drain_state", state="drained") == 1)
    assert s.local("/resume", "POST", "{}")[0] in (200, 202) and text_of(s, ASKS[0]) == undisturbed[0]


def test_limits_move_meanwhile(held, undisturbed):  # noqa: F811
    s, faults = held
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        jobs = all_of(s, pool)
        with paused(s, faults):
            assert s.local("/v1/runtime_config", "PATCH", json.dumps({"max_num_running_seqs": 3, "max_num_batched_tokens": 64}))[0] == 200
            more = s.local("/v1/runtime_config", "PATCH", json.dumps({"num_kv_blocks": 10 ** 6}))
            assert more[0] >= 400, more
        wait_for("it computes again", lambda: metric(s.metrics(), "vllm:num_requests_running") > 0, 60, 0.002)
        assert metric(s.metrics(), "vllm:num_requests_running") <= 3
        assert [job.result() for job in jobs] == undisturbed
    assert json.loads(s.local("/v1/runtime_config")[2])["max_num_running_seqs"] == 3


def test_a_host_tier_that_takes_long(tmp_path, undisturbed):  # noqa: F811
    """A card's engine pins all of it, which takes its time: limits move meanwhile, who leaves is gone, and SIGTERM ends everything."""
    faults = EngineFaults(tmp_path)
    s = Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, "--kv-offloading-size", "0.05", env=faults.env)
    try:
        with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
            leaves = stream_of(s, {**ASKS[0], "max_tokens": 900})
            assert leaves.recv(15) == b"HTTP/1.1 200 OK"
            jobs = all_of(s, pool)
            with paused(s, faults, before=2):
                wait_for("it has its weights", lambda: faults.done == 1)
                before = engine_state(s)["waiting"]
                leaves.close()
                wait_for("who leaves is gone", lambda: engine_state(s)["waiting"] < before, 20)
                assert s.local("/v1/runtime_config", "PATCH", json.dumps({"max_num_running_seqs": 3}))[0] == 200
            assert [job.result() for job in jobs] == undisturbed
        faults.hold = 2
        os.kill(engine(s), signal.SIGKILL)
        wait_for("it has its weights", lambda: faults.done == 2)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(30) == 0
    finally:
        faults.hold = 0
        s.stop()


def stream_of(server, ask):
    """An open connection on which the answer comes as a stream."""
    body = json.dumps({"model": "tiny", **ask, "stream": True}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(60)
    s.connect(("127.0.0.1", server.port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
              % (len(body), body))
    return s


def whole(answer):
    """The body of a chunked answer."""
    left, body = answer.partition(b"\r\n\r\n")[2], b""
    while left:
        size, _, left = left.partition(b"\r\n")
        body, left = body + left[:int(size, 16)], left[int(size, 16) + 2:]
    return body


def test_clients_leave_or_do_not_read(held, undisturbed):  # noqa: F811
    """Who leaves is gone before there is an engine again; who reads nothing meanwhile gets all of its text; nobody else sees any of it."""
    s, faults = held
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        slow, leaves = stream_of(s, ASKS[1]), stream_of(s, {**ASKS[0], "max_tokens": 900})
        assert slow.recv(15) == b"HTTP/1.1 200 OK" and leaves.recv(15) == b"HTTP/1.1 200 OK"
        jobs = all_of(s, pool, stream=True)
        with paused(s, faults):
            # What ran is back in the queue, so that all there is is counted there.
            before = engine_state(s)["waiting"]
            leaves.close()
            wait_for("it has left", lambda: metric(s.metrics(), "evenkeel_http_aborted_total") == 1, 20)
            wait_for("its request, too", lambda: engine_state(s)["waiting"] < before, 20)
            time.sleep(0.3)  # comments pile up for who does not read
        assert [job.result() for job in jobs] == undisturbed
        assert said_by(whole(read_all(slow)).decode()) == undisturbed[1]
        slow.close()
    all_free(s)


@pytest.mark.parametrize("what, cause", [("abort", "fault"), ("segv", "fault"), ("device", "device")])
def test_faults_at_each_place(held, undisturbed, what, cause):  # noqa: F811
    """Before the step is computed, after it, and when its tokens are there: once at each, and every text goes on."""
    s, faults = held
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        for n, place in enumerate(PLACES):
            jobs = all_of(s, pool, stream=n % 2 == 0)
            faults.once(what, place, 20 * (n + 1))
            assert [job.result() for job in jobs] == undisturbed, place
            assert faults.done == n + 1 == metric(s.metrics(), "evenkeel_engine_restarts_total", cause=cause), place
    assert replaced(s) == 3 and metric(s.metrics(), "evenkeel_engine_suspect_requests") == 0


@pytest.mark.parametrize("what", ["host memory", "device memory"])
def test_a_step_without_memory(held, undisturbed, what):  # noqa: F811
    """It is tried again by the same engine: no text changes and nobody is suspected. (A backend that lacks memory in forward has no step then,
    so there is no such fault after it.)"""
    s, faults = held
    with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
        for n, place in enumerate((PLACES[0], PLACES[2], PLACES[0])):
            jobs = all_of(s, pool, stream=n % 2 == 0)
            faults.once(what, place, 20 * (n + 1))
            assert [job.result() for job in jobs] == undisturbed, place
            assert faults.done == n + 1
    assert replaced(s) == 0 == metric(s.metrics(), "evenkeel_engine_suspect_requests")
