"""Protects: an evicted prefix comes back from the host tier with the same answer, and a smaller pool gives memory back
under load without an answer changing."""
import concurrent.futures
import json

import pytest

from bare import Bare
from conftest import metric, wait_for

FLAGS = ["--num-gpu-blocks-override", "129", "--max-model-len", "768", "--max-num-seqs", "8", "--kv-offloading-size", "0.05",
         "--enable-prompt-tokens-details"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("pool"), *FLAGS)
    yield s
    s.stop()


def complete(server, first, tokens=16, length=480):
    """A prompt of token ids that nobody else begins with."""
    prompt = [300 + (first * 7919 + i * 31 + i * i * first) % 1500 for i in range(length)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    status, _, answer = server.ask("/v1/completions", "POST", json.dumps(body))
    assert status == 200, answer
    answer = json.loads(answer)
    return answer["choices"][0]["token_ids"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def test_evicted_prefixes_come_back(server):
    cold, cached = complete(server, 1)
    assert cached == 0
    for other in range(2, 8):  # 30 blocks each, in a pool of 128
        complete(server, other)
    page = server.metrics()
    assert metric(page, "evenkeel_offload_bytes_total", direction="out") > 0
    assert metric(page, "evenkeel_host_kv_blocks", state="cached") > 0
    warm, cached = complete(server, 1)
    assert warm == cold and cached >= 400
    page = server.metrics()
    assert metric(page, "evenkeel_offload_hit_tokens_total") > 0
    assert metric(page, "evenkeel_offload_bytes_total", direction="in") > 0
    assert metric(page, "evenkeel_planned_bytes", item="offload_pool") > 50 << 20


def patch(server, blocks):
    return server.local("/v1/runtime_config", "PATCH", json.dumps({"num_kv_blocks": blocks, "reason": "test"}))


@pytest.mark.long
def test_a_smaller_pool_gives_memory_back(server):
    alone = [complete(server, n, 200, 64)[0] for n in range(20, 26)]
    full = metric(server.metrics(), "evenkeel_device_bytes", item="kv")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        running = [pool.submit(complete, server, n, 200, 64) for n in range(20, 26)]
        wait_for("requests run", lambda: metric(server.metrics(), "vllm:num_requests_running") >= 2)
        status, _, body = patch(server, 64)
        assert status == 200, body
        together = [r.result()[0] for r in running]
    assert together == alone
    wait_for("the device's pool is smaller", lambda: metric(server.metrics(), "evenkeel_device_bytes", item="kv") <= full * 0.52)
    assert patch(server, 129)[0] == 400
    status, _, body = patch(server, 128)
    assert status == 200 and json.loads(body)["num_kv_blocks"] == 128, body
    assert metric(server.metrics(), "evenkeel_device_bytes", item="kv") == full
    assert metric(server.metrics(), "evenkeel_kv_pool_resizes_total", result="done") >= 2
    assert [complete(server, n, 200, 64)[0] for n in range(20, 26)] == alone
