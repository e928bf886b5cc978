"""Protects: --tensor-parallel-size on the CPU gives the same answers as one rank, alone and among others, plan and log say so, and a number of ranks that a model cannot be divided by is refused with those that can."""
import json
import subprocess
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


@pytest.mark.parametrize("ranks", [2, 4])
def test_same_answers(tmp_path, ranks):
    a = Appliance(tmp_path, ["--device", "cpu", "--tensor-parallel-size", str(ranks), "--threads", str(ranks)]).start().ready()
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{a.port}/v1", api_key="none", max_retries=0)
        alone = [answer(client, c) for c in CASES]
        with ThreadPoolExecutor(len(CASES)) as pool:
            together = list(pool.map(lambda c: answer(client, c), CASES))
        assert together == alone
        assert alone == [c["output_text"] for c in CASES]
    finally:
        a.destroy()


def plan(ranks):
    return subprocess.run([SERVER, "--model", MODEL, "--device", "cpu", "--dry-run", "--tensor-parallel-size", str(ranks)],
                          capture_output=True, text=True, timeout=60)


def test_plan_and_refusal():
    assert "KV pool" in plan(2).stdout
    wrong = plan(3)
    assert wrong.returncode == 78 and "choose one of 1, 2, 4" in wrong.stderr
