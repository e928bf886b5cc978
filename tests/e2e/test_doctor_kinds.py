"""Protects: logs that no pattern was written from are named by their kind, in any form that a log has, and a wrong name is rarer than none."""
import json
import subprocess

import pytest

from conftest import BUILD, ROOT

BENCH = ROOT / "tests/bench/bench_doctor.py"


@pytest.mark.long
def test_kinds():
    done = subprocess.run(["python3", BENCH, "--program", BUILD / "evenkeelctl", "--short"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_of_logs(tmp_path):
    (tmp_path / "a.log").write_text("OSError: [Errno 98] Address already in use\n")
    (tmp_path / "b.log").write_text("OddError: nobody knows this\n")
    (tmp_path / "c.log").write_text("AttributeError: 'Kelp' object has no attribute 'weed'\n")
    (tmp_path / "labels.tsv").write_text("a.log\tPORT\nb.log\tCONFIG\nc.log\tCONFIG\n")
    done = subprocess.run(["python3", BENCH, "--program", BUILD / "evenkeelctl", "--logs", tmp_path, "--short", "--missed"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "b.log: CONFIG, said unknown" in done.stdout, done.stdout + done.stderr
    every = next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))
    assert "c.log: CONFIG, said probably BUG" in done.stdout and every[1:7] == ["3", "1", "0", "0", "1", "1"], done.stdout


def test_an_unknown_log_is_told_honestly():
    text = "INFO vLLM API server version 0.30.0\nRuntimeError: kelp 7\n"
    said = subprocess.run([BUILD / "evenkeelctl", "diagnose"], input=text, capture_output=True, text=True, timeout=60).stdout
    assert "not known" in said and "RuntimeError: kelp 7" in said and "probably BUG" in said and "evenkeelctl support-bundle" in said
    said = json.loads(subprocess.run([BUILD / "evenkeelctl", "diagnose", "--json"], input=text, capture_output=True, text=True, timeout=60).stdout)
    assert said["known"] is False and said["unknown"]["probably"] == "BUG" and len(said["unknown"]["ask"]) == 4


def test_weak_evidence_is_told_as_probable():
    def said(text, *words):
        return subprocess.run([BUILD / "evenkeelctl", "diagnose", *words], input=text, capture_output=True, text=True, timeout=60).stdout
    weak, sure = "AttributeError: 'Kelp' object has no attribute 'weed'\n", "OSError: [Errno 98] Address already in use\n"
    assert "\nprobably BUG  " in said(weak) and "What would tell" in said(weak) and "What helps" in said(weak)
    assert "## 可能是 BUG: " in said(weak, "--markdown", "--lang", "zh")
    assert "probably" not in said(sure) and "What would tell" not in said(sure)
    for text, confidence, asks in ((weak, "probable", 4), (sure, "sure", 0)):
        found = json.loads(said(text, "--json"))["findings"][0]
        assert (found["confidence"], len(found["ask"])) == (confidence, asks)


def test_the_catalog_against_its_examples(tmp_path):
    done = subprocess.run([BUILD / "evenkeelctl", "diagnose", "--test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and ", 0 not named by their own entry" in done.stdout, done.stdout
    own = tmp_path / "own.yaml"
    own.write_text("signatures:\n- id: mine\n  class: PORT\n  re: ['my own failure']\n  title: a\n  cause: b\n  sources: [c]\n"
                   "  examples:\n  - {version: '1', log: 'Address already in use'}\n")
    done = subprocess.run([BUILD / "evenkeelctl", "diagnose", "--test", "--signatures", own], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "mine: an example of 1 is named port-in-use" in done.stdout, done.stdout
