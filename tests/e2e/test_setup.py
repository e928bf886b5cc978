"""Protects: a first server comes from one command, what is there stays, and what would make it fail is said before."""
import json
import socket
import subprocess

from bare import Bare
from conftest import BUILD, MODEL


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


def test_setup_refuses(tmp_path):
    assert ctl("setup", "../x", "--model", MODEL, "--dir", tmp_path).returncode == 2
    assert ctl("setup").returncode == 2
    assert ctl("setup", "x", "--model", tmp_path, "--dir", tmp_path).returncode == 1
    assert ctl("setup", "x", "--model", MODEL, "--dir", tmp_path / "none").returncode == 1


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


def test_recover_without_evenkeeld(tmp_path):
    said = ctl("recover", "--socket", tmp_path / "none.sock")
    assert said.returncode == 3 and "systemctl start evenkeeld" in said.stdout
