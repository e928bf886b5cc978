#!/usr/bin/env python3
"""From `systemctl start evenkeeld` to the first token of the tiny model, in a machine of its own, and what the packages weigh; prints and writes
build/reports/packages.json. The model's files are in the page cache. cold_start.py [TIMES]"""
import json
import pathlib
import statistics
import subprocess
import sys
import time

from machine import Machine
from test_life import ANSWER, DEBS, PARTS, ROOT, debs

GOAL_S = 1.5
FIRST = ANSWER.replace('"max_tokens": 4', '"max_tokens": 1').replace('\\"max_tokens\\": 4', '\\"max_tokens\\": 1')


def starts(times):
    machine, took = Machine(), []
    try:
        machine.boot()
        (machine.root / "root/debs").symlink_to("/mnt")
        subprocess.run(["cp", *DEBS.glob("*.deb"), machine.root / "mnt"], check=True)
        machine.run(f"apt-get install -y --no-install-recommends {debs(PARTS + ['evenkeel-model-tiny'])} && systemctl start evenkeeld && {FIRST}")
        for _ in range(times):
            machine.run("systemctl stop evenkeeld")
            begin = time.monotonic()
            machine.run(f"systemctl start evenkeeld && {FIRST}")
            took.append(time.monotonic() - begin)
    finally:
        machine.destroy()
    return took


def main():
    took = starts(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    median = statistics.median(took)
    rows = [{"cell": "start.first_token", "value": round(median, 3), "unit": "s", "spread": [round(min(took), 3), round(max(took), 3)], "goal": GOAL_S, "met": median <= GOAL_S}]
    for p in sorted(DEBS.glob("*.deb")):
        if "dbgsym" not in p.name:
            rows.append({"cell": f"size.{p.name.split('_')[0]}", "value": round(p.stat().st_size / 1024), "unit": "KiB"})
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    path = ROOT / "build/reports/packages.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"target": "packages", "commit": commit, "machine": {"cpu": cpu, "cores": len(pathlib.Path("/proc/cpuinfo").read_text().split("processor\t")) - 1}, "rows": rows}))
    print(f"start of the service to the first token: {median:.2f} s ({min(took):.2f} to {max(took):.2f}), goal {GOAL_S} s")
    for row in rows[1:]:
        print(f"  {row['value']:6d} KiB  {row['cell'][5:]}")


if __name__ == "__main__":
    main()
