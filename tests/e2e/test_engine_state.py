"""Protects: ends at moments that nobody chose: an engine that is killed while it starts, a server that is killed while it writes down its cached
prefixes, and a state directory that vanishes under evenkeeld: every text is right, and what is left over is cleared away."""
import os
import random
import shutil
import signal
import time

import pytest

from conftest import wait_for
from engines import SHORT, always, engine, engine_state, serve, texts_of
from test_engine_verdict import FLAGS, PATIENT, end_engine, listens
from test_warm_restart import ask_all
from test_warm_restart import serve as serve_warm


@pytest.fixture(scope="module")
def wants(tmp_path_factory):
    s = serve(tmp_path_factory.mktemp("one"), "--engine-restarts", 0)
    try:
        yield texts_of(s, SHORT)
    finally:
        s.stop()


@pytest.mark.long
def test_killed_at_any_moment_of_its_start(tmp_path, wants):
    """Each engine is killed so many milliseconds after it was begun as the seed says: some before they are an engine, some when they compute."""
    draw = random.Random(20261129)
    s = serve(tmp_path, "--engine-restarts", 64)
    try:
        with always(s, wants, SHORT, stream=True):
            for _ in range(20):
                pid = wait_for("an engine", lambda: engine(s), 60, 0.001)
                time.sleep(draw.choice((0, 0.002, 0.02, 0.1, 0.4)) * draw.random())  # the moment is the test's input
                os.kill(pid, draw.choice((signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)))
                wait_for("it has ended", lambda old=pid: engine(s) != old, 60, 0.001)
            wait_for("one is there", lambda: engine_state(s)["state"] == "running", 60)
        restarts = engine_state(s)["restarts"]
        assert sum(restarts.values()) == restarts["ended"] + restarts["oom"] == 20, (restarts, s.log())
    finally:
        assert s.stop() == 0, s.log()


@pytest.mark.long
def test_killed_while_it_writes_its_cache(tmp_path):
    draw, texts = random.Random(7), None
    for n in range(6):
        s = serve_warm(tmp_path)
        said = [t for t, _ in ask_all(s)]
        texts = texts or said
        assert said == texts, n
        s.process.send_signal(signal.SIGTERM)
        time.sleep(draw.uniform(0, 0.15))
        s.process.kill()
        s.process.wait()
    s = serve_warm(tmp_path)
    try:
        assert [t for t, _ in ask_all(s)] == texts
    finally:
        assert s.stop() == 0
    assert sorted(p.name for p in (tmp_path / "kept").iterdir() if not p.name.startswith("cpu-forms.")) == ["prefixes"], s.log()


def test_a_state_directory_that_vanishes(appliance, wants):
    a = listens(appliance(server_flags=(*FLAGS, *PATIENT)))
    supervisor = a.process.pid
    shutil.rmtree(a.run / "state")
    end_engine(a, signal.SIGKILL)
    end_engine(a, signal.SIGSEGV, 2)
    assert texts_of(a, SHORT) == wants
    assert a.process.poll() is None and a.process.pid == supervisor
    assert a.ctl("explain").returncode == 0 and a.ctl("status").returncode == 0
