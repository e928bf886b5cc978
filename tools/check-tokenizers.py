#!/usr/bin/env python3
"""Compares the tokenizer with the libraries that define it, on real vocabularies from PyPI packages.

usage: check-tokenizers.py ENCODE [--texts N] [--only WORD]     (make check-tokenizers)

ENCODE is tests/tools/encode. Vocabularies: tokenizer.json files that litellm carries, against
tokenizers, tokenizer.model and tekken.json that mistral_common carries against sentencepiece and tiktoken,
tiktoken's files that llama_models carries against tiktoken, with Kimi's pattern too. Texts mix scripts, code, digits, spaces, emoji, marks and bytes that are no text.
"""
import base64
import importlib.util
import itertools
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

POOLS = [[chr(c) for c in range(a, b)] for a, b in
         ((32, 127), (32, 127), (0xC0, 0x180), (0x391, 0x3CA), (0x410, 0x450), (0x5D0, 0x5EB),
          (0x627, 0x64B), (0x905, 0x93A), (0xE01, 0xE3B), (0x3041, 0x3097), (0x30A1, 0x30FB),
          (0x4E00, 0x5200), (0xAC00, 0xAE00), (0x1F600, 0x1F650), (0x300, 0x340), (0, 32),
          (0x2000, 0x2070), (0xFE00, 0xFE10), (0x1F3FB, 0x1F400), (0xE000, 0xE010))]
EMOJI = ["\U0001F469‍\U0001F469‍\U0001F467", "\U0001F3F3️‍\U0001F308",
         "\U0001F44D\U0001F3FD", "\U0001F1E9\U0001F1EA", "1️⃣", "é", "가"]
CODE = ["def f(x):\n    return x\n", "if (a && b) {\n\tc++;\n}", "#include <stdio.h>\n", "x = [1, 2.5e-3]",
        "SELECT * FROM t WHERE a='b';", "<div class=\"x\">&amp;</div>", "https://a.b/c?d=%20#e", "\r\n\r\n"]
GAPS = [" ", "  ", "\n", "\n\n", "\t", "   ", "\r\n", " \n ", "    ", "\u00A0", "\u3000", "\u200b", "▁"]


def package(name, *path):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0]).joinpath(*path)


def texts(count, seed, words):
    rng = random.Random(seed)
    yield from ("", " ", "a", "  a  ", "a" * 500, " " * 300, "\n" * 90, "ab" * 300, "1" * 77, "é" * 50)
    for _ in range(count):
        part = []
        for _ in range(rng.randint(1, 7)):
            kind = rng.randrange(9)
            if kind < 3:
                part.append(rng.choice(words))
            elif kind == 3:
                part.append("".join(rng.choices(rng.choice(POOLS), k=rng.randint(1, 9))))
            elif kind == 4:
                part.append(str(rng.randrange(10 ** rng.randint(1, 12))))
            elif kind == 5:
                part.append(rng.choice(CODE))
            elif kind == 6:
                part.append(rng.choice(EMOJI))
            elif kind == 7:
                part.append(rng.choice(["=", "-", "a", "!", "\u0301", "x "]) * rng.randint(2, 40))
            part.append(rng.choice(GAPS) if rng.random() < 0.7 else "")
        yield "".join(part)


def ours(encode, directory, all_texts, plain):
    # From a file: a pipe would fill up while the answers wait.
    with tempfile.TemporaryFile() as f:
        for t in all_texts:
            data = t.encode()
            f.write(struct.pack("<I", len(data)) + data)
        f.seek(0)
        start = time.time()
        out = subprocess.run([encode, directory] + (["--plain"] if plain else []), stdin=f,
                             stdout=subprocess.PIPE, check=True).stdout
    took, at, ids = time.time() - start, 0, []
    while at < len(out):
        n, = struct.unpack_from("<I", out, at)
        ids.append(list(struct.unpack_from(f"<{n}i", out, at + 4)))
        at += 4 + 4 * n
    return ids, took


def kinds():
    """name, files {name: path}, a function from a list of texts to ids, whether special tokens count"""
    import sentencepiece
    import tiktoken
    import tokenizers
    from tiktoken.load import load_tiktoken_bpe

    for name in ("anthropic", "deepseek"):
        path = package("litellm", "litellm_core_utils", "tokenizers", f"{name}_tokenizer.json")
        tok = tokenizers.Tokenizer.from_file(str(path))
        yield f"{name}, byte-level BPE", {"tokenizer.json": path}, \
            lambda ts, tok=tok: [e.ids for e in tok.encode_batch(ts, add_special_tokens=True)], False
    fixtures = Path("tests/fixtures/tokenizers")  # no package has a Unigram vocabulary
    tok = tokenizers.Tokenizer.from_file(str(fixtures / "unigram/tokenizer.json"))
    yield "Unigram with a table", {"tokenizer.json": fixtures.absolute() / "unigram/tokenizer.json"}, \
        lambda ts, tok=tok: [e.ids for e in tok.encode_batch(ts)], False
    path = fixtures.absolute() / "spm-unigram/tokenizer.model"
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    yield "SentencePiece Unigram", {"tokenizer.model": path}, lambda ts, sp=sp: sp.encode(ts), True
    data = package("mistral_common", "data")
    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3",
                 "mistral_instruct_tokenizer_241114.model.v7"):
        sp = sentencepiece.SentencePieceProcessor(model_file=str(data / name))
        yield f"{name}, SentencePiece BPE", {"tokenizer.model": data / name}, \
            lambda ts, sp=sp: sp.encode(ts), True
    for name in ("tekken_240718.json", "tekken_240911.json"):
        with open(data / name, encoding="utf-8") as f:
            model = json.load(f)
        special = model["config"]["default_num_special_tokens"]
        count = model["config"]["default_vocab_size"] - special
        ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in model["vocab"][:count]}
        enc = tiktoken.Encoding(name=name, pat_str=model["config"]["pattern"],
                                mergeable_ranks=ranks, special_tokens={})
        yield f"{name}, tekken", {"tekken.json": data / name}, \
            lambda ts, enc=enc, special=special: [[i + special for i in enc.encode_ordinary(t)]
                                                  for t in ts], True

    words = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    rest = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    upper, lower = (rf"[\p{{{a}}}{b}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for a, b in (("Lu", r"\p{Lt}"), ("Ll", "")))
    ahead = r"[^\r\n\p{L}\p{N}]?"
    patterns = {"": rf"{words}|{ahead}\p{{L}}+|{rest}",
                "TikTokenTokenizer": rf"[\p{{Han}}]+|{ahead}{upper}*{lower}+{words}?|{ahead}{upper}+{lower}*{words}?|{rest}"}
    for name, (class_name, pattern) in itertools.product(("llama3", "llama4"), patterns.items()):
        path = package("llama_models", name, "tokenizer.model")
        enc = tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})
        config = {"tokenizer_class": class_name} if class_name else {}
        yield f"{name}, tiktoken {class_name}", {"tiktoken.model": path, "tokenizer_config.json": config}, \
            lambda ts, enc=enc: [enc.encode_ordinary(t) for t in ts], True


def main():
    encode = sys.argv[1]
    count = int(sys.argv[sys.argv.index("--texts") + 1]) if "--texts" in sys.argv else 200000
    words = Path("tools/model/faq.txt").read_text(encoding="utf-8").split()
    failed, only = 0, sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    for name, files, theirs, plain in kinds():
        if only not in name:
            continue
        all_texts = list(texts(count, name, words))
        with tempfile.TemporaryDirectory() as d:
            for file, path in files.items():
                if isinstance(path, dict):
                    Path(d, file).write_text(json.dumps(path), encoding="utf-8")
                else:
                    Path(d, file).symlink_to(path)
            got, took = ours(encode, d, all_texts, plain)
        want = theirs(all_texts)
        bad = [i for i in range(len(all_texts)) if got[i] != want[i]]
        size = sum(len(t.encode()) for t in all_texts)
        print(f"{name:48} {len(all_texts) - len(bad)} of {len(all_texts)} equal, "
              f"{size / took / 1e6:.0f} MB/s with loading", flush=True)
        for i in bad[:3]:
            print(f"  {all_texts[i]!r}\n    ours   {got[i]}\n    theirs {want[i]}")
        failed += bool(bad)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
