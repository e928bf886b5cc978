"""Protects: keys and prompts in memory. Other processes of the same user read neither the memory, the environment nor the descriptors of
evenkeel-server, its launcher, its engine and evenkeeld; what evenkeeld reads of its servers in /proc it still reads as that user."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from bare import Bare
from conftest import Appliance, for_all, metric, wait_for

USER = 65534  # nobody, where the test is root
IS_ROOT = os.geteuid() == 0
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if IS_ROOT else []


@pytest.fixture
def folder():
    """One that the user may enter and write, unlike pytest's of root."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="evenkeel-dumpable-"))
    path.chmod(0o755)
    os.chown(path, USER if IS_ROOT else -1, -1)
    yield path
    shutil.rmtree(path)


def opens(pid):
    """Which of them another process of the user can read."""
    tries = {"environ": ["head", "-c1", f"/proc/{pid}/environ"], "mem": ["sh", "-c", f"exec 3</proc/{pid}/mem"], "fd": ["ls", f"/proc/{pid}/fd"]}
    return {what for what, words in tries.items() if subprocess.run([*AS_USER, *words], capture_output=True).returncode == 0}


def family(pid):
    """A process and all below it: the server, its launcher, the engine."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(p for c in children for p in family(int(c)))]


class Own(Bare):
    def command(self, args):
        return [*AS_USER, *args]


def test_nobody_else_looks_into_a_server(folder):
    s = Own(folder, "--engine-process", **for_all(folder))
    try:
        assert metric(s.metrics(), "evenkeel_sandbox", part="memory") == 1
        pids = family(s.process.pid)
        assert len(pids) == 3 and not any(opens(p) for p in pids), [(p, opens(p)) for p in pids]
    finally:
        assert s.stop() == 0


def test_unless_it_is_told_to(folder):
    s = Own(folder, "--engine-process", "--dumpable", **for_all(folder))
    try:
        assert metric(s.metrics(), "evenkeel_sandbox", part="memory") == 0 and "--dumpable" in s.log()
        pids = family(s.process.pid)
        if "environ" not in opens(pids[0]):
            pytest.skip("the kernel keeps processes of one user apart anyway")
        assert len(pids) == 3 and all("environ" in opens(p) for p in pids)
    finally:
        assert s.stop() == 0


class OwnAppliance(Appliance):
    """evenkeeld as that user, with a score that is lower than what its servers are to have."""
    score = 100

    def start(self):
        def score():
            pathlib.Path("/proc/self/oom_score_adj").write_text(str(self.score))
        self.log = open(self.run / "evenkeeld.log", "ab")
        self.process = subprocess.Popen([*AS_USER, self.build / "evenkeeld", "--config", self.config], stdout=self.log, stderr=self.log, preexec_fn=score)
        return self


def test_evenkeeld_and_what_it_reads_of_servers(folder):
    a = OwnAppliance(folder, **for_all(folder)).start()
    try:
        a.ready()
        pid = a.server()["pid"]
        assert not opens(a.process.pid) and not opens(pid)
        assert pathlib.Path(f"/proc/{a.process.pid}/oom_score_adj").read_text().strip() == str(a.score)
        assert pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "200"
        wait_for("its memory", lambda: metric(a.metrics(a.page), "evenkeel_supervisor_server_memory_bytes", server="s1", kind="resident"))
        a.process.kill()  # the next one finds the server by its pid, and takes it over
        a.process.wait()
        a.start().ready()
        assert a.server()["pid"] == pid and a.server()["adopted"]
    finally:
        a.destroy()
