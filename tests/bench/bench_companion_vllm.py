"""What the companion costs a real vLLM: two of them stand side by side, both under evenkeeld, one with the companion and one as it is, and take
turns under the same closed loop of clients while the other one is idle. A pair is a turn of each, and every second pair begins with the
other one, so that what the machine does meanwhile falls on both.

    throughput   output tokens a second; of each pair the loss, of all pairs the median and its interval (order statistics, 95 % from six
                 pairs on), which needs no assumption on how a busy machine errs
    step         processor time of the companion's part in the engine's loop, microseconds a step, less what the clock itself costs; the
                 clock is put in by a sitecustomize of this file's, so that what users run has none

Goals: 1 % of throughput, 50 us a step. Few pairs on a busy machine show that it works, not what it costs.
    make bench-companion-vllm [PAIRS=10] [TURN_S=20] [CLIENTS=8]   -> build/reports/bench-companion-vllm.json, docs/vllm.md from 6 pairs on"""
import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "tests/e2e")]
sys.path.append(str(ROOT / "supervisor/companion"))

SEQS, PROMPT, OUTPUT = 8, 48, 100
FLAGS = ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", str(SEQS),
         "--block-size", "32", "--num-gpu-blocks-override", "140"]
GOAL_LOSS, GOAL_STEP_US = 1.0, 50.0
PAIRS_FOR_DOCS = 6
DOC, MARK = ROOT / "docs/vllm.md", "<!-- written by make bench-companion-vllm -->\n"

CLOCK = '''
import os
def put_in():
    from evenkeel_vllm import scheduler
    import mmap, struct, time
    clock, guard, kept = time.thread_time_ns, scheduler.Keel.guard, {}
    def begin():
        own = min(-clock() + clock() for _ in range(1000))
        with open(f"{os.environ['EVENKEEL_COMPANION_DIR']}/cost-{os.getpid()}", "w+b") as file:
            file.truncate(8)
            return own, memoryview(mmap.mmap(file.fileno(), 8)).cast("d")
    def timed(self, what, *args):
        if not kept:
            kept["own"], kept["to"] = begin()
        at = clock()
        guard(self, what, *args)
        kept["to"][0] += clock() - at - kept["own"]
    scheduler.Keel.guard = timed
if os.environ.get("EVENKEEL_COMPANION_DIR"):
    try:
        put_in()
    except ImportError:
        pass
'''


def median_interval(values):
    """The median, the interval that holds the true one with 95 %, and with how many percent it does: fewer where there are fewer than six."""
    v, n = sorted(values), len(values)
    below, k = 2.0 ** -n, 0  # P(X <= k), X the count of values below the true median
    while k + 1 < n // 2 and below + math.comb(n, k + 1) * 2.0 ** -n <= 0.025:
        k += 1
        below += math.comb(n, k) * 2.0 ** -n
    return statistics.median(v), v[k], v[n - 1 - k], 100 * max(0.0, 1 - 2 * below)


class Arm:
    def __init__(self, run, kind):
        from test_companion import Companion
        from test_supervised import VLLM_ENV, Supervised
        self.run, self.kind = run, kind
        (run / "site").mkdir(parents=True)
        (run / "site/sitecustomize.py").write_text(CLOCK)

        class Timed(Companion):
            env = {**VLLM_ENV, "PYTHONPATH": str(run / "site")}
        self.s = (Timed if kind == "companion" else Supervised)(run, "    mode: observe\n", args=FLAGS).start()
        self.turns = []

    def load(self, clients, requests):
        from bench_control_vllm import bench
        return bench(self.s.port, 1, self.run / "report.json", "--clients", clients, "--requests", requests, "--prompt", PROMPT, "--output", OUTPUT)

    def spent(self):
        """(microseconds, steps) of the companion's part so far."""
        if self.kind != "companion":
            return 0.0, 0.0
        from evenkeel_vllm import board
        where = self.run / "r/main"
        us = sum(struct.unpack("d", path.read_bytes())[0] for path in where.glob("cost-*")) / 1e3
        return us, board.total(board.Reader(str(where), "engine").boards(), "steps")

    def turn(self, clients, requests):
        us, steps = self.spent()
        cells = self.load(clients, requests)
        if cells["failed"]:
            raise SystemExit(f"{self.kind}: {cells['failed']:.0f} requests failed")
        us, steps = self.spent()[0] - us, self.spent()[1] - steps
        self.turns.append({"tok_s": cells["output"], "per_token_ms": cells["per_token.p50"], "step_us": us / steps if steps else 0.0, "steps": steps})
        return self.turns[-1]


def rows_of(plain, kept):
    """As all reports have them."""
    losses = [100 * (1 - k["tok_s"] / p["tok_s"]) for p, k in zip(plain, kept)]
    rows = []

    def row(cell, values, unit, goal=None, peer=None):
        mid, low, high, sure = median_interval(values)
        r = {"cell": cell, "value": round(mid, 4), "unit": unit, "spread": [round(low, 4), round(high, 4)], "interval_percent": round(sure, 1)}
        if peer is not None:
            r |= {"peer": "vLLM alone", "peer_value": round(peer, 4), "ratio": round(mid / peer, 4)}
        if goal is not None:
            r |= {"goal": goal, "met": mid <= goal}
        rows.append(r)
    row("throughput.alone", [t["tok_s"] for t in plain], "tok/s")
    row("throughput.companion", [t["tok_s"] for t in kept], "tok/s", peer=statistics.median(t["tok_s"] for t in plain))
    row("throughput.loss", losses, "%", goal=GOAL_LOSS)
    row("per_token.alone", [t["per_token_ms"] for t in plain], "ms")
    row("per_token.companion", [t["per_token_ms"] for t in kept], "ms", peer=statistics.median(t["per_token_ms"] for t in plain))
    row("step", [t["step_us"] for t in kept], "us", goal=GOAL_STEP_US)
    return rows


NAMES = {"throughput.alone": "output, vLLM alone (tokens/s)", "throughput.companion": "output, with the companion (tokens/s)",
         "throughput.loss": "loss of throughput, of pairs (%)", "per_token.alone": "per token, vLLM alone (ms)",
         "per_token.companion": "per token, with the companion (ms)", "step": "processor time of the companion a step (us)"}


def table(rows, told):
    lines = [told, "", "| what | median | interval | goal |", "|---|---|---|---|"]
    lines += [f"| {NAMES[r['cell']]} | {r['value']:.2f} | {r['spread'][0]:.2f} to {r['spread'][1]:.2f} | "
              f"{'at most %g: %s' % (r['goal'], 'met' if r['met'] else 'missed') if 'goal' in r else ''} |" for r in rows]
    return "\n".join(lines) + "\n"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--turn-s", type=float, default=20)
    options.add_argument("--clients", type=int, default=SEQS)
    o = options.parse_args()
    from ask import is_newest, measured_with
    where, arms, begin = pathlib.Path(tempfile.mkdtemp(prefix="bcv.")), {}, time.monotonic()
    try:
        for kind in ("alone", "companion"):  # one after the other: a start takes both cores
            (where / kind).mkdir()
            arms[kind] = Arm(where / kind, kind)
            arms[kind].s.ready()
            arms[kind].load(o.clients, 4 * o.clients)
        rate = min(arm.load(o.clients, 8 * o.clients)["answers"] for arm in arms.values())
        requests = max(4 * o.clients, round(rate * o.turn_s))
        print(f"{o.pairs} pairs of {requests} answers of {OUTPUT} tokens, {o.clients} clients, {rate:.2f} answers/s", flush=True)
        for pair in range(o.pairs):
            for kind in ("alone", "companion") if pair % 2 == 0 else ("companion", "alone"):
                arms[kind].turn(o.clients, requests)
            print(f"  {pair + 1:3d}  " + "   ".join(f"{kind} {arm.turns[-1]['tok_s']:8.1f} tok/s" for kind, arm in arms.items()) +
                  f"   {arms['companion'].turns[-1]['step_us']:5.1f} us a step", flush=True)
        if not all(t["steps"] > 0 and t["step_us"] > 0 for t in arms["companion"].turns):
            raise SystemExit("the companion's part did not run: " + arms["companion"].s.output()[-2000:])
    finally:
        for arm in arms.values():
            arm.s.end()
    shutil.rmtree(where)
    rows = rows_of(arms["alone"].turns, arms["companion"].turns)
    text = table(rows, f"{measured_with()[:-1]}; {o.pairs} pairs of turns of {o.turn_s:g} s, {o.clients} clients, interval of "
                 f"{rows[0]['interval_percent']:.0f} %:")
    print(f"\n{text}\n{time.monotonic() - begin:.0f} s")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    report = ROOT / "build/reports/bench-companion-vllm.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"target": "bench-companion-vllm", "commit": commit, "machine": {"cpu": cpu, "cores": len(os.sched_getaffinity(0)),
                                  "load": os.getloadavg()[1]}, "pairs": o.pairs, "turn_s": o.turn_s, "clients": o.clients,
                                  "turns": {kind: arm.turns for kind, arm in arms.items()}, "rows": rows}, indent=1) + "\n")
    if o.pairs >= PAIRS_FOR_DOCS and is_newest():
        head, rest = DOC.read_text().split(MARK)
        DOC.write_text(head + MARK + text + "<!-- end -->" + rest.split("<!-- end -->", 1)[1])
    return 0 if all(r.get("met", True) for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
