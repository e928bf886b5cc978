"""One overload trace on a real vLLM whose pool is made small (make bench-control-vllm): what comes of it

    alone       vLLM as it is, watched
    edge        evenkeeld without the companion: HAProxy in front, whose maxconn the law moves; waiting there ends with 503
    companion   live limits, moved by the law; what waits longer than the promise allows is answered with 429
    fixed N     the companion with N running sequences and the same deadline for the queue, which nobody moves: the best one is what an
                operator could have known only afterwards

The trace: arrivals at random from a printed seed, half of what the machine was just seen to do, then 1.6 times as much, then 0.6 times;
answers of 300 tokens on average, about eight of which fit into the pool at once. All arms get the same file. Goodput counts answers
whose first token came within the promise and whose tokens came at least as often, on average, as promised: 2.5 times what four at once
were seen to need. Written to build/reports/bench-control-vllm.json and, when all arms ran, docs/vllm.md.

It is bounded: --time gives the whole run so many seconds, of which starts and looking take what they take, and each arm the same share of the
rest. Or in parts: with --rate and --promise-ms as the first part printed them, arms and points of an earlier run of the same trace are kept."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/e2e")]
from conftest import BUILD, get, wait_for  # noqa: E402
from ask import measured_with  # noqa: E402
from test_companion import Companion  # noqa: E402
from test_edge import HAProxy  # noqa: E402
from test_supervised import KEY, LAW, Supervised  # noqa: E402

SEQS, PROMPT, MEAN_TOKENS, MOST_TOKENS = 16, 48, 300, 800
FLAGS = ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", str(SEQS),
         "--block-size", "32", "--num-gpu-blocks-override", "70"]
TTFT_S = 5.0
FIXED = (4, 6, 8, 10)
AFTER = 1.4  # an arm lasts so many times as long as its trace: what waits at its end is answered
LEAST_S, MOST_S = 60, 300  # of a trace that --time chooses
GOALS = {"companion.of_best_fixed": 0.97, "companion.preemptions_saved": 0.7, "companion.of_alone": 1.5}
REPORT = ROOT / "build/reports/bench-control-vllm.json"
PHASES = ((0.2, 0.5), (0.5, 1.6), (0.3, 0.6))  # share of the time, rate as a share of what the machine can do
DOC, MARK = ROOT / "docs/vllm.md", "<!-- written by make bench-control-vllm -->\n"


def make_trace(path, seed, seconds, rate):
    """Azure's form, which evenkeel-bench reads."""
    rng, at, rows = random.Random(seed), 0.0, []
    ends = [seconds * sum(share for share, _ in PHASES[:i + 1]) for i in range(len(PHASES))]
    while at < seconds:
        factor = next(f for (_, f), end in zip(PHASES, ends) if at < end)
        rows.append((at, PROMPT, min(MOST_TOKENS, max(20, round(rng.lognormvariate(0, 0.6) * MEAN_TOKENS * 0.835)))))
        at += rng.expovariate(rate * factor)
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2026-01-01 {int(t // 3600):02d}:{int(t // 60) % 60:02d}:{t % 60:09.6f},{p},{n}\n" for t, p, n in rows))
    return len(rows)


def bench(port, gap_s, out, *words):
    """evenkeel-bench's figures: {cell: value}, and how many answers were good, done and failed."""
    done = subprocess.run([BUILD / "evenkeel-bench", "serve", "--url", f"http://127.0.0.1:{port}", "--warmup", "0", "--slo-ttft", str(TTFT_S),
                           "--slo-gap", str(gap_s), "--seed", "7", "--report", out, *map(str, words)],
                          capture_output=True, text=True, env={**os.environ, "OPENAI_API_KEY": KEY})
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    cells = {row["cell"].split(".", 1)[1]: row["value"] for row in json.loads(out.read_text())["rows"]}
    good, asked = map(int, re.search(r"\((\d+) of (\d+):", done.stdout).groups())
    return cells | {"good": good, "asked": asked}


def preemptions(port):
    """vLLM's own counter: it comes late, so it is read when all is over."""
    page = get(port, "/metrics")[1].decode()
    return sum(float(v) for v in re.findall(r"^vllm:num_preemptions_total\{.*\} (\S+)$", page, re.M))


def idle(port):
    page = get(port, "/metrics")[1].decode()
    return not any(float(v) for v in re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", page, re.M))


class Arm:
    """A vLLM for one arm, or for several that differ in live limits alone."""

    def __init__(self, run, kind):
        self.kind, self.run, self.front = kind, run, None
        law = LAW.rstrip("}\n") + f", ttft_slo_s: {TTFT_S if kind == 'companion' else 0}}}\n"
        more = f"    mode: {'act' if kind in ('edge', 'companion') else 'observe'}\n    limits: {{max_num_running_seqs: {{max: {SEQS}}}}}\n{law}"
        make = Supervised if kind in ("alone", "edge") else Companion
        self.s = make(run, more + ("    edge: 127.0.0.1:{agent}\n    edge_ramp_s: 0\n" if kind == "edge" else ""), args=FLAGS).start()

    def begin(self):
        run = self.run
        self.s.ready()
        if self.kind == "edge":
            self.front = HAProxy(run, self.s.port, self.s.agent, "weight 100", queue_s=int(TTFT_S))
            wait_for("HAProxy sends to it", lambda: self.front.server()["status"] == "UP" and self.front.server()["slim"] == str(SEQS), 60)
        self.port = self.front.port if self.front else self.s.port
        bench(self.port, 1, run / "warm.json", "--clients", 2, "--requests", 4, "--prompt", PROMPT, "--output", 50)

    def play(self, trace, gap_s, count):
        before = preemptions(self.s.port)
        cells = bench(self.port, gap_s, self.run / "report.json", "--trace", trace, "--requests", count)
        wait_for("all is over", lambda: idle(self.s.port), 600, 0.5)
        cells["preemptions"] = preemptions(self.s.port) - before
        return cells

    def end(self):
        self.s.end()
        if self.front:
            self.front.end()


def row_of(name, cells, seconds):
    return {"arm": name, "goodput": 60 * cells["good"] / seconds, "refused": cells["failed"], "preemptions": cells["preemptions"],
            "gap_s": cells["gap.most"] / 1e3, "ttft_p99_s": cells["ttft.p99"] / 1e3, "asked": cells["asked"]}


def table(rows, told):
    best = max((r for r in rows if r["arm"].startswith("fixed")), key=lambda r: r["goodput"])
    lines = [told, "", "| arm | good answers a minute | of the best fixed | not answered | preemptions | longest gap (s) | TTFT p99 (s) |", "|---|---|---|---|---|---|---|"]
    lines += [f"| {r['arm']} | {r['goodput']:.1f} | {r['goodput'] / best['goodput'] if best['goodput'] else 0:.2f} | {r['refused']:.0f} of {r['asked']} | "
              f"{r['preemptions']:.0f} | {r['gap_s']:.1f} | {r['ttft_p99_s']:.1f} |" for r in rows]
    return "\n".join(lines) + "\n"


def calibrate(arm):
    """What the machine does now: answers a second of the best closed loop, and seconds between tokens of four at once."""
    rates = {}
    for clients in (4, 8):
        cells = bench(arm.port, 1, arm.run / "calibrate.json", "--clients", clients, "--requests", 4 * clients, "--prompt", PROMPT, "--output", MEAN_TOKENS)
        rates[clients] = (cells["answers"], cells["per_token.p50"] / 1e3)
    return max(rate for rate, _ in rates.values()), 2.5 * rates[4][1]


def goals(rows):
    """As all reports have them; those whose arms ran."""
    at = {r["arm"]: r for r in rows}
    own, alone, fixed = at.get("companion"), at.get("alone"), [r for r in rows if r["arm"].startswith("fixed")]
    values = {}
    if own and fixed and max(r["goodput"] for r in fixed):
        values["companion.of_best_fixed"] = own["goodput"] / max(r["goodput"] for r in fixed)
    if own and alone and alone["preemptions"]:
        values["companion.preemptions_saved"] = 1 - own["preemptions"] / alone["preemptions"]
    if own and alone and alone["goodput"]:
        values["companion.of_alone"] = own["goodput"] / alone["goodput"]
    return [{"cell": cell, "value": round(v, 3), "unit": "ratio", "spread": None, "goal": GOALS[cell], "met": v >= GOALS[cell]} for cell, v in values.items()]


def earlier(trace):
    """Rows of an earlier run of the same trace."""
    try:
        report = json.loads(REPORT.read_text())
    except (OSError, ValueError):
        return []
    return report["arms"] if report.get("trace") == trace else []


def share_of(budget_s, begin, starts_s, starts, plays):
    """Seconds of each trace, so that all of it ends in time."""
    left = budget_s - (time.monotonic() - begin) - max(0, starts - 1) * starts_s
    return max(LEAST_S, min(MOST_S, left / max(1, plays) / AFTER))


def options_of(words):
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=300)
    options.add_argument("--time", type=float, default=0, help="seconds that all of it may take; chooses --seconds")
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--arms", default="alone,edge,companion,fixed")
    options.add_argument("--points", default=",".join(map(str, FIXED)), help="the fixed limits")
    options.add_argument("--rate", type=float, default=0, help="answers a second that the machine can do, instead of looking")
    options.add_argument("--promise-ms", type=float, default=100, help="with --rate: a token each")
    o = options.parse_args(words)
    o.points = re.findall(r"\d+", o.points) if "fixed" in o.arms else []
    if any(not 1 <= int(n) <= SEQS for n in o.points):
        options.error(f"points are 1 to {SEQS}")
    return o


def play_all(o, where):
    """Rows of the arms that were asked for, and the trace that they had."""
    begin, rows, trace, count = time.monotonic(), [], where / "trace.csv", 0
    what = {"seconds": o.seconds, "seed": o.seed, "rate": o.rate, "gap_s": round(o.promise_ms / 1e3, 4)}
    kinds = [k for k in o.arms.split(",") if k != "fixed"]
    plays = len(kinds) + len(o.points)
    if o.points or not o.rate:
        kinds.insert(0, "fixed")  # the first one tells what the machine can do
    for kind in kinds:
        (where / kind).mkdir()
        arm, starts = Arm(where / kind, kind), time.monotonic()
        try:
            arm.begin()
            starts = time.monotonic() - starts
            if not what["rate"]:
                rate, gap_s = calibrate(arm)
                what |= {"rate": round(rate, 3), "gap_s": round(gap_s, 4)}
            if not count:
                if o.time:
                    what["seconds"] = round(share_of(o.time, begin, starts, len(kinds), plays))
                count = make_trace(trace, o.seed, what["seconds"], what["rate"])
                print(f"{plays} times {count} requests in {what['seconds']:.0f} s; parts of it later: RATE={what['rate']:g} "
                      f"PROMISE_MS={1e3 * what['gap_s']:g} OVERLOAD_S={what['seconds']:.0f}", flush=True)
            for name in [f"fixed {n}" for n in o.points] if kind == "fixed" else [kind]:
                if kind == "fixed":
                    arm.s.limit(max_num_running_seqs=int(name.split()[1]), queue_deadline_s=0.8 * TTFT_S)
                rows.append(row_of(name, arm.play(trace, what["gap_s"], count), what["seconds"]))
                print(json.dumps(rows[-1]), flush=True)
        finally:
            arm.end()
    return rows, what


def main():
    o, begin, where = options_of(sys.argv[1:]), time.monotonic(), pathlib.Path(tempfile.mkdtemp(prefix="bcv."))
    rows, what = play_all(o, where)
    rows += [r for r in earlier(what) if r["arm"] not in {mine["arm"] for mine in rows}]
    order = ["alone", "edge", "companion"]
    rows.sort(key=lambda r: (order.index(r["arm"]), 0) if r["arm"] in order else (9, int(r["arm"].split()[1])))
    met = goals(rows)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps({"target": "bench-control-vllm", "trace": what, "arms": rows, "rows": met}, indent=1) + "\n")
    shutil.rmtree(where)
    for r in met:
        print(f"{r['cell']:<28} {r['value']:6.2f}  goal {r['goal']:g}: {'met' if r['met'] else 'MISSED'}")
    print(f"{time.monotonic() - begin:.0f} s in all")
    if set(order) | {f"fixed {n}" for n in FIXED} <= {r["arm"] for r in rows}:
        text = table(rows, f"{measured_with().rstrip(':')}; {rows[0]['asked']} requests in {what['seconds']:.0f} s, seed {o.seed}; the machine did "
                     f"{what['rate']:.2f} answers/s; promised: first token within {TTFT_S:g} s, then one each {1e3 * what['gap_s']:.0f} ms.")
        print(text)
        head, rest = DOC.read_text().split(MARK)
        DOC.write_text(head + MARK + text + "<!-- end -->" + rest.split("<!-- end -->", 1)[1])


if __name__ == "__main__":
    main()
