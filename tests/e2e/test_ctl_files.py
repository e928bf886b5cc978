"""Protects: events tells all servers' decisions in order and follows them; oom tells what ran out; a support bundle has what others need
and no key."""
import json
import os
import pathlib
import socket
import subprocess
import tarfile
import tempfile
import time

import pytest
from conftest import BUILD, MODEL, get, wait_for
from test_reload import daemon  # noqa: F401


def test_events_in_order_and_as_they_come(daemon):  # noqa: F811
    daemon.write("one")
    assert daemon.ctl("reload").returncode == 0
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    said = daemon.ctl("events").stdout
    assert said.index("STARTED") < said.index("READY") and "[one]" in said
    events = [json.loads(line) for line in daemon.ctl("events", "--json", "--server", "one").stdout.splitlines()]
    assert [e["reason"] for e in events][:2] == ["STARTED", "READY"] and sorted(events, key=lambda e: e["at_s"]) == events
    assert len(daemon.ctl("events", "--json", "--limit", "1").stdout.splitlines()) == 1
    follow = subprocess.Popen([BUILD / "evenkeelctl", "events", "--socket", daemon.run / "evenkeeld.sock", "--follow", "--json", "--since", "1s"],
                              stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1.5)
        assert daemon.ctl("limits", "pin", "max_num_running_seqs=4").returncode == 0
        for line in follow.stdout:
            if json.loads(line)["reason"] == "OPERATOR_PIN":
                break
    finally:
        follow.terminate()
        follow.wait(60)
    assert daemon.ctl("oom").stdout == "No memory ran out, as far as evenkeeld remembers.\n"
    lost = daemon.ctl("events", "--server", "two")
    assert lost.returncode == 1 and "no server 'two'" in lost.stderr
    gone = subprocess.run([BUILD / "evenkeelctl", "events", "--socket", "/nowhere/x.sock"], capture_output=True, text=True, timeout=60)
    assert gone.returncode == 3 and "/nowhere/x.sock" in gone.stderr


def test_oom_tells_the_class_and_the_remedy(daemon):  # noqa: F811
    script = daemon.run / "fails"
    script.write_text("#!/bin/sh\nsleep 0.3\necho 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                      "23.65 GiB of which 1.10 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by "
                      "PyTorch but unallocated.'\nexit 1\n")
    script.chmod(0o755)
    text = daemon.config.read_text()
    daemon.config.write_text(text + f"servers:\n  bad:\n    engine: vllm\n    command: [{script}, --port, \"{daemon.port}\"]\n")
    assert daemon.ctl("reload").returncode == 0, daemon.ctl("reload").stderr
    wait_for("it failed", lambda: "STARTUP_OOM" in daemon.ctl("oom").stdout)
    said = daemon.ctl("oom", "--server", "bad").stdout
    assert "No memory" not in said
    assert "=> 1. Did it fail before it was ready?  Yes" in said and "lower the memory share" in said
    failed = json.loads(get(daemon.page, "/api/v1/servers/bad/failures")[1])["failures"]
    assert failed[-1]["class"] == "STARTUP_OOM" and failed[-1]["questions"][0]["answer"] == "Yes"
    page = get(daemon.page, "/")[1].decode()
    assert "Failed: STARTUP_OOM" in page and "Did it fail before it was ready?" in page


def test_debug_logs_samples_and_ends_by_itself(daemon):  # noqa: F811
    daemon.write("one")
    assert daemon.ctl("reload").returncode == 0
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    log = daemon.run / "evenkeeld.log"
    assert "one: " in log.read_text() and "usage 0." not in log.read_text()
    assert daemon.ctl("debug", "on", "--for", "3s").returncode == 0
    wait_for("samples are logged", lambda: "usage 0." in log.read_text())
    wait_for("it ended", lambda: "the log is as configured again" in log.read_text(), 60)
    before = log.read_text().count("usage 0.")
    time.sleep(2.2)
    assert log.read_text().count("usage 0.") == before
    for words in (["debug"], ["debug", "maybe"], ["debug", "on", "--for", "0"]):
        assert daemon.ctl(*words).returncode == 2


def test_a_support_bundle_has_no_key(daemon, tmp_path):  # noqa: F811
    secret = "sk-very-secret-0123456789"
    daemon.write("one", f"model: {MODEL}\nserved-model-name: tiny\nport: {daemon.port}\napi-key: {secret}\n")
    assert daemon.ctl("reload").returncode == 0
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    file = tmp_path / "bundle.tar.gz"
    done = daemon.ctl("support-bundle", "--config-dir", daemon.run, "--no-journal", file)
    assert done.returncode == 0 and str(file) in done.stdout, done.stderr
    assert os.stat(file).st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        parts = {m.name: tar.extractfile(m).read().decode(errors="replace") for m in tar.getmembers()}
    assert "evenkeeld/servers.json" in parts and "evenkeeld/one-decisions.json" in parts and "evenkeeld/one-history.json" in parts
    assert json.loads(parts["evenkeeld/servers.json"])["servers"][0]["name"] == "one"
    assert "api-key: [redacted]" in parts["config/servers/one.yaml"] and "MemTotal" in parts["system/memory.txt"]
    assert not any(secret in text for text in parts.values()) and not any(n.startswith("journal") for n in parts)
    # What is in use, wherever it is, and not only what lies in --config-dir.
    assert f"--config {daemon.config}" in parts["in-use/evenkeeld.words.txt"] and parts["in-use/evenkeeld.yaml"] == daemon.config.read_text()
    assert "api-key: [redacted]" in parts["in-use/servers/one.yaml"] and "evenkeel-server" in parts["in-use/servers/one.words.txt"]
    assert "Serving tiny on" in parts["logs/one.log"]
    for name in parts:
        assert name == "README.txt" or name in parts["README.txt"]
    again = daemon.ctl("support-bundle", file)
    assert again.returncode == 1 and "is there already" in again.stderr


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_support_bundle_reads_no_file_that_a_server_chose(daemon, tmp_path, kind):  # noqa: F811
    """An operator that runs it may read all; a server may put what it likes where its log was."""
    daemon.write("one")
    assert daemon.ctl("reload").returncode == 0
    wait_for("one is ready", lambda: daemon.servers()["one"]["ready"])
    log, secret, file = pathlib.Path(daemon.servers()["one"]["log_file"]), tmp_path / "shadow", tmp_path / "bundle.tar.gz"
    secret.write_text("root:a secret hash\n")
    log.unlink()
    if kind == "link":
        log.symlink_to(secret)
    else:
        os.mkfifo(log)
    done = daemon.ctl("support-bundle", "--config-dir", daemon.run, "--no-journal", file)
    assert done.returncode == 0, done.stderr
    with tarfile.open(file) as tar:
        parts = {m.name: tar.extractfile(m).read().decode(errors="replace") for m in tar.getmembers()}
    assert "logs/one.log" not in parts and "secret hash" not in "".join(parts.values()) and "logs/one.log" in parts["README.txt"]


def test_why_evenkeeld_is_not_reached(tmp_path):
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(left))
    for path, says in ((tmp_path / "none", "there is no such socket"), (left, "no process listens there")):
        done = subprocess.run([BUILD / "evenkeelctl", "status", "--socket", path], capture_output=True, text=True, timeout=20)
        assert done.returncode == 3 and f"cannot be reached at {path}: {says}. " in done.stderr, done


@pytest.mark.skipif(os.getuid() != 0 or not os.access("/run", os.W_OK), reason="makes a directory in /run")
def test_an_evenkeeld_elsewhere_is_named(tmp_path):
    with tempfile.TemporaryDirectory(prefix="evenkeel-", dir="/run") as folder, socket.socket(socket.AF_UNIX) as s:
        s.bind(f"{folder}/evenkeeld.sock")
        s.listen()
        done = subprocess.run([BUILD / "evenkeelctl", "status", "--socket", tmp_path / "none"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 3 and "One listens at /run/" in done.stderr and "evenkeeld.sock, or set EVENKEEL_SOCKET." in done.stderr, done
