#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizer_cases.json: small tokenizers of the kinds that models use, texts,
and what Hugging Face's tokenizers library makes of them.

usage: make_tokenizer_cases.py OUT        (pip install tokenizers; made with 0.23)

A group is a tokenizer.json (or the name of a model directory under models/) and a list of
[text, ids, decoded]: ids as by encode() with what the post-processor adds, decoded with special
tokens kept, null where the bytes are not text. `strips` marks decoders that drop the first space of
a whole text, which generated text, being a continuation, keeps."""
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

ROOT = Path(__file__).resolve().parents[2]
FAQ = ROOT / "tools/model/faq.txt"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

FIXED = [
    "", " ", "  ", "\n", "a", "Hello, world!", " Hello  world ", "The KV cache keeps keys.",
    "It's we're they'LL I'd 'S '\u017f 'x", "x = y[0] + 3.14159  # note\n\treturn x\n",
    "12345678 1 22 333 4444 \u00bd\u00b2\u2167\u0663\u0664", "tabs\t\tand\r\nlines\n\n\nend  ",
    "na\u00efve caf\u00e9 cafe\u0301 \u212b \u1e9b\u0323 \ufb01", "\u00c5\u030a\u0323 a\u0323\u030a q\u0307\u0323",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \uac00\u11a8", "\u65e5\u672c\u8a9e\u3068\u304b\u3099 \u30c8\u309a",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0439 \u0438\u0306", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0644\u0651\u064e",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea 1\ufe0f\u20e3",
    "\x01\x02\x1f\x7f\x80\x85\x9f \ufeff\u200b\u00ad\u180e\u2028\u2029\u3000.", "a" * 120, " " * 70 + "x",
    "=" * 40 + "\n" + "-" * 33, "ab" * 60, "thethethethe" * 12, "\u0301" * 40, "\u0300\u0323" * 30,
    "\U0001d400\U0001d7d8 \u24b6\u2460 \uff21\uff11 \u3231 \u33a5", "\u0130I\u0131i \u1e9e\u00df \u03a3\u03c3\u03c2 \u01c5",
    "<s>", "<s> <s>x</s>", "a<mask>b", "a <mask> b", "a  <mask>  b", "<word>", "x<word> <word>y <word>",
    "<s", "<<s>>", "the <s>cache</s>\n", "Caf\u00e9", "x caf\u00e9 y", "cafe\u0301!", "{\"a\": [1, 2.5e-3, null]}",
    "https://example.com/a?b=c&d=%20", "snake_case camelCase HTTPServer", "\u2581a \u2581 b", "...!?;:,''\"\"",
    "\ue000\uf8ff\U0010fffd", "\u1e00\u0f77\u0958 \u2126", "a\u0eba\u0301 \u1dfc\u0316", "50% of $3.00 \u2264 \u20ac9",
]


def texts(count, seed):
    rng = random.Random(seed)
    words = FAQ.read_text().split()
    pools = [[chr(c) for c in range(a, b)] for a, b in
             ((32, 127), (0xC0, 0x180), (0x391, 0x3CA), (0x410, 0x450), (0x905, 0x93A),
              (0x3041, 0x3097), (0x4E00, 0x4F00), (0x1F600, 0x1F640), (0x300, 0x340))]
    out = list(FIXED)
    while len(out) < count:
        part = []
        for _ in range(rng.randint(1, 6)):
            kind = rng.randrange(5)
            if kind == 0:
                part.append("".join(rng.choices(rng.choice(pools), k=rng.randint(1, 8))))
            elif kind == 1:
                part.append(rng.choice([" ", "  ", "\n", "\t", "\r\n", " \n "]))
            elif kind == 2:
                part.append(str(rng.randrange(10 ** rng.randint(1, 8))))
            else:
                part.append(rng.choice(words) + rng.choice(["", " ", ", "]))
        out.append("".join(part))
    return out[:count]


def trained(tok, size, alphabet=(), specials=("<s>", "</s>")):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials),
                                  initial_alphabet=list(alphabet), show_progress=False)
    tok.train_from_iterator(FAQ.read_text().splitlines(), trainer)
    return tok


def around(tok, single):
    ids = [(t, tok.token_to_id(t)) for t in ("<s>", "</s>")]
    tok.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return tok


def byte_level(pattern, size=420):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre.Sequence([pre.Split(Regex(pattern), "isolated"),
                                      pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    return trained(tok, size, pre.ByteLevel.alphabet())


def llama2():
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                           normalizers.Replace(" ", "\u2581")])
    trained(tok, 700, specials=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])
    kept = json.loads(tok.to_str())
    kept["added_tokens"] = [t for t in kept["added_tokens"] if not t["content"].startswith("<0x")]
    tok = Tokenizer.from_str(json.dumps(kept))
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                     decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_tokens([AddedToken("Caf\u00e9", normalized=True)])
    return around(tok, "<s> $A")


def metaspace(scheme, split):
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(),
                                           normalizers.Lowercase()])
    tok.pre_tokenizer = pre.Metaspace(prepend_scheme=scheme, split=split)
    tok.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    return trained(tok, 300, specials=["<unk>", "<s>", "</s>"])


def gpt2():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
    tok.decoder = decoders.ByteLevel()
    trained(tok, 420, pre.ByteLevel.alphabet())
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    tok.add_tokens([AddedToken("<word>", single_word=True, normalized=False),
                    AddedToken("caf\u00e9", normalized=True)])
    return around(tok, "<s> $A </s>")


def falcon():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre.Sequence([pre.Punctuation("contiguous"),
                                      pre.ByteLevel(add_prefix_space=False),
                                      pre.Digits(individual_digits=False),
                                      pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    tok.decoder = decoders.ByteLevel()
    return trained(tok, 420, pre.ByteLevel.alphabet())


def ignoring_merges():
    tok = byte_level(LLAMA3)
    kept = json.loads(tok.to_str())
    kept["model"]["ignore_merges"] = True
    kept["model"]["vocab"].update({"worldly": 420, "\u0120Hello": 421})
    return around(Tokenizer.from_str(json.dumps(kept)), "<s> $A")


def splitting(pattern, behavior, invert=False):
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = pre.Split(pattern, behavior, invert)
    tok.decoder = decoders.Fuse()
    return trained(tok, 140, specials=["<unk>", "<s>", "</s>"])


def simple(*steps):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Strip()])
    tok.pre_tokenizer = pre.Sequence(list(steps))
    tok.decoder = decoders.Fuse()
    return trained(tok, 160)


def group(name, tok, count, model=None, strips=False):
    cases = []
    for text in texts(count, name):
        ids = tok.encode(text).ids
        decoded = tok.decode(ids, skip_special_tokens=False)
        cases.append([text, ids, None if "\ufffd" in decoded else decoded])
    about = {"name": name, "strips": strips}
    about.update({"model": model} if model else {"tokenizer": json.loads(tok.to_str())})
    return about | {"cases": cases}


def main():
    tiny = Tokenizer.from_file(str(ROOT / "models/evenkeel-tiny/tokenizer.json"))
    groups = [
        group("tiny", tiny, 150, model="evenkeel-tiny"),
        group("llama3", ignoring_merges(), 80), group("gpt4o", byte_level(GPT4O), 70),
        group("gpt2", gpt2(), 80), group("falcon", falcon(), 70),
        group("llama2", llama2(), 80, strips=True),
        group("metaspace-first", metaspace("first", True), 60, strips=True),
        group("metaspace-always", metaspace("always", True), 60, strips=True),
        group("metaspace-never", metaspace("never", True), 60),
        group("words", simple(pre.Whitespace()), 55),
        group("spaces", simple(pre.WhitespaceSplit(), pre.Digits(individual_digits=True)), 55),
    ]
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next",
                     "contiguous"):
        groups.append(group(f"split-{behavior}", splitting(Regex("[aeiou ]"), behavior), 55))
    groups.append(group("split-invert", splitting(Regex(r"\w+"), "removed", True), 55))
    groups.append(group("split-string", splitting("he", "merged_with_next"), 55))
    groups.append(group("split-empty", splitting(Regex(r"x*|(?=t)"), "isolated"), 55))
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(groups, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")
    print(len(groups), "groups,", sum(len(g["cases"]) for g in groups), "cases")


if __name__ == "__main__":
    main()
