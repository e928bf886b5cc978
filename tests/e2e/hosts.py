"""A second host on this machine: a network namespace with processes, mounts and a name of its own, Debian's sshd in it, and a cable to it.

The cable is a veth pair that can be unplugged (both ends lose their carrier) or be cut somewhere on its way (frames get lost, and nobody is told).
With a delay it is a pair of taps whose frames a process carries (wire.py), since not every kernel has netem."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import wait_for
from mpi import HERE, MPI

SSHD = "/usr/sbin/sshd"


def cannot():
    """Why there can be no second host here, or None."""
    if not HERE:
        return "no mpirun, or built without libopenmpi-dev: tools/deps.sh test"
    if not all(map(shutil.which, ("ip", "ssh", "ssh-keygen"))) or not os.path.exists(SSHD):
        return "no second host without iproute2 and sshd: tools/deps.sh hosts"
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "ip", "link", "add", "type", "veth"],
                                           capture_output=True).returncode != 0:
        return "no second host without the right to make namespaces and veth pairs"
    return None


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


def free_network():
    """Of tests beside this one each has another."""
    taken = subprocess.run(["ip", "-o", "-4", "address"], check=True, capture_output=True, text=True).stdout
    nets = (f"10.{210 + k // 250 % 40}.{k % 250}" for k in range(os.getpid(), os.getpid() + 10000))
    return next(n for n in nets if f" {n}." not in taken)


class Host:
    """`folder` is the only place that both hosts see alike, but for `own`, of which each has one; `ssh` is a command that reaches it."""

    def __init__(self, folder, number=0, delay_ms=0, jitter_ms=0):
        self.folder, self.name = folder, f"ek{os.getpid() % 100000}n{number}"
        self.near, self.far = f"{self.name}a", f"{self.name}b"
        net = free_network()
        self.network, self.address, self.ours = f"{net}.0/24", f"{net}.2", f"{net}.1"
        self.own, self.wire, self.first, self.delayed = folder / "own", None, None, (delay_ms, jitter_ms)
        self.own.mkdir()
        ip("netns", "add", self.name)
        try:
            self.lay_cable()
            self.make_keys()
            self.boot()
        except BaseException:
            self.end()
            raise

    def inside(self, *words):
        return ["nsenter", f"--net=/run/netns/{self.name}", *map(str, words)]  # not "ip netns exec", which hides the control groups

    def lay_cable(self):
        if any(self.delayed):
            self.wire = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("wire.py"), self.near, self.far, self.name,
                                          *map(str, self.delayed)], stdout=subprocess.PIPE)
            assert self.wire.stdout.readline() == b"ready\n"
        else:
            ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.name)
        ip("address", "add", f"{self.ours}/24", "dev", self.near)
        ip("link", "set", self.near, "up")
        for words in (["address", "add", f"{self.address}/24", "dev", self.far], ["link", "set", self.far, "up"], ["link", "set", "lo", "up"]):
            subprocess.run(self.inside("ip", *words), check=True)

    def make_keys(self):
        for key in "host", "user":
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        (self.folder / "sshd_config").write_text(f"""\
ListenAddress {self.address}
HostKey {self.folder}/host
AuthorizedKeysFile {self.folder}/user.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
""")
        kind, key = (self.folder / "host.pub").read_text().split()[:2]
        (self.folder / "known").write_text(f"{self.address} {kind} {key}\n")
        (self.folder / "ssh_config").write_text(f"""\
IdentityFile {self.folder}/user
IdentitiesOnly yes
UserKnownHostsFile {self.folder}/known
BatchMode yes
LogLevel ERROR
ConnectTimeout 5
""")
        self.ssh = f"ssh -F {self.folder}/ssh_config"

    def boot(self):
        """Its sshd, which is its first process, so that all others end with it."""
        os.makedirs("/run/sshd", exist_ok=True)
        script = (f"hostname {self.name} && mount -t tmpfs none /dev/shm && mount -t tmpfs none {self.own} && "
                  "{ [ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc; } && "  # which may be long, and is read for each command
                  f"exec {SSHD} -D -e -f {self.folder}/sshd_config")
        with open(self.folder / "sshd.log", "ab") as log:
            self.first = subprocess.Popen(self.inside("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script),
                                          stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for("the host is there", lambda: self.first.poll() is None and self.run("true").returncode == 0, 30)

    def run(self, *words):
        return subprocess.run([*self.ssh.split(), self.address, *words], capture_output=True, text=True, timeout=60)

    def pids(self):
        """Of all its processes, as this host numbers them."""
        def space(pid):
            try:
                return os.readlink(f"/proc/{pid}/ns/pid")
            except OSError:
                return None
        with open(f"/proc/{self.first.pid}/task/{self.first.pid}/children") as file:
            init = file.read().split()
        mine = space(init[0]) if init else None
        return [int(p) for p in filter(str.isdigit, os.listdir("/proc")) if mine and space(p) == mine]

    def named(self, name):
        """Its processes whose name begins so; it ends with a line."""
        found = []
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/comm") as comm:
                    found += [pid] if comm.read().startswith(name) else []
            except OSError:
                pass
        return found

    def nodes(self):
        """Its processes of a model's nodes."""
        return self.named("evenkeel-serv")

    # What may happen to it.

    def plug(self, there):
        ip("link", "set", self.near, "up" if there else "down")

    def carry(self, on):
        """Whether frames arrive; where not, neither end is told. Of a delayed cable by the process that carries them, else by their neighbours' addresses."""
        if self.wire:
            self.wire.send_signal(signal.SIGUSR2 if on else signal.SIGUSR1)
        else:
            self.lie(not on)

    def lie(self, wrong):
        """Each end sends to an address that no card has: what a switch that lost its table does."""
        for side, peer, run in ((self.near, self.address, []), (self.far, self.ours, self.inside())):
            words = ["replace", peer, "lladdr", "02:00:00:00:00:09", "nud", "permanent", "dev", side] if wrong else ["del", peer, "dev", side]
            subprocess.run([*run, "ip", "neighbour", *words], check=True)

    def stop(self, how=signal.SIGSTOP):
        for pid in self.pids():
            os.kill(pid, how)

    def power_off(self):
        """No process says goodbye: the cable is dead before they end."""
        self.plug(False)
        self.first.kill()
        self.first.wait()

    def end(self):
        if self.first and self.first.poll() is None:
            self.first.kill()
            self.first.wait()
        if self.wire:
            self.wire.kill()
            self.wire.wait()
        subprocess.run(["ip", "link", "del", self.near], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)

    def command(self, *more):
        """mpirun of two nodes, one of them on it."""
        agent = self.folder / "agent"
        agent.write_text(f'#!/bin/sh\nexec {self.ssh} "$@"\n')
        agent.chmod(0o755)
        return " ".join(["mpirun", "-n 2", f"--host {self.ours},{self.address}", "--map-by node", "--bind-to none", f"--mca plm_rsh_agent {agent}",
                         f"--mca btl_tcp_if_include {self.network}", f"--mca oob_tcp_if_include {self.network}", *more])

    def env(self):
        return {**{k: v for k, v in MPI.items() if k != "OMPI_MCA_btl_tcp_if_include"}}


WHY_NOT = cannot()
needed = pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT))
