#!/usr/bin/env python3
"""Write tests/fixtures/models: tiny random models of each family and what transformers computes with them.

usage: goldens.py OUT_DIR [--only NAME,...] [--seed N] [--vary] [--packers DIR] [--old]

--vary draws sizes, windows, scales and flags of each case from the seed, too.

--packers adds cases whose weights were packed by the libraries of the formats (packers.py), dense
and with experts.

--old: run by a transformers 4, whose version the names then end with; what it does not know is left
out. Configurations are spelled for it (rope_theta and rope_scaling, the keys of spelled4).

Each directory holds what save_pretrained of model and tokenizer wrote, every file as it was written
(weights in bf16, one case in shards), and golden.safetensors:
  meta      I32 [sequences, 3]: tokens of the prompt, tokens in all, length to serve with (0 = any)
  tokens.N  I32 [tokens]: the prompt, then greedy tokens
  logits.N  F32 [tokens, vocab]: float32, eager attention, at every position, or
  at.N      I32 [stored]: at these alone, of long texts
Weights are drawn so that each part matters: a model as initialised for training hardly attends. A
seed is passed over when two logits along the greedy path lie so close that rounding decides, and
so are sizes that --vary drew when no seed does.
"""
import argparse
import copy
import json
import os
import random
import sys

import torch
import transformers
from safetensors.torch import save_file

import tokenizers_of
from golden_cases import CASES, FULL, OLDER, SLIDING, packer_cases, quantized_cases

OLD = int(transformers.__version__.split(".")[0]) < 5
if not OLD:
    import quantize

UNSURE = 5e-5  # of the largest logit
MARGIN = 2e-3  # between the two largest logits
STORED, EACH = 256, 41  # longer texts keep the logits of one position in so many, and of the answer
DRAWS = 8  # of sizes, where no weights for the first ones do
LEAST_DIFFERENT = (12, 8)  # tokens in the first sequence; of quantized models
OWN_HEAD_DIM = ("GptOss", "Llama", "Mistral", "Ministral", "Mixtral", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2",
                "Gemma3Text", "Gemma3nText", "Glm", "Glm4", "Glm4Moe", "SeedOss", "Ernie4_5", "Exaone4", "HunYuanDenseV1",
                "Ministral3", "Llama4Text", "Gemma4Text", "HunYuanMoEV1", "MiniMaxM2", "SolarOpen", "ExaoneMoe",
                "Dots1", "Cwm", "Afmoe", "HYV3", "Mellum", "Jais2", "IQuestCoder", "InternLM3", "VaultGemma", "Cohere2Moe")

# What a class calls a key of the others; None: it has none, and its heads have keys of their own.
GPT2_KEYS = dict(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head",
                 max_position_embeddings="n_positions", intermediate_size="n_inner", num_key_value_heads=None)
OWN_KEYS = {
    "GPT2": GPT2_KEYS, "GPTBigCode": GPT2_KEYS, "GPTJ": GPT2_KEYS, "CodeGen": GPT2_KEYS,
    "GPTNeo": dict(num_hidden_layers="num_layers", num_attention_heads="num_heads", num_key_value_heads=None),
    "OPT": dict(intermediate_size="ffn_dim", num_key_value_heads=None),
    "Falcon": dict(intermediate_size="ffn_hidden_size", num_key_value_heads="num_kv_heads"),
    "Persimmon": dict(num_key_value_heads=None),
}
WHOLE_SECTIONS = ("Glm4v", "GlmOcr", "HunYuanVL", "Qwen2_5OmniThinker")  # which must be all that turns


def old_case(case):
    """The case as a configuration of transformers 4 is made, with one short prompt."""
    c = copy.deepcopy(case["config"])
    rope = c.pop("rope_parameters", None)
    if rope and SLIDING not in rope:
        c["rope_theta"] = rope.pop("rope_theta", 10000.0)
        if "partial_rotary_factor" in rope:
            c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        if rope["rope_type"] == "longrope":  # of Phi-3 alone, which knew the older word
            rope["type"] = rope.pop("rope_type")
        plain = rope.get("rope_type") == "default" and "mrope_section" not in rope
        c["rope_scaling"] = None if plain else rope
    for key, value in case["spelled4"].items():
        c.pop(key, None)
        if value is not None:
            c[key] = value
    version = ".".join(transformers.__version__.split(".")[:2])
    prompts = case["prompts"] if case["words"] or case["name"] == "phi3-longrope" else ((30, 24, 0),)
    return {**case, "config": c, "name": f"{case['name']}-{version}", "prompts": prompts}


def spelled(cls, config):
    """The configuration by the keys of its class."""
    names = OWN_KEYS.get(cls, {})
    return {names.get(k, k): v for k, v in config.items() if names.get(k, k) is not None}


def draw(model, generator, around_zero):
    """Fills all parameters, in values that bf16 can hold."""
    ends = ("e_score_correction_bias", "expert_bias", "layer_scalar")
    corrections = [(n, b) for n, b in model.named_buffers() if n.endswith(ends)]
    scaled = model.config.model_type.startswith("gemma")  # embeddings, by their width
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *corrections]:
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("A_log"):
                noise = noise - 2  # so that a state is remembered for some dozen tokens
            elif name.endswith("bias"):
                noise *= 0.3
            elif p.dim() == 1 or name.endswith("_norm.weight"):
                noise = 0.2 * noise + (0 if around_zero else 1)
            elif "embed" in name:
                noise *= 0.1 if scaled else 0.5  # tied logits must not only repeat the token
            elif name.endswith("experts.gate_up_proj") and model.config.model_type == "gpt_oss":
                noise *= 2.0 / p.shape[1] ** 0.5  # so large that clamping matters
            elif p.dim() == 3 and model.config.model_type.startswith("llama4"):
                noise *= 2.0 / p.shape[1] ** 0.5  # experts are [experts, in, out]
            else:
                noise *= 2.0 / p.shape[-1] ** 0.5
            p.copy_(noise.to(torch.bfloat16).to(torch.float32))


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def stretched(model, prompt, count):
    """Tokens, margin and logits as generate() computes them: where frequencies change with the length,
    a cached key keeps those that its step had."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config)  # it remembers the longest it has seen
    tokens, margin, logits, cache = list(prompt), float("inf"), [], None
    for step in range(count + 1):
        given = tokens if step == 0 else tokens[-1:]
        with torch.no_grad():
            out = model(torch.tensor([given]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits[0].float())
        if step < count:
            last = logits[-1][-1]
            best = torch.topk(last, 2)
            margin = min(margin, float((best.values[0] - best.values[1]) / last.abs().max()))
            tokens.append(int(best.indices[0]))
    return tokens, margin, torch.cat(logits)


def extend(model, tokens, count):
    """Greedy tokens, and how far apart the two largest logits at least lay; it ends where they do not."""
    margin = float("inf")
    for _ in range(count):
        if margin <= MARGIN:
            break
        last = logits_of(model, tokens)[-1]
        best = torch.topk(last, 2)
        margin = min(margin, float((best.values[0] - best.values[1]) / last.abs().max()))
        tokens = tokens + [int(best.indices[0])]
    return tokens, margin


def unsure(model, sequences):
    """By how much logits change when all but the recurrent rule is computed in float64. What a state
    sums up over a text is normed afterwards, and where it is next to nothing rounding decides."""
    double, worst = copy.deepcopy(model).double(), 0.0
    for tokens, logits in sequences:
        with torch.no_grad():
            exact = double(torch.tensor([tokens]), use_cache=False).logits[0]
        off = (logits - exact).abs().max(-1).values / exact.abs().max(-1).values
        worst = max(worst, float(off.max()))
    return worst


def keep_some(tensors, meta):
    """Of long texts, which positions keep their logits."""
    for i, (prompt, tokens, _) in enumerate(meta):
        if tokens > STORED:
            at = [n for n in range(tokens) if n % EACH == 0 or n >= prompt - 1]
            tensors[f"at.{i}"] = torch.tensor(at, dtype=torch.int32)
            tensors[f"logits.{i}"] = tensors[f"logits.{i}"][at].contiguous()


def packed_state(model, stored, gone):
    """What a quantized checkpoint holds: packed matrices in place of those that they stand for."""
    left = {k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if k not in gone}
    return {**left, **stored}


def vary(case, rng):
    """Other numbers for what a case has; what makes it that case stays."""
    c = copy.deepcopy(case["config"])
    if case["quant"]:
        return {**case, "config": c}  # formats have sizes of their own
    c["num_key_value_heads"] = rng.choice([1, 2, 3])
    c["num_attention_heads"] = c["num_key_value_heads"] * rng.choice([1, 2, 4])
    each = OWN_KEYS.get(case["cls"], {}).get("num_key_value_heads", "it has") is None
    if case["cls"] == "CodeGen":  # in four parts
        c["num_attention_heads"] *= 4
    if "kv_lora_rank" in c or case["cls"] == "GPTNeoX" or each:
        c["num_key_value_heads"] = c["num_attention_heads"]  # each has keys of its own
    longrope = "long_factor" in c.get("rope_parameters", {})
    head = 16 if longrope else rng.choice([4, 8, 12, 16, 20, 32])
    c["hidden_size"] = c["num_attention_heads"] * rng.choice([4, 8, 12])
    if case["cls"] in OWN_HEAD_DIM:
        c["head_dim"] = head
    else:
        c["hidden_size"] = c["num_attention_heads"] * head
        if case["cls"] == "Helium":  # says it, and its output is as wide as the hidden state
            c["head_dim"] = head
    if case["cls"] in WHOLE_SECTIONS:
        rope, own = c["rope_parameters"], c.get("head_dim", head)
        turned, parts = int(own * rope.get("partial_rotary_factor", 1)) // 2, len(rope["mrope_section"])
        each = turned // parts
        rope["mrope_section"] = [turned - (parts - 1) * each] + (parts - 1) * [each]
    if case["cls"].startswith("Ernie4_5_VL"):  # two take turns, the third has the rest
        c["rope_parameters"]["mrope_section"] = [head // 8, head // 8, head // 2 - 2 * (head // 8)]
    c["intermediate_size"] = rng.randrange(8, 80)
    if "rotary_dim" in c:
        c["rotary_dim"] = rng.choice([n for n in (2, 4, 8, 16) if n <= head])
    for key, values in (("attention_bias", [False, True]), ("mlp_bias", [False, True]),
                        ("tie_word_embeddings", [False, True]), ("rms_norm_eps", [1e-6, 1e-5, 1e-3]),
                        ("sliding_window", [1, 5, 16, 33, 200]), ("query_pre_attn_scalar", [4, 20, 64]),
                        ("attn_logit_softcapping", [1.0, 5.0, 50.0]),
                        ("final_logit_softcapping", [5.0, 30.0]),
                        ("embedding_multiplier", [0.5, 4.0]), ("attention_multiplier", [0.1, 0.6]),
                        ("residual_multiplier", [0.3, 1.1]), ("logits_scaling", [0.5, 3.0]),
                        ("norm_topk_prob", [False, True]), ("moe_intermediate_size", [5, 16, 37])):
        if isinstance(c.get(key), list):  # of text, and of pictures
            c[key] = [rng.choice(values) for _ in c[key]]
        elif c.get(key) is not None:
            c[key] = rng.choice(values)
    longest = max(prompt + more for prompt, more, _ in case["prompts"])  # which is served as a whole
    for rope in [c.get("rope_parameters", {}), *c.get("rope_parameters", {}).values()]:
        if isinstance(rope, dict) and "rope_theta" in rope:
            rope["rope_theta"] = rng.choice([500.0, 10000.0, 1e6])
            if "factor" in rope:
                original = rope.get("original_max_position_embeddings", longest)
                rope["factor"] = rng.choice([f for f in (4.0, 5.5, 8.0, 32.0) if f * original >= longest])
    spelled4 = dict(case["spelled4"])
    if "rope_theta" in spelled4:  # two sets of frequencies: as they are above
        ropes = c["rope_parameters"]
        full, local = ropes[FULL], ropes[SLIDING]
        if "rope_local_base_freq" in spelled4:
            spelled4["rope_local_base_freq"] = local["rope_theta"]
        else:
            local["rope_theta"] = full["rope_theta"]
        spelled4["rope_theta"] = full["rope_theta"]
        spelled4["rope_scaling"] = {k: v for k, v in full.items() if k != "rope_theta"}
    return {**case, "config": c, "spelled4": spelled4}


def write(case, out, seed):
    name = case["cls"].removesuffix("Text") + ("ForConditionalGeneration" if case["sees"] else "ForCausalLM")
    if case["cls"].startswith("NemotronH_Omni"):
        from transformers.models import nemotron_h_omni
        config_cls, model_cls = getattr(nemotron_h_omni, case["cls"] + "_Config"), getattr(nemotron_h_omni, case["cls"])
    else:
        config_cls, model_cls = getattr(transformers, case["cls"] + "Config"), getattr(transformers, name, None)
        if model_cls is None:  # a configuration that has another's class
            model_cls = transformers.AutoModelForCausalLM._model_mapping[config_cls]
    for attempt in range(200):
        g = torch.Generator().manual_seed(seed * 1000 + attempt)
        kwargs = spelled(case["cls"], copy.deepcopy(case["config"]))
        if case["sees"]:
            sees = dict(case["sees"])
            if "out_hidden_size" in sees:
                sees["out_hidden_size"] = kwargs["hidden_size"]
            kwargs = dict(text_config=kwargs, vision_config=sees, **case["outer"],
                          tie_word_embeddings=kwargs.get("tie_word_embeddings", True))
        config = config_cls(**kwargs)
        vocab = case["config"]["vocab_size"]
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        model = model_cls(config).float().eval()
        draw(model, g, around_zero=case["cls"] == "Nemotron" or case["cls"] in ("Gemma", "Gemma2", "Gemma3", "Gemma3Text"))
        stored, gone = quantize.apply(model, case["quant"]) if case["quant"] else ({}, set())
        tensors, meta, margin = {}, [], float("inf")
        for i, (prompt, more, served) in enumerate(case["prompts"]):
            tokens = torch.randint(3, vocab, (prompt,), generator=g).tolist()
            rope = case["config"].get("rope_parameters", {})
            if (rope or {}).get("rope_type") == "dynamic" and "alpha" not in rope:
                tokens, least, logits = stretched(model, tokens, more)
            else:
                tokens, least = extend(model, tokens, more)
                logits = logits_of(model, tokens) if least > MARGIN else None
            margin = min(margin, least)
            if margin <= MARGIN:
                break
            tensors[f"tokens.{i}"] = torch.tensor(tokens, dtype=torch.int32)
            tensors[f"logits.{i}"] = logits
            meta.append([prompt, len(tokens), served])
        if margin <= MARGIN:
            continue
        tensors["meta"] = torch.tensor(meta, dtype=torch.int32)
        if case["config"].get("linear_conv_kernel_dim") and unsure(model, [
                (tensors[f"tokens.{i}"].tolist(), tensors[f"logits.{i}"]) for i in range(len(meta))]) > UNSURE:
            continue
        keep_some(tensors, meta)
        different = len(set(tensors["tokens.0"].tolist()))
        if different >= LEAST_DIFFERENT[bool(stored)]:
            break
    else:
        return False
    path = os.path.join(out, case["name"])
    os.makedirs(path, exist_ok=True)
    state = packed_state(model, stored, gone) if stored else None
    model.to(torch.bfloat16)
    if stored:
        model.config.quantization_config = quantize.FORMATS[case["quant"]][1]
    form = {"save_original_format": False} if case["joined"] else {}
    model.save_pretrained(path, state_dict=state, max_shard_size=case["shards"], **form)
    if case["words"]:
        tokenizers_of.make(case["words"]).save_pretrained(path)
    save_file(tensors, os.path.join(path, "golden.safetensors"))
    print(f"{case['name']:24} attempt {attempt} margin {margin:.1e} "
          f"different tokens {different}", flush=True)
    return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--only")
    p.add_argument("--seed", type=int, default=20261121)
    p.add_argument("--vary", action="store_true")
    p.add_argument("--packers")
    p.add_argument("--old", action="store_true")
    a = p.parse_args()
    cases = CASES + ([] if OLD else quantized_cases()) + (packer_cases(a.packers) if a.packers else [])
    if a.old:
        known = next(v for k, v in OLDER.items() if transformers.__version__.startswith(k))
        cases = [old_case(c) for c in cases if c["name"] in known]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for c in cases:
        if not a.only or c["name"] in a.only.split(","):
            for draw_no in range(DRAWS if a.vary else 1):
                rng = random.Random(f"{a.seed} {c['name']} {draw_no}")
                if write(vary(c, rng) if a.vary else c, a.out, a.seed):
                    break
            else:
                raise SystemExit(f"{c['name']}: no seed keeps the two largest logits apart")
    file = os.path.join(a.out, "versions.json")
    versions = {"transformers": []}
    if a.old and os.path.exists(file):
        with open(file, encoding="utf-8") as f:
            versions = json.load(f)
    versions.update(seed=a.seed, torch=torch.__version__,
                    transformers=sorted({*versions["transformers"], transformers.__version__}))
    with open(file, "w", encoding="utf-8") as f:
        json.dump(versions, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    sys.exit(main())
