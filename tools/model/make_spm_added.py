#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers/spm-added, spm-added-first (with legacy: false) and spm-added-old: what a new and an
old transformers save of Llama's slow tokenizer with tokens that were added to its tokenizer.model, as fine-tunes for chats
have them, and what a new one makes of some texts with it: the slow one, where legacy is false the fast one, which makes
one of a space at the beginning and the one that is put there.

usage: make_spm_added.py save OUT_DIR       (pip install sentencepiece protobuf transformers==4.57.6, or ==4.30.2)
       make_spm_added.py cases OUT_DIR      (pip install sentencepiece protobuf transformers==4.57.6)
"""
import json
import random
import sys
from pathlib import Path

import transformers
from transformers import AddedToken, LlamaTokenizer, LlamaTokenizerFast

HERE = Path(__file__).resolve().parents[2] / "tests/fixtures/tokenizers/spm"
PLAIN, SPECIAL = ["<tool>", "Evenkeel", "<tool>s", " two words"], ["<|im_start|>", "<|im_end|>"]
WIDE = AddedToken("<mask>", lstrip=True, rstrip=True)


def save(out):
    tok = LlamaTokenizer(str(HERE / "tokenizer.model"), **({"legacy": False} if out.endswith("first") else {}))
    tok.add_tokens(PLAIN)
    tok.add_special_tokens({"additional_special_tokens": SPECIAL, "pad_token": "<pad>", "mask_token": WIDE})
    if transformers.__version__ >= "4.34":  # reading what older ones save, 4.57 takes an added eos_token for another token
        tok.add_special_tokens({"eos_token": "<|im_end|>"})
    tok.save_pretrained(out)


def cases(out):
    from make_tokenizer_cases import texts
    kind = LlamaTokenizerFast if out.endswith("first") else LlamaTokenizer
    tok, rng, made = kind.from_pretrained(out), random.Random("spm-added"), []
    for text in texts(80, "spm-added"):
        for _ in range(rng.randrange(5)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice([*PLAIN, *SPECIAL, "<mask>", " <mask> ", "<pad>", "<s>", "</s>", "<unk>"]) + text[at:]
        made.append([text, tok.encode(text)])
    tokens = [tok.convert_ids_to_tokens(i) for i in range(len(tok))]
    Path(out, "cases.json").write_text(json.dumps({"cases": made, "tokens": tokens, "special": sorted(tok.all_special_ids), "eos": tok.eos_token_id},
                                                  separators=(",", ":")) + "\n")


if __name__ == "__main__":
    {"save": save, "cases": cases}[sys.argv[1]](sys.argv[2])
