"""A model that writes harmony, made by hand: each token names the next one.

An embedding is one place of the state, the head of the model reads from there what follows. Two
words of the context tip the scales where a message may be of several kinds: attention without
queries is the mean of the context, and shows that "Hm" was thought, or that the user wrote
" the weather?". So it thinks once, then it answers, or calls a function when asked for the weather.
"""
import json
import shutil
import struct

from conftest import MODEL, ROOT

MARKS = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"]
WORDS = ["assistant", "analysis", "final", "commentary to=functions.get_weather ", "json", "Hm", ", well.",
         "It is", " four: <", "4>", '{"city"', ': "Graz"', "}", " the weather?"]
TEMPLATE = ROOT / "tests/fixtures/harmony/chat_template.jinja"
TOKENIZER = json.loads((MODEL / "tokenizer.json").read_text())
KNOWN = TOKENIZER["model"]["vocab"]  # words that it has already keep their numbers
ID = {text: KNOWN.get(text, 4100 + i) for i, text in enumerate(MARKS + WORDS)}
PLACE = {text: i for i, text in enumerate(ID)}
VOCAB, WIDTH, THOUGHT, ASKED = 4128, 128, 100, 101

NEXT = {"<|start|>": "assistant", "assistant": "<|channel|>", "analysis": "<|message|>", "final": "<|message|>",
        "commentary to=functions.get_weather ": "<|constrain|>", "<|constrain|>": "json", "json": "<|message|>",
        "Hm": ", well.", ", well.": "<|end|>", "<|end|>": "<|start|>", "It is": " four: <", " four: <": "4>",
        "4>": "<|return|>", '{"city"': ': "Graz"', ': "Graz"': "}", "}": "<|call|>"}
# behind these three ways: to think, to answer, to call
KINDS = {"<|channel|>": ("analysis", "final", "commentary to=functions.get_weather "),
         "<|message|>": ("Hm", "It is", '{"city"')}


def tensor(rows, columns, values):
    """As bf16: all zero but {(row, column): value}."""
    data = bytearray(rows * columns * 2)
    for (row, column), value in values.items():
        at = (row * columns + column) * 2
        data[at:at + 2] = struct.pack("<f", value)[2:]
    return {"dtype": "BF16", "shape": [rows, columns]}, bytes(data)


def ones(count):
    return {"dtype": "BF16", "shape": [count]}, struct.pack("<f", 1.0)[2:] * count


def tensors():
    head = {(ID[then], PLACE[word]): 4096.0 for word, then in NEXT.items()}
    for mark, (think, answer, call) in KINDS.items():
        for then, value in ((think, 4128.0), (answer, 4096.0), (call, 4064.0)):
            head[ID[then], PLACE[mark]] = value
        head[ID[answer], THOUGHT] = head[ID[call], THOUGHT] = 4096.0
        head[ID[answer], ASKED] = -4096.0
    layer = "model.layers.0."
    attention = layer + "self_attn."
    none = tensor(WIDTH, WIDTH, {})
    return {
        "model.embed_tokens.weight": tensor(VOCAB, WIDTH, {(ID[w], PLACE[w]): 1.0 for w in ID}),
        attention + "q_proj.weight": none,
        attention + "k_proj.weight": none,
        attention + "v_proj.weight": tensor(WIDTH, WIDTH, {(0, PLACE["Hm"]): 1.0, (1, PLACE[" the weather?"]): 1.0}),
        attention + "o_proj.weight": tensor(WIDTH, WIDTH, {(THOUGHT, 0): 1.0, (ASKED, 1): 1.0}),
        layer + "mlp.gate_proj.weight": none,
        layer + "mlp.up_proj.weight": none,
        layer + "mlp.down_proj.weight": none,
        layer + "input_layernorm.weight": ones(WIDTH),
        layer + "post_attention_layernorm.weight": ones(WIDTH),
        "model.norm.weight": ones(WIDTH),
        "lm_head.weight": tensor(VOCAB, WIDTH, head),
    }


def write_weights(path):
    head, body = {}, b""
    for name, (info, data) in tensors().items():
        head[name] = {**info, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def make_model(directory):
    """The directory as a model's."""
    directory.mkdir()
    config = json.loads((MODEL / "config.json").read_text())
    config.update(hidden_size=WIDTH, intermediate_size=WIDTH, num_attention_heads=2, num_key_value_heads=2,
                  num_hidden_layers=1, tie_word_embeddings=False)
    (directory / "config.json").write_text(json.dumps(config))
    added = TOKENIZER["added_tokens"] + [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": text in MARKS} for text, i in ID.items() if text not in KNOWN]
    (directory / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "added_tokens": added}))
    named = json.loads((MODEL / "tokenizer_config.json").read_text())
    named["eos_token"] = "<|return|>"
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    shutil.copy(TEMPLATE, directory / "chat_template.jinja")
    write_weights(directory / "model.safetensors")
    return directory
