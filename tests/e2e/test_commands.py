"""Protects: the commands of operations guides run as they stand: each flag works, or is answered with one sentence that says what to use."""
import json
import re
import shutil
import subprocess

import pytest

from bare import Bare
from conftest import BUILD, MODEL, ROOT

ALL = [line for line in (ROOT / "tests/fixtures/guide_commands.txt").read_text().splitlines() if not line.startswith("#")]
LINES = [line for line in ALL if "!" not in line]


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """The embedded model with room for the lengths that guides use."""
    d = tmp_path_factory.mktemp("model") / "long"
    shutil.copytree(MODEL, d)
    for f in d.iterdir():
        f.chmod(0o644)
    config = json.loads((d / "config.json").read_text())
    config["max_position_embeddings"] = 32768
    (d / "config.json").write_text(json.dumps(config))
    return d


def split(line):
    flags, _, warned = line.partition("|")
    return flags.split(), set(warned.split())


def warnings_of(log):
    """Flag -> its sentence."""
    said = re.findall(r"warning: (--([a-z0-9-]+).*)", log)
    return {flag: text for text, flag in said}


@pytest.mark.parametrize("line", LINES, ids=[x[:60] for x in LINES])
def test_command(long_model, line):
    flags, warned = split(line)
    done = subprocess.run([BUILD / "evenkeel-server", "--model", long_model, *flags, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "KV pool" in done.stdout, done.stderr
    said = warnings_of(done.stderr)
    assert set(said) == warned
    for flag, text in said.items():
        reason = re.split(r"accepted and ignored: |taken as 1: ", text)
        assert len(reason) == 2 and len(reason[1]) > 15 and reason[1].rstrip().endswith("."), text


@pytest.mark.parametrize("line", [line for line in ALL if "!" in line])
def test_command_for_a_card(long_model, line):
    flags, _, flag = line.partition("!")
    done = subprocess.run([BUILD / "evenkeel-server", "--model", long_model, "--device", "cpu", *flags.split(), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and f"--{flag.strip()} is for cards" in done.stderr and "leave it out" in done.stderr


def test_the_production_command_serves(tmp_path, long_model):
    flags, _ = split(LINES[0])
    for flag in ("--port", "--host"):  # a free port, and the same host
        at = flags.index(flag)
        del flags[at:at + 2]
    flags[flags.index("--swap-space") + 1] = "1"  # of the host's memory, which is smaller here
    s = Bare(tmp_path, *flags, model=long_model, host="0.0.0.0")
    try:
        status, _, text = s.ask("/v1/completions", "POST", json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 4}))
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"] > 0
        status, _, text = s.ask("/v1/models")
        assert json.loads(text)["data"][0]["max_model_len"] == 32768
        assert json.loads(s.local("/v1/runtime_config")[2])["ceiling"]["max_num_batched_tokens"] == 24576
    finally:
        assert s.stop() == 0


def test_unknown_flags_name_the_nearest():
    for flag, near in (("--max-num-seq", "--max-num-seqs"), ("--gpu-memory-utilisation", "--gpu-memory-utilization"), ("--api-keys", "--api-key"),
                       ("--enable-prefix-cache", "--enable-prefix-caching"), ("--ssl-cert-file", "--ssl-certfile")):
        done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, flag, "1"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and near in done.stderr, done.stderr
