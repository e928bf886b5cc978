"""Runs a program for a benchmark, which ends with its words when it fails."""
import json
import subprocess
import sys
import tempfile


def run(*words, seconds=600):
    """Its standard output."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-800:]}\n{done.stderr[-800:]}")
    return done.stdout


def report_of(*words):
    """The report that a run of evenkeel-bench writes."""
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        run(*words, "--report", f.name)
        return json.load(open(f.name))
