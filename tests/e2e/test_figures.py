"""Protects: the journal tells how memory grew before something ran out, the metrics show it, and what the kernel said of a GPU is the reason
that is given when a server ends with it."""
import os
import signal

import pytest

from conftest import get, metric, wait_for
from test_prestart import GIB, library, nvml  # noqa: F401
from test_supervisor import Fakes


@pytest.fixture
def run(tmp_path):
    made = []

    def make(extra, **servers):
        f = Fakes(tmp_path, servers)
        f.write(extra)
        made.append(f)
        return f.start().ready()

    yield make
    for f in made:
        f.end()


def test_memory_is_said_every_minute_and_shown(run, nvml, tmp_path):  # noqa: F811
    nvml.write_text(f"{80 * GIB} {3 * GIB} 0 0\n{40 * GIB} {1 * GIB} 0 0\n")
    f = run("memory_every_s: 1\n", a=([], "    devices: 0\n"))
    log = tmp_path / "evenkeeld.log"
    line = wait_for("two lines", lambda: len(found := [t for t in log.read_text().splitlines() if "a: memory: process" in t]) >= 2 and found[-1])
    assert "GiB" in line and "KV 0 %" in line and "host" in line and "device 0 3.0 of 80.0 GiB" in line and "device 1" not in line
    assert f.all()["a"]["memory"]["devices"] == [{"index": 0, "used_bytes": 3 << 30, "total_bytes": 80 << 30, "busy": 0.37}]
    assert "GPU 0: 3.0 of 80.0 GiB, 37 % busy" in get(f.page, "/")[1].decode()
    page = f.metrics()
    resident = metric(page, "evenkeel_supervisor_server_memory_bytes", server="a", kind="resident")
    assert 5e6 < resident < 2e8
    assert metric(page, "evenkeel_supervisor_device_memory_bytes", device="1", kind="total") == 40 * GIB << 20
    assert metric(page, "evenkeel_supervisor_host_memory_available_bytes") > 1e8


@pytest.mark.parametrize("xid, state", [(13, "ready"), (79, "breaker_open")])
def test_an_xid_is_the_reason_of_an_end(run, tmp_path, xid, state):
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    with open(os.open(fifo, os.O_RDWR), "wb", buffering=0) as kernel:
        f = run(f"kernel_log: {fifo}\n", a=([], ""))
        pid = f.all()["a"]["pid"]
        kernel.write(b"6,1,1,-;something else\n4,2,2,-;NVRM: Xid (PCI:0000:3b:00): %d, pid=1, some words\n" % xid)
        wait_for("it is counted", lambda: metric(f.metrics(), "evenkeel_supervisor_device_xid_total") == 1)
        os.kill(pid, signal.SIGABRT)
        wait_for("it ended", lambda: f.all()["a"]["pid"] != pid and f.all()["a"]["state"] == state, 60)
    why = f.decisions("a", "CRASH")[0]["why"]
    assert why.startswith("DEVICE") and f"Xid {xid}" in why
    assert ("it needs a person" in (tmp_path / "evenkeeld.log").read_text()) == (xid == 79)


def test_no_kernel_log_is_no_error(run, tmp_path):
    run(f"kernel_log: {tmp_path}/nothing\n", a=([], ""))
