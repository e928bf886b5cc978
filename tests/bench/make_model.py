#!/usr/bin/env python3
"""A model with the shapes of Qwen2.5-0.5B and random weights, the same weights in two forms:

  OUT/qwen2-0.5b/             config.json, model.safetensors (bf16), tokenizer files
  OUT/qwen2-0.5b-BF16.gguf    for engines that read GGUF

usage: make_model.py OUT

For measuring speed: a random model is as fast as a trained one, its text means nothing. Standard
library only. Weights are cut out of pools of normal numbers, one pool a deviation, at random places.
"""
import array
import json
import os
import random
import struct
import sys

NAME = "qwen2-0.5b"
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


def vocabulary():
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
    tokens += [special.get(i, f"<|reserved_{i}|>") for i in range(BOS, VOCAB)]
    return tokens, BOS


def write_directory(to, all_tensors):
    os.makedirs(to, exist_ok=True)
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, _, shape, data in all_tensors:
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(head).encode()
    head += b" " * (-len(head) % 8)
    with open(f"{to}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, _, _, data in all_tensors:
            f.write(data)
    tokens, plain = vocabulary()
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": FFN,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
              "max_position_embeddings": CONTEXT, "rope_theta": THETA, "rms_norm_eps": EPS, "hidden_act": "silu",
              "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": BOS, "eos_token_id": EOS,
              "use_sliding_window": False}
    steps = [{"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i in range(plain, VOCAB)]
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


def write_gguf(to, all_tensors):
    tokens, plain = vocabulary()
    keys = {"general.architecture": "qwen2", "general.type": "model", "general.name": NAME, "general.file_type": 32,
            "general.quantization_version": 2, "qwen2.block_count": LAYERS, "qwen2.context_length": CONTEXT,
            "qwen2.embedding_length": HIDDEN, "qwen2.feed_forward_length": FFN, "qwen2.attention.head_count": HEADS,
            "qwen2.attention.head_count_kv": KV_HEADS, "qwen2.rope.freq_base": THETA,
            "qwen2.attention.layer_norm_rms_epsilon": EPS, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * plain + [3] * (VOCAB - plain),
            "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.eos_token_id": EOS, "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE}
    head, at, contents = [], 0, []
    for _, name, shape, data in all_tensors:
        if len(shape) == 1: # vectors are f32 there
            data = widened(data)
        dims = b"".join(struct.pack("<Q", n) for n in reversed(shape))
        head.append(text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", 0 if len(shape) == 1 else 30, at))
        at += len(data) + -len(data) % 32
        contents.append(data)
    with open(to, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(head), len(keys)) + b"".join(pair(k, v) for k, v in keys.items()))
        f.write(b"".join(head))
        f.write(b"\0" * (-f.tell() % 32))
        for data in contents:
            f.write(data + b"\0" * (-len(data) % 32))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    all_tensors = list(tensors())
    write_directory(f"{sys.argv[1]}/{NAME}", all_tensors)
    write_gguf(f"{sys.argv[1]}/{NAME}-BF16.gguf", all_tensors)
    print(f"{sys.argv[1]}/{NAME}: {sum(len(t[3]) for t in all_tensors) // 2:,} parameters")


if __name__ == "__main__":
    main()
