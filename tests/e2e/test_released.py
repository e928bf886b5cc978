"""Protects: what was released keeps working. tests/fixtures/released has what 0.1.0 (fe3fe2a) printed and installed: each flag and key, metric
with its type, alert, reason and exit code by name, and the two configurations with every default written out."""
import re
import subprocess

import pytest

from conftest import BUILD, MODEL, ROOT

RELEASED = ROOT / "tests/fixtures/released"


def said(program, *words):
    done = subprocess.run([BUILD / program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags(program):
    section = program
    for line in said(program, "--print-options", "markdown").splitlines():
        section = line[4:].strip() if line.startswith("### evenkeelctl") else section
        for name in re.findall(r"^\| `(--[a-z0-9-]+)` \|", line):
            yield f"flag {section} {name}"


@pytest.fixture(scope="module")
def today():
    names = {name for program in ("evenkeel-server", "evenkeeld", "evenkeelctl") for name in flags(program)}
    for program in ("evenkeel-server", "evenkeeld"):
        names |= {"metric " + " ".join(line.split()[:2]) for line in said(program, "--print-metrics").splitlines()}
    names |= {f"reason {code}" for code in re.findall(r"^\| `(\w+)`", said("evenkeeld", "--print-reasons", "markdown"), re.M)}
    names |= {f"alert {name}" for f in (ROOT / "alerts").glob("*.rules.yml") for name in re.findall(r"- alert: (\w+)", f.read_text())}
    return names | {f"exit {code}" for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/exit-codes.md").read_text(), re.M)}


@pytest.mark.parametrize("kind, least", [("flag", 300), ("metric", 150), ("reason", 50), ("alert", 35), ("exit", 12)])
def test_names(today, kind, least):
    names = [line for line in (RELEASED / "names.txt").read_text().splitlines() if line.startswith(kind + " ")]
    assert len(names) >= least
    assert not [name for name in names if name not in today]


def test_server_file(tmp_path):
    """Warnings are allowed, refusals are not."""
    done = subprocess.run([BUILD / "evenkeel-server", "--config", RELEASED / "server.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "The options are fine" in done.stdout, done.stdout + done.stderr


def test_supervisor_file(tmp_path):
    text = (RELEASED / "evenkeeld.yaml").read_text()
    for old, new in (("/usr/share/evenkeel/models/evenkeel-tiny", MODEL), ("/etc/evenkeel/servers:/usr/share/evenkeel/servers", tmp_path)):
        assert old in text
        text = text.replace(old, str(new))
    (tmp_path / "evenkeeld.conf").write_text(text)
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "evenkeeld.conf", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "is good: 1 server" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("flags, refused", [
    (["--node-rank", "0", "--master-addr", "10.0.0.1", "--master-port", "29501"], ""),
    (["--node-rank", "1"], "--node-rank is gone"),
    (["--nnodes", "2", "--node-rank", "0"], "--node-rank is gone"),
])
def test_flags_of_nodes(flags, refused):
    """They meant nothing on one machine, and do so still; where they meant something the sentence says what to do."""
    done = subprocess.run([BUILD / "evenkeel-server", "--check-config", "--model", MODEL, *flags], capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == bool(refused) and (refused or "--master-addr is accepted and ignored") in done.stderr, done.stdout + done.stderr
