"""Protects: an engine over two hosts, each with a network, processes and mounts of its own, started by mpirun over a real ssh: whatever happens to the
second host or to the cable, at seeded moments, no request is lost, and every text is the one of an undisturbed server of one process."""
import concurrent.futures
import os
import random
import signal
import time

import pytest

from bare import Bare
from conftest import gone, paced, wait_for
from engines import SHORT, always, another_engine, check_counts, engine_state, make_tokens, pauses, replaced, restart, run_alone, texts_alone, texts_of
from hosts import Host, needed
from mpi import nodes_of

pytestmark = needed
FLAGS = ["--device", "cpu", "--max-num-seqs", 8, "--max-model-len", 512]
DIVIDED = ["--tensor-parallel-size", "--pipeline-parallel-size"]
DEADLINE_S = 4


@pytest.fixture(scope="module", params=DIVIDED, ids=["shares", "stages"])
def undisturbed(request, tmp_path_factory):
    """How it is divided, and what a server of one process says that is divided so."""
    return request.param, texts_alone(tmp_path_factory.mktemp("one"), SHORT, request.param, 2, *FLAGS)


class Pair:
    """A server whose engine is on this host and on another one."""

    def __init__(self, tmp_path, divided, deadline_s=DEADLINE_S, **cable):
        (tmp_path / "server").mkdir()
        self.host = Host(tmp_path, **cable)
        try:
            self.server = Bare(tmp_path / "server", divided, 2, *FLAGS, "--engine-process", "--nnodes", 2, "--engine-command", self.host.command(),
                               "--state-dir", self.host.own, "--step-deadline", paced(deadline_s), env=self.host.env())
        except BaseException:
            self.host.end()
            raise

    def __enter__(self):
        return self.server, self.host

    def __exit__(self, *_):
        try:
            code, last = self.server.stop(), self.host.nodes()
            wait_for("the group has ended with its server", lambda: all(map(gone, last)), 30)
            assert code == 0, self.server.log()
        finally:
            self.host.end()


def at_some_token(server, draw):
    make_tokens(server, draw.randint(10, 80), 120)


def lost_once(server, host, what, back=None, hold_s=0.0):
    """That happens, and is made good after so long; then there is another group, of which none is left over from the first."""
    before, first = pauses(server), host.nodes()
    assert len(first) == 1 and len(nodes_of(server.control)) == 2
    with another_engine(server, 120):
        what()
        if back:
            wait_for("it is noticed", lambda: engine_state(server)["state"] != "running", 60)
            time.sleep(hold_s)  # an outage has a length; nothing is awaited
            assert pauses(server) == before
            back()
    wait_for("the first one is gone", lambda: all(map(gone, first)), 60)


def end_one(host, name):
    for pid in host.named(f"{name}\n"):
        os.kill(pid, signal.SIGKILL)


def test_a_lost_node_and_a_pulled_plug(tmp_path, undisturbed):
    divided, wants = undisturbed
    draw = random.Random(20261129)
    with Pair(tmp_path, divided) as (s, host):
        assert host.run("hostname").stdout.split() == [host.name]
        with always(s, wants, SHORT, stream=True):
            at_some_token(s, draw)
            lost_once(s, host, lambda: os.kill(host.nodes()[0], signal.SIGKILL))
            run_alone(s)
            at_some_token(s, draw)
            lost_once(s, host, lambda: host.plug(False), lambda: host.plug(True), draw.uniform(0, 2))
        check_counts(s, 2)


@pytest.mark.long
def test_what_else_may_happen_to_it(tmp_path, undisturbed):
    """mpirun's daemon is killed; frames get lost; all of the host stands still; it loses its power and starts again."""
    divided, wants = undisturbed
    draw = random.Random(7)
    with Pair(tmp_path, divided) as (s, host):
        ends = [lambda: lost_once(s, host, lambda: end_one(host, "orted")),
                lambda: lost_once(s, host, lambda: host.carry(False), lambda: host.carry(True), draw.uniform(0, 3)),
                lambda: lost_once(s, host, host.stop, lambda: host.stop(signal.SIGCONT), draw.uniform(0, 3)),
                lambda: lost_once(s, host, host.power_off, lambda: (host.plug(True), host.boot()), draw.uniform(0, 3))]
        draw.shuffle(ends)
        with always(s, wants, SHORT):
            for end in ends:
                at_some_token(s, draw)
                end()
                run_alone(s)
        check_counts(s, len(ends))


@pytest.mark.long
def test_a_cable_that_is_cut_while_nothing_is_asked(tmp_path, undisturbed):
    """What is left of the group beyond it ends by itself, without having heard anything, so that the next one finds its memory free."""
    divided, wants = undisturbed
    with Pair(tmp_path, divided) as (s, host):
        before, first = pauses(s), host.nodes()
        host.carry(False)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(texts_of, s, SHORT)
            wait_for("it is noticed", lambda: engine_state(s)["state"] != "running", 60)
            wait_for("the first group is gone on both sides", lambda: all(map(gone, first)), 60)
            assert pauses(s) == before and not asked.done()
            host.carry(True)
            assert asked.result() == wants
        assert replaced(s) == 1, s.log()


@pytest.mark.long
def test_an_outage_longer_than_the_budget(tmp_path, undisturbed):
    """Tries to reach a host that is away are no restarts: --engine-restarts bounds what fails by itself."""
    divided, wants = undisturbed
    with Pair(tmp_path, divided) as (s, host):
        with always(s, wants, SHORT):
            at_some_token(s, random.Random(3))
            host.plug(False)
            wait_for("more tries than the budget has", lambda: s.log().count("which is tried again") > 16, 240)
            host.plug(True)
        check_counts(s, 1)


@pytest.mark.long
def test_a_long_cable(tmp_path, undisturbed):
    """2 ms each way and up to 2 more; over it the group is restarted on purpose, and lost."""
    divided, wants = undisturbed
    draw = random.Random(11)
    with Pair(tmp_path, divided, 20, delay_ms=2, jitter_ms=2) as (s, host):
        asks = SHORT[:2]
        with always(s, wants[:2], asks):
            at_some_token(s, draw)
            restart(s)
            at_some_token(s, draw)
            lost_once(s, host, lambda: os.kill(host.nodes()[0], signal.SIGKILL))
        check_counts(s, 1)
