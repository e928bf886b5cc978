"""Real binaries on free ports in a directory of their own; everything started is ended; waits are bounded and on events."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from client import get, stream  # noqa: E402,F401
from demo import free_port  # noqa: E402
from pace import Patience, paced, slower  # noqa: E402,F401

BUILD = ROOT / os.environ.get("B", "build/release")
MODEL = ROOT / "models/evenkeel-tiny"
STEP_MS = 10


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes seconds of a processor or many by the clock; make check runs a share of these each day")


def pytest_collection_modifyitems(config, items):
    """EVENKEEL_SHARE=N EVENKEEL_DAY=D: of the long tests one in N, others each day (tests/share.h); all when they are not set."""
    share, day = (int(os.environ.get(f"EVENKEEL_{v}", "0")) for v in ("SHARE", "DAY"))
    if share < 2:
        return
    names = sorted(i.nodeid for i in items if i.get_closest_marker("long"))
    others = {name for n, name in enumerate(names) if (n + day) % share != 0}
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid in others])
    items[:] = [i for i in items if i.nodeid not in others]


# Processes of pytest beside each other (-n): each asks for ports of its own.
if WORKER := int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]):
    os.environ["PORT_SHIFT"] = str(int(os.environ.get("PORT_SHIFT", "0")) + 1130 * WORKER)


def wait_for(what, condition, seconds=60.0, step=0.05):
    """Polls condition() until it is truthy; fails with `what` when the time is over, which goes by the pace of this machine."""
    patience, last = Patience(seconds), None
    while patience.left():
        try:
            last = condition()
            if last:
                return last
        except (OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
            last = error
        time.sleep(step)
    pytest.fail(f"{what}: not within {seconds} s (last: {last!r})")


def gone(pid):
    """Whether the process has ended, waited for or not: its first thread may be a zombie while others still hold its sockets."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return fields[0] in "ZX" and int(fields[17]) <= 1  # num_threads
    except (FileNotFoundError, ProcessLookupError):
        return True


def cpu_seconds(pid):
    """Of processors, that all threads of the process have taken."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_seconds(pid, name):
    """Of processors, that the process's threads of that name have taken."""
    tasks = (task.read_text() for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"))
    return sum(sum(map(int, t.rsplit(") ", 1)[1].split()[11:13])) for t in tasks if f"({name})" in t) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10


@contextlib.contextmanager
def small_disk(folder, size):
    """Made of that folder, which is there; skips the test where none can be mounted."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)  # which a process may still have files on when an assertion fails


def metric(page, name, **labels):
    """The value of the first sample of that name with these labels, None when there is none."""
    for line in page.splitlines():
        head = line.split(" ")[0]
        if head.split("{")[0] == name and all(f'{k}="{v}"' in head for k, v in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return None


def for_all(folder):
    """Copies of the programs and the model that every user may read: the tree may lie in somebody's home. For Appliance and Bare."""
    build, model = folder / "build", folder / "model"
    shutil.copytree(MODEL, model)
    build.mkdir()
    for name in ("evenkeel-server", "evenkeeld"):
        shutil.copy(BUILD / name, build)
    for path in (build, model, *build.iterdir(), *model.iterdir()):
        path.chmod(0o755)
    return {"build": build, "model": model}


class Appliance:
    """evenkeeld with one server, as an operator would run it; but of one thread, for its threads wait for one another with a processor each,
    of which the tests beside it have need. A flag of a test's own comes later and counts."""

    def __init__(self, run, server_flags=(), policy="", mode="act", poll_s=0.5, extra="", host="127.0.0.1", before=(), build=BUILD, model=MODEL):
        self.build = build
        self.run, self.port, self.page = run, free_port(18000), free_port(19464)
        self.config = run / "evenkeeld.yaml"
        flags = ", ".join(json.dumps(str(f)) for f in server_flags)
        self.config.write_text(f"""\
listen: 127.0.0.1:{self.page}
socket: {run}/evenkeeld.sock
run_dir: {run}
state_dir: {run}/state
servers:
  s1:
    engine: evenkeel
    command: [{''.join(f'{w}, ' for w in before)}{build}/evenkeel-server, --model, {model}, --served-model-name, tiny, --threads, '1'{', ' + flags if flags else ''}]
    host: {host}
    port: {self.port}
    poll_s: {poll_s}
    mode: {mode}
    log_file: {run}/server.log
{extra}{'    policy: {' + policy + '}' if policy else ''}
""")
        self.process = None

    def start(self):
        self.log = open(self.run / "evenkeeld.log", "ab")
        self.process = subprocess.Popen([self.build / "evenkeeld", "--config", self.config], stdout=self.log, stderr=self.log)
        return self

    def ready(self):
        wait_for("server ready", lambda: self.server()["ready"], 60)
        return self

    def api(self, path):
        status, body = get(self.page, path)
        assert status == 200, (path, status, body[:300])
        return json.loads(body)

    def server(self):
        return self.api("/api/v1/servers")["servers"][0]

    def decisions(self, limit=100):
        return self.api(f"/api/v1/servers/s1/decisions?limit={limit}")["decisions"]

    def metrics(self, port=None):
        status, body = get(port or self.port, "/metrics")
        assert status == 200
        return body.decode()

    def ctl(self, *words, check=True):
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "evenkeeld.sock", *words], capture_output=True,
                              text=True, timeout=60 * slower())
        assert not check or done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return done

    def stop(self, seconds=20):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(seconds * slower())
        return self.process.returncode if self.process else None

    def destroy(self):
        pid = None
        try:
            pid = self.server()["pid"]
        except Exception:  # noqa: BLE001  # it may be gone already; this is the last resort
            pass
        if self.process and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.process.kill()
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture(scope="session")
def steady_build(tmp_path_factory):
    """The programs beside a backend whose steps take STEP_MS each, whatever is in them (tests/tools/paced.c), asked for with --device cuda:
    a load that goes on until something happens then leaves most of the processor to others, and is the same on any machine."""
    build = tmp_path_factory.mktemp("steady")
    for name in ("evenkeel-server", "evenkeeld"):
        shutil.copy(BUILD / name, build)
    shutil.copy(BUILD / "tests/tools/paced.so", build / "libevenkeel-cuda.so")
    return build


@pytest.fixture
def appliance(tmp_path, request):
    """A function that starts an evenkeeld with one server and waits until it is ready. steady=True: on the backend of steady_build."""
    made = []

    def make(steady=False, server_flags=(), **how):
        if steady:
            how |= {"build": request.getfixturevalue("steady_build"), "before": ["/usr/bin/env", f"EVENKEEL_STEP_MS={STEP_MS}"]}
            server_flags = ["--device", "cuda", *server_flags]
        made.append(Appliance(tmp_path, server_flags=server_flags, **how))
        return made[-1].start().ready()

    yield make
    for a in made:
        a.destroy()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One appliance for the tests of a module that only ask."""
    a = Appliance(tmp_path_factory.mktemp("shared")).start().ready()
    yield a
    a.destroy()
