"""Protects: ends at moments that nobody chose: an engine that is killed while it starts, a server that is killed while it writes down its cached
prefixes, a state directory that vanishes under evenkeeld, and weight files that others push out of memory: every text is right, and what is left
over is cleared away."""
import ctypes
import mmap
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from bare import Bare
from conftest import BUILD, MODEL, metric, wait_for
from engines import ASKS, SHORT, always, engine, engine_state, replaced, serve, text_of, texts_of
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


def resident(path):
    """The share of a file's pages that are in memory."""
    size, libc = path.stat().st_size, ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    with open(path, "rb") as file:
        at, there = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0), (ctypes.c_ubyte * pages)()
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), there) == 0
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(page & 1 for page in there) / pages


def forget(path):
    """As when other files need the memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def locked_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmLck:"))


def test_weights_are_kept_in_memory(tmp_path):
    """With --keep-weights-host whatever pushes them out of the page cache leaves them there for the next engine, and the plan counts them."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    weights = next(model.glob("*.safetensors"))
    s = Bare(tmp_path, "--engine-process", model=model)
    try:
        forget(weights)
        if resident(weights) > 0.9:
            pytest.skip("this file system keeps what it is asked to forget")
    finally:
        assert s.stop() == 0
    s = Bare(tmp_path, "--engine-process", "--keep-weights-host", model=model)
    try:
        want = text_of(s, ASKS[0])
        size = weights.stat().st_size
        assert locked_bytes(s.process.pid) >= size == metric(s.metrics(), "evenkeel_planned_bytes", item="weight_files")
        forget(weights)
        assert resident(weights) == 1
        for _ in range(2):
            os.kill(engine(s), signal.SIGKILL)
            assert text_of(s, ASKS[0]) == want
            forget(weights)
            assert resident(weights) == 1
        assert "Weight files are kept in memory" in s.log() and replaced(s) == 2
    finally:
        assert s.stop() == 0
    assert subprocess.run([BUILD / "evenkeel-server", "--model", model, "--keep-weights-host", "--dry-run"], capture_output=True).returncode == 2


class Bounded(Bare):
    """A server that may lock next to nothing."""

    def command(self, args):
        return ["prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--", *args]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has what is taken away")
def test_weights_that_cannot_be_kept(tmp_path):
    """It is said, and all goes on without."""
    s = Bounded(tmp_path, "--engine-process", "--keep-weights-host")
    try:
        assert "Weight files are not kept in memory" in s.log() and "LimitMEMLOCK=infinity" in s.log() and locked_bytes(s.process.pid) == 0
        want = text_of(s, ASKS[0])
        os.kill(engine(s), signal.SIGKILL)
        assert text_of(s, ASKS[0]) == want
    finally:
        assert s.stop() == 0
