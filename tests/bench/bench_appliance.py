#!/usr/bin/env python3
"""make bench-appliance: what the appliance costs and how fast it recovers, on this machine, against the goals.

Cells: evenkeeld's CPU share and private memory at a 1 s poll; the server's /metrics while 16 clients stream; time to the next answer after
kill -9 of the server during 8 streams. REPEAT=n repeats the recovery (default 3). Writes build/reports/appliance.json."""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from conftest import Appliance, cpu_seconds, stream  # noqa: E402


def private_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")) / 1024


class Clients:
    """n clients that stream long answers until told to stop."""

    def __init__(self, port, n):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(port, i), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, port, number):
        while not self.stop.is_set():
            try:
                for _ in stream(port, "/v1/completions", {"model": "tiny", "prompt": f"Story {number}", "max_tokens": 800, "ignore_eos": True}):
                    if self.stop.is_set():
                        return
            except (OSError, RuntimeError, ValueError):
                time.sleep(0.1)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(10)


def supervisor_cost(a, seconds=20):
    before, begin = cpu_seconds(a.process.pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(a.process.pid) - before) / (time.monotonic() - begin)
    return share * 100, private_mib(a.process.pid)


def metrics_times(a):
    clients = Clients(a.port, 16)
    time.sleep(1.5)
    times = []
    for _ in range(100):
        # curl in a process of its own: this one's threads are busy reading streams
        out = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{time_total}", f"http://127.0.0.1:{a.port}/metrics"],
                             capture_output=True, text=True, check=True)
        times.append(float(out.stdout) * 1000)
        time.sleep(0.02)
    clients.end()
    times.sort()
    return times[len(times) // 2], times[int(len(times) * 0.99) - 1]


def recovery(a):
    clients = Clients(a.port, 8)
    time.sleep(1)
    clients.stop.set()  # their streams go on until the kill breaks them
    os.kill(a.server()["pid"], signal.SIGKILL)
    begin = time.monotonic()
    for _ in stream(a.port, "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 2}):
        pass
    took = time.monotonic() - begin
    clients.end()
    a.ready()
    return took


def main():
    rows = []

    def row(cell, value, unit, goal=None, spread=None):
        met = None if goal is None else value <= goal
        rows.append({"cell": cell, "value": round(value, 3), "unit": unit, "spread": spread, "goal": goal, "met": met})
        print(f"  {cell:<34} {value:10.3f} {unit:<6} {'' if goal is None else f'goal <= {goal:g}':<14} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)

    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as run:
        a = Appliance(pathlib.Path(run), poll_s=1.0).start().ready()
        try:
            share, private = supervisor_cost(a)
            row("evenkeeld.cpu", share, "%", 1.0)
            row("evenkeeld.private", private, "MiB", 16.0)
            median, worst = metrics_times(a)
            row("metrics.16_streams.p50", median, "ms", 20.0)
            row("metrics.16_streams.p99", worst, "ms")
            times = [recovery(a) for _ in range(int(os.environ.get("REPEAT") or 3))]
            row("kill9.next_answer", statistics.median(times), "s", 5.0, [round(min(times), 3), round(max(times), 3)])
        finally:
            a.destroy()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/appliance.json").write_text(json.dumps(
        {"target": "appliance", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": rows}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
