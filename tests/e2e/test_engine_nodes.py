"""Protects: an engine over several nodes of MPI (--engine-command) ends and begins as a whole, and its server goes on: whichever node is killed,
crashes or stands still, at seeded moments, another group takes its place and every text is the one of an undisturbed server."""
import concurrent.futures
import os
import random
import shutil
import signal
import struct
import subprocess

import pytest

from bare import Bare
from conftest import BUILD, gone, metric, paced, wait_for
from engine_faults import EngineFaults
from engines import SHORT, always, another_engine, check_counts, make_tokens, order, replaced, restart, run_alone, text_of, texts_alone
from mpi import MPI, nodes_of, without

pytestmark = without
DIVIDED = ["--tensor-parallel-size", "--pipeline-parallel-size"]
FLAGS = ["--device", "cpu", "--max-num-seqs", 8, "--max-model-len", 512]


def serve(tmp_path, divided, *flags, env=None, command="mpirun -n 2", **more):
    return Bare(tmp_path, divided, 2, *FLAGS, "--engine-process", "--nnodes", 2, "--engine-command", command, "--step-deadline", 20, *flags,
                *([] if os.geteuid() == 0 else ["--dumpable"]), env={**MPI, **(env or {})}, **more)


@pytest.fixture(scope="module", params=DIVIDED, ids=["shares", "stages"])
def group(request, tmp_path_factory):
    """How it is divided, and what a server of one process says that is divided so."""
    return request.param, texts_alone(tmp_path_factory.mktemp("one"), SHORT, request.param, 2, *FLAGS)


def disturb(server, how, which, draw):
    make_tokens(server, draw.randint(10, 120), 120)
    pids = nodes_of(server.control)
    assert len(pids) == 2
    with another_engine(server, 120):
        os.kill(pids[which], how)
    wait_for("the first one is gone", lambda: all(map(gone, pids)), 20)


@pytest.mark.long
def test_texts_go_on(tmp_path, group):
    """Either node is killed or crashes, and one stands still so that the other waits for it in vain."""
    divided, undisturbed = group
    draw = random.Random(20261129)
    hows = [(signal.SIGKILL, 1), (signal.SIGSEGV, 0), (signal.SIGKILL, 0), (signal.SIGSEGV, 1), (signal.SIGTERM, 1)]
    draw.shuffle(hows)
    s = serve(tmp_path, divided)
    try:
        with always(s, undisturbed, SHORT, stream=True):
            for how, which in hows:
                disturb(s, how, which, draw)
                run_alone(s)
        check_counts(s, len(hows))
        last = nodes_of(s.control)
    finally:
        assert s.stop() == 0, s.log()
    wait_for("the group has ended with it", lambda: all(map(gone, last)), 20)


def test_a_node_that_stands_still(tmp_path, group):
    divided, undisturbed = group
    s = serve(tmp_path, divided, "--step-deadline", paced(4))
    try:
        with always(s, undisturbed, SHORT):
            disturb(s, signal.SIGSTOP, 1, random.Random(1))
        assert replaced(s) == 1, s.log()
    finally:
        assert s.stop() == 0


@pytest.mark.long
def test_on_purpose(tmp_path, group):
    """restart, release and acquire; and what follows is refused while the program is another file."""
    divided, undisturbed = group
    program = tmp_path / "bin/evenkeel-server"
    program.parent.mkdir()
    for name in "evenkeel-server", "libevenkeel-mpi.so":
        shutil.copy2(BUILD / name, program.parent / name)
    s = serve(tmp_path, divided, build=program.parent)
    try:
        first = nodes_of(s.control)
        assert len(first) == 2
        with always(s, undisturbed, SHORT):
            restart(s)
        assert not set(first) & set(nodes_of(s.control))
        order(s, "release")
        wait_for("there is none", lambda: not nodes_of(s.control))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(text_of, s, SHORT[0])
            order(s, "acquire")
            assert asked.result() == undisturbed[0]
        shutil.copy2(BUILD / "evenkeel-server", tmp_path / "newer")
        (tmp_path / "newer").rename(program)
        status, _, body = s.local("/v1/engine/restart", "POST", "{}")[:3]
        assert status in (202, 503), body
        wait_for("it is refused", lambda: "was replaced since the server began" in s.log())
        assert text_of(s, SHORT[0]) == undisturbed[0]
    finally:
        assert s.stop() == 0


def another_build(source, to):
    """The same version, linked as another build: what they share may be laid out in another way."""
    (to.parent / "id").write_bytes(struct.pack("<3I4s20s", 4, 20, 3, b"GNU\0", b"of another time"))
    subprocess.run(["objcopy", f"--update-section=.note.gnu.build-id={to.parent / 'id'}", source, to], check=True)


def test_a_server_of_another_build(tmp_path):
    """It was replaced by an upgrade while it served: a restart on purpose is refused and the engine goes on; an engine that is lost ends the server,
    which says why, and what watches it begins the new one."""
    build, ask = tmp_path / "build", {**SHORT[0], "max_tokens": 8}
    build.mkdir()
    program = build / "evenkeel-server"
    for file in BUILD / "evenkeel-server", BUILD / "libevenkeel-mpi.so":
        shutil.copy2(file, build)
    s = serve(tmp_path, DIVIDED[0], build=build)
    try:
        want = text_of(s, ask)
        another_build(program, tmp_path / "newer")
        (tmp_path / "newer").rename(program)
        status, _, body = s.local("/v1/engine/restart", "POST", "{}")[:3]
        assert status == 503 and b"was replaced since the server began" in body and b"this one goes on" in body, body
        assert text_of(s, ask) == want
        os.kill(nodes_of(s.control)[0], signal.SIGKILL)
        assert s.process.wait(120) == 76
        assert "are not of the same version and build: restart the server" in s.log(), s.log()
    finally:
        s.stop()
    s = serve(tmp_path, DIVIDED[0], build=build)
    try:
        assert text_of(s, ask) == want
    finally:
        assert s.stop() == 0


def test_its_server_is_killed(tmp_path):
    """Nobody is left, on any node."""
    s = serve(tmp_path, DIVIDED[0])
    pids = nodes_of(s.control)
    assert len(pids) == 2
    s.process.kill()
    s.process.wait()
    wait_for("nobody is left", lambda: all(map(gone, pids)), 20)


def test_a_script_that_starts_mpirun(tmp_path):
    """A signal to the script is not one to mpirun: all of its process group is ended, and two keys that look the same when hidden are no fault."""
    script = tmp_path / "start"
    script.write_text('#!/bin/sh\nmpirun -n 2 "$@"\n')
    script.chmod(0o755)
    s = serve(tmp_path, DIVIDED[0], "--api-key", "sk-one", "sk-two", command=str(script))
    pids = nodes_of(s.control)
    assert len(pids) == 2 and s.stop() == 0
    wait_for("no node is left", lambda: all(map(gone, pids)), 20)


def test_two_lost_nodes_are_no_poison(tmp_path):
    """A node is lost under the only request, and another one under its first step alone: nobody knows whose fault it was, and the text goes on."""
    script = tmp_path / "start"
    script.write_text('#!/bin/sh\nmpirun -n 2 "$@"\nexit 73\n')  # as it is when a node sees it before mpirun does
    script.chmod(0o755)
    faults = EngineFaults(tmp_path)
    s = serve(tmp_path, DIVIDED[0], command=str(script), env=faults.env)
    try:
        undisturbed = text_of(s, SHORT[0])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            faults.once("hang")
            asked = pool.submit(text_of, s, SHORT[0])
            for n in 1, 2:
                wait_for("a step is in flight", lambda n=n: faults.done == n, 60)
                pids = nodes_of(s.control)
                if n == 1:
                    faults.once("hang")
                os.kill(pids[1], signal.SIGKILL)
                wait_for("another group", lambda n=n: replaced(s) == n, 60)
            assert asked.result() == undisturbed
        assert metric(s.metrics(), "evenkeel_engine_poison_requests_total") == 0, s.log()
    finally:
        assert s.stop() == 0, s.log()


@pytest.mark.parametrize("command, says, code", [
    ("/nowhere/mpirun -n 2", "--engine-command /nowhere/mpirun -n 2 cannot be run: No such file", 78),
    ("mpirun -n 3", "--nnodes 2, but 3 processes were started", 78),
    ("false", "its process ended with code 1", 76),
])
def test_a_command_that_starts_none(tmp_path, command, says, code):
    s = serve(tmp_path, DIVIDED[0], command=command, ready=False)
    ended = s.process.wait(120)
    assert says in s.log() and ended == code, (ended, s.log())
