#!/usr/bin/env python3
"""make bench-apart: what an engine in a process of its own costs, and how long its end holds up clients.

Two servers, one of them with --engine-process, asked in turns: tokens a second of 1, 8 and 32 streams, and what a step takes longer; then the
second one's engine is ended again and again, by signals, by a hang, on purpose, and by faults and errors within a step (before it is computed, after
it, when its tokens are there), at moments that a seed chose, with 64 streams whose texts must stay what they are undisturbed: prompts that begin alike, a pool and a host tier that are too small, forms, penalties, n = 2, limits that move.
REPEAT=n (60, 0 leaves the cost out) turns, KILLS=n (200), MINUTES=n (60) at most, SEED=n. The embedded model, one thread. Writes build/reports/apart.json.

MODEL=DIR: instead, how long the end of another model's engine holds up 8 streams, on all processors; its weights are in the page cache. KILLS=n (9).
Writes build/reports/apart-NAME.json."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from bare import Bare  # noqa: E402
from conftest import metric, paced, wait_for  # noqa: E402
from engine_faults import PLACES, EngineFaults  # noqa: E402
from engines import SCHEMA, engine, text_of, tokens  # noqa: E402

REPEAT, KILLS, SEED = int(os.environ.get("REPEAT") or 60), int(os.environ.get("KILLS") or (9 if os.environ.get("MODEL") else 200)), int(os.environ.get("SEED") or 1)
MINUTES = int(os.environ.get("MINUTES") or 60)
ANSWER_S = 1800  # the longest that an answer may take: a busy machine loses no text
SHOWN = 200      # characters of an answer, from where it differs
ROWS = []


def row(cell, value, unit, goal=None, most=True, spread=None):
    met = None if goal is None else value <= goal if most else value >= goal
    ROWS.append({"cell": cell, "value": round(value, 4), "unit": unit, "spread": spread, "goal": goal, "met": met})
    sign = "<=" if most else ">="
    print(f"  {cell:<28} {value:10.3f} {unit:<8} {'' if goal is None else f'goal {sign} {goal:g}':<14} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)


def batch_s(server, streams, length, turn):
    """Seconds for so many answers of so many tokens at once."""
    asks = [{"prompt": f"{turn} {i} Once upon a time", "max_tokens": length, "temperature": 0, "ignore_eos": True} for i in range(streams)]
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        began = time.perf_counter()
        list(pool.map(lambda ask: text_of(server, ask), asks))
        return time.perf_counter() - began


CELLS = [(1, 160), (8, 100), (32, 60)]  # streams, tokens of each
TURNS = 5                               # of one pair of servers


def cost(pair):
    """Short batches in the order A B B A, compared by their quartiles: on a shared machine one batch may take half as long again as the next, and of two
    servers that are alike one may be a tenth slower for as long as it lives, by where its memory lies: so the pairs are begun anew."""
    took = {cell: ([], []) for cell in CELLS}
    for leg in range(0, REPEAT, TURNS):
        with pair() as (one, apart):
            for turn in range(min(TURNS, REPEAT - leg)):
                for (streams, length), (alone, other) in took.items():
                    for server in (one, apart, apart, one) if turn % 2 else (apart, one, one, apart):
                        (alone if server is one else other).append(batch_s(server, streams, length, turn))
    for (streams, length), (alone, other) in took.items():
        pairs = list(zip(statistics.quantiles(alone, n=4), statistics.quantiles(other, n=4)))
        rates, added = [a / b for a, b in pairs], [(b - a) * 1e6 / length for a, b in pairs]
        row(f"throughput.{streams}", rates[1], "ratio", 0.98, False, [min(rates), max(rates)])
        row(f"step.{streams}", statistics.median(alone) * 1e6 / length, "us")
        row(f"step_added.{streams}", added[1], "us", 15.0, True, [min(added), max(added)])


PREFIXES = [" ".join(f"{word} {k}" for k in range(60)) for word in ("The river said", "A small bear counted")]
LIMITS = {"max_num_running_seqs": (12, 64), "max_num_batched_tokens": (64, 2048), "num_kv_blocks": (300, 700)}
FORMS = [{"json": SCHEMA}, {"regex": "(yes|no|perhaps)( [a-z]{2,9}){20,60}"}, {"choice": ["a long day by the river", "a short day"]}]
HOWS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGSTOP": signal.SIGSTOP, "planned": None, "abort": None, "segv": None, "device": None,
        "host memory": None}
INJECTED, LASTING = ("abort", "segv", "device", "host memory"), ("SIGSTOP",)


def asks(draw):
    """64 that differ in all that a text depends on: half begin alike, one in six has a form."""
    made = []
    for i in range(64):
        ask = {"prompt": f"{draw.choice([*PREFIXES, 'Once', 'JSON:'])} {i % 7}", "max_tokens": draw.randint(100, 350), "temperature": draw.choice([0, 0.7, 1]),
               "seed": i, "n": 1 + (i % 8 == 0), "presence_penalty": draw.choice([0, 0.5]), "repetition_penalty": draw.choice([1, 1.2]),
               "logprobs": draw.choice([None, 2]), "stream": i % 2 == 0}
        made.append({**ask, "structured_outputs": draw.choice(FORMS)} if i % 6 == 1 else {**ask, "ignore_eos": True, "stop": ["zzz"] * (i % 5 == 0)})
    return made


def move_limits(apart, enough, seed):
    """Until the event. What needs the engine is refused while there is none, which is an answer, too."""
    draw, moved = random.Random(seed), 0
    while not enough.wait(draw.uniform(0.05, 0.4)):
        name, (least, most) = draw.choice(list(LIMITS.items()))
        moved += apart.local("/v1/runtime_config", "PATCH", json.dumps({name: draw.randint(least, most)}))[0] == 200
    return moved


def all_ends(page):
    """Of pauses that are over: the next engine is there."""
    return metric(page, "evenkeel_engine_pause_seconds_count")


def inject(apart, how, draw):
    """A fault within a step; the engine outlives a lack of memory alone."""
    faults, places = apart.faults, PLACES[::2] if how == "host memory" else PLACES
    done = faults.done
    faults.once(how, draw.choice(places), draw.randint(0, 3))
    return lambda: faults.done > done


def end_once(apart, how, draw, jobs):
    """False when all had been answered before. A fault that follows another one while a suspect runs alone would be taken for its fault: that is waited for."""
    until = tokens(apart) + draw.randint(20, 800)
    wait_for("tokens are made", lambda: tokens(apart) >= until or all(j.done() for j in jobs), 120, 0.002)
    if how in INJECTED:
        wait_for("nobody is suspected", lambda: metric(apart.metrics(), "evenkeel_engine_suspect_requests") == 0, 300, 0.01)
    if all(j.done() for j in jobs):
        return False
    before, happened = all_ends(apart.metrics()), lambda: True
    time.sleep(draw.uniform(0, 0.003))
    if how in INJECTED:
        happened = inject(apart, how, draw)
    elif how == "planned":
        assert apart.local("/v1/engine/restart", "POST", "{}")[0] == 202
    else:
        os.kill(engine(apart), HOWS[how])
    ended = happened if how == "host memory" else lambda: happened() and all_ends(apart.metrics()) > before
    wait_for("another engine", lambda: ended() or all(j.done() for j in jobs), 120, 0.005)
    if not ended():  # no step came any more
        apart.faults.what = 0
        return False
    return True


def told(n, ask, job, want):
    """The number of texts that were lost or changed: 0 or 1, and then it is said which."""
    if job.exception() is None and job.result() == want:
        return 0
    got, want = str(job.exception() or job.result()), str(want)
    at = max(0, len(os.path.commonprefix([got, want])) - SHOWN // 4)
    print(f"    text {n}: {str(ask)[:SHOWN]}\n      wanted {want[at:at + SHOWN]}\n      but    {got[at:at + SHOWN]}", flush=True)
    return 1


class Ends:
    """What is counted over all servers that are used: each may lose 64 engines within 10 minutes."""

    def __init__(self):
        self.draw, self.done, self.texts, self.lost, self.moved, self.unbalanced = random.Random(SEED), {h: 0 for h in HOWS}, 0, 0, 0, 0
        self.pauses, self.sums = {h: [] for h in HOWS}, {}

    def round(self, apart, these, wants, most):
        with concurrent.futures.ThreadPoolExecutor(65) as pool:
            jobs, enough = [pool.submit(text_of, apart, a, ANSWER_S) for a in these], threading.Event()
            moving = pool.submit(move_limits, apart, enough, self.draw.random())
            try:
                while most > 0:
                    how = self.draw.choice(list(HOWS))
                    before = metric(apart.metrics(), "evenkeel_engine_pause_seconds_sum")
                    if not end_once(apart, how, self.draw, jobs):
                        break
                    self.done[how] += 1
                    most -= 1
                    if how == "host memory":
                        continue
                    self.pauses[how].append(1000 * (metric(apart.metrics(), "evenkeel_engine_pause_seconds_sum") - before))
                concurrent.futures.wait(jobs)
            finally:
                enough.set()
            self.moved += moving.result()
            self.lost += sum(told(n, a, j, w) for n, (a, j, w) in enumerate(zip(these, jobs, wants)))
            self.texts += len(these)
        print(f"    {sum(self.done.values())} of {KILLS} engines ended, {self.lost} of {self.texts} texts lost or changed", flush=True)

    def balance(self, apart):
        """When all is answered no block is used, and free ones and cached ones are all."""
        wait_for("all have ended", lambda: all(metric(apart.metrics(), f"vllm:num_requests_{k}") == 0 for k in ("running", "waiting")), 60)
        page = apart.metrics()
        free, cached, total = (metric(page, "evenkeel_kv_blocks", state=s) for s in ("free", "cached", "total"))
        self.unbalanced += free + cached != total
        self.unbalanced += sum(metric(page, tier, state="used") != 0 for tier in ("evenkeel_kv_blocks", "evenkeel_host_kv_blocks"))
        self.unbalanced += metric(page, "evenkeel_engine_suspect_requests") != 0
        self.lost += int(metric(page, "evenkeel_engine_poison_requests_total"))  # no request is one
        for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total", "evenkeel_swapped_blocks_total", "evenkeel_offload_hit_tokens_total",
                     "evenkeel_engine_replayed_requests_total", "evenkeel_engine_recomputed_tokens_total"):
            self.sums[name] = self.sums.get(name, 0) + sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def ends(one, start):
    e, began = Ends(), time.monotonic()
    while sum(e.done.values()) < KILLS and time.monotonic() - began < 60 * MINUTES:
        apart, leg, these = start(), sum(e.done.values()), asks(e.draw)
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            wants = list(pool.map(lambda a: text_of(one, a, ANSWER_S), these))
        try:
            while sum(e.done.values()) < min(leg + 60, KILLS) and time.monotonic() - began < 60 * MINUTES:
                e.round(apart, these, wants, min(12, leg + 60 - sum(e.done.values()), KILLS - sum(e.done.values())))
            e.balance(apart)
        finally:
            apart.stop()
    row("engines_ended", sum(e.done.values()), "ends", KILLS, False)
    for how in HOWS:
        row(f"engines_ended.{how}", e.done[how], "ends")
    row("texts", e.texts, "texts")
    row("texts_lost_or_changed", e.lost, "texts", 0)
    row("blocks_out_of_balance", e.unbalanced, "times", 0)
    row("limits_moved", e.moved, "times")
    for name, value in e.sums.items():
        row(name.removeprefix("evenkeel_").removeprefix("vllm:").removesuffix("_total"), value, "", 1, False)
    for how in HOWS:
        if e.pauses[how]:
            most = None if how in LASTING else 300.0
            row(f"pause.{how}", statistics.median(e.pauses[how]), "ms", most, True, [min(e.pauses[how]), max(e.pauses[how])])


def pauses_of(model):
    """Eight answers, half of them sampled, asked again and again while their engine is killed at moments that the seed chose."""
    draw, took, wrong = random.Random(SEED), [], 0
    these = [{"prompt": f"{i} Once upon a time", "max_tokens": 96, "temperature": i % 2, "seed": i, "ignore_eos": True} for i in range(8)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(these)) as pool:
        apart = Bare(pathlib.Path(folder), "--engine-process", "--threads", os.cpu_count(), "--max-num-seqs", 8, "--max-model-len", 512, "--engine-restarts", 64,
                     model=model)
        try:
            wants = list(pool.map(lambda ask: text_of(apart, ask), these))
            for _ in range(KILLS):
                until, page = tokens(apart) + draw.randint(8, 600), apart.metrics()
                jobs = [pool.submit(text_of, apart, ask) for ask in these]
                wait_for("tokens are made", lambda until=until: tokens(apart) >= until, 120, 0.002)
                os.kill(engine(apart), signal.SIGKILL)
                wrong += sum(told(n, *each) for n, each in enumerate(zip(these, jobs, wants)))
                wait_for("another engine", lambda page=page: all_ends(apart.metrics()) > all_ends(page), 60)
                took.append(1000 * sum(metric(p, "evenkeel_engine_pause_seconds_sum") * s for p, s in ((apart.metrics(), 1), (page, -1))))
        finally:
            apart.stop()
    row("engines_ended.SIGKILL", len(took), "ends")
    row("texts", KILLS * len(these), "texts")
    row("texts_lost_or_changed", wrong, "texts", 0)
    row("pause.SIGKILL", statistics.median(took), "ms", None, True, [min(took), max(took)])


FLAGS = ["--max-num-seqs", 64, "--max-model-len", 1024]
SMALL = ["--num-gpu-blocks-override", 700, "--swap-space", "0.02", "--kv-offloading-size", "0.02", "--stalled-share", 0, "--step-deadline", paced(2),
         "--engine-restarts", 64]


@contextlib.contextmanager
def begun(folder, *flags, **more):
    server = Bare(pathlib.Path(folder), *FLAGS, *flags, **more)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def both(folder, other):
    with begun(folder) as one, begun(other, "--engine-process") as apart:
        yield one, apart


def embedded():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        if REPEAT > 0:
            cost(lambda: both(folder, other))
        if KILLS == 0:
            return
        faults = EngineFaults(pathlib.Path(folder))

        def start():
            apart = Bare(pathlib.Path(other), *FLAGS, "--engine-process", *SMALL, env=faults.env)
            apart.faults = faults
            return apart

        with begun(folder) as one:
            ends(one, start)


def main():
    model = os.environ.get("MODEL")
    pauses_of(pathlib.Path(model)) if model else embedded()
    name = f"apart-{pathlib.Path(model).name}" if model else "apart"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / f"build/reports/{name}.json").write_text(json.dumps(
        {"target": name, "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
