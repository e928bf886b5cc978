"""Quantizing while loading: what it may cost in quality at most, what it saves, what the server says of it, and what it refuses."""
import pathlib
import subprocess
import sys

import pytest
from conftest import BUILD, MODEL, ROOT, get, metric

sys.path.insert(0, str(ROOT / "tests/bench"))
from bench_quality import GOALS, plan_of, weight_bytes  # noqa: E402
from quality import TEXT, Server, compare, documents, scores, tokens_of  # noqa: E402

DOCUMENTS = 30
SAME_TOP = {"int8": 0.96, "fp8": 0.93, "int4": 0.85}
SHARE = {"int8": 0.53, "fp8": 0.53, "int4": 0.36}  # of the weights in bfloat16 at most


@pytest.fixture(scope="module")
def plain():
    with Server(BUILD / "evenkeel-server", MODEL, "--dtype", "bfloat16") as server:
        prompts = [tokens_of(server, d) for d in documents(TEXT, DOCUMENTS)]
        return prompts, scores(server, prompts)


@pytest.mark.long
@pytest.mark.parametrize("form", ["int8", "fp8", "int4"])
def test_quality(plain, form):
    prompts, reference = plain
    flags = ["--dtype", "bfloat16", "--quantization", form]
    with Server(BUILD / "evenkeel-server", MODEL, *flags) as server:
        got = compare(reference, scores(server, prompts))
        server.log.seek(0)
        log = server.log.read().decode()
    same = compare(reference, reference)
    divergence, growth = GOALS[form]
    assert same["kl"] == 0 and same["top1"] == 1
    assert 0 < got["kl"] <= divergence, got
    assert got["top1"] >= SAME_TOP[form], got
    assert got["perplexity"] <= same["perplexity"] * (1 + growth / 100), (got, same)
    assert f"Quantizing 25 matrices to {form} while loading, the output layer to 8 bits; norms, routers and an embedding of its own stay bfloat16" in log
    assert f"{form}, 25 matrices" in log  # the plan's table
    assert weight_bytes(MODEL, flags) <= SHARE[form] * weight_bytes(MODEL, ["--dtype", "bfloat16"])


@pytest.mark.long
def test_kv_cache(plain):
    """The KV cache in 8 bits: what it costs at most, and where the server says it."""
    prompts, reference = plain
    flags = ["--dtype", "bfloat16", "--kv-cache-dtype", "int8_per_token_head"]
    with Server(BUILD / "evenkeel-server", MODEL, *flags) as server:
        got = compare(reference, scores(server, prompts))
        page = get(server.port, "/metrics")[1].decode()
        server.log.seek(0)
        log = server.log.read().decode()
    divergence, growth = GOALS["kv"]
    assert 0 < got["kl"] <= divergence and got["top1"] >= 0.97, got
    assert got["perplexity"] <= compare(reference, reference)["perplexity"] * (1 + growth / 100), got
    assert metric(page, "vllm:cache_config_info", cache_dtype="int8_per_token_head") == 1
    assert "blocks of 16 tokens, int8" in log
    assert plan_of(MODEL, flags)["block_bytes"] * 32 == plan_of(MODEL, flags[:2])["block_bytes"] * 17  # heads of 64: 68 bytes instead of 128


@pytest.mark.parametrize("model, form, code, says", [
    (MODEL, "int5", 2, "'int5' is none of auto|int8|int4|fp8|"),
    (MODEL, "awq", 78, "the weights are not quantized with awq, as --quantization says"),
    (ROOT / "tests/fixtures/models/quant-gptq", "int8", 78, "are quantized with gptq already, so --quantization int8 cannot be had"),
])
def test_refused(model: pathlib.Path, form, code, says):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", model, "--quantization", form, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    assert says in done.stderr + done.stdout
