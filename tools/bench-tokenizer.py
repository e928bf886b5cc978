#!/usr/bin/env python3
"""How fast text becomes tokens, beside Hugging Face's tokenizers in the same run.

usage: bench-tokenizer.py PROGRAM REPORT [REPEAT]     (make bench-tokenizer)

PROGRAM is tests/bench/bench_tokenizer. Vocabularies: those that make check-tokenizers fetches.
English is CPython's own manual, in texts of some 4 kB; long texts have 4 MB and their first
sixteenth is encoded too: `linear` is how much more a byte of the whole costs, where one piece as
long as the text takes a heap's logarithm and more memory than the caches have. Times are of one
thread on its core. Load times of tekken.json have no peer here: tokenizers does not read it.
"""
import importlib.util
import json
import os
import pydoc_data.topics
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402: it reads the environment

RATE, LOAD, LINEAR = 20, 0.4, 3  # the goals: MB/s, seconds, times
LONG = 4 << 20


def package(name, *path):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0]).joinpath(*path)


def english():
    """Paragraphs of the manual, put together to texts of some 4 kB."""
    texts, part = [], ""
    for _, topic in sorted(pydoc_data.topics.topics.items()):
        for paragraph in topic.split("\n\n"):
            part += paragraph + "\n\n"
            if len(part) > 4000:
                texts.append(part)
                part = ""
    return texts


def long_texts():
    """What has no spaces, or none that help."""
    rng = random.Random(1)
    letters = "".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=LONG))
    han = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(LONG // 3))
    return {"one_letter": "a" * LONG, "letters": letters, "han": han, "digits": "7" * LONG,
            "spaces": " " * LONG, "marks": "e" + "\u0301" * (LONG // 2)}


def median(seconds):
    return statistics.median(seconds), [min(seconds), max(seconds)]


def rate(size, seconds):
    mid, (least, most) = median(seconds)
    return size / mid / 1e6, [size / most / 1e6, size / least / 1e6]


def ours(program, files, texts, longs, repeat):
    """{name: [(bytes, [seconds, ...]), ...]}"""
    with tempfile.TemporaryDirectory() as d:
        home = Path(d, "model")
        home.mkdir()
        for name, path in files.items():
            (home / name).symlink_to(path)
        with open(Path(d, "texts"), "wb") as f:
            for t in texts:
                f.write(struct.pack("<I", len(t.encode())) + t.encode())
        for name, text in longs.items():
            Path(d, name).write_text(text, encoding="utf-8")
        out = subprocess.run([program, str(home), "texts", str(repeat), *longs], cwd=d, text=True,
                             stdout=subprocess.PIPE, check=True).stdout
    found = {}
    for line in out.splitlines():
        name, size, *seconds = line.split()
        found.setdefault(name, []).append((int(size), [float(s) for s in seconds]))
    return found


def timed(repeat, what):
    seconds = []
    for _ in range(repeat):
        start = time.thread_time()
        what()
        seconds.append(time.thread_time() - start)
    return seconds


def theirs(path, texts, longs, repeat):
    """The library's own way for many texts without offsets, one thread."""
    tok = tokenizers.Tokenizer.from_file(str(path))
    one = [[t] for t in texts]

    def all_texts():
        for t in one:
            tok.encode_batch_fast(t)
    all_texts()
    return {"load": timed(repeat, lambda: tokenizers.Tokenizer.from_file(str(path))),
            "texts": timed(repeat, all_texts),
            **{name: timed(1, lambda t=t: tok.encode_batch_fast([t])) for name, t in longs.items()}}


def cell(name, value, unit, spread=None, goal=None, met=None, peer_value=None, ratio=None):
    row = {"cell": name, "value": value, "unit": unit, "spread": spread}
    if goal is not None:
        row |= {"goal": goal, "met": bool(met)}
    if peer_value is not None:
        row |= {"peer": "tokenizers " + tokenizers.__version__, "peer_value": peer_value,
                "ratio": ratio}
    print(f"{name:28} {value:10.3f} {unit:5}"
          + (f" tokenizers {peer_value:8.3f} ratio {ratio:.2f}" if peer_value is not None else "")
          + ("" if goal is None else f"  goal {goal}: {'met' if met else 'MISSED'}"), flush=True)
    return row


def measure(program, name, files, longs, repeat, goal):
    texts = english()
    mine = ours(program, files, texts, longs, repeat)
    other = theirs(files["tokenizer.json"], texts, longs, repeat) if "tokenizer.json" in files else {}
    peer = median(other["load"])[0] if other else None
    value, spread = median(mine["load"][0][1])
    rows = [cell(f"load.{name}", value, "s", spread, LOAD if goal else None, value <= LOAD, peer,
                 peer and peer / value)]
    size, seconds = mine["texts"][0]
    value, spread = rate(size, seconds)
    peer = size / median(other["texts"])[0] / 1e6 if other else None
    rows.append(cell(f"english.{name}", value, "MB/s", spread, RATE if goal else None,
                     value >= RATE, peer, peer and value / peer))
    for text in longs:
        (size, seconds), (part, part_seconds) = mine[text]
        value, spread = rate(size, seconds)
        peer = size / median(other[text])[0] / 1e6 if other else None
        rows.append(cell(f"{text}.{name}", value, "MB/s", spread, None, None, peer,
                         peer and value / peer))
        more = min(seconds) / size / (min(part_seconds) / part)
        rows.append(cell(f"linear.{text}.{name}", more, "x", None, LINEAR, more <= LINEAR))
    return rows


def main():
    program, report = str(Path(sys.argv[1]).absolute()), sys.argv[2]
    repeat = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    carried = package("litellm", "litellm_core_utils", "tokenizers")
    tekken = package("mistral_common", "data", "tekken_240911.json")
    longs = long_texts()
    rows = measure(program, "128k", {"tokenizer.json": carried / "deepseek_tokenizer.json"}, longs,
                   repeat, True)
    rows += measure(program, "tekken-131k", {"tekken.json": tekken},
                    {k: longs[k] for k in ("letters", "han")}, repeat, True)
    rows += measure(program, "65k", {"tokenizer.json": carried / "anthropic_tokenizer.json"},
                    {k: longs[k] for k in ("letters", "marks")}, repeat, False)
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    Path(report).parent.mkdir(parents=True, exist_ok=True)
    Path(report).write_text(json.dumps({
        "target": "bench-tokenizer", "commit": os.environ.get("COMMIT") or "unknown",
        "machine": {"cpu": cpu[0] if cpu else "unknown", "cores": os.cpu_count()},
        "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(r.get("met", True) for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
