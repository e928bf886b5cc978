"""Protects: nothing is started into memory or a port that another program has; what it waits for is said, and a device that blocks the
process that asks it blocks only a helper. The NVIDIA library is a fake (fake_nvml.c)."""
import json
import os
import pathlib
import socket
import subprocess
import time

import pytest

from conftest import BUILD, MODEL, Appliance, free_port, get, metric, wait_for
from test_supervisor import FAKE, fakes  # noqa: F401

GIB = 1024  # in MiB, as the fake reads it


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", pathlib.Path(__file__).with_name("fake_nvml.c")], check=True)
    return folder


@pytest.fixture
def nvml(library, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
    return tmp_path / "nvml"


def helpers(f):
    found = []
    for p in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (p / "comm").read_text().strip() == "evenkeeld-nvml" and f"PPid:\t{f.process.pid}\n" in (p / "status").read_text():
                found.append(int(p.name))
        except OSError:
            pass
    return found


def test_a_start_waits_for_device_memory(fakes, nvml):  # noqa: F811
    nvml.write_text(f"{80 * GIB} {2 * GIB} 0 0\n{80 * GIB} {30 * GIB} 4242 {29 * GIB}\n")
    f = fakes(a=([], "    devices: 1\n"))
    said = wait_for("it is said", lambda: f.decisions("a", "GPU_WAIT"))[0]["why"]
    assert "device 1 has 50.0 of 80.0 GiB free, less than the 73.6 needed" in said and "process 4242 has 29.0 GiB" in said
    time.sleep(2.5)
    assert len(f.decisions("a", "GPU_WAIT")) == 1 and f.all()["a"]["pid"] == 0
    nvml.write_text(f"{80 * GIB} 0 0 0\n{80 * GIB} {2 * GIB} 0 0\n")
    f.ready()
    assert "CUDA_VISIBLE_DEVICES=1\0" in pathlib.Path(f"/proc/{f.all()['a']['pid']}/environ").read_text()
    assert not f.decisions("a", "CRASH")


def test_device_memory_that_never_comes_is_a_failure_not_a_storm(fakes, nvml):  # noqa: F811
    nvml.write_text(f"{80 * GIB} {79 * GIB} 7 {78 * GIB}\n")
    f = fakes(a=(["--gpu-memory-utilization", "0.5"], "    devices: 0\n    memory_wait_s: 1\n"))
    said = wait_for("it failed", lambda: f.decisions("a", "CRASH"))[0]["why"]
    assert "GPU_WAIT after" in said and "process 7 has" in said and "less than the 40.0 needed" in said
    assert "STARTED" not in f.reasons("a")


def test_nvml_that_hangs_blocks_nobody(fakes, nvml):  # noqa: F811
    nvml.write_text("hang\n")
    f = fakes(a=([], "    devices: 0\n"), b=([], "")).ready("b")
    assert helpers(f)
    assert "NVML does not answer" in wait_for("it is said", lambda: f.decisions("a", "GPU_WAIT"))[0]["why"]
    assert all(f.all()["b"]["ready"] for _ in range(20)), "the loop goes on"
    nvml.write_text(f"{80 * GIB} 0 0 0\n")
    f.ready()
    wait_for("no helper is left", lambda: not helpers(f))


@pytest.mark.parametrize("text, said", [("fail\n", "Driver Not Loaded"), (f"{GIB} 0 0 0\n", "there is no device 3: NVML knows 1")])
def test_what_nvml_says_is_said(fakes, nvml, text, said):  # noqa: F811
    nvml.write_text(text)
    f = fakes(a=([], "    devices: 0,3\n"))
    assert said in wait_for("it is said", lambda: f.decisions("a", "GPU_WAIT"))[0]["why"]


def test_what_nvml_does_not_say_keeps_nobody_waiting(fakes, nvml):  # noqa: F811
    """A device that has the host's memory, or is cut up, and one that is lost but not asked for."""
    nvml.write_text(f"0 0 0 0 unsaid\n0 0 0 0 lost\n{80 * GIB} 0 0 0\n")
    f = fakes(a=([], "    devices: 0,2\n"), b=([], "    devices: 1\n")).ready("a")
    said = wait_for("it is said", lambda: f.decisions("b", "GPU_WAIT"))[0]["why"]
    assert "device 1 does not answer: NVML: GPU is lost" in said
    assert not f.decisions("a", "GPU_WAIT")


def test_without_nvml_it_starts(fakes):  # noqa: F811
    fakes(a=([], "    devices: 0\n")).ready()


def test_devices_without_a_file(tmp_path, nvml):
    """The one server of the command line has them as one of a file does: it waits for their memory, then sees these alone."""
    nvml.write_text(f"{80 * GIB} 0 0 0\n{80 * GIB} {30 * GIB} 4242 {29 * GIB}\n")
    page, log = free_port(26100), tmp_path / "log"
    words = ["--model", MODEL, "--port", "0", "--devices", "1", "--env", "NCCL_CUMEM_ENABLE=0", "--env=A=x y", "--listen", f"127.0.0.1:{page}", "--run-dir", tmp_path / "r", "--state-dir", tmp_path / "s"]
    with open(log, "wb") as out:
        process = subprocess.Popen([BUILD / "evenkeeld", *words, "--", "--threads", "1"], stdout=out, stderr=out)
    try:
        wait_for("it is said", lambda: "process 4242 has 29.0 GiB" in log.read_text(), 60)
        nvml.write_text(f"{80 * GIB} 0 0 0\n{80 * GIB} 0 0 0\n")
        server = lambda: json.loads(get(page, "/api/v1/servers")[1])["servers"][0]  # noqa: E731
        wait_for("it serves", lambda: server()["ready"], 60)
        words = pathlib.Path(f"/proc/{server()['pid']}/environ").read_text().split("\0")
        assert "CUDA_VISIBLE_DEVICES=1" in words and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in words
        assert "NCCL_CUMEM_ENABLE=0" in words and "A=x y" in words
    finally:
        process.terminate()
        process.wait(60)


def test_devices_of_a_vllm_without_a_file(tmp_path, nvml):
    """FAKE: the python, which only says a release of vLLM."""
    nvml.write_text(f"{80 * GIB} 0 0 0\n" * 2)
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf 0.9\n")
    (tmp_path / "python3").chmod(0o755)
    words = ["--engine", "vllm", "--program", tmp_path / "python3", "--model", MODEL, "--port", str(free_port(26000)), "--run-dir", tmp_path / "r"]

    def said(*more):
        done = subprocess.run([BUILD / "evenkeeld", *words, *more, "--dry-run"], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr
    code, text = said("--devices", "0,1", "--env", "VLLM_LOGGING_LEVEL=DEBUG")
    assert code == 0 and "CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=DEBUG" in text and "the memory of its devices is free" in text
    code, text = said("--devices", "2")
    assert code == 78 and "there is no device 2: NVML knows 2" in text
    code, text = said("--devices", "GPU-5a1f")
    assert code in (2, 78) and "write numbers" in text


def test_host_memory_is_waited_for(fakes):  # noqa: F811
    f = fakes(a=([], "    host_memory_least: 900000000000000\n    memory_wait_s: 1\n"))
    assert "GiB of host memory are free" in wait_for("it is said", lambda: f.decisions("a", "HOST_WAIT"))[0]["why"]
    assert "HOST_OOM" in wait_for("it failed", lambda: f.decisions("a", "CRASH"))[0]["why"]


def test_who_has_the_port_is_named(fakes):  # noqa: F811
    f = fakes(a=([], ""), v=(["--port", "{port}"], "    engine: vllm\n")).ready()
    pid, port = f.all()["v"]["pid"], f.ports["v"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(pid, 9)
        wait_for("the port", lambda: taken.bind(("127.0.0.1", port)) is None, step=0.001)
        taken.listen()
        said = wait_for("it is said", lambda: [d for d in f.decisions("v", "CRASH") if d["why"].startswith("PORT")])[0]["why"]
        assert f"port {port} of 127.0.0.1 is taken by process {os.getpid()} (" in said
    f.ready()


def test_a_taken_port_is_waited_for_without_a_breaker(tmp_path):
    """Until it is free, however often that was looked at, by a server of ours, whose socket is evenkeeld's; then it serves."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        a = Appliance(tmp_path)
        a.config.write_text(a.config.read_text().replace(f"port: {a.port}", f"port: {port}"))
        try:
            a.start()
            said = wait_for("it is said", lambda: [d for d in a.decisions() if d["reason"] == "PORT_WAIT"])[0]["why"]
            assert f"port {port} of 127.0.0.1 is taken by process {os.getpid()} (" in said
            time.sleep(4.5)  # at 0, 0.5, 1.5 and 3.5 s: three failed starts open the breaker
            assert a.server()["state"] in ("backoff", "adopting") and not [d for d in a.decisions() if d["reason"] == "BREAKER_OPEN"]
            assert len([d for d in a.decisions() if d["reason"] in ("CRASH", "PORT_WAIT")]) == 2, "said once"
            assert metric(get(a.page, "/metrics")[1].decode(), "evenkeel_supervisor_exits_total", **{"class": "PORT"}) == 1
            taken.close()
            wait_for("it serves", lambda: a.server()["ready"], 60)
        finally:
            a.destroy()


@pytest.mark.parametrize("keys, says", [("devices: x", "write numbers"), ("devices: '0,0'", "each once"), ("devices: 16", "write numbers"),
                                        ("devices: ''", "write numbers")])
def test_devices_that_are_none(tmp_path, keys, says):
    (tmp_path / "c.yaml").write_text(f"servers: {{a: {{model: m, {keys}}}}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and says in done.stderr, done


def test_two_servers_share_no_device(tmp_path):
    (tmp_path / "c.yaml").write_text("servers: {a: {model: m, port: 1, devices: '0,1'}, b: {model: m, port: 2, devices: '1,2'}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and "share a device" in done.stderr, done


def dry_run(tmp_path, servers):
    (tmp_path / "c.yaml").write_text(f"run_dir: {tmp_path}/r\nstate_dir: {tmp_path}/s\nservers:\n{servers}")
    return subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--dry-run"], capture_output=True, text=True, timeout=60)


def test_a_dry_run_says_what_would_be_started(tmp_path):
    done = dry_run(tmp_path, f"  t: {{model: {MODEL}, port: {free_port(26000)}, env: {{A: 'x y'}}, args: [--max-num-seqs, '4']}}\n"
                             "  u: {launcher: systemd, port: 0}\n  w: {attach: 'http://127.0.0.1:9'}\n")
    assert done.returncode == 0, done
    assert f"would run: {BUILD}/evenkeel-server --model {MODEL} --max-num-seqs 4 " in done.stdout and "with in its environment: 'A=x y'" in done.stdout
    assert "KV pool" in done.stdout and "evenkeel-managed@u.service" in done.stdout and "start nothing" in done.stdout
    assert not (tmp_path / "r").exists() and not (tmp_path / "s").exists(), "it changes nothing"


@pytest.mark.parametrize("server, code, says", [("{model: /nonexistent, port: 0}", 78, "config.json"), ("{engine: vllm, command: [nosuch]}", 78, "cannot run nosuch"),
                                                (f"{{model: {MODEL}, port: 0, args: [--kv-cache-memory-bytes, '1000']}}", 75, "does not fit")])
def test_a_dry_run_says_what_lacks(tmp_path, server, code, says):
    done = dry_run(tmp_path, f"  a: {server}\n")
    assert done.returncode == code and says in done.stdout, done


@pytest.mark.parametrize("keys, says", [
    ("program: {tmp_path}", "FAIL  cannot run {tmp_path}: Is a directory"),
    ("program: /usr/bin/python3", "FAIL  /usr/bin/python3 has no package vllm"),
    ("program: nosuch", "FAIL  cannot run nosuch, which is not in PATH (`program`"),
    ("program: {tmp_path}/python3", "ok    it has vllm 0.9"),
    ("program: /bin/true, model: /no/such", "FAIL  model /no/such: No such file or directory"),
    ("program: /bin/true, model: ~/m", "FAIL  model ~/m: No such file or directory; write the path out"),
    ("program: /bin/true, model: Some/name", "note  there is no directory Some/name here"),
    ("program: /bin/true, model: {tmp_path}", "ok    the model is {tmp_path}")])
def test_a_dry_run_looks_at_what_a_vllm_needs(tmp_path, keys, says):
    """FAKE: the third python, which only says a release."""
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf 0.9\n")
    (tmp_path / "python3").chmod(0o755)
    keys = keys.format(tmp_path=tmp_path) + ("" if "model" in keys else f", model: {tmp_path}")
    done = dry_run(tmp_path, f"  a: {{engine: vllm, port: {free_port(26000)}, {keys}}}\n")
    assert f"  {says.format(tmp_path=tmp_path)}" in done.stdout and done.returncode == (78 if "FAIL" in says else 0), done


def test_a_dry_run_names_who_has_the_port(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = dry_run(tmp_path, f"  a: {{model: {MODEL}, port: {taken.getsockname()[1]}}}\n")
    assert done.returncode == 78 and f"taken by process {os.getpid()} (" in done.stdout


def test_a_dry_run_looks_at_devices(tmp_path, nvml):
    nvml.write_text(f"{80 * GIB} {70 * GIB} 7 {69 * GIB}\n")
    done = dry_run(tmp_path, f"  a: {{model: {MODEL}, port: 0, devices: 0}}\n")
    assert done.returncode == 78 and "process 7 has 69.0 GiB" in done.stdout
