#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers/merges-added: what an old transformers saves of GPT-2's slow tokenizer with tokens
that were added (added_tokens.json, special_tokens_map.json), and what a new one makes of some texts with it.

usage: make_old_tokenizer.py save OUT_DIR       (pip install transformers==4.30.2)
       make_old_tokenizer.py cases OUT_DIR      (pip install transformers==4.57.6)
"""
import json
import random
import sys
from pathlib import Path

from transformers import GPT2Tokenizer

HERE = Path(__file__).resolve().parents[2] / "tests/fixtures/tokenizers/merges"
PLAIN, SPECIAL = ["<tool>", "Evenkeel", "<tool>s"], ["<|im_start|>", "<|im_end|>"]


def save(out):
    tok = GPT2Tokenizer(str(HERE / "vocab.json"), str(HERE / "merges.txt"), bos_token="</s>", eos_token="</s>", unk_token="</s>",
                        pad_token="<pad>")
    tok.add_tokens(PLAIN)
    tok.add_special_tokens({"additional_special_tokens": SPECIAL})
    tok.add_special_tokens({"mask_token": "<mask>"})
    tok.save_pretrained(out)


def cases(out):
    from make_tokenizer_cases import texts
    tok, rng, made = GPT2Tokenizer.from_pretrained(out), random.Random("old"), []
    for text in texts(80, "old"):
        for _ in range(rng.randrange(4)):
            at = rng.randint(0, len(text))
            text = text[:at] + rng.choice([*PLAIN, *SPECIAL, "<mask>", "<pad>", "</s>", "<unk>"]) + text[at:]
        made.append([text, tok.encode(text)])
    Path(out, "cases.json").write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    {"save": save, "cases": cases}[sys.argv[1]](sys.argv[2])
