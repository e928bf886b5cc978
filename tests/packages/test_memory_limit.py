"""Protects: a memory limit of cgroup v2 that is hit ends the server alone; evenkeeld survives, names the class and starts it again. In a virtual
machine, because the memory controller of most test hosts belongs to cgroup v1. MACHINE_ROOT is a root folder with a kernel in it."""
import os
import shutil

import pytest

from test_life import ANSWER, DEBS, PARTS, debs, ready, server, wait
from virtual import VirtualMachine

SLOW = 180  # an emulated processor


@pytest.fixture(scope="module")
def m():
    machine = VirtualMachine(os.environ.get("MACHINE_ROOT", "/"))
    try:
        shutil.copytree(DEBS, machine.root / "root/debs", ignore=lambda _, names: [n for n in names if not n.endswith(".deb") or "dbgsym" in n])
        machine.boot()
        yield machine
    finally:
        machine.destroy()


def least(m, pid):
    """A limit that the server is above at once, whatever can be given back."""
    rows = dict(line.split(":", 1) for line in m.run(f"cat /proc/{pid}/status").stdout.splitlines() if line.startswith("Rss"))
    return int(rows["RssAnon"].split()[0]) * 1024 * 3 // 4


def hit(m, unit):
    """The unit's limit falls below what the server has; returns the server as it is after its restart."""
    before, main = ready(m, SLOW)["pid"], m.show("evenkeeld", "MainPID")
    m.run(f"systemctl set-property --runtime {unit} MemoryMax={least(m, before)}")
    wait("the kernel ended the server", lambda: server(m).get("pid") not in (None, before), SLOW)
    m.run(f"systemctl set-property --runtime {unit} MemoryMax=infinity")
    wait("it serves again", lambda: server(m).get("ready") and server(m)["pid"] != before, SLOW)
    assert m.show("evenkeeld", "MainPID") == main and m.show("evenkeeld", "ActiveState") == "active"
    said = m.run("evenkeelctl explain").stdout
    print("\n" + "\n".join(said.splitlines()[-8:]))
    assert "HOST_OOM" in said and "oom" in m.run("journalctl -k -o cat", check=False).stdout.lower()
    assert "text" in m.run(ANSWER).stdout


def test_a_limit_of_evenkeelds_unit_ends_the_server_alone(m):
    assert "memory" in m.run("cat /sys/fs/cgroup/cgroup.controllers").stdout.split(), "the machine has no cgroup v2 with a memory controller"
    m.run(f"dpkg -i {debs(PARTS + ['evenkeel-model-tiny'])}")
    hit(m, "evenkeeld")


def test_a_limit_of_the_servers_own_unit(m):
    m.run("printf 'servers:\\n  tiny:\\n    launcher: systemd\\n' >>/etc/evenkeel/evenkeeld.yaml; systemctl restart evenkeeld")
    ready(m, SLOW)
    hit(m, "evenkeel-managed@tiny")
    assert "OOM killer" in m.run("journalctl -o cat -u evenkeel-managed@tiny -u init.scope", check=False).stdout
    assert "memory" in m.run("cat /sys/fs/cgroup/evenkeel.slice/cgroup.controllers").stdout


def test_a_limit_of_the_engines_own(m):
    """The engine's process has a cgroup below the unit's with a smaller limit; what the kernel kills there is replaced, and the server stays."""
    m.run("sed -i 's/launcher: systemd/launcher: systemd\\n    args: [--engine-process]/' /etc/evenkeel/evenkeeld.yaml")
    m.run("systemctl set-property --runtime evenkeel-managed@tiny MemoryMax=2G; systemctl restart evenkeeld; evenkeelctl restart --wait --timeout 180")
    pid = ready(m, SLOW)["pid"]
    unit = "/sys/fs/cgroup/evenkeel.slice/evenkeel-managed@tiny.service"
    group = m.run(f"ls -d {unit}/evenkeel-engine.*").stdout.strip()
    assert m.run(f"cat {unit}/evenkeel-main/cgroup.procs").stdout.split()[0] == str(pid)
    assert int(m.run(f"cat {group}/memory.max").stdout) == (2 << 30) - (2 << 30) // 16
    engine = m.run("pgrep -x evenkeel-engine").stdout.strip()
    assert engine in m.run(f"cat {group}/cgroup.procs").stdout.split()
    m.run(f"echo {least(m, engine)} >{group}/memory.max")
    wait("the kernel ended the engine", lambda: m.run("pgrep -x evenkeel-engine", check=False).stdout.strip() not in ("", engine), SLOW)
    m.run(f"echo max >{group}/memory.max")
    wait("it serves again", lambda: server(m).get("ready"), SLOW)
    assert server(m)["pid"] == pid and m.show("evenkeel-managed@tiny", "ActiveState") == "active"
    assert "HOST_OOM" in m.run("evenkeelctl explain").stdout and "text" in m.run(ANSWER).stdout
