"""Protects: the failures of 48 public reports are named by their kind, with a remedy that solved them or would have."""
import json
import re
import subprocess

import pytest
from conftest import BUILD, ROOT


def cases():
    found = []
    for line in (ROOT / "tests/fixtures/doctor_public.txt").read_text().splitlines():
        if line.startswith("== "):
            kind, _, remedy = line[3:].partition(" ")
            found.append((kind, remedy, []))
        elif found:
            found[-1][2].append(line)
    return [pytest.param(kind, remedy, "\n".join(lines[1:]) + "\n", id=lines[0].partition("github.com/")[2]) for kind, remedy, lines in found]


@pytest.mark.parametrize("kind, remedy, log", cases())
def test_public(kind, remedy, log):
    done = subprocess.run([BUILD / "evenkeelctl", "diagnose", "--json"], input=log, capture_output=True, text=True, timeout=60)
    said = json.loads(done.stdout)
    if kind == "HEALTHY":
        assert not said["known"] and not (said["unknown"] or {}).get("decisive"), said["findings"] or said["unknown"]
        return
    assert said["known"] and said["findings"][0]["class"] in kind.split("|"), (said["findings"] or said["unknown"])
    told = [f"{r['flag'] or ''} {r['value'] or ''} {r['text']}" for r in said["findings"][0]["remedies"]]
    assert any(re.search(remedy, t) for t in told), (said["findings"][0]["id"], told)
