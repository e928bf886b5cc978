"""Protects: what the planner says of memory is what the server takes, and contradictory questions get a sentence, not a number."""
import json
import shutil
import struct
import subprocess

import pytest

from conftest import BUILD, MODEL

CONFIG = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024,
          "vocab_size": 4160, "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
FAMILIES = {"llama": ("LlamaForCausalLM", {}), "mistral": ("MistralForCausalLM", {}), "qwen2": ("Qwen2ForCausalLM", {"bias": True}),
            "qwen3": ("Qwen3ForCausalLM", {"norms": True})}


def plan(*words, status=0):
    done = subprocess.run([BUILD / "evenkeelctl", "plan", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done


def tensors(bias=False, norms=False):
    h, i, v, q, kv = 256, 1024, CONFIG["vocab_size"], 256, 128
    yield "model.embed_tokens.weight", (v, h)
    yield "lm_head.weight", (v, h)
    yield "model.norm.weight", (h,)
    for n in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{n}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{p}self_attn.{name}_proj.weight", (rows, h)
            if bias:
                yield f"{p}self_attn.{name}_proj.bias", (rows,)
        yield f"{p}self_attn.o_proj.weight", (h, q)
        if norms:
            yield f"{p}self_attn.q_norm.weight", (64,)
            yield f"{p}self_attn.k_norm.weight", (64,)
        yield f"{p}mlp.gate_proj.weight", (i, h)
        yield f"{p}mlp.up_proj.weight", (i, h)
        yield f"{p}mlp.down_proj.weight", (h, i)
        yield f"{p}input_layernorm.weight", (h,)
        yield f"{p}post_attention_layernorm.weight", (h,)


def write_model(where, family):
    architecture, parts = FAMILIES[family]
    where.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, where / name)
    (where / "config.json").write_text(json.dumps({**CONFIG, "model_type": family, "architectures": [architecture]}))
    header, at = {}, 0
    for name, shape in tensors(**parts):
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(where / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_the_servers(tmp_path, family):
    model = tmp_path / family
    write_model(model, family)
    answer = json.loads(plan(model, "--json", "--max-num-seqs", 16).stdout)
    dry = subprocess.run([BUILD / "evenkeel-server", "--model", model, "--device", "cpu", "--max-num-seqs", "16", "--dry-run", "--json"],
                         capture_output=True, text=True, timeout=60)
    server = json.loads(dry.stdout)
    assert answer["evenkeel_server_plan"]["block_bytes"] == server["block_bytes"]
    total = sum(answer["memory"][k] for k in ("weight_bytes", "activation_bytes", "context_bytes", "kv_bytes"))
    assert total == pytest.approx(server["total_bytes"], rel=0.01)
    # The formulas that serve for cards, against the same server.
    assert answer["model"]["weight_bytes"] == pytest.approx(server["bytes"]["weights"], rel=0.01)
    assert answer["model"]["kv_token_bytes"] * server["block_size"] == pytest.approx(server["block_bytes"], rel=0.01)
    assert (answer["max_model_len"], answer["max_num_seqs"]) == (server["max_model_len"], 16)


def test_no_weights_and_no_sense(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "llama"}))
    assert json.loads(plan(tmp_path, "--gpu", "l4", "--json").stdout)["fits"]
    assert json.loads(plan(tmp_path / "config.json", "--device-memory", "0.3", "--json", status=1).stdout)["what_would_fit"]
    assert "--gpus 1" in plan(tmp_path, "--gpu", "l4", "--tensor-parallel-size", 2, status=2).stderr
    assert "h100" in plan(tmp_path, "--gpu", "h1000", status=2).stderr
    assert "4096" in plan(tmp_path, "--gpu", "l4", "--max-model-len", 8192, status=2).stderr
    assert "leave one out" in plan(tmp_path, "--gpu", "l4", "--trace", "x", "--prompt", 5, status=2).stderr
    assert "nothing" in plan(tmp_path / "nothing", "--gpu", "l4", status=2).stderr
    page = tmp_path / "report.html"
    plan(tmp_path, "--gpu", "l4", "--html", page)
    assert "<h1>llama on 1 x NVIDIA L4</h1>" in page.read_text()
