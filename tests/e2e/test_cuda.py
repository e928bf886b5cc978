"""Protects: a server on a CUDA device (a simulated card) answers as the model does, says why a card cannot be used, and ends with its own code when the card is lost."""
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from conftest import BUILD, MODEL, ROOT, free_port, metric

FAKE = BUILD / "tests/cuda/libfake-cuda.so"
SMALL = ["--max-num-seqs", "2", "--max-num-batched-tokens", "32", "--num-gpu-blocks-override", "200", "--step-deadline", "0"]

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="no C++ compiler to run kernels on the host")


def environment(**more):
    return {**os.environ, "LD_LIBRARY_PATH": str(FAKE.parent), "EVENKEEL_CUDA_DRIVER": str(FAKE), "EVENKEEL_NCCL": str(FAKE), "EVENKEEL_CUBLASLT": "off", **more}


class Server:
    def __init__(self, tmp_path, words=(), device="cuda", base=SMALL, **more):
        self.port, self.log = free_port(27000), open(tmp_path / "server.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--device", device, "--host", "127.0.0.1", "--port", str(self.port), *base, *words],
                                        env=environment(**more), stdout=self.log, stderr=self.log)
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            except (OSError, urllib.error.URLError):
                assert self.process.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.1)
        raise AssertionError("not ready in 30 s")

    def ask(self, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", json.dumps({"model": MODEL.name, **body}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]


@pytest.fixture
def server(tmp_path):
    started = []

    def start(*words, **more):
        started.append(Server(tmp_path, words, **more))
        return started[-1]
    yield start
    for s in started:
        s.process.kill()
        s.process.wait()


@pytest.mark.long
def test_free_memory(server, tmp_path):
    """By NVML, before there is a context on the card: what another process has is said before anything is loaded. Without NVML nothing is said."""
    driver = tmp_path / "driver"
    driver.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver / "libnvidia-ml.so.1", ROOT / "tests/e2e/fake_nvml.c"], check=True)
    for of_it, taken, said in (4096, 4000, True), (4096, 10, False), (20000, 19990, False):  # the last is another card's, of which this is a part
        (tmp_path / "cards").write_text(f"{of_it} {taken}\n")
        s = server("--no-sandbox", LD_LIBRARY_PATH=f"{driver}:{FAKE.parent}", FAKE_NVML=str(tmp_path / "cards"), FAKE_CUDA_CARDS="4")
        s.process.kill()
        s.process.wait()
        log = (tmp_path / "server.log").read_text()
        assert ("only 0.09 GiB are free" in log) == said, log


@pytest.mark.long
def test_answers_are_the_models(server):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server()
    first = s.ask(messages=case["messages"], max_tokens=8, temperature=0)
    assert case["output_text"].startswith(first["message"]["content"]) and first["finish_reason"] == "length"
    seeded = [s.ask(messages=case["messages"], max_tokens=4, temperature=1.5, seed=7)["message"]["content"] for _ in range(2)]
    assert seeded[0] == seeded[1]
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(60) == 0


@pytest.mark.long
@pytest.mark.parametrize("form, share", [("int4", 0.36)])
def test_quantized_while_loading(server, form, share):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server("--dtype", "bfloat16", "--quantization", form)
    first = s.ask(messages=case["messages"], max_tokens=4, temperature=0)
    assert case["output_text"].startswith(first["message"]["content"]) and first["finish_reason"] == "length"
    s.log.seek(0)
    assert f"Quantizing 25 matrices to {form} while loading" in s.log.read()

    def weights(*more):
        dry = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", *SMALL, "--dtype", "bfloat16", *more, "--dry-run", "--json"], capture_output=True,
                             text=True, timeout=60, env=environment())
        return json.loads(dry.stdout)["bytes"]["weights"]
    page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
    assert weights("--quantization", form) == metric(page, "evenkeel_planned_bytes", item="weights") <= share * weights()


@pytest.mark.long
def test_cache_of_8_bits(server):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server("--dtype", "bfloat16", "--kv-cache-dtype", "fp8")
    assert case["output_text"].startswith(s.ask(messages=case["messages"], max_tokens=2, temperature=0)["message"]["content"])

    def plan(*more, device="cuda"):
        return subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", device, *SMALL, "--dtype", "bfloat16", *more, "--dry-run", "--json"], capture_output=True,
                              text=True, timeout=60, env=environment())
    narrow, wide = (json.loads(plan(*more).stdout)["block_bytes"] for more in (["--kv-cache-dtype", "fp8_e4m3"], []))
    assert narrow * 2 == wide
    s = server("--dtype", "bfloat16", "--kv-cache-dtype", "int8_per_token_head")
    assert case["output_text"].startswith(s.ask(messages=case["messages"], max_tokens=2, temperature=0)["message"]["content"])
    scaled = json.loads(plan("--kv-cache-dtype", "int8_per_token_head").stdout)["block_bytes"]
    assert narrow < scaled < wide
    refused = plan("--kv-cache-dtype", "fp8", device="cpu")
    assert refused.returncode == 78 and "use --kv-cache-dtype auto or int8_per_token_head, or --device cuda" in refused.stderr + refused.stdout


@pytest.mark.long
def test_weights_in_host_memory(server):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server("--cpu-offload-gb", "0.004")
    assert case["output_text"].startswith(s.ask(messages=case["messages"], max_tokens=4, temperature=0)["message"]["content"])
    page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
    there = metric(page, "evenkeel_device_bytes", item="host_weights")
    assert 0 < there <= 0.004 * 2**30 and there == metric(page, "evenkeel_planned_bytes", item="host_weights")
    card = metric(page, "evenkeel_device_bytes", item="weights")
    assert card == metric(page, "evenkeel_planned_bytes", item="weights") + metric(page, "evenkeel_planned_bytes", item="weight_buffers")
    s.log.seek(0)
    assert re.search(r"Weights in host memory: 4\.[01] MiB; each step copies 4\.[01] MiB to the card", s.log.read())


@pytest.mark.long
def test_lost_card(server):
    s = server(FAKE_CUDA_FAIL="cuGraphLaunch:10:700")
    with pytest.raises((urllib.error.HTTPError, OSError)):
        s.ask(messages=[{"role": "user", "content": "What is the KV cache?"}], max_tokens=50, temperature=0)
        s.ask(messages=[{"role": "user", "content": "What is the KV cache?"}], max_tokens=50, temperature=0)
    assert s.process.wait(60) == 76


def test_words():
    def backends(**more):
        return subprocess.run([BUILD / "evenkeel-server", "--list-backends"], env=environment(**more), capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Fake card, sm_90" in backends()
    assert "no NVIDIA driver" in backends(EVENKEEL_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert "finds no card" in backends(FAKE_CUDA_FAIL="cuInit:1:100")
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda"], env=environment(EVENKEEL_CUDA_DRIVER="/nowhere/libcuda.so.1"),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and "no NVIDIA driver" in done.stderr


def test_plan_for_a_card_is_that_of_the_card(tmp_path, server):
    """`evenkeelctl plan` for a card that is not here, --dry-run with it, and what the running server planned and took."""
    words = ["--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--gpu-memory-utilization", "0.9"]
    # Without a driver: only the backend's arithmetic.
    asked = subprocess.run([BUILD / "evenkeelctl", "plan", MODEL, "--device-memory", "8", *words, "--json"], capture_output=True, text=True, timeout=60,
                           env={**os.environ, "LD_LIBRARY_PATH": str(FAKE.parent), "EVENKEEL_CUDA_DRIVER": "/nonexistent"})
    assert asked.returncode == 0, asked.stderr
    plan = json.loads(asked.stdout)["evenkeel_server_plan"]
    dry = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", *words, "--dry-run", "--json"], capture_output=True, text=True,
                         timeout=60, env=environment())
    real = json.loads(dry.stdout)
    assert real["memory_bytes"] == plan["memory_bytes"]
    for item in ("weights", "activations", "sampling_state", "kv_pool", "overhead"):
        assert plan["bytes"][item] == real["bytes"][item], item
    assert (plan["num_blocks"], plan["block_bytes"], plan["max_model_len"]) == (real["num_blocks"], real["block_bytes"], real["max_model_len"])
    s = server()
    page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
    planned = {i: metric(page, "evenkeel_planned_bytes", item=i) for i in plan["bytes"]}
    small = json.loads(subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", *SMALL, "--dry-run", "--dry-run-memory", "8", "--json"],
                                      capture_output=True, text=True, timeout=60, env={**os.environ, "LD_LIBRARY_PATH": str(FAKE.parent)}).stdout)
    for item in ("weights", "activations", "sampling_state", "kv_pool", "overhead"):
        assert small["bytes"][item] == planned[item], item


MEASURED = ["--max-num-seqs", "2", "--max-num-batched-tokens", "32", "--gpu-memory-utilization", "0.25", "--max-model-len", "256", "--step-deadline", "0"]


@pytest.mark.long
def test_pool_is_what_the_card_has_left(server, tmp_path):
    """A context of another size than was guessed, and what other processes have, change the blocks by so much; what was asked for by name is not exceeded."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libnvidia-ml.so.1").symlink_to(FAKE)
    nvml, plain = f"{driver}:{FAKE.parent}", str(FAKE.parent)

    def blocks(context, others, path, *words, **env):
        s = server("--no-sandbox", *words, base=MEASURED, LD_LIBRARY_PATH=path, FAKE_CUDA_CARDS="4", FAKE_CUDA_TAKEN=f"{context},{others}", **env)
        assert s.ask(messages=[{"role": "user", "content": "Hi"}], max_tokens=2, temperature=0)["finish_reason"]
        page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
        s.process.kill()
        s.process.wait()
        assert (metric(page, "evenkeel_limit", limit="max_num_running_seqs") == 1) == bool(env)  # what evenkeeld asks for holds after the measure
        return int(metric(page, "evenkeel_kv_blocks", state="total")), (tmp_path / "server.log").read_text()

    dry = json.loads(subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", *MEASURED, "--dry-run", "--json"], capture_output=True, text=True,
                                    timeout=60, check=True, env=environment(FAKE_CUDA_CARDS="4")).stdout)
    one, predicted = dry["block_bytes"], dry["num_blocks"] - 1

    def differ(a, b, mib):  # each is rounded to whole blocks
        return abs(a - b - mib * 2**20 / one) <= 1
    small, log = blocks(300, 0, nvml)
    large, _ = blocks(700, 0, nvml)
    assert differ(small, large, 400)
    assert differ(small, predicted, 600 - 128 - 300), (small, predicted)  # the guess is of a context and of what comes later
    assert f"KV pool: {predicted + 1} blocks were predicted and {small + 1} are there" in log and "graphs take 300.0 MiB" in log, log
    theirs, log = blocks(300, 1000, nvml)
    assert theirs == small and "other processes have 1000.0 MiB" in log
    assert differ(small, blocks(300, 100, plain)[0], 100)  # nobody says whose it is
    assert differ(blocks(300, 3200, nvml)[0], 0, 4096 - 3200 - 300 - 128 - 64 - (1024 - 300 - 128 - 64 - small * one / 2**20))  # less is free than the share leaves
    assert blocks(300, 0, nvml, "--num-gpu-blocks-override", "100", EVENKEEL_START_LIMITS="max_num_running_seqs=1")[0] == 99
    assert blocks(300, 0, nvml, "--engine-process")[0] == small
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", "--host", "127.0.0.1", "--port", str(free_port(27000)), *MEASURED],
                          capture_output=True, text=True, timeout=60, env=environment(FAKE_CUDA_CARDS="4", FAKE_CUDA_TAKEN="1000"))
    assert done.returncode == 71 and "One request of 256 tokens needs a KV pool of" in done.stderr and "a context of 1000.0 MiB" in done.stderr, done.stderr


@pytest.mark.parametrize("gib, more, seqs, tokens", [
    (24, [], 256, 4096), (80, [], 512, 16384), (141, [], 512, 24576), (192, [], 512, 32768),
    (80, ["--max-num-seqs", "7", "--max-num-batched-tokens", "99"], 7, 99),
    (24, ["--num-gpu-blocks-override", "1025"], 64, 4096),
    (24, ["--gpu-memory-utilization", "0.0313"], 16, 4096), (24, ["--gpu-memory-utilization", "0.03"], 16, 2048),
])
def test_what_nobody_chose_is_by_the_card(gib, more, seqs, tokens):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", "cuda", "--dry-run", "--dry-run-memory", str(gib), *more, "--json"],
                          capture_output=True, text=True, timeout=60, env=environment())
    plan = json.loads(done.stdout)
    assert (plan["max_num_seqs"], plan["max_num_batched_tokens"]) == (seqs, tokens), done.stderr


@pytest.mark.long
def test_two_cards_answer_as_one(server, tmp_path):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server("--tensor-parallel-size", "2", device="cuda:2,0", FAKE_CUDA_CARDS="8,8,4")
    assert case["output_text"].startswith(s.ask(messages=case["messages"], max_tokens=8, temperature=0)["message"]["content"])
    assert "The cards differ: rank 0 has Fake card, sm_90 (4.0 GiB), rank 1 has Fake card, sm_90 (8.0 GiB)" in (tmp_path / "server.log").read_text()
    page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
    pools = [metric(page, "evenkeel_rank_bytes", rank=str(r), device=f"cuda:{card}", item="kv") for r, card in enumerate((2, 0))]
    assert 'products="own kernels",collectives="NCCL 2.28.9"} 1' in page
    assert pools[0] == pools[1] > 0 and sum(pools) == metric(page, "evenkeel_device_bytes", item="kv")
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(60) == 0


@pytest.mark.long
def test_two_stages_answer_as_one(server):
    case = json.loads((ROOT / "tests/fixtures/expected.json").read_text())["cases"][0]
    s = server("--pipeline-parallel-size", "2", device="cuda:1,0", FAKE_CUDA_CARDS="8,8")
    assert case["output_text"].startswith(s.ask(messages=case["messages"], max_tokens=8, temperature=0)["message"]["content"])
    page = urllib.request.urlopen(f"http://127.0.0.1:{s.port}/metrics", timeout=60).read().decode()
    pools = [metric(page, "evenkeel_rank_bytes", rank=str(r), device=f"cuda:{card}", item="kv") for r, card in enumerate((1, 0))]
    assert pools[0] == pools[1] > 0 and sum(pools) == metric(page, "evenkeel_device_bytes", item="kv")
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(60) == 0


@pytest.mark.long
@pytest.mark.parametrize("divided, failure, code", [
    ("--tensor-parallel-size", "ncclCommGetAsyncError@1:1000:6", 73),
    ("--tensor-parallel-size", "cuGraphLaunch@1:30:700", 76),
    ("--pipeline-parallel-size", "cuGraphLaunch@1:30:700", 76),
])
def test_lost_rank(server, divided, failure, code):
    s = server(divided, "2", FAKE_CUDA_CARDS="8,8", FAKE_CUDA_FAIL=failure)
    with pytest.raises((urllib.error.HTTPError, OSError)):
        for _ in range(20):
            s.ask(messages=[{"role": "user", "content": "What is the KV cache?"}], max_tokens=50, temperature=0)
    assert s.process.wait(60) == code


@pytest.mark.parametrize("device, ranks, more, words", [
    ("cuda", 2, {}, "there is no card 1: the driver has 1"),
    ("cuda:0,3", 2, {"FAKE_CUDA_CARDS": "8,8,8"}, "there is no card 3: the driver has 3"),
    ("cuda:3", 1, {"FAKE_CUDA_CARDS": "8,8,8"}, "There is no card 3: the driver has 3"),
    ("cuda", 2, {"FAKE_CUDA_CARDS": "8,8", "EVENKEEL_NCCL": "/nowhere/libnccl.so.2"}, "Install libnccl2 (Debian, Ubuntu) or libnccl (RPM)"),
    ("cuda", 3, {"FAKE_CUDA_CARDS": "8,8,8"}, "choose one of 1, 2, 4"),
])
def test_cards_that_are_not_there(device, ranks, more, words):
    refused("--tensor-parallel-size", device, ranks, more, words)


@pytest.mark.parametrize("device, ranks, more, words", [
    ("cuda", 2, {}, "needs 2 cards, and there is no card 1: the driver has 1"),
    ("cuda", 7, {"FAKE_CUDA_CARDS": "8,8,8,8,8,8,8"}, "the model has 6; choose 1 to 6"),
])
def test_stages_that_are_not_there(device, ranks, more, words):
    refused("--pipeline-parallel-size", device, ranks, more, words)


def refused(option, device, ranks, more, words):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--device", device, option, str(ranks), "--dry-run"],
                          env=environment(**more), capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and words in done.stderr
