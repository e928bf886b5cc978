#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers: a small tokenizer.model, tekken.json, tiktoken.model and vocab.json with merges.txt,
trained on faq.txt, and what sentencepiece, tiktoken and tokenizers make of some texts.

usage: make_tokenizer_files.py OUT_DIR      (pip install sentencepiece tiktoken tokenizers)
"""
import base64
import io
import json
import sys
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import ByteLevelBPETokenizer, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from make_tokenizer_cases import FAQ, texts

PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = 8
UPPER, LOWER = (rf"[{c}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for c in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
AHEAD, ENDS = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = (rf"[\p{{Han}}]+|{AHEAD}{UPPER}*{LOWER}+{ENDS}|{AHEAD}{UPPER}+{LOWER}*{ENDS}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = ["\u6771\u4eac\u3002\u5927\u962a", "a\u4e2d\u6587B\u5b57\u3001'S", "\u3005\u3007\u9f8dx\u30fc\u3042"]


def spm(model_type="bpe", normalization_rule_name="identity", **options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(FAQ.read_text().splitlines()), model_writer=out, model_type=model_type,
        normalization_rule_name=normalization_rule_name, minloglevel=2, **options)
    return out.getvalue()


def alike(text):
    """SentencePiece replaces the longest entry wherever it is; Hugging Face's tokenizers, whose rule
    is ours, go by graphemes."""
    return all(ord(c) < 0x250 or 0x3040 < ord(c) < 0x3097 for c in text)


def unigram(out, data):
    """The same model as transformers converts it, and what tokenizers makes of it."""
    from sentencepiece import sentencepiece_model_pb2 as pb
    proto = pb.ModelProto.FromString(data)
    tok = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0))
    tok.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
        normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")])
    tok.pre_tokenizer = pre.Metaspace(prepend_scheme="always")
    tok.decoder = decoders.Metaspace(prepend_scheme="always")
    (out / "unigram").mkdir(exist_ok=True)
    tok.save(str(out / "unigram" / "tokenizer.json"), pretty=False)
    return [[t, tok.encode(t).ids] for t in texts(80, "unigram")]


def tekken():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre.Sequence([pre.Split(Regex(PATTERN), "isolated"),
                                      pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre.ByteLevel.alphabet(),
                                  show_progress=False)
    tok.train_from_iterator(FAQ.read_text().splitlines(), trainer)
    # Single bytes first, by value, then merges in order: as in the files of Mistral.
    to_byte = {v: k for k, v in bytes_alphabet().items()}
    words = [bytes(to_byte[c] for c in t)
             for t, _ in sorted(tok.get_vocab().items(), key=lambda p: p[1])]
    ranked = [bytes([b]) for b in range(256)] + [w for w in words if len(w) > 1]
    return {"config": {"pattern": PATTERN, "num_vocab_tokens": len(ranked), "version": "v3",
                       "default_vocab_size": len(ranked) - 40 + SPECIALS,
                       "default_num_special_tokens": SPECIALS},
            "vocab": [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": None}
                      for i, b in enumerate(ranked)]}


def bytes_alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = {b: chr(b) for b in plain}, 0
    for b in range(256):
        if b not in out:
            out[b] = chr(256 + extra)
            extra += 1
    return out


def kimi(out, ranks):
    """The same tokens as Kimi's directories have them."""
    (out / "tiktoken").mkdir(exist_ok=True)
    (out / "tiktoken" / "tiktoken.model").write_bytes(
        b"".join(base64.b64encode(b) + b" %d\n" % i for b, i in ranks.items()))
    special = {str(len(ranks) + i): {"content": c, "special": True}
               for i, c in ((0, "[BOS]"), (1, "[EOS]"), (3, "<|im_end|>"))}
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
              "added_tokens_decoder": special}
    (out / "tiktoken" / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    enc = tiktoken.Encoding(name="x", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={})
    return [[t, enc.encode_ordinary(t)] for t in [*HAN, *texts(80, "tiktoken")]]


def merges(out):
    """GPT-2's two files, as tokenizers trains and writes them, with what OPT's directories say beside."""
    (out / "merges").mkdir(exist_ok=True)
    tok = ByteLevelBPETokenizer()
    tok.train_from_iterator(FAQ.read_text().splitlines(), vocab_size=500, show_progress=False,
                            special_tokens=["<s>", "<pad>", "</s>", "<unk>"])
    tok.save_model(str(out / "merges"))
    config = {"errors": "replace", "unk_token": {"content": "</s>"}, "bos_token": {"content": "</s>"},
              "eos_token": {"content": "</s>"}, "pad_token": "<pad>", "add_prefix_space": False, "add_bos_token": True,
              "tokenizer_class": "GPT2Tokenizer"}
    (out / "merges" / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    again = ByteLevelBPETokenizer(str(out / "merges" / "vocab.json"), str(out / "merges" / "merges.txt"))
    return [[t, again.encode(t).ids] for t in texts(80, "merges")]


def main():
    out = Path(sys.argv[1])
    cases = {}
    for name, data in (("spm", spm(vocab_size=420, byte_fallback=True, add_dummy_prefix=True,
                                   remove_extra_whitespaces=False,
                                   user_defined_symbols=["[TOOL]"])),
                       ("spm-unigram", spm("unigram", vocab_size=420, byte_fallback=True,
                                           remove_extra_whitespaces=False)),
                       ("spm-nfkc", spm("unigram", "nmt_nfkc", vocab_size=160)),
                       ("spm-plain", spm(vocab_size=120, character_coverage=0.99,
                                         remove_extra_whitespaces=True))):
        (out / name).mkdir(parents=True, exist_ok=True)
        (out / name / "tokenizer.model").write_bytes(data)
        sp = sentencepiece.SentencePieceProcessor(model_proto=data)
        cases[name] = [[t, sp.encode(t)] for t in texts(80, name)
                       if name != "spm-nfkc" or alike(t)]
        if name == "spm-nfkc":
            cases["unigram"] = unigram(out, data)
    (out / "tekken").mkdir(exist_ok=True)
    model = tekken()
    (out / "tekken" / "tekken.json").write_text(json.dumps(model, indent=0) + "\n")
    count = model["config"]["default_vocab_size"] - SPECIALS
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in model["vocab"][:count]}
    enc = tiktoken.Encoding(name="x", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    cases["tekken"] = [[t, [i + SPECIALS for i in enc.encode_ordinary(t)]]
                       for t in texts(80, "tekken")]
    cases["tiktoken"] = kimi(out, ranks)
    cases["merges"] = merges(out)
    (out / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
