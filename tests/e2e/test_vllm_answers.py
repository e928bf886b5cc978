"""Protects: what clients of vLLM find here. The answers that a real vLLM 0.32 gave (make check-vllm records them) against ours: status,
shape and text; each difference is in tests/vllm/differences.py with its reason."""
import os
import subprocess
import sys

from conftest import ROOT


def test_answers(tmp_path):
    ours = tmp_path / "ours.jsonl"
    subprocess.run([sys.executable, ROOT / "tests/vllm/ask.py", "evenkeel", ours], check=True, timeout=120, env={**os.environ})
    done = subprocess.run([sys.executable, ROOT / "tests/vllm/compare.py", ROOT / "tests/fixtures/vllm/answers.jsonl", ours],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
