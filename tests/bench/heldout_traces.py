#!/usr/bin/env python3
"""Workloads on which no constant of the control law was chosen, as traces for `make bench-control TRACES=DIR`: one seed, one file each.

mixed    requests of all traces in tests/fixtures/traces in random order, Poisson arrivals
bursty   20 s at five times the rate of the 60 s after it
diurnal  a rate that swings by 0.8 around its mean, ten minutes a day
heavy    long prompts, outputs whose longest hundredth is forty times the median

usage: tests/bench/heldout_traces.py DIR [SEED]
"""
import csv
import datetime
import gzip
import json
import math
import pathlib
import random
import sys

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures/traces"
REQUESTS = 3000


def fixture_lengths():
    """(prompt, output) of every request of the fixtures; the long prompts as short as the benchmark makes them."""
    for path in sorted(FIXTURES.glob("*.gz")):
        with gzip.open(path, "rt") as f:
            if ".jsonl" in path.name:
                rows = [(r["input_length"], r["output_length"]) for r in map(json.loads, f)]
            else:
                head, *lines = csv.reader(f)
                at = 1 if head[0] == "TIMESTAMP" else 0
                rows = [(int(float(r[at])), int(float(r[at + 1]))) for r in lines if r]
        mean = sum(p for p, _ in rows) / len(rows)
        yield from ((max(1, int(p * min(1, 800 / mean))), max(1, o)) for p, o in rows)


def arrivals(rng, rate):
    """Times of a Poisson process whose rate at t is rate(t), at most 5."""
    t = 0.0
    while True:
        t += rng.expovariate(5)
        if rng.random() * 5 < rate(t):
            yield t


def write(path, times, lengths):
    start = datetime.datetime(2023, 11, 16)
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for t, (prompt, output) in zip(times, lengths):
            out.writerow([(start + datetime.timedelta(seconds=t)).strftime("%Y-%m-%d %H:%M:%S.%f") + "0", prompt, output])


def main():
    to, rng = pathlib.Path(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 7)
    to.mkdir(parents=True, exist_ok=True)
    known = list(fixture_lengths())
    drawn = [rng.choice(known) for _ in range(REQUESTS)]
    heavy = [(int(min(6000, rng.lognormvariate(6.3, 0.9))) + 1, int(min(4000, rng.lognormvariate(4.3, 1.6))) + 1) for _ in range(REQUESTS)]
    write(to / "mixed.csv", arrivals(rng, lambda t: 2.0), drawn)
    write(to / "bursty.csv", arrivals(rng, lambda t: 5.0 if t % 80 < 20 else 1.0), rng.sample(drawn, REQUESTS))
    write(to / "diurnal.csv", arrivals(rng, lambda t: 2 * (1 + 0.8 * math.sin(2 * math.pi * t / 600))), rng.sample(drawn, REQUESTS))
    write(to / "heavy.csv", arrivals(rng, lambda t: 2.0), heavy)


main()
