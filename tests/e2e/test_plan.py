"""Protects: what the planner says of memory is what the server takes, and contradictory questions get a sentence, not a number."""
import json
import re
import shutil
import struct
import subprocess

import pytest

from conftest import BUILD, MODEL, ROOT, free_port, get, metric, wait_for

CONFIG = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024,
          "vocab_size": 4160, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
FAMILIES = {"llama": ("LlamaForCausalLM", {}), "mistral": ("MistralForCausalLM", {}), "qwen2": ("Qwen2ForCausalLM", {"bias": True}),
            "qwen3": ("Qwen3ForCausalLM", {"norms": True})}


def plan(*words, status=0):
    done = subprocess.run([BUILD / "evenkeelctl", "plan", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done


SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}
GROUP = 128
# How a matrix of `rows` x `cols` is stored, as the libraries that made these forms write it.
FORMS = {
    "plain": lambda rows, cols: {"weight": ("BF16", (rows, cols))},
    "gptq": lambda rows, cols: {"qweight": ("I32", (cols // 8, rows)), "qzeros": ("I32", (cols // GROUP, rows // 8)),
                                "scales": ("F16", (cols // GROUP, rows))},
    "awq": lambda rows, cols: {"qweight": ("I32", (cols, rows // 8)), "qzeros": ("I32", (cols // GROUP, rows // 8)),
                               "scales": ("F16", (cols // GROUP, rows))},
    "fp8": lambda rows, cols: {"weight": ("F8_E4M3", (rows, cols)), "weight_scale": ("F32", (rows, 1))},
}
CONFIGS = {"plain": {}, "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}},
           "awq": {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}},
           "fp8": {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}}


def tensors(form, bias=False, norms=False):
    h, i, v, q, kv = 256, 1024, CONFIG["vocab_size"], 256, 128
    yield "model.embed_tokens.weight", "BF16", (v, h)
    yield "lm_head.weight", "BF16", (v, h)
    yield "model.norm.weight", "BF16", (h,)
    for n in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{n}."
        for name, rows, cols in (("self_attn.q", q, h), ("self_attn.k", kv, h), ("self_attn.v", kv, h), ("self_attn.o", h, q),
                                 ("mlp.gate", i, h), ("mlp.up", i, h), ("mlp.down", h, i)):
            for part, (dtype, shape) in FORMS[form](rows, cols).items():
                yield f"{p}{name}_proj.{part}", dtype, shape
            if bias and name[-2:] in (".q", ".k", ".v"):
                yield f"{p}{name}_proj.bias", "BF16", (rows,)
        if norms:
            yield f"{p}self_attn.q_norm.weight", "BF16", (64,)
            yield f"{p}self_attn.k_norm.weight", "BF16", (64,)
        yield f"{p}input_layernorm.weight", "BF16", (h,)
        yield f"{p}post_attention_layernorm.weight", "BF16", (h,)


def write_model(where, family, form="plain"):
    architecture, parts = FAMILIES[family]
    where.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, where / name)
    (where / "config.json").write_text(json.dumps({**CONFIG, "model_type": family, "architectures": [architecture], **CONFIGS[form]}))
    header, at = {}, 0
    for name, dtype, shape in tensors(form, **parts):
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(where / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


def metrics_of(model, *flags):
    """/metrics of a real server with these flags, once it is ready."""
    port = free_port(31000)
    process = subprocess.Popen([BUILD / "evenkeel-server", "--model", model, "--device", "cpu", "--port", str(port), *map(str, flags)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("ready", lambda: get(port, "/health")[0] == 200, 60)
        return get(port, "/metrics")[1].decode()
    finally:
        process.kill()
        process.wait()


CASES = [("llama", "plain", 0), ("mistral", "plain", 0), ("qwen2", "plain", 0), ("qwen3", "plain", 0), ("llama", "plain", 8), ("qwen3", "plain", 4),
         ("llama", "gptq", 0), ("mistral", "awq", 0), ("llama", "fp8", 0)]


@pytest.mark.parametrize("family,form,bits", CASES)
def test_bytes_are_the_servers(tmp_path, family, form, bits):
    """What `plan` prints, what --dry-run prints and what a running server planned and took."""
    model = tmp_path / family
    write_model(model, family, form)
    words = ["--max-num-seqs", 16, "--gpu-memory-utilization", 0.1]
    asked = [model, *words, *(["--weight-bits", bits] if bits else [])]
    flags = words + (["--quantization", f"int{bits}"] if bits else [])
    answer = json.loads(plan(*asked, "--json").stdout)
    dry = subprocess.run([BUILD / "evenkeel-server", "--model", model, "--device", "cpu", *map(str, flags), "--dry-run"], capture_output=True, text=True, timeout=60)
    page = metrics_of(model, *flags)
    planned = {k: metric(page, "evenkeel_planned_bytes", item=k) for k in answer["evenkeel_server_plan"]["bytes"]}
    for item, size in answer["evenkeel_server_plan"]["bytes"].items():
        if item not in ("program_and_tables", "kv_pool"):  # measured in each process: its heap is some pages more or less
            assert size == planned[item], item
    assert answer["evenkeel_server_plan"]["total_bytes"] == pytest.approx(sum(planned.values()), rel=0.01)
    taken = metric(page, "evenkeel_memory_bytes", where="host", figure="taken")
    assert answer["evenkeel_server_plan"]["total_bytes"] - planned["requests_and_http"] == pytest.approx(taken, rel=0.01)
    for line in ("weights", "activations", "sampling state", "requests, HTTP", "share"):  # one function prints both tables
        row = next(x for x in dry.stdout.splitlines() if x.startswith(f"  {line}"))
        assert row in plan(*asked).stdout.splitlines()
    # The formulas, against the same server: of what it packs itself, from config.json alone; and those that serve for cards.
    if form == "plain":
        own = json.loads(plan(model / "config.json", "--weight-bits", bits or "auto", "--json").stdout)["memory"]["weight_bytes"]
        assert own == answer["evenkeel_server_plan"]["bytes"]["weights"]
    if not bits:
        formula = json.loads(plan(model / "config.json", "--device-memory", 8, "--json").stdout)["memory"]["weight_bytes"]
        assert formula == pytest.approx(answer["evenkeel_server_plan"]["bytes"]["weights"], rel=0.015)
    assert answer["model"]["kv_token_bytes"] * 16 == pytest.approx(answer["evenkeel_server_plan"]["block_bytes"], rel=0.01)
    shutil.rmtree(model)


GOLDENS = ROOT / "tests/fixtures/models"
PACKED = ("packer-", "quant-", "gpt-oss-mxfp4")  # their bytes are those of the files
LETTERS = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": {chr(97 + i): i for i in range(26)}, "merges": []}}


def with_letters(golden, where):
    """The golden with a tokenizer, which those that are only computed lack."""
    shutil.copytree(golden, where)
    if not (where / "tokenizer.json").exists():
        (where / "tokenizer.json").write_text(json.dumps(LETTERS))
        (where / "tokenizer_config.json").write_text("{}")
    return where


@pytest.mark.long
@pytest.mark.parametrize("bits", [0, 8, 4])
def test_weights_of_every_golden(tmp_path, bits):
    """From config.json alone, to the byte what the server packs of the weights beside it: every class, hybrids, latent attention, mixtures."""
    goldens = [d for d in sorted(GOLDENS.iterdir()) if d.is_dir() and not d.name.startswith(PACKED)]
    if bits:  # the same shapes again, and every class once is enough
        goldens = [d for d in goldens if not re.search(r"-4\.\d+$", d.name)]
    wrong = []
    for golden in goldens:
        model = with_letters(golden, tmp_path / golden.name)
        command = [BUILD / "evenkeel-server", "--model", model, "--device", "cpu", "--dry-run", "--json", *(["--quantization", f"int{bits}"] if bits else [])]
        server = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)["bytes"]["weights"]
        own = json.loads(plan(golden / "config.json", "--weight-bits", bits or "auto", "--json").stdout)["memory"]["weight_bytes"]
        if own != server:
            wrong.append((golden.name, own, server))
        shutil.rmtree(model)
    assert not wrong and len(goldens) > 60


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5-moe", "granite-hybrid", "nemotron-h-latent", "lfm2-moe", "olmo-hybrid", "deepseek-v3", "deepseek-v32", "gemma3n", "gemma3n-three", "jais2", "minicpm3", "served-gemma4", "qwen3-moe-plain"])
def test_bytes_of_other_kinds(tmp_path, name):
    """As above, of layers with a recurrent state, latent attention, layers whose heads differ, and layers without experts among mixtures."""
    model = with_letters(GOLDENS / name, tmp_path / "m")
    words = ["--max-num-seqs", 4, "--gpu-memory-utilization", 0.1]
    answer = json.loads(plan(model, *words, "--json").stdout)["evenkeel_server_plan"]
    page = metrics_of(model, *words)
    for item, size in answer["bytes"].items():
        if item not in ("program_and_tables", "kv_pool"):
            assert size == metric(page, "evenkeel_planned_bytes", item=item), item
    assert answer["bytes"].get("recurrent_state", 0) > 0 or not name.startswith(("qwen3-next", "qwen3.5", "granite-h", "nemotron", "lfm2"))
    shutil.rmtree(model)


def test_no_weights_and_no_sense(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "llama"}))
    assert json.loads(plan(tmp_path, "--gpu", "l4", "--json").stdout)["fits"]
    assert json.loads(plan(tmp_path / "config.json", "--device-memory", "0.3", "--json", status=1).stdout)["what_would_fit"]
    assert "--gpus 1" in plan(tmp_path, "--gpu", "l4", "--tensor-parallel-size", 2, status=2).stderr
    assert "h100" in plan(tmp_path, "--gpu", "h1000", status=2).stderr
    assert "4096" in plan(tmp_path, "--gpu", "l4", "--max-model-len", 8192, status=2).stderr
    assert "leave one out" in plan(tmp_path, "--gpu", "l4", "--trace", "x", "--prompt", 5, status=2).stderr
    assert "nothing" in plan(tmp_path / "nothing", "--gpu", "l4", status=2).stderr
    for before in ([], ["--socket", "/nowhere"]):  # plan asks no evenkeeld
        done = subprocess.run([BUILD / "evenkeelctl", *before, "plan", tmp_path, "--gpu", "l4"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "It fits." in done.stdout, done.stderr
    page = tmp_path / "report.html"
    plan(tmp_path, "--gpu", "l4", "--html", page)
    assert "<h1>llama on 1 x NVIDIA L4</h1>" in page.read_text()


UNKNOWN = {"DeepseekV4ForCausalLM": "DeepseekV3ForCausalLM", "KimiLinearForCausalLM": None, "MiniMaxM3ForCausalLM": "MiniMaxM2ForCausalLM",
           "Sphinx9ForCausalLM": None, "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM"}


@pytest.mark.parametrize("architecture", UNKNOWN)
def test_no_numbers_for_what_the_server_refuses(tmp_path, architecture):
    """plan and setup say of an architecture what the server says of it; an estimate is asked for, and marked."""
    write_model(tmp_path / "m", "llama")
    file = tmp_path / "m/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [architecture]}))
    server = subprocess.run([BUILD / "evenkeel-server", "--model", tmp_path / "m", "--dry-run"], capture_output=True, text=True, timeout=60)
    assert server.returncode and architecture in server.stderr
    nearest = UNKNOWN[architecture]
    for words in ([file], [tmp_path / "m"], [file, "--gpu", "l4"]):
        refused = plan(*words, "--json", status=2)
        assert architecture in refused.stderr and "--estimate" in refused.stderr and not refused.stdout
        for text in (refused.stderr, server.stderr):
            assert f": {nearest})" in text if nearest else "nearest" not in text, text
    setup = subprocess.run([BUILD / "evenkeelctl", "setup", "--model", tmp_path / "m", "--gpu", "l4", "--dry-run"], capture_output=True, text=True, timeout=60)
    assert setup.returncode and architecture in setup.stderr, setup.stderr
    answer = json.loads(plan(file, "--gpu", "l4", "--estimate", "--json").stdout)
    assert answer["estimate"] is True and answer["architecture"] == architecture and answer["nearest"] == nearest
    assert "evenkeel_flags" not in answer and answer["vllm_flags"]
    text = plan(file, "--gpu", "l4", "--estimate").stdout
    assert "An estimate:" in text and "vllm serve" in text and "evenkeel-server --model" not in text
    shutil.rmtree(tmp_path / "m")


def test_what_it_loads_is_no_estimate():
    assert "estimate" not in json.loads(plan(MODEL, "--gpu", "l4", "--json").stdout)


def test_a_cache_of_8_bits():
    answer = json.loads(plan(MODEL, "--kv-cache-dtype", "fp8", "--json").stdout)
    assert answer["memory"]["kv_bits"] == 8 and "--kv-cache-dtype int8_per_token_head" in answer["evenkeel_flags"]
    done = subprocess.run([BUILD / "evenkeel-server", *answer["evenkeel_flags"].split()[1:], "--dry-run", "--json"], capture_output=True, text=True, timeout=60)
    server = json.loads(done.stdout)
    assert (server["num_blocks"] - 1) * server["block_size"] == pytest.approx(answer["memory"]["kv_tokens"], rel=0.01)
    assert server["bytes"]["kv_pool"] == pytest.approx(answer["memory"]["kv_bytes"], rel=0.01)


@pytest.mark.long
def test_figures_of_a_cpu(tmp_path):
    """What evenkeel-bench measured somewhere serves a plan; given figures win; a card has no such figures."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "llama"}))
    report = tmp_path / "machine.json"
    subprocess.run([BUILD / "evenkeel-bench", "kernels", "--limits", "--repeat", "1", "--report", report], check=True, capture_output=True, timeout=60)
    rows = {row["cell"]: row["value"] for row in json.loads(report.read_text())["rows"]}
    assert rows["machine.read"] > 0 and not any(cell.startswith("gemm") for cell in rows)
    answer = json.loads(plan(tmp_path, "--machine", report, "--json").stdout)
    faster = json.loads(plan(tmp_path, "--machine", report, "--tflops", 1e5, "--bandwidth", 1e5, "--json").stdout)
    assert 0 < faster["alone"]["prefill_s"] < answer["alone"]["prefill_s"] < faster["alone"]["prefill_s"] * 1e6
    assert "two slow cores" not in plan(tmp_path, "--machine", report).stdout.lower()
    assert "two slow cores" in plan(tmp_path).stdout.lower()
    assert "of a CPU" in plan(tmp_path, "--machine", report, "--gpu", "l4", status=2).stderr
    assert "no report" in plan(tmp_path, "--machine", tmp_path / "config", status=2).stderr
    report.write_text("{}")
    assert "--bandwidth" in plan(tmp_path, "--machine", report, status=2).stderr


def test_the_page_counts_what_is_tested():
    """docs/planning.md says how many public configurations the unit tests ask the planner for; each has its outcome and its source."""
    page = (ROOT / "docs/planning.md").read_text()
    cases = json.loads((ROOT / "tests/fixtures/plans.json").read_text())["cases"]
    assert f"holds {len(cases)} public configurations" in page and len(cases) >= 20
    for case in cases:
        assert case["model"] and case["gpu"] and case["gpus"] > 0 and isinstance(case["fits"], bool) and len(case["source"]) > 4, case


def test_a_budget_that_suits_the_machine(tmp_path):
    """Without --max-num-batched-tokens: by the card's memory, by what a CPU computes in a quarter of a second; halved while it does not fit."""
    def budget(*words):
        return json.loads(subprocess.run([BUILD / "evenkeel-server", "--dry-run", "--json", *map(str, words)], capture_output=True, text=True, timeout=60).stdout)

    assert json.loads(plan(MODEL, "--gpu", "l4", "--json").stdout)["max_num_batched_tokens"] == 4096
    big = {**CONFIG, "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    (tmp_path / "config.json").write_text(json.dumps(big))
    assert json.loads(plan(tmp_path, "--bandwidth", 40, "--tflops", 1, "--json").stdout)["max_num_batched_tokens"] == 128 + 64
    assert budget("--model", MODEL, "--device", "cpu", "--cpu-isa", "ref", "--threads", 1)["max_num_batched_tokens"] in (128 + 64, 256 + 64)
    assert budget("--model", MODEL, "--device", "cpu", "--cpu-isa", "ref", "--threads", 1, "--max-num-batched-tokens", 777)["max_num_batched_tokens"] == 777


def test_the_picture_names_what_it_draws():
    """A row of letters under the memory plan; each letter has its word below."""
    text = plan(MODEL, "--gpu", "l4").stdout
    bar, words = re.search(r"^  \[(\S{60})\]\n   (.*)$", text, re.M).groups()
    assert {"K KV pool", "O overhead"} <= set(words.strip().split("  ")), words
    assert set(bar) == {w[0] for w in words.strip().split("  ")} and "(null)" not in text


def test_of_attention_that_chooses_tokens():
    """evenkeel-server serves up to index_topk, where all are seen; the length that is planned and printed for it is that."""
    model = GOLDENS / "deepseek-v32"
    most = json.loads((model / "config.json").read_text())["index_topk"]
    text = plan(model, "--gpu", "h200").stdout
    own = text[text.index("evenkeel-server --model"):text.index("vllm serve")]
    assert f"--max-model-len {most} " in own and f"chooses {most} tokens (index_topk)" in text
    answer = json.loads(plan(model, "--gpu", "h200", "--json").stdout)
    assert f"--max-model-len {most} " in answer["evenkeel_flags"] and f"--max-model-len {most} " not in answer["vllm_flags"]


def test_what_a_card_does_not_take():
    text = plan(GOLDENS / "gemma3n", "--gpu", "h200").stdout
    assert "serves Gemma 3n on the CPU" in text and "vllm serve" in text and "evenkeel-server --model" not in text
    text = plan(GOLDENS / "gemma4", "--gpu", "h200").stdout
    assert "refuses the model" not in text and "evenkeel-server --model" in text


def test_a_name_of_the_hub_is_no_directory():
    said = plan("Qwen/Qwen3-8B", "--gpu", "l4", status=2).stderr
    assert "there is no Qwen/Qwen3-8B; name a model's directory" in said and "nothing is fetched" in said
