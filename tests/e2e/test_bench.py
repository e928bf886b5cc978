"""Protects: evenkeel-bench measures what a client sees: every answer, whole, in a closed and an open loop; it says so when something failed."""
import json
import os
import pathlib
import subprocess
import sys
import xml.dom.minidom

import pytest

from bare import Bare
from conftest import BUILD, MODEL, ROOT


def bench(*words, **env):
    return subprocess.run([BUILD / "evenkeel-bench", *map(str, words)], capture_output=True, text=True, timeout=60, env={**os.environ, **env})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("bench"), "--api-key", "secret")
    yield s
    s.stop()


def cells(path):
    return {row["cell"]: row["value"] for row in json.loads(path.read_text())["rows"]}


@pytest.mark.parametrize("load", [("--clients", 3), ("--rate", 40), ("--clients", 2, "--endpoint", "chat")])
def test_serve(server, tmp_path, load):
    report, picture = tmp_path / "r.json", tmp_path / "p.svg"
    done = bench("serve", "--url", f"http://127.0.0.1:{server.port}", "--requests", 12, "--prompt", 20, "--output", 16, *load,
                 "--report", report, "--picture", picture, OPENAI_API_KEY="secret")
    assert done.returncode == 0, done.stderr + done.stdout
    c = cells(report)
    assert c["serve.failed"] == 0 and "12 answers, 0 failed, 192 tokens" in done.stdout
    assert 0 < c["serve.ttft.p50"] <= c["serve.ttft.most"] <= c["serve.latency.most"]
    assert c["serve.output"] > 0 and c["serve.goodput"] > 0
    xml.dom.minidom.parse(str(picture))
    same = bench("compare", report, report)
    assert same.returncode == 0 and "WORSE" not in same.stdout


def test_failures_are_said(server):
    refused = bench("serve", "--url", f"http://127.0.0.1:{server.port}", "--served-model", "x", "--requests", 2, OPENAI_API_KEY="wrong")
    assert refused.returncode == 1 and "status 401" in refused.stdout
    nobody = bench("serve", "--url", "http://127.0.0.1:1")
    assert nobody.returncode == 3 and "cannot be reached" in nobody.stderr
    assert bench("serve", "--rat", "1").returncode == 2


def test_engine_and_kernels(tmp_path):
    report = tmp_path / "e.json"
    done = bench("engine", "--model", MODEL, "--repeat", 1, "--steps", 4, "--prefill", 33, "--decode", 2, "--chunk", 16, "--report", report)
    assert done.returncode == 0, done.stderr
    assert cells(report)["prefill.33.bf16"] > 0 and cells(report)["decode.2.bf16"] > 0
    assert bench("engine", "--model", "/nowhere").returncode == 2
    assert bench("kernels", "--isa", "z80").returncode == 2


def test_the_plain_tier_warns(tmp_path):
    def said(tier):
        return subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--dry-run"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "EVENKEEL_CPU_ISA": tier})
    assert "many times slower than with AVX2" in said("ref").stderr
    assert "many times slower" not in said("").stderr
    unknown = said("z80")
    assert unknown.returncode != 0 and "no instruction tier" in unknown.stderr and "ref" in unknown.stderr
    if "amx_tile" not in pathlib.Path("/proc/cpuinfo").read_text():
        lacking = said("amx")
        assert lacking.returncode != 0 and 'no instruction tier "amx"' in lacking.stderr and "it has" in lacking.stderr


def test_the_interval_of_a_median():
    """Ranks from tables of the sign test: 95 % from six values on; fewer say how sure they are."""
    sys.path.insert(0, str(ROOT / "tests/bench"))
    from bench_companion_vllm import median_interval
    for n, low, high, sure in ((1, 1, 1, 0.0), (3, 1, 3, 75.0), (5, 1, 5, 93.75), (6, 1, 6, 96.875), (8, 1, 8, 99.22), (9, 2, 8, 96.09), (15, 4, 12, 96.48),
                               (20, 6, 15, 95.86)):
        mid, *interval, percent = median_interval(list(range(n, 0, -1)))
        assert (mid, interval) == ((n + 1) / 2, [low, high]) and abs(percent - sure) < 0.01, (n, mid, interval, percent)
