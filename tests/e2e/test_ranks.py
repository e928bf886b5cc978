"""Protects: --tensor-parallel-size and --pipeline-parallel-size on the CPU give the same answers as one rank, alone and among others, plan, log and metrics say so, and numbers that a model cannot be divided by are refused with those that can."""
import json
import re
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from conftest import BUILD, ROOT, Appliance

CASES = [c for c in json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"] if not c.get("tools")][:6]
SERVER = BUILD / "evenkeel-server"
MODEL = ROOT / "models/evenkeel-tiny"


def answer(client, case):
    reply = client.chat.completions.create(model="tiny", messages=case["messages"], max_tokens=96, temperature=0)
    return reply.choices[0].message.content


@pytest.mark.parametrize("shares, stages", [(2, 1), (1, 2), (2, 2)])
def test_same_answers(tmp_path, shares, stages):
    ranks = shares * stages
    a = Appliance(tmp_path, ["--device", "cpu", "--tensor-parallel-size", str(shares), "--pipeline-parallel-size", str(stages),
                             "--threads", str(ranks)]).start().ready()
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{a.port}/v1", api_key="none", max_retries=0)
        alone = [answer(client, c) for c in CASES]
        with ThreadPoolExecutor(len(CASES)) as pool:
            together = list(pool.map(lambda c: answer(client, c), CASES))
        assert together == alone
        assert alone == [c["output_text"] for c in CASES]
        rows = re.findall(r'^evenkeel_rank_bytes{[^}]*rank="(\d+)",device="cpu",item="kv"} (\d+)', metrics(a), re.M)
        assert [int(r) for r, _ in rows] == list(range(ranks))
        assert len({b for _, b in rows}) == 1  # of 6 layers each stage has as many, of 4 heads each share
    finally:
        a.destroy()


def metrics(a):
    return urllib.request.urlopen(f"http://127.0.0.1:{a.port}/metrics", timeout=60).read().decode()


def plan(*options):
    return subprocess.run([SERVER, "--model", MODEL, "--device", "cpu", "--dry-run", *options], capture_output=True, text=True, timeout=60)


def test_plan_and_refusal():
    assert "KV pool" in plan("-tp", "2").stdout
    assert "KV pool" in plan("-pp", "3").stdout
    wrong = plan("-tp", "3")
    assert wrong.returncode == 78 and "choose one of 1, 2, 4" in wrong.stderr
    wrong = plan("-pp", "7")
    assert wrong.returncode == 78 and "the model has 6; choose 1 to 6" in wrong.stderr
