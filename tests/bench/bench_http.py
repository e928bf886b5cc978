#!/usr/bin/env python3
"""make bench-http: how many streams, idle connections and short requests one server holds, with its client beside it on the same cores.

STREAMS=n (2000), IDLE=n (10000), SECONDS=n (5), REPEAT=n (3). Writes build/reports/http.json."""
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from bare import Bare  # noqa: E402

STREAMS, IDLE = int(os.environ.get("STREAMS", "2000")), int(os.environ.get("IDLE", "10000"))
SECONDS, REPEAT = float(os.environ.get("SECONDS") or 5), int(os.environ.get("REPEAT") or 3)
CLIENT = sys.argv[1]
ROWS = []


def row(cell, value, unit, goal=None, least=False, spread=None):
    met = None if goal is None else (value >= goal if least else value <= goal)
    ROWS.append({"cell": cell, "value": round(value, 3), "unit": unit, "spread": spread, "goal": goal, "met": met})
    print(f"  {cell:<34} {value:12.3f} {unit:<8} {'' if goal is None else ('goal >= ' if least else 'goal <= ') + format(goal, 'g'):<16} "
          f"{'' if met is None else 'met' if met else 'MISSED'}", flush=True)


def client(s, *words):
    """What it printed, as numbers; its exit status is about losses, which are cells of their own."""
    done = subprocess.run([CLIENT, str(s.port), *map(str, words)], capture_output=True, text=True, timeout=600)
    return [float(x) for x in done.stdout.split()]


def memory_mib(s, field="Pss"):
    text = open(f"/proc/{s.process.pid}/smaps_rollup").read()
    return int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1]) / 1024


def streams(s):
    done, lost, events, took = client(s, "streams", STREAMS, 16)
    row(f"streams.{STREAMS}.lost", lost, "streams", 0)
    row(f"streams.{STREAMS}.done", done / took, "1/s")
    row(f"streams.{STREAMS}.tokens", done * 16 / took, "tokens/s")


def idle(s):
    before = memory_mib(s)
    with subprocess.Popen([CLIENT, str(s.port), "idle", str(IDLE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        _, held, lost = p.stdout.readline().split()
        after = memory_mib(s)
        p.stdin.close()
    row(f"idle.{IDLE}.lost", float(lost), "conns", 0)
    row(f"idle.{IDLE}.memory", after - before, "MiB", 450)
    row(f"idle.{IDLE}.each", (after - before) * 1024 / max(float(held), 1), "KiB")


def requests(s, cell, path, body=None, goal=None):
    rates, lost_all = [], 0
    for _ in range(REPEAT):
        done, lost, took = client(s, "requests", 64, SECONDS, path, *([json.dumps(body)] if body else []))
        rates.append(done / took)
        lost_all += lost
    row(cell, statistics.median(rates), "1/s", goal, True, [round(min(rates)), round(max(rates))])
    row(cell + ".lost", lost_all, "requests", 0)


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as run:
        s = Bare(pathlib.Path(run), "--max-num-seqs", "2048", "--max-num-batched-tokens", "4096", "--max-num-queued-reqs", "4096", "--max-connections", "12000",
                 "--max-model-len", "256", "--block-size", "32", "--num-gpu-blocks-override", "4096")
        try:
            requests(s, "short.models", "/v1/models")
            requests(s, "short.tokenize", "/tokenize", {"prompt": "Once upon a time"})
            requests(s, "short.completion", "/v1/completions", {"prompt": "Once", "max_tokens": 1}, 3000)
            streams(s)
            idle(s)
            row("health.after", float(s.ask("/health")[0] != 200), "failures", 0)
        finally:
            s.stop()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/http.json").write_text(json.dumps(
        {"target": "http", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
