#!/usr/bin/env python3
"""A model with the shapes of Qwen2.5-0.5B, or of the hybrid Qwen3.5-0.8B, and random weights, the same weights in two forms:

  OUT/NAME/             config.json, model.safetensors (bf16), tokenizer files; NAME: qwen2-0.5b, qwen3.5-0.8b
  OUT/NAME-BF16.gguf    for engines that read GGUF

usage: make_model.py OUT [qwen2-0.5b | qwen3.5-0.8b]

For measuring speed: a random model is as fast as a trained one, its text means nothing. Standard
library only. Weights are cut out of pools of normal numbers, one pool a deviation, at random places.
"""
import array
import json
import os
import random
import struct
import sys

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, CONTEXT = 24, 896, 14, 2, 64, 4864, 151936, 32768
THETA, EPS, BOS, EOS = 1e6, 1e-6, 151643, 151645
POOL = 1 << 20
MERGES = ["Ġ t", "h e", "Ġ a", "i n", "Ġt he", "e r", "o n", "Ġ s", "r e", "a t"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class Pools:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pools = {}

    def pool(self, mean, std):
        if (mean, std) not in self.pools:
            floats = array.array("f", (self.rng.gauss(mean, std) for _ in range(POOL)))
            words = array.array("I")
            words.frombytes(floats.tobytes())
            self.pools[mean, std] = array.array("H", ((w + 0x7fff + (w >> 16 & 1)) >> 16 for w in words)).tobytes()
        return self.pools[mean, std]

    def draw(self, count, mean, std):
        pool, pieces = self.pool(mean, std), []
        while count > 0:
            at = self.rng.randrange(POOL - 4096)
            n = min(count, POOL - at)
            pieces.append(pool[2 * at:2 * (at + n)])
            count -= n
        return b"".join(pieces)


def tensors():
    """(name, name in GGUF, shape, bf16 bytes) of each tensor, always the same."""
    p = Pools(1234)

    def t(name, gguf, *shape, mean=0.0, std=0.1):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        return name, gguf, shape, p.draw(count, mean, std)
    q, kv, small = HEADS * DIM, KV_HEADS * DIM, (2 * LAYERS) ** -0.5
    yield t("model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, std=0.03)
    for i in range(LAYERS):
        a, b = f"model.layers.{i}.", f"blk.{i}."
        yield t(a + "input_layernorm.weight", b + "attn_norm.weight", HIDDEN, mean=1.0)
        for n, g, rows in (("q", "q", q), ("k", "k", kv), ("v", "v", kv)):
            yield t(a + f"self_attn.{n}_proj.weight", b + f"attn_{g}.weight", rows, HIDDEN, std=HIDDEN ** -0.5)
            yield t(a + f"self_attn.{n}_proj.bias", b + f"attn_{g}.bias", rows)
        yield t(a + "self_attn.o_proj.weight", b + "attn_output.weight", HIDDEN, q, std=q ** -0.5 * small)
        yield t(a + "post_attention_layernorm.weight", b + "ffn_norm.weight", HIDDEN, mean=1.0)
        yield t(a + "mlp.gate_proj.weight", b + "ffn_gate.weight", FFN, HIDDEN, std=HIDDEN ** -0.5)
        yield t(a + "mlp.up_proj.weight", b + "ffn_up.weight", FFN, HIDDEN, std=HIDDEN ** -0.5)
        yield t(a + "mlp.down_proj.weight", b + "ffn_down.weight", HIDDEN, FFN, std=FFN ** -0.5 * small)
    yield t("model.norm.weight", "output_norm.weight", HIDDEN, mean=1.0)


class Hybrid:
    """Qwen3.5-0.8B: every fourth layer attends, the others have a gated delta rule."""
    LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, CONTEXT = 24, 1024, 8, 2, 256, 3584, 248320, 32768
    EVERY, HEADS_LINEAR, DIM_LINEAR, KERNEL, THETA, ROTARY = 4, 16, 128, 4, 1e7, 0.25


def hybrid_tensors():
    """As tensors(). What GGUF holds otherwise is so chosen that both are one: decays there are -exp(A_log), norms of the
    stream 1 + weight."""
    p, h = Pools(1234), Hybrid
    q, kv, inner, small = h.HEADS * h.DIM, h.KV_HEADS * h.DIM, h.HEADS_LINEAR * h.DIM_LINEAR, (2 * h.LAYERS) ** -0.5

    def t(name, gguf, *shape, std=None):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        return name, gguf, shape, p.draw(count, 0.0, std or shape[-1] ** -0.5)

    def same(name, gguf, shape, number, there):
        def pack(v):
            return struct.pack("<f", v)[2:] * shape[0]
        return name, gguf, shape, pack(number), pack(there)
    yield t("model.embed_tokens.weight", "token_embd.weight", h.VOCAB, h.HIDDEN)
    for i in range(h.LAYERS):
        a, b = f"model.layers.{i}.", f"blk.{i}."
        yield same(a + "input_layernorm.weight", b + "attn_norm.weight", (h.HIDDEN,), 0.0, 1.0)
        if (i + 1) % h.EVERY == 0:
            for n, rows in (("q", 2 * q), ("k", kv), ("v", kv)):
                yield t(a + f"self_attn.{n}_proj.weight", b + f"attn_{n}.weight", rows, h.HIDDEN)
            for n in "qk":
                yield same(a + f"self_attn.{n}_norm.weight", b + f"attn_{n}_norm.weight", (h.DIM,), 0.0, 1.0)
            yield t(a + "self_attn.o_proj.weight", b + "attn_output.weight", h.HIDDEN, q, std=q ** -0.5 * small)
        else:
            a += "linear_attn."
            yield t(a + "in_proj_qkv.weight", b + "attn_qkv.weight", 3 * inner, h.HIDDEN)
            yield t(a + "in_proj_z.weight", b + "attn_gate.weight", inner, h.HIDDEN)
            yield t(a + "in_proj_b.weight", b + "ssm_beta.weight", h.HEADS_LINEAR, h.HIDDEN)
            yield t(a + "in_proj_a.weight", b + "ssm_alpha.weight", h.HEADS_LINEAR, h.HIDDEN)
            yield t(a + "conv1d.weight", b + "ssm_conv1d.weight", 3 * inner, h.KERNEL)
            yield same(a + "dt_bias", b + "ssm_dt.bias", (h.HEADS_LINEAR,), 0.0, 0.0)
            yield same(a + "A_log", b + "ssm_a", (h.HEADS_LINEAR,), 0.0, -1.0)
            yield same(a + "norm.weight", b + "ssm_norm.weight", (h.DIM_LINEAR,), 1.0, 1.0)
            yield t(a + "out_proj.weight", b + "ssm_out.weight", h.HIDDEN, inner, std=inner ** -0.5 * small)
            a = f"model.layers.{i}."
        yield same(a + "post_attention_layernorm.weight", b + "post_attention_norm.weight", (h.HIDDEN,), 0.0, 1.0)
        yield t(a + "mlp.gate_proj.weight", b + "ffn_gate.weight", h.FFN, h.HIDDEN)
        yield t(a + "mlp.up_proj.weight", b + "ffn_up.weight", h.FFN, h.HIDDEN)
        yield t(a + "mlp.down_proj.weight", b + "ffn_down.weight", h.HIDDEN, h.FFN, std=h.FFN ** -0.5 * small)
    yield same("model.norm.weight", "output_norm.weight", (h.HIDDEN,), 0.0, 1.0)


def hybrid_config():
    h = Hybrid
    return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": h.HIDDEN, "intermediate_size": h.FFN,
            "num_hidden_layers": h.LAYERS, "num_attention_heads": h.HEADS, "num_key_value_heads": h.KV_HEADS, "head_dim": h.DIM,
            "vocab_size": h.VOCAB, "max_position_embeddings": h.CONTEXT, "rms_norm_eps": EPS, "hidden_act": "silu",
            "linear_num_key_heads": h.HEADS_LINEAR, "linear_num_value_heads": h.HEADS_LINEAR, "linear_key_head_dim": h.DIM_LINEAR,
            "linear_value_head_dim": h.DIM_LINEAR, "linear_conv_kernel_dim": h.KERNEL, "full_attention_interval": h.EVERY,
            "layer_types": ["full_attention" if (i + 1) % h.EVERY == 0 else "linear_attention" for i in range(h.LAYERS)],
            "rope_parameters": {"rope_type": "default", "rope_theta": h.THETA, "partial_rotary_factor": h.ROTARY},
            "tie_word_embeddings": True, "dtype": "bfloat16", "bos_token_id": BOS, "eos_token_id": EOS}


def hybrid_keys():
    h = Hybrid
    return {"qwen35.block_count": h.LAYERS, "qwen35.context_length": h.CONTEXT, "qwen35.embedding_length": h.HIDDEN,
            "qwen35.feed_forward_length": h.FFN, "qwen35.attention.head_count": h.HEADS,
            "qwen35.attention.head_count_kv": h.KV_HEADS, "qwen35.attention.key_length": h.DIM, "qwen35.attention.value_length": h.DIM,
            "qwen35.rope.freq_base": h.THETA, "qwen35.rope.dimension_count": int(h.DIM * h.ROTARY),
            "qwen35.rope.dimension_sections": [11, 11, 10, 0], "qwen35.attention.layer_norm_rms_epsilon": EPS,
            "qwen35.ssm.conv_kernel": h.KERNEL, "qwen35.ssm.state_size": h.DIM_LINEAR, "qwen35.ssm.group_count": h.HEADS_LINEAR,
            "qwen35.ssm.time_step_rank": h.HEADS_LINEAR, "qwen35.ssm.inner_size": h.HEADS_LINEAR * h.DIM_LINEAR,
            "qwen35.full_attention_interval": h.EVERY}


def vocabulary(size):
    """Tokens and how many of them are ordinary: 256 bytes, a few merges, plain words, special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, other = {b: chr(b) for b in printable}, 256
    for b in range(256):
        if b not in chars:
            chars[b] = chr(other)
            other += 1
    tokens = [chars[b] for b in range(256)] + [m.replace(" ", "") for m in MERGES]
    tokens += [f"Ġw{i:06d}" for i in range(len(tokens), BOS)]
    special = {BOS: "<|endoftext|>", BOS + 1: "<|im_start|>", EOS: "<|im_end|>"}
    tokens += [special.get(i, f"<|reserved_{i}|>") for i in range(BOS, size)]
    return tokens, BOS


def qwen2_config():
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": FFN,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
            "max_position_embeddings": CONTEXT, "rope_theta": THETA, "rms_norm_eps": EPS, "hidden_act": "silu",
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": BOS, "eos_token_id": EOS,
            "use_sliding_window": False}


def write_directory(to, all_tensors, config):
    os.makedirs(to, exist_ok=True)
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, _, shape, data, *_ in all_tensors:
        if name.endswith("conv1d.weight"):
            shape = (shape[0], 1, shape[1])
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(head).encode()
    head += b" " * (-len(head) % 8)
    with open(f"{to}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for each in all_tensors:
            f.write(each[3])
    tokens, plain = vocabulary(config["vocab_size"])
    steps = [{"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i in range(plain, len(tokens))]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": None,
                 "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                           "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                           "vocab": {tokens[i]: i for i in range(plain)}, "merges": MERGES}}
    files = {"config": config, "tokenizer": tokenizer, "generation_config": {"bos_token_id": BOS, "eos_token_id": [EOS]},
             "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[BOS],
                                  "eos_token": tokens[EOS], "chat_template": TEMPLATE, "model_max_length": CONTEXT}}
    for name, content in files.items():
        with open(f"{to}/{name}.json", "w", encoding="utf-8") as f:
            json.dump(content, f, ensure_ascii=False)


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def pair(key, value):
    """A GGUF key with its value: bool, int (u32), float (f32), str, or a list of int or str."""
    out = text(key)
    if isinstance(value, bool):
        return out + struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return out + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return out + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return out + struct.pack("<I", 8) + text(value)
    if isinstance(value[0], str):
        return out + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return out + struct.pack("<IIQ", 9, 5, len(value)) + array.array("i", value).tobytes()


def widened(data):
    halves = array.array("H")
    halves.frombytes(data)
    return array.array("I", (h << 16 for h in halves)).tobytes()


def qwen2_keys():
    return {"qwen2.block_count": LAYERS, "qwen2.context_length": CONTEXT,
            "qwen2.embedding_length": HIDDEN, "qwen2.feed_forward_length": FFN, "qwen2.attention.head_count": HEADS,
            "qwen2.attention.head_count_kv": KV_HEADS, "qwen2.rope.freq_base": THETA,
            "qwen2.attention.layer_norm_rms_epsilon": EPS}


def write_gguf(to, all_tensors, name, own, size):
    tokens, plain = vocabulary(size)
    keys = {"general.architecture": next(iter(own)).split(".")[0], "general.type": "model", "general.name": name,
            "general.file_type": 32, "general.quantization_version": 2, **own,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * plain + [3] * (size - plain),
            "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.eos_token_id": EOS, "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE}
    head, at, contents = [], 0, []
    for _, name, shape, *forms in all_tensors:
        data, plain = forms[-1], len(shape) == 1 or "conv1d" in name  # which are f32 there
        if plain:
            data = widened(data)
        dims = b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head.append(text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", 0 if plain else 30, at))
        at += len(data) + -len(data) % 32
        contents.append(data)
    with open(to, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(head), len(keys)) + b"".join(pair(k, v) for k, v in keys.items()))
        f.write(b"".join(head))
        f.write(b"\0" * (-f.tell() % 32))
        for data in contents:
            f.write(data + b"\0" * (-len(data) % 32))


MODELS = {"qwen2-0.5b": (tensors, qwen2_config, qwen2_keys), "qwen3.5-0.8b": (hybrid_tensors, hybrid_config, hybrid_keys)}


def main():
    name = sys.argv[2] if len(sys.argv) == 3 else "qwen2-0.5b"
    if len(sys.argv) not in (2, 3) or name not in MODELS:
        sys.exit(__doc__)
    draw, config, keys = MODELS[name]
    all_tensors = list(draw())
    write_directory(f"{sys.argv[1]}/{name}", all_tensors, config())
    write_gguf(f"{sys.argv[1]}/{name}-BF16.gguf", all_tensors, name, keys(), config()["vocab_size"])
    print(f"{sys.argv[1]}/{name}: {sum(len(t[3]) for t in all_tensors) // 2:,} parameters")


if __name__ == "__main__":
    main()
