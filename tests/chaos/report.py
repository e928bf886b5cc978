"""What a run of `make chaos` says: a line while it goes on, a table at its end, build/reports/chaos.json."""
import json
import os
import subprocess
import sys

from faults import TABLE


class Counts:
    def __init__(self):
        self.runs = self.failed = self.deaths = self.planned = self.routed = 0
        self.requests, self.faults, self.held = {}, {}, {}

    def add(self, schedule, result):
        self.runs += 1
        self.failed += bool(result["violations"])
        self.deaths += result["deaths"]
        self.planned += result["planned"]
        self.routed += result.get("haproxy", False)
        for how, n in result["requests"].items():
            self.requests[how] = self.requests.get(how, 0) + n
        for e in result["events"]:
            if e["done"]:
                row = self.faults.setdefault(e["kind"], [0, 0])
                row[0] += 1
                row[1] += bool(result["violations"])
        for v in result["violations"]:
            self.held[v["invariant"]] = self.held.get(v["invariant"], 0) + 1

    def line(self):
        asked = sum(self.requests.values())
        return (f"{self.runs} runs, {sum(n for n, _ in self.faults.values())} faults, {asked} streams ({self.requests.get('done', 0)} whole), "
                f"{self.deaths} ends by fault, {self.planned} by plan, {self.failed} failed")

    def progress(self, took_s, of_s):
        if sys.stdout.isatty():
            print(f"\r\033[K{took_s:4.0f} of {of_s:.0f} s: {self.line()}", end="", flush=True)

    def table(self, skipped, withheld, no_router):
        print(("\r\033[K" if sys.stdout.isatty() else "") + f"\n{'fault':20} {'injected':>8} {'in runs that failed':>20}")
        for name in TABLE:
            n, bad = self.faults.get(name, (0, 0))
            note = f"  skipped: {skipped[name]}" if name in skipped else f"  withheld: {withheld[name]}" if name in withheld else ""
            print(f"{name:20} {n:8} {bad or '':>20}{note}")
        print(f"{'runs behind HAProxy':20} {self.routed:8} {'':>20}{'  skipped: ' + no_router if no_router else ''}")
        print(f"{'streams':20} " + ", ".join(f"{n} {how}" for how, n in sorted(self.requests.items())))
        for name, n in sorted(self.held.items()):
            print(f"  violated: {name} {n} times")
        print(self.line() + ("" if self.failed else ": all held"), flush=True)

    def write(self, root, seed, scale, took_s):
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=root).stdout.strip() or "unknown"
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
        rows = [{"cell": f"chaos.{name}", "value": n, "unit": "times", "goal": 0, "failed": bad, "met": bad == 0} for name, (n, bad) in sorted(self.faults.items())]
        rows += [{"cell": f"chaos.streams.{how}", "value": n, "unit": "streams"} for how, n in sorted(self.requests.items())]
        rows += [{"cell": f"chaos.violated.{name.replace(' ', '_')}", "value": n, "unit": "times", "goal": 0, "met": False} for name, n in sorted(self.held.items())]
        rows += [{"cell": "chaos.runs.haproxy", "value": self.routed, "unit": "runs"}]
        rows += [{"cell": "chaos.runs", "value": self.runs, "unit": "runs", "failed": self.failed, "met": self.failed == 0}]
        (root / "build/reports").mkdir(parents=True, exist_ok=True)
        (root / "build/reports/chaos.json").write_text(json.dumps({"target": "chaos", "commit": commit, "seed": seed, "scale": scale, "took_s": round(took_s, 1),
                                                                   "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": rows}, indent=1) + "\n")
