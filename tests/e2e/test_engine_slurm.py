"""Protects: an engine whose nodes Slurm starts (--engine-command "srun ..."): a node that is killed, a job that scancel ends and a machine that
is set down are pauses, and every text is the one of an undisturbed server; nothing of a group that is ended stays in Slurm's queue."""
import contextlib
import os
import random
import shlex
import signal

import pytest

from bare import Bare
from conftest import gone, paced, wait_for
from engines import SHORT, always, another_engine, check_counts, engine_state, restart, run_alone, texts_alone
from hosts import Host
from slurm import Slurm, needed
from test_engine_hosts import FLAGS, at_some_token

pytestmark = [needed, pytest.mark.long]
SRUN = "srun --nodes 2 --ntasks-per-node 1 --mpi=pmix --kill-on-bad-exit=1"


class Batch(Bare):
    """Begun by a batch script, on the first node of a job; its process is the one that waits for the job's end."""

    def command(self, args):
        script = self.run / "script"
        script.write_text(f"#!/bin/sh\nexec {' '.join(map(shlex.quote, args))}\n")
        return ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--no-kill", f"--output={self.run}/job.log", str(script)]

    def log(self):
        return (self.run / "job.log").read_text(errors="replace")


class Served:
    def __init__(self, folder, kind=Bare, command=SRUN):
        for name in "server", "slurm":
            (folder / name).mkdir()
        self.host = Host(folder)
        self.slurm = self.server = None
        try:
            self.slurm = Slurm(self.host, folder / "slurm")
            env = {**self.slurm.env, **self.host.env(), "OMPI_MCA_btl_tcp_if_include": self.host.network}
            self.server = kind(folder / "server", "--tensor-parallel-size", 2, *FLAGS, "--engine-process", "--nnodes", 2, "--engine-command", command,
                               "--state-dir", self.host.own, "--step-deadline", paced(4), env=env)
        except BaseException:
            self.end()
            raise

    def end(self):
        with contextlib.ExitStack() as all_of_it:
            all_of_it.callback(self.host.end)
            if self.slurm:
                all_of_it.callback(self.slurm.end)
            if self.server:
                all_of_it.callback(self.server.stop)

    def jobs(self):
        return self.slurm.run("squeue", "-h", "-o", "%i").split()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return texts_alone(tmp_path_factory.mktemp("one"), SHORT, "--tensor-parallel-size", 2, *FLAGS)


@contextlib.contextmanager
def serving(tmp_path, **how):
    both = Served(tmp_path, **how)
    try:
        yield both
    finally:
        try:
            for job in both.jobs():
                both.slurm.run("scancel", job)
        finally:
            both.end()


def another(served, what):
    jobs, first = served.jobs(), served.host.nodes()
    assert len(jobs) == 1 and len(first) == 1
    with another_engine(served.server, 120):
        what(jobs[0])
    wait_for("the first one is gone", lambda: all(map(gone, first)) and not set(jobs) & set(served.jobs()), 60)
    run_alone(served.server)


def set_down_and_up(served, job):
    served.slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
    wait_for("it is noticed", lambda: engine_state(served.server)["state"] != "running", 60)
    wait_for("the next group waits for it", lambda: served.slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%i").split(), 60)
    served.slurm.run("scontrol", "update", "NodeName=node2", "State=RESUME")


def test_what_ends_a_group(tmp_path, undisturbed):
    """Each group is a job of its own."""
    with serving(tmp_path) as served:
        s, draw = served.server, random.Random(5)
        ends = [lambda job: os.kill(served.host.nodes()[0], signal.SIGKILL), lambda job: served.slurm.run("scancel", job),
                lambda job: set_down_and_up(served, job)]
        draw.shuffle(ends)
        with always(s, undisturbed, SHORT):
            for end in ends:
                at_some_token(s, draw)
                another(served, end)
            restart(s)
        check_counts(s, len(ends))
        last = served.host.nodes()
        assert s.stop() == 0, s.log()
        wait_for("the job has ended with its server", lambda: not served.jobs() and all(map(gone, last)), 30)


def test_a_server_in_a_job(tmp_path, undisturbed):
    """Each group is a step of the job that the server is in: scancel ends a step or all."""
    with serving(tmp_path, kind=Batch, command=SRUN + " --overlap") as served:
        s = served.server
        job, = served.jobs()
        step, = served.slurm.steps(job)
        with always(s, undisturbed, SHORT):
            at_some_token(s, random.Random(6))
            with another_engine(s, 120):
                served.slurm.run("scancel", step)
            assert step not in served.slurm.steps(job)
        check_counts(s, 1)
        last = served.host.nodes()
        served.slurm.run("scancel", job)
        s.process.wait(60)
        wait_for("all have ended", lambda: not served.jobs() and all(map(gone, last)), 60)
        assert "Traceback" not in s.log()
