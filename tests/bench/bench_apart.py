#!/usr/bin/env python3
"""make bench-apart: what an engine in a process of its own costs, and how long its end holds up clients.

Two servers, one of them with --engine-process, asked in turns: the time of a step with one stream, and tokens a second of 8 and 32 streams; then the
second one's engine is ended again and again at moments that a seed chose, with 64 streams whose texts must stay what they are undisturbed.
REPEAT=n (9) turns, KILLS=n (40), SEED=n. The embedded model, one thread. Writes build/reports/apart.json."""
import concurrent.futures
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from bare import Bare  # noqa: E402
from conftest import metric, wait_for  # noqa: E402
from test_engine_process import engine, replaced, text_of, tokens  # noqa: E402

REPEAT, KILLS, SEED = int(os.environ.get("REPEAT") or 9), int(os.environ.get("KILLS") or 40), int(os.environ.get("SEED") or 1)
ROWS = []


def row(cell, value, unit, goal=None, most=True, spread=None):
    met = None if goal is None else value <= goal if most else value >= goal
    ROWS.append({"cell": cell, "value": round(value, 4), "unit": unit, "spread": spread, "goal": goal, "met": met})
    sign = "<=" if most else ">="
    print(f"  {cell:<28} {value:10.3f} {unit:<8} {'' if goal is None else f'goal {sign} {goal:g}':<14} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)


def work(server, streams, length):
    """Tokens a second of so many answers at once, and microseconds a step."""
    ask = {"prompt": "Once upon a time", "max_tokens": length, "temperature": 0, "ignore_eos": True}
    before, steps, began = tokens(server), metric(server.metrics(), "evenkeel_engine_steps_total"), time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda i: text_of(server, {**ask, "prompt": f"{i} {ask['prompt']}"}), range(streams)))
    took = time.perf_counter() - began
    return (tokens(server) - before) / took, took * 1e6 / (metric(server.metrics(), "evenkeel_engine_steps_total") - steps)


def cost(one, apart):
    for streams, length in (1, 400), (8, 300), (32, 200):
        rates, added = [], []
        for turn in range(REPEAT):
            pair = [work(s, streams, length) for s in ((one, apart) if turn % 2 else (apart, one))]
            pair = pair if turn % 2 else pair[::-1]
            rates.append(pair[1][0] / pair[0][0])
            added.append(pair[1][1] - pair[0][1])
        row(f"throughput.{streams}", statistics.median(rates), "ratio", 0.98, False, [min(rates), max(rates)])
        row(f"step_added.{streams}", statistics.median(added), "us", 15.0, True, [min(added), max(added)])


def asks(draw):
    """64 that differ in all that a text depends on."""
    return [{"prompt": f"{draw.choice(['Once', 'A bear', 'The river', 'JSON:'])} {i % 7}", "max_tokens": draw.randint(200, 600), "ignore_eos": True,
             "temperature": draw.choice([0, 0.7, 1]), "seed": i, "n": 1 + (i % 8 == 0), "presence_penalty": draw.choice([0, 0.5]),
             "logprobs": draw.choice([None, 2]), **({"stop": ["zzz"]} if i % 5 == 0 else {})} for i in range(64)]


def ends(one, apart):
    draw, pauses, lost, left = random.Random(SEED), [], 0, KILLS
    began = time.monotonic()
    while left > 0 and time.monotonic() - began < 600:
        round_asks = asks(draw)
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            want = list(pool.map(lambda a: text_of(one, a), round_asks))
            jobs = [pool.submit(text_of, apart, {**a, "stream": i % 2 == 0}) for i, a in enumerate(round_asks)]
            for _ in range(min(left, 5)):
                page, until = apart.metrics(), tokens(apart) + draw.randint(50, 3000)
                wait_for("tokens are made", lambda: tokens(apart) >= until or all(j.done() for j in jobs), 60, 0.002)
                if all(j.done() for j in jobs):
                    break
                before, paused = replaced(apart), metric(page, "evenkeel_engine_pause_seconds_total")
                os.kill(engine(apart), draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGABRT]))
                wait_for("another engine", lambda: replaced(apart) > before, 60)
                pauses.append(1000 * (metric(apart.metrics(), "evenkeel_engine_pause_seconds_total") - paused))
                left -= 1
            lost += sum(j.exception() is not None or j.result() != w for j, w in zip(jobs, want))
        print(f"    {KILLS - left} of {KILLS} engines ended, {lost} texts lost or changed", flush=True)
    row("engines_ended", KILLS - left, "ends")
    row("texts_lost_or_changed", lost, "texts", 0)
    row("pause", statistics.median(pauses), "ms", 300.0, True, [min(pauses), max(pauses)])


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in "one", "apart":
            pathlib.Path(folder, name).mkdir()
        flags = ["--max-num-seqs", 64, "--max-model-len", 1024, "--engine-restarts", 64]
        one = Bare(pathlib.Path(folder, "one"), *flags)
        apart = Bare(pathlib.Path(folder, "apart"), "--engine-process", *flags)
        try:
            cost(one, apart)
            ends(one, apart)
        finally:
            one.stop()
            apart.stop()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/apart.json").write_text(json.dumps(
        {"target": "apart", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
