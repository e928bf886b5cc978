"""Debian's Slurm over this host and another one (hosts.py): slurmctld, a slurmd on each, munge; all below one folder, and ended with it."""
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import free_port, wait_for
from hosts import WHY_NOT

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "scancel", "squeue")
SBIN = "/usr/sbin"


def which(name):
    return shutil.which(name, path=f"{os.environ['PATH']}:{SBIN}")


class Slurm:
    def __init__(self, host, folder):
        self.host, self.folder, self.started = host, folder, []
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:{SBIN}"}
        for name in "state", "spool", "munge":
            (folder / name).mkdir()
        try:
            self.begin_munge()
            self.write_configuration()
            self.begin([which("slurmctld"), "-D", "-f", folder / "slurm.conf"], "slurmctld")
            self.begin([which("slurmd"), "-D", "-N", "node1", "-f", folder / "slurm.conf"], "node1")
            self.boot_second()
            wait_for("two idle nodes", lambda: self.nodes("idle") == 2, 60)
        except BaseException:
            self.end()
            raise

    def boot_second(self):
        self.begin([*self.host.ssh.split(), self.host.address, which("slurmd"), "-D", "-N", "node2", "-f", self.folder / "slurm.conf"], "node2")

    def begin(self, args, name):
        with open(self.folder / f"{name}.out", "ab") as out:
            self.started.append(subprocess.Popen(list(map(str, args)), stdout=out, stderr=out, env=self.env))

    def begin_munge(self):
        where = self.folder / "munge"
        (where / "key").write_bytes(secrets.token_bytes(128))
        (where / "key").chmod(0o600)
        self.begin([which("munged"), "--foreground", "--force", f"--socket={where}/socket", f"--key-file={where}/key", f"--pid-file={where}/pid",
                    f"--log-file={where}/log", f"--seed-file={where}/seed"], "munged")
        wait_for("munge", (where / "socket").exists)

    def write_configuration(self):
        ports = [free_port(p) for p in (26817, 26818, 26819)]
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.host.own}\n")  # of which each host has one, as it would have a /tmp
        (self.folder / "slurm.conf").write_text(f"""\
ClusterName=evenkeel
SlurmctldHost={socket.gethostname()}({self.host.ours})
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=0
SlurmdTimeout=10
KillWait=20
MpiDefault=none
NodeName=node1 NodeHostname={socket.gethostname()} NodeAddr={self.host.ours} Port={ports[1]} CPUs={os.cpu_count()}
NodeName=node2 NodeHostname={self.host.name} NodeAddr={self.host.address} Port={ports[2]} CPUs={os.cpu_count()}
PartitionName=all Nodes=node1,node2 Default=YES State=UP OverSubscribe=YES
""")

    def run(self, *words):
        done = subprocess.run(list(map(str, words)), env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def nodes(self, state):
        return sum(line.split()[1].startswith(state) for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines())

    def steps(self, job):
        """Of srun, that are running: those of the engine."""
        return [s for s in self.run("squeue", "-h", "-s", "-j", job, "-o", "%i").split() if s.split(".")[1].isdigit()]

    def end(self):
        for pid in self.folder.glob("slurmd.node2.pid"):
            self.host.run("kill", pathlib.Path(pid).read_text().strip())
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


MISSING = None if all(map(which, PROGRAMS)) else "no Slurm here: tools/deps.sh hosts"
needed = pytest.mark.skipif(bool(WHY_NOT or MISSING), reason=str(WHY_NOT or MISSING))
