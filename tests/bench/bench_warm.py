#!/usr/bin/env python3
"""make bench-warm: what a planned restart costs those whose prompts were cached.

A server with --prefix-file is asked prompts that begin alike, drawn by a seed as traffic is (few beginnings often, many seldom; the pool holds a part of
them and a host tier the rest), until it is warm; then its hit rate and the time to the first token are measured over a pass, the server is ended with
SIGTERM and started again, and the same pass is measured as the first that it gets. Then the same without the file. With --engine-process the engine
alone is restarted. REPEAT=n (5) times, ASKS=n (120) a pass, SEED=n, MODEL=DIR. Writes build/reports/bench-warm.json."""
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from bare import Bare  # noqa: E402
from conftest import MODEL, metric  # noqa: E402
from engines import restart as restart_engine  # noqa: E402

REPEAT, ASKS, SEED = int(os.environ.get("REPEAT") or 5), int(os.environ.get("ASKS") or 120), int(os.environ.get("SEED") or 1)
WHICH = pathlib.Path(os.environ.get("MODEL") or MODEL)
BEGINNINGS = 40
FLAGS = ["--max-num-seqs", 8, "--max-model-len", 1024, "--num-gpu-blocks-override", 700, "--kv-offloading-size", 0.2]
WORDS = "river house day bear bread road letter winter garden stone morning bridge apple night child story".split()
ROWS = []


def row(cell, values, unit, goal=None, most=True):
    value = statistics.median(values)
    met = None if goal is None else value <= goal if most else value >= goal
    ROWS.append({"cell": cell, "value": round(value, 4), "unit": unit, "spread": [round(min(values), 4), round(max(values), 4)], "goal": goal, "met": met})
    said = "" if goal is None else f"goal {'<=' if most else '>='} {goal:g}   {'met' if met else 'MISSED'}"
    print(f"  {cell:<28} {value:10.3f} {unit:<8} {min(values):.3f} to {max(values):.3f}   {said}", flush=True)


def beginning(n):
    draw = random.Random(1000 + n)
    return " ".join(draw.choice(WORDS) for _ in range(220))


def prompts(seed):
    """Of a pass: the k-th beginning is asked for as often as 1 in k."""
    draw = random.Random(seed)
    return [f"{beginning(draw.choices(range(BEGINNINGS), [1 / (k + 1) for k in range(BEGINNINGS)])[0])} {draw.randrange(10 ** 6)}" for _ in range(ASKS)]


def first_token_ms(server, prompt):
    body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/completions", body, {"Content-Type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.readline()
        took = (time.perf_counter() - began) * 1e3
        answer.read()
    return took


def measure(server, seed):
    """The share of prompt tokens that were cached, and the median time to the first token."""
    names = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    before = [metric(server.metrics(), n) for n in names]
    took = [first_token_ms(server, p) for p in prompts(seed)]
    hits, queries = (metric(server.metrics(), n) - b for n, b in zip(names, before))
    return hits / queries, statistics.median(took)


def restart(server, folder, flags):
    began = time.perf_counter()
    assert server.stop() == 0, server.log()
    ended = time.perf_counter()
    server = Bare(folder, *FLAGS, *flags, model=WHICH)
    return server, (ended - began) * 1e3, (time.perf_counter() - ended) * 1e3


def turn(name, flags, folder, n):
    """Hit rate and time to the first token before, and after."""
    server = Bare(folder, *FLAGS, *flags, model=WHICH)
    try:
        for k in range(3):
            warm = measure(server, SEED * 1000 + n * 10 + k)
        if name == "engine":
            restart_engine(server)
            ended, ready = 0, 0
        else:
            server, ended, ready = restart(server, folder, flags)
        after = measure(server, SEED * 1000 + n * 10 + 5)
        again = measure(server, SEED * 1000 + n * 10 + 6)
        blocks = metric(server.metrics(), "evenkeel_prefix_file_blocks_total", what="restored")
        return warm, after, again, ended, ready, blocks
    finally:
        server.stop()


def main():
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"file": ["--prefix-file", f"{folder}/kept/prefixes"], "none": [],
                 "engine": ["--engine-process", "--prefix-file", f"{folder}/apart/prefixes"]}
        turns = {name: [] for name in kinds}
        for n in range(REPEAT):
            for name, flags in kinds.items():
                run = pathlib.Path(folder, f"{name}{n}")
                run.mkdir()
                turns[name].append(turn(name, flags, run, n))
                for file in pathlib.Path(folder).glob("*/prefixes"):
                    file.unlink()
        goals = {"file": (0.95, 1.2), "none": (None, None), "engine": (0.95, 1.2)}
        for name, made in turns.items():
            row(f"{name}.hits.before", [w[0] for w, *_ in made], "share")
            row(f"{name}.hits.after", [a[0] for _, a, *_ in made], "share")
            row(f"{name}.hits", [a[0] / w[0] for w, a, *_ in made], "ratio", goals[name][0], False)
            row(f"{name}.ttft.before", [w[1] for w, *_ in made], "ms")
            row(f"{name}.ttft", [a[1] / w[1] for w, a, *_ in made], "ratio", goals[name][1])
            row(f"{name}.ttft.later", [a[1] / w[1] for w, _, a, *_ in made], "ratio")
            row(f"{name}.blocks", [b for *_, b in made], "blocks")
            if name != "engine":
                row(f"{name}.ending", [e for *_, e, _, _ in made], "ms")
                row(f"{name}.starting", [r for *_, r, _ in made], "ms")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/bench-warm.json").write_text(json.dumps(
        {"target": "bench-warm", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
