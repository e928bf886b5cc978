"""Protects: a first server comes from one command, what is there stays, and what would make it fail is said before."""
import json
import os
import pathlib
import pty
import select
import signal
import socket
import subprocess
import time

import pytest
from bare import Bare
from conftest import BUILD, MODEL, slower, wait_for
from test_supervisor import fakes  # noqa: F401


def ctl(*words, env=None):
    return subprocess.run([BUILD / "evenkeelctl", *map(str, words)], capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL, env=env)


def test_setup_writes_a_file_that_serves(tmp_path):
    said = ctl("setup", "main", "--model", MODEL, "--dir", tmp_path, "--port", 8123)
    assert said.returncode == 0, said.stderr
    config = tmp_path / "main.yaml"
    text = config.read_text()
    assert "port: 8123" in text and "max-num-seqs:" in text and "require-api-key" not in text
    again = ctl("setup", "main", "--model", MODEL, "--dir", tmp_path, "--port", 8124)
    assert again.returncode == 1 and "--force" in again.stderr and config.read_text() == text
    assert ctl("setup", "main", "--model", MODEL, "--dir", tmp_path, "--port", 8124, "--force", "--host", "0.0.0.0").returncode == 0
    assert "port: 8124" in config.read_text() and "require-api-key: true" in config.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main.yaml"]
    dry = ctl("setup", "other", "--model", MODEL, "--dir", tmp_path, "--dry-run")
    assert dry.stdout.startswith("# Written by") and not (tmp_path / "other.yaml").exists()
    config.write_text(text)
    (tmp_path / "run").mkdir()
    s = Bare(tmp_path / "run", "--config", str(config))
    try:
        assert s.ask("/v1/models")[0] == 200
    finally:
        s.stop()


def test_what_setup_writes_evenkeeld_takes(tmp_path):
    """From a directory named as models are, by a path from here: the file has a name and a path that evenkeeld can use."""
    (tmp_path / "servers").mkdir()
    (tmp_path / "Qwen3-0.6B_it").symlink_to(MODEL)
    subprocess.run([BUILD / "evenkeelctl", "setup", "--model", "Qwen3-0.6B_it/", "--dir", "servers", "--port", "8123"], cwd=tmp_path, check=True,
                   capture_output=True, timeout=90, stdin=subprocess.DEVNULL)
    text = (tmp_path / "servers/qwen3-0-6b-it.yaml").read_text()
    assert f"model: '{tmp_path}/Qwen3-0.6B_it/'" in text and "served-model-name: 'qwen3-0-6b-it'" in text
    (tmp_path / "evenkeeld.yaml").write_text(f"servers_dir: {tmp_path}/servers\nlisten: off\nrun_dir: {tmp_path}\nstate_dir: {tmp_path}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "evenkeeld.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "qwen3-0-6b-it (evenkeel" in done.stdout, done.stderr


def test_setup_refuses(tmp_path):
    assert ctl("setup", "Main", "--model", MODEL, "--dir", tmp_path).returncode == 2
    assert ctl("setup", "../x", "--model", MODEL, "--dir", tmp_path).returncode == 2
    assert ctl("setup").returncode == 2
    assert ctl("setup", "x", "--model", tmp_path, "--dir", tmp_path).returncode == 1
    none = ctl("setup", "x", "--model", MODEL, "--dir", tmp_path / "none")
    assert none.returncode == 1 and f"the directory {tmp_path}/none is not there; make it (mkdir -p)" in none.stderr


def test_setup_gives_no_two_servers_a_port(tmp_path):
    for name, port in (("a", 8000), ("b", 8001)):
        assert ctl("setup", name, "--model", MODEL, "--dir", tmp_path, "--port", port).returncode == 0
    both = ctl("setup", "c", "--model", MODEL, "--dir", tmp_path)
    assert both.returncode == 1 and f"port 8000 is that of {tmp_path}/a.yaml already; --port 8002 is free there" in both.stderr
    assert not (tmp_path / "c.yaml").exists()
    assert ctl("setup", "a", "--model", MODEL, "--dir", tmp_path, "--force").returncode == 0  # its own


def test_setup_waits_for_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    assert ctl("setup", "b", "--model", MODEL, "--dir", tmp_path).returncode == 0


def test_preflight():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = ctl("preflight", MODEL, "--port", port, "--json")
    lines = {line["what"]: line for line in json.loads(said.stdout)}
    assert said.returncode == 1 and lines["port"]["state"] == "BAD" and "ss -ltnp" in lines["port"]["remedy"]
    assert lines["model"]["state"] == "ok" and lines["open files"]
    assert "BAD   model" in ctl("preflight", "/nonexistent").stdout


def test_recover(appliance):
    a = appliance()
    before = a.server()["pid"]
    said = ctl("recover", "--dry-run", "--socket", a.run / "evenkeeld.sock")
    assert said.returncode == 0 and "would restart" in said.stdout and a.server()["pid"] == before
    said = ctl("recover", "--socket", a.run / "evenkeeld.sock", "--max-num-seqs", 2, "--wait", 60)
    assert said.returncode == 0, said.stdout
    server = a.server()
    assert server["pid"] != before and server["ready"]
    assert server["limits"]["max_num_running_seqs"]["value"] <= 6  # 2, and what evenkeeld may have raised since


@pytest.mark.parametrize("own, want", [
    ([], {"--gpu-memory-utilization": "0.7500", "--max-num-seqs": "16", "--max-num-batched-tokens": "8192"}),
    (["--max-num-seqs", "6", "--max-num-batched-tokens", "16384", "--gpu-memory-utilization", "0.6"],
     {"--gpu-memory-utilization": "0.6", "--max-num-seqs": "6", "--max-num-batched-tokens": "8192"})])
def test_recover_of_a_vllm_is_by_start_flags(fakes, own, want):  # noqa: F811
    """No PATCH reaches it; its own lower limits stay, and a restart without the flags ends them."""
    f = fakes(a=([*own, "--port", "{port}"], "    engine: vllm\n")).ready()

    def flags():
        argv = pathlib.Path(f"/proc/{f.all()['a']['pid']}/cmdline").read_text().split("\0")
        return {k: v for k, v in zip(argv, argv[1:]) if k in want}
    before = f.all()["a"]["pid"]
    assert f.all()["a"]["live_limits"] is False
    said = ctl("recover", "--socket", f.run / "r/evenkeeld.sock", "--below", "/nowhere", "--wait", 30)
    assert said.returncode == 0, said.stdout
    assert f.all()["a"]["pid"] not in (0, before) and f.all()["a"]["ready"] and flags() == want, said.stdout
    assert "0.75 of the memory, by start flags" in said.stdout and "evenkeelctl restart a" in said.stdout
    recovered = f.all()["a"]["pid"]
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, recovered) and f.all()["a"]["ready"], 60)
    assert flags() == dict(zip(own[::2], own[1::2]))


def test_recover_knows_its_servers_ranks_on_the_gpus(fakes, tmp_path):  # noqa: F811
    """A server has as many processes there as ranks, each on one card or on several; only others are waited for and named."""
    f = fakes(a=(["--ranks", str(tmp_path / "held"), "--port", "{port}"], "    engine: vllm\n")).ready()
    shown, smi = tmp_path / "shown", tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\ncat {shown}\n")
    smi.chmod(0o755)
    env = {**os.environ, "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    words = ["recover", "--socket", f.run / "r/evenkeeld.sock", "--below", "/nowhere", "--wait", 20]

    def family(pid):
        return [pid, *(p for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for p in family(int(c)))]
    ranks = wait_for("its ranks", lambda: (all_ := family(f.all()["a"]["pid"])) and len(all_) >= 3 and all_)
    shown.write_text("".join(f"{p}\n" for p in ranks for _ in range(2)))
    began = time.monotonic()
    said = ctl(*words, env=env)
    assert said.returncode == 0 and f"{len(ranks)} processes on the GPUs, 0 of no server" in said.stdout and "hold memory still" not in said.stdout
    assert time.monotonic() - began < 20 * slower()
    other = subprocess.Popen(["sleep", "600"])
    try:
        shown.write_text(f"{other.pid}\n{f.all()['a']['pid']}\n")
        said = ctl(*words, "--dry-run", env=env)
        assert "2 processes on the GPUs, 1 of no server here" in said.stdout and f"still: {other.pid};" in said.stdout
        shown.write_text("[N/A]\n")
        assert "1 process on the GPUs, 1 of no server here" in ctl(*words, "--dry-run", env=env).stdout
    finally:
        other.kill()
        other.wait()


@pytest.fixture
def groups():
    """A real cgroup (v2) with the names of ours: a folder to make more in, and a function that starts a process in one."""
    mount = next((line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines() if line.split()[2] == "cgroup2"), None)
    if not mount:
        pytest.skip("no cgroup v2 is mounted")
    top, started = pathlib.Path(mount) / f"evenkeel-test-{os.getpid()}", []
    try:
        (top / "evenkeeld.service/evenkeel-main-0badcafe.0").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup is delegated to this user: {error}")

    def start(where, *words):
        process = subprocess.Popen(words or ["sleep", "600"])
        started.append(process)
        (top / where / "cgroup.procs").write_text(str(process.pid))
        return process
    yield f"/{top.name}/", start
    for process in started:
        process.kill()
        process.wait()
    wait_for("the cgroups are empty", lambda: not any((d / "cgroup.procs").read_text() for d in [top, *top.rglob("*")] if d.is_dir()))
    for folder in sorted((d for d in top.rglob("*") if d.is_dir()), reverse=True):
        folder.rmdir()
    top.rmdir()


def test_recover_ends_only_strays(tmp_path, groups):
    """By the cgroup: a server whose evenkeeld lives is left, one whose evenkeeld is gone is ended, also if it will not listen."""
    below, start = groups
    words = ["recover", "--socket", tmp_path / "none.sock", "--below", below, "--wait", 1]
    keeper, stray = start("evenkeeld.service"), start("evenkeeld.service/evenkeel-main-0badcafe.0")
    deaf = start("evenkeeld.service/evenkeel-main-0badcafe.0", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    bystander = start(".")
    said = ctl(*words)
    assert f"left: {stray.pid} in {below}evenkeeld.service" in said.stdout and f"evenkeeld {keeper.pid}" in said.stdout and "--all" in said.stdout
    assert stray.poll() is None and deaf.poll() is None
    assert f"would end {stray.pid}" in ctl(*words, "--all", "--dry-run").stdout and stray.poll() is None
    keeper.kill()
    keeper.wait()
    said = ctl(*words)
    assert f"ending {stray.pid}" in said.stdout and f"ending {deaf.pid}" in said.stdout and said.returncode == 3
    assert stray.wait(60) == -signal.SIGTERM and deaf.wait(60) == -signal.SIGKILL and bystander.poll() is None
    assert "none" in ctl(*words).stdout


def answer_questions(words, answers):
    """Types the answers at a terminal; what stood on it and the status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], [str(w) for w in words])
    seen = b""
    left = list(answers)
    while select.select([terminal], [], [], 30)[0]:
        try:
            block = os.read(terminal, 4096)
        except OSError:
            break
        seen += block
        if left and left[0][0].encode() in seen:
            os.write(terminal, left.pop(0)[1].encode() + b"\n")
    os.close(terminal)
    assert not left, (left, seen)
    return seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_setup_asks(tmp_path):
    """What no flag says is asked for; an empty answer takes what stands in brackets."""
    seen, status = answer_questions([BUILD / "evenkeelctl", "setup", "--dir", tmp_path, "--port", 8127], [("Directory of the model", str(MODEL)), ("Name of the server", "")])
    assert status == 0, seen
    assert (tmp_path / f"{MODEL.name}.yaml").exists() and "port: 8127" in (tmp_path / f"{MODEL.name}.yaml").read_text()
    seen, status = answer_questions([BUILD / "evenkeelctl", "setup", "--dir", tmp_path], [("Directory of the model", "/nonexistent")])
    assert status != 0 and "/nonexistent" in seen


def test_recover_without_evenkeeld(tmp_path):
    said = ctl("recover", "--socket", tmp_path / "none.sock", "--below", "/nowhere")
    assert said.returncode == 3 and "systemctl start evenkeeld" in said.stdout
