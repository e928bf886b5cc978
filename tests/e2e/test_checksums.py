"""Checksums of a model's files: a server starts with files that are what the list says, and with no others."""
import hashlib
import json
import os
import subprocess
import sys

import pytest
from conftest import BUILD, MODEL, ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))
from quality import Server  # noqa: E402


@pytest.fixture
def model(tmp_path):
    for file in MODEL.iterdir():
        os.symlink(file, tmp_path / file.name)
    return tmp_path


def sums(*files):
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def test_right(model):
    (model / "SHA256SUMS").write_text(sums(MODEL / "model.safetensors", MODEL / "config.json", MODEL / "tokenizer.json"))
    with Server(BUILD / "evenkeel-server", model) as server:
        server.log.seek(0)
        assert "Verified the checksums of 3 files, " in server.log.read().decode()


@pytest.mark.parametrize("flag, text, says", [
    ("auto", "0" * 64 + "  model.safetensors\n", "model.safetensors: is not the file that the list of checksums means"),
    ("auto", "0" * 64 + "  tokenizer.json\n", "model.safetensors: is not on the list SHA256SUMS"),
    ("own", "no list", "own: line 1 is not a SHA-256"),
])
def test_wrong(model, flag, text, says):
    name = "SHA256SUMS" if flag == "auto" else flag
    (model / name).write_text(text)
    flag = flag if flag == "auto" else model / flag
    done = subprocess.run([BUILD / "evenkeel-server", "--model", model, "--port", "0", "--weights-checksums", flag], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78, done
    assert says in done.stderr + done.stdout


def test_weights_of_another_name(model):
    """An index may name any file: what weights are read from is on the list, whatever its end is."""
    data = (model / "model.safetensors").read_bytes()
    names = [k for k in json.loads(data[8:8 + int.from_bytes(data[:8], "little")]) if k != "__metadata__"]
    os.rename(model / "model.safetensors", model / "model.bin")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "model.bin")}))
    for listed, code in ("config.json", 78), ("model.bin", 0):
        (model / "SHA256SUMS").write_text(sums(model / listed))
        if code == 0:
            with Server(BUILD / "evenkeel-server", model):
                continue
        done = subprocess.run([BUILD / "evenkeel-server", "--model", model, "--port", "0"], capture_output=True, text=True, timeout=60)
        assert done.returncode == code and "model.bin: is not on the list SHA256SUMS" in done.stderr + done.stdout, done


def test_off(model):
    (model / "SHA256SUMS").write_text("no list")
    with Server(BUILD / "evenkeel-server", model, "--weights-checksums", "off"):
        pass
