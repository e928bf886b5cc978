"""Protects: that what reads /metrics finds what it looks for. The rules of the endpoint picker (Gateway API Inference Extension), of vLLM's own
router and of Prometheus, each with the parser that they use."""
import gzip
import http.client
import json
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from conftest import BUILD, MODEL, ROOT, free_port, get, wait_for

NAME = 'a "model" \\ of\nours'


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    run, port = tmp_path_factory.mktemp("exposition"), free_port(18400)
    with open(run / "server.log", "wb") as log:
        process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--served-model-name", NAME, "--port", str(port), "--host", "127.0.0.1",
                                    "--show-hidden-metrics-for-version", "0.7"], stdout=log, stderr=log)
    wait_for("ready", lambda: get(port, "/health")[0] == 200, 60)
    for i in range(4):
        ask(port, {"x-request-id": f"exemplar-{i}"})
    ask(port, {"x-request-id": "y" * 60})
    yield port
    process.terminate()
    assert process.wait(60) == 0


def ask(port, headers, **fields):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": NAME, "prompt": "Hello " * 40, "max_tokens": 8, "ignore_eos": True, **fields}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **headers})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    return json.loads(answer.read())


def page(port, **headers):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("GET", "/metrics", headers=headers)
    answer = c.getresponse()
    return answer.headers, answer.read()


def families(text, parse=parse_text):
    return {f.name: f for f in parse(text)}


def test_endpoint_picker(port):
    """No Accept header gives text 0.0.4; the three families are gauges with exactly one series; configuration labels are plain numbers; the
    family of adapters exists; no sample carries a time of its own, by which the picker would choose among several."""
    headers, body = page(port)
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert len(body) <= 256 * 1024
    seen = families(body.decode())
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert seen[name].type == "gauge" and len(seen[name].samples) == 1, name
    assert 0 <= seen["vllm:kv_cache_usage_perc"].samples[0].value <= 1
    config = seen["vllm:cache_config_info"].samples
    assert len(config) == 1 and config[0].labels["block_size"].isdecimal() and config[0].labels["num_gpu_blocks"].isdecimal()
    lora = seen["vllm:lora_requests_info"].samples
    assert len(lora) == 1 and lora[0].labels["running_lora_adapters"] == "" and lora[0].labels["max_lora"] == "0" and lora[0].value > 1.7e9
    assert all(f.type != "unknown" for f in seen.values()), [f.name for f in seen.values() if f.type == "unknown"]
    assert all(s.timestamp is None for f in seen.values() for s in f.samples)
    assert len(body.decode().splitlines()) == len(set(body.decode().splitlines())), "a line twice"


def test_answers_of_a_prompt_count_once(port):
    """As vLLM counts: what is asked of a prompt, and the longest of its answers, once for the prompt; all else for each answer."""
    def now():
        samples = {s.name: s.value for f in parse_text(page(port)[1].decode()) for s in f.samples if s.name.endswith(("_count", "_sum"))}
        return [samples[f"vllm:request_{name}"] for name in ("params_n_count", "params_n_sum", "max_num_generation_tokens_count",
                                                             "max_num_generation_tokens_sum", "generation_tokens_count", "generation_tokens_sum")]

    before = now()
    ask(port, {"x-request-id": "exemplar-n"}, prompt=["one " * 60, "two"], n=3, max_tokens=5, temperature=1)
    wait_for("all are counted", lambda: now()[4] >= before[4] + 6, 60)
    assert [b - a for a, b in zip(before, now())] == [2, 6, 2, 10, 6, 30]


def test_byte_for_byte_as_vllm(port):
    """Beside a page of vLLM 0.32: every family that both have is of the same type, with the same labels and, in a histogram, the same bounds as text."""
    theirs = (ROOT / "tests/fixtures/metrics/vllm-0.32-all.txt").read_text()
    ours, theirs = families(page(port)[1].decode()), families(theirs)
    both = {name for name in theirs if name in ours}
    missing = "estimated_flops_per_gpu estimated_read_bytes_per_gpu estimated_write_bytes_per_gpu external_prefix_cache_queries external_prefix_cache_hits " \
              "mm_cache_queries mm_cache_hits prompt_tokens_cached_by_source request_prefill_kv_computed_tokens"
    assert set(theirs) - both == {f"vllm:{name}" for name in missing.split()}, "docs/metrics.md says which are not exported"
    for name in both:
        a, b = ours[name], theirs[name]
        assert a.type == b.type and {s.name for s in a.samples} == {s.name for s in b.samples}, name
        if name == "vllm:cache_config_info":  # vLLM has more of them
            assert set(a.samples[0].labels) < set(b.samples[0].labels)
            continue
        shape = lambda f: [(s.name, sorted(s.labels), *(s.labels.get(k) for k in ("le", "reason", "finished_reason", "source", "sleep_state"))) for s in f.samples]
        assert sorted(shape(a), key=str) == sorted(shape(b), key=str), name


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool (tools/deps.sh test)")
def test_our_own_names_are_clean(port, appliance):
    """promtool has nothing to say about the names that are not vLLM's, of both programs."""
    a = appliance()
    for text in (page(port)[1].decode(), get(a.page, "/metrics")[1].decode()):
        own = "\n".join(line for line in text.splitlines() if "vllm:" not in line) + "\n"
        said = subprocess.run(["promtool", "check", "metrics"], input=own, capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stdout + said.stderr


def test_labels_are_escaped(port):
    sample = families(page(port)[1].decode())["vllm:num_requests_running"].samples[0]
    assert sample.labels["model_name"] == NAME and sample.labels["engine"] == "0"


def test_names_that_older_routers_read(port):
    """production-stack's scraper reads these; the last sample of a name wins there, and a missing one counts as 0."""
    seen = families(page(port)[1].decode())
    assert seen["vllm:gpu_cache_usage_perc"].samples[0].value == seen["vllm:kv_cache_usage_perc"].samples[0].value
    for old, new in (("gpu_prefix_cache_hits", "prefix_cache_hits"), ("gpu_prefix_cache_queries", "prefix_cache_queries")):
        assert seen[f"vllm:{old}"].samples[0].value == seen[f"vllm:{new}"].samples[0].value > 0
    assert 0 < seen["vllm:gpu_prefix_cache_hit_rate"].samples[0].value <= 1
    assert seen["vllm:time_per_output_token_seconds"].type == "histogram"


def test_openmetrics_with_exemplars(port):
    headers, body = page(port, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")
    seen = families(body.decode(), parse_openmetrics)
    for name in ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds"):
        found = [(s, s.exemplar) for s in seen[name].samples if s.exemplar]
        assert found, name
        for sample, exemplar in found:
            assert exemplar.labels["request_id"].startswith("exemplar-") and float(exemplar.timestamp) > 1.7e9
            assert exemplar.value <= float(sample.labels["le"])


def test_packed(port):
    headers, body = page(port, **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and headers["Vary"]
    assert "vllm:num_requests_running" in families(gzip.decompress(body).decode())


def test_bad_version(tmp_path):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--show-hidden-metrics-for-version", "old"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and "like 0.7" in done.stderr
