#!/usr/bin/env python3
"""make bench-long: short prompts beside a long one on the real CPU engine, what bench-prefill shows in virtual time.

A model with the embedded one's shapes, random weights and PROMPT positions (131,072) is made in build/long-model. One prompt of PROMPT tokens is
read alone; prompts of SHORT tokens (256) with answers of 16 come alone, BUSY (0.2) times as many tokens a second as the long one was read with; then
both together. EACH=1: as many of them as keep BUSY of the processors busy, which are more, as attention makes the long one's tokens dearer.
TOKENS=n (512) a step, THREADS=n (all processors), MOST=n (400) short ones at most. Attention grows with the square: 131,072 tokens take some
ten minutes on two quiet cores, 16,384 ten seconds.

Goals, as in bench-prefill: the 99th percentile of the times to the first token of the short ones at most twice that without the long one, and a step;
the long one at most a tenth later than its share of the tokens; and tokens a second at least 0.98 of what the parts take by themselves.
The mean step of the long one alone counts as a step. Writes build/reports/bench-long.json."""
import asyncio
import json
import math
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/bench"), str(ROOT / "tests/e2e")]
from bare import Bare  # noqa: E402
from conftest import MODEL  # noqa: E402
from make_model import Pools  # noqa: E402
from sim_real import all_at_once, ask, quantile  # noqa: E402


def number(name, otherwise):
    return int(os.environ.get(name) or otherwise)


PROMPT, SHORT, TOKENS, MOST = number("PROMPT", 131072), number("SHORT", 256), number("TOKENS", 512), number("MOST", 400)
THREADS, ANSWER, ALONE = number("THREADS", os.cpu_count()), 16, 40
BUSY, EACH = float(os.environ.get("BUSY") or 0.2), os.environ.get("EACH") == "1"
REPORT, OUT = ROOT / "build/reports/bench-long.json", ROOT / "build/long-model"


def make_model():
    """The embedded model's folder with other weights and more positions."""
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(MODEL, OUT)
    config = json.loads((OUT / "config.json").read_text())
    config["max_position_embeddings"] = PROMPT + 2 * ANSWER
    (OUT / "config.json").write_text(json.dumps(config))
    path, pools = OUT / "model.safetensors", Pools(1)
    with open(path, "rb") as f:
        size = f.read(8)
        header = f.read(struct.unpack("<Q", size)[0])
    tensors = {name: t for name, t in json.loads(header).items() if name != "__metadata__"}
    path.unlink()
    with open(path, "wb") as f:
        f.write(size + header)
        for name, t in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            assert t["dtype"] == "BF16", f"{name} is {t['dtype']}"
            norm = len(t["shape"]) == 1
            f.write(pools.draw(math.prod(t["shape"]), 1.0 if norm else 0.0, 0.1 if norm else 0.05))


def tokens(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(16, 1000) for _ in range(count)]


async def shorts(port, every_s, most, until=None):
    """Times to the first token of prompts that come so far apart, `most` of them or until `until` is done."""
    begin, asked = time.monotonic(), []
    while len(asked) < most and not (until and until.done()):
        asked.append(asyncio.create_task(ask(port, tokens(len(asked), SHORT), ANSWER, time.monotonic())))
        await asyncio.sleep(max(0, begin + len(asked) * every_s - time.monotonic()))
    return [(await t)[0] for t in asked]


async def measure(port):
    """Seconds: of each short one's work, of the long one alone, firsts of short ones alone, and both together."""
    await all_at_once(port, [tokens(1000 + i, SHORT) for i in range(4)], ANSWER)
    begin = time.monotonic()
    await all_at_once(port, [tokens(2000 + i, SHORT) for i in range(32)], ANSWER)
    each_s = (time.monotonic() - begin) / 32
    begin = time.monotonic()
    alone_s = (await ask(port, tokens(3000, PROMPT), ANSWER, begin))[0]
    every_s = (each_s if EACH else (SHORT + ANSWER) * alone_s / PROMPT) / BUSY
    free = await shorts(port, every_s, min(ALONE, MOST))
    begin = time.monotonic()
    job = asyncio.create_task(ask(port, tokens(4000, PROMPT), ANSWER, begin))
    await asyncio.sleep(every_s)
    beside = await shorts(port, every_s, MOST, until=job)
    return each_s, alone_s, free, (await job)[0], beside


def rows_of(each_s, alone_s, free, long_s, beside):
    step_s, most = alone_s * TOKENS / PROMPT, 2 * quantile(free, 0.99)
    yield "short.alone.p99", quantile(free, 0.99) * 1e3, "ms", None, None
    yield "short.p50", quantile(beside, 0.5) * 1e3, "ms", None, None
    yield "short.p99", quantile(beside, 0.99) * 1e3, "ms", (most + step_s) * 1e3, quantile(beside, 0.99) <= most + step_s
    work_s = alone_s + len(beside) * each_s
    yield "long.alone", alone_s * 1e3, "ms", None, None
    yield "long", long_s * 1e3, "ms", 1.1 * work_s * 1e3, long_s <= 1.1 * work_s
    yield "step", step_s * 1e3, "ms", None, None
    yield "throughput", work_s / long_s, "ratio", 0.98, work_s / long_s >= 0.98
    yield "shorts", len(beside), "requests", None, None


def main():
    make_model()
    with tempfile.TemporaryDirectory(prefix="bench-long-") as folder:
        server = Bare(pathlib.Path(folder), "--threads", THREADS, "--max-model-len", PROMPT + 2 * ANSWER, "--max-num-batched-tokens", TOKENS,
                      "--max-num-seqs", 64, "--no-enable-prefix-caching", model=OUT)
        try:
            found = asyncio.run(measure(server.port))
        finally:
            server.stop()
    rows = [{"cell": f"long.{PROMPT}.{cell}", "value": round(value, 3), "unit": unit, "spread": None, "goal": goal and round(goal, 3), "met": met}
            for cell, value, unit, goal, met in rows_of(*found)]
    for r in rows:
        goal = "" if r["goal"] is None else f"goal {r['goal']:g}, {'met' if r['met'] else 'MISSED'}"
        print(f"  {r['cell']:<28} {r['value']:12.3f} {r['unit']:<9} {goal}")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"target": "bench-long", "commit": os.environ.get("COMMIT"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
