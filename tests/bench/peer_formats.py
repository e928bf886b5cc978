"""What llama.cpp's Q8_0 and Q4_0 cost the embedded model: its computation with numpy, in float32, with weights and inputs of every product rounded to
what those formats can hold. Blocks of 32 along a row with a scale in 16 bits: Q8_0 has 8-bit numbers and scale = largest magnitude / 127, Q4_0
numbers from -8 to 7 and scale = the value of largest magnitude / -8; inputs are rounded as Q8_0 with both. With Q4_0 embedding and output layer
stay as they are, where llama.cpp gives them 6 bits: in its favour.

Models of type llama with one file of bfloat16 weights, without scaled rope."""
import json

import numpy as np

BLOCK, TOP = 32, 20


def half(x):
    return x.astype(np.float16).astype(np.float32)


def inverse(x):
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def q8_0(x):
    blocks = x.reshape(-1, BLOCK)
    scale = np.abs(blocks).max(1, keepdims=True) / 127
    return (np.round(blocks * inverse(scale)) * half(scale)).reshape(x.shape)


def q4_0(x):
    blocks = x.reshape(-1, BLOCK)
    scale = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1) / -8
    return ((np.minimum(15, np.floor(blocks * inverse(scale) + 8.5)) - 8) * half(scale)).reshape(x.shape)


FORMATS = {"q8_0": q8_0, "q4_0": q4_0}


def weights(model):
    data = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    assert all(t["dtype"] == "BF16" for t in header.values()), "only bfloat16 weights"
    return {name: (np.frombuffer(data, np.uint16, (t["data_offsets"][1] - t["data_offsets"][0]) // 2, begin + t["data_offsets"][0])
                   .astype(np.uint32) << 16).view(np.float32).reshape(t["shape"]) for name, t in header.items()}


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Llama:
    """form: None, or one of FORMATS."""

    def __init__(self, model, form=None):
        self.config, self.inputs = json.loads((model / "config.json").read_text()), q8_0 if form else lambda x: x
        assert self.config["model_type"] == "llama" and self.config["tie_word_embeddings"]
        kept = ("embed_tokens.weight",) if form == "q4_0" else ()
        self.w = {name: FORMATS[form](w) if form and w.ndim == 2 and not name.endswith(kept) else w for name, w in weights(model).items()}

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.w[name + ".weight"]

    def product(self, x, name):
        return self.inputs(x) @ self.w[name + ".weight"].T

    def rotate(self, x):
        """x[token, head, dim], halves turned against each other by position."""
        half_dim = x.shape[2] // 2
        theta = self.config["rope_parameters"]["rope_theta"] ** (-np.arange(half_dim) / half_dim)
        angle = (np.arange(len(x))[:, None] * theta)[:, None, :]
        a, b, cos, sin = x[..., :half_dim], x[..., half_dim:], np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(np.float32)

    def attention(self, x, layer):
        heads, kv_heads, dim = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q = self.rotate(self.product(x, layer + "q_proj").reshape(-1, heads, dim))
        k = self.rotate(self.product(x, layer + "k_proj").reshape(-1, kv_heads, dim)).repeat(heads // kv_heads, 1)
        v = self.product(x, layer + "v_proj").reshape(-1, kv_heads, dim).repeat(heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((len(x), len(x)), -np.inf, np.float32), 1)
        return self.product(np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(len(x), -1), layer + "o_proj")

    def logits(self, tokens):
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, layer + "input_layernorm"), layer + "self_attn.")
            y = self.norm(x, layer + "post_attention_layernorm")
            gate = self.product(y, layer + "mlp.gate_proj")
            x = x + self.product(gate / (1 + np.exp(-gate)) * self.product(y, layer + "mlp.up_proj"), layer + "mlp.down_proj")
        return self.product(self.norm(x, "model.norm"), "model.embed_tokens")

    def scores(self, prompts):
        """As quality.scores: for each token but the first (its log probability, {id: log probability} of the most likely)."""
        out = []
        for tokens in prompts:
            found = np.log(softmax(self.logits(tokens[:-1]).astype(np.float64)))
            best = np.argpartition(-found, TOP, 1)[:, :TOP]
            out += [(float(row[token]), dict(zip(ids.tolist(), row[ids].tolist()))) for token, row, ids in zip(tokens[1:], found, best)]
        return out
