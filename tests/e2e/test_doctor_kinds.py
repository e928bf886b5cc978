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
    (tmp_path / "labels.tsv").write_text("a.log\tPORT\nb.log\tCONFIG\n")
    done = subprocess.run(["python3", BENCH, "--program", BUILD / "evenkeelctl", "--logs", tmp_path, "--short", "--missed"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "b.log: CONFIG, said unknown" in done.stdout, done.stdout + done.stderr


def test_an_unknown_log_is_told_honestly():
    text = "INFO vLLM API server version 0.30.0\nRuntimeError: kelp 7\n"
    said = subprocess.run([BUILD / "evenkeelctl", "diagnose"], input=text, capture_output=True, text=True, timeout=60).stdout
    assert "not known" in said and "RuntimeError: kelp 7" in said and "probably BUG" in said and "evenkeelctl support-bundle" in said
    said = json.loads(subprocess.run([BUILD / "evenkeelctl", "diagnose", "--json"], input=text, capture_output=True, text=True, timeout=60).stdout)
    assert said["known"] is False and said["unknown"]["probably"] == "BUG" and len(said["unknown"]["ask"]) == 4


def test_the_catalog_against_its_examples(tmp_path):
    done = subprocess.run([BUILD / "evenkeelctl", "diagnose", "--test"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and ", 0 not named by their own entry" in done.stdout, done.stdout
    own = tmp_path / "own.yaml"
    own.write_text("signatures:\n- id: mine\n  class: PORT\n  re: ['my own failure']\n  title: a\n  cause: b\n  sources: [c]\n"
                   "  examples:\n  - {version: '1', log: 'Address already in use'}\n")
    done = subprocess.run([BUILD / "evenkeelctl", "diagnose", "--test", "--signatures", own], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "mine: an example of 1 is named port-in-use" in done.stdout, done.stdout
