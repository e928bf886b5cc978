#!/usr/bin/env python3
"""Workloads on which no constant of the control law was chosen, as traces for `make bench-control TRACES=DIR`: one seed, one file each.

mixed    requests of all traces in tests/fixtures/traces in random order, Poisson arrivals
bursty   20 s at five times the rate of the 60 s after it
diurnal  a rate that swings by 0.8 around its mean, ten minutes a day
heavy    long prompts, outputs whose longest hundredth is forty times the median
shift    what is asked changes after each 300 s of work: chats, code, summaries, long answers, in random order, each twice
surge    the same, and after each of them comes 0.5 or 1.5 times as much work in the time
"""
import argparse
import csv
import datetime
import gzip
import json
import math
import pathlib
import random

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures/traces"
REQUESTS = 3000
PART_S = 300  # of work on the modelled device: so long at load 1
PARTS = 8


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


def work_s(prompt, output):
    """As tests/bench/plant.c counts it."""
    return (prompt * 80 + output * (8000 / 32 + prompt * 0.0655)) / 1e6


def lognormal(rng, median, sigma, most):
    return int(min(most, median * math.exp(rng.gauss(0, sigma)))) + 1


def kinds(rng, known):
    """Of each kind of request a function that draws (prompt, output)."""
    return {"chat": lambda: rng.choice(known),
            "code": lambda: (lognormal(rng, 700, 0.6, 3000), lognormal(rng, 15, 0.8, 200)),
            "summary": lambda: (lognormal(rng, 1800, 0.4, 5000), lognormal(rng, 150, 0.5, 600)),
            "answer": lambda: (lognormal(rng, 120, 0.8, 800), lognormal(rng, 700, 0.7, 3500))}


def shifting(rng, known, rates):
    """Arrivals and lengths: PARTS parts of as much work each, one kind a part, each kind as often, never the same twice in a row."""
    of, order, begin, times, lengths = kinds(rng, known), [], 0.0, [], []
    while len(order) < PARTS:
        more = rng.sample(sorted(of), len(of))
        order += more if more[0] != (order or [None])[-1] else more[::-1]
    for kind, rate in zip(order, rng.sample(rates * (PARTS // len(rates)), PARTS)):
        part, work = [], 0.0
        while work < PART_S:
            part.append(of[kind]())
            work += work_s(*part[-1])
        times += sorted(begin + rng.random() * PART_S / rate for _ in part)
        lengths += part
        begin += PART_S / rate
    return times, lengths


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("dir", type=pathlib.Path)
    options.add_argument("seed", type=int, nargs="?", default=7)
    chosen = options.parse_args()
    to, rng = chosen.dir, random.Random(chosen.seed)
    to.mkdir(parents=True, exist_ok=True)
    known = list(fixture_lengths())
    drawn = [rng.choice(known) for _ in range(REQUESTS)]
    heavy = [(int(min(6000, rng.lognormvariate(6.3, 0.9))) + 1, int(min(4000, rng.lognormvariate(4.3, 1.6))) + 1) for _ in range(REQUESTS)]
    write(to / "mixed.csv", arrivals(rng, lambda t: 2.0), drawn)
    write(to / "bursty.csv", arrivals(rng, lambda t: 5.0 if t % 80 < 20 else 1.0), rng.sample(drawn, REQUESTS))
    write(to / "diurnal.csv", arrivals(rng, lambda t: 2 * (1 + 0.8 * math.sin(2 * math.pi * t / 600))), rng.sample(drawn, REQUESTS))
    write(to / "heavy.csv", arrivals(rng, lambda t: 2.0), heavy)
    write(to / "shift.csv", *shifting(rng, known, [1.0]))
    write(to / "surge.csv", *shifting(rng, known, [0.5, 1.5]))


main()
