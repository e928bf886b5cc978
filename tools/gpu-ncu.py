#!/usr/bin/env python3
"""What NVIDIA's profiler says of the kernels of a model's steps: time, share of memory bandwidth and of arithmetic, warps in flight.

usage: gpu-ncu.py REPORT.json [--launches 60] [--skip 200] COMMAND...

Runs COMMAND under ncu, measures so many launches after the first ones and writes a row for each kernel and figure: the median over its
launches. Needs ncu and a card whose counters this user may read (ERR_NVGPUCTRPERM: NVreg_RestrictProfilingToAdminUsers=0, or root).
"""
import argparse
import csv
import json
import statistics
import subprocess
import sys

METRICS = {"gpu__time_duration.sum": ("time", "ns"),
           "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("dram", "%"),
           "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("sm", "%"),
           "sm__warps_active.avg.pct_of_peak_sustained_active": ("warps", "%")}
IN_NS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "%": 1}
KERNELS = 40  # that are told, those that took longest


def read(text):
    """{kernel: {figure: [values]}} of ncu's raw page: a row of names, a row of units, a row for each launch."""
    table = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(table) < 3:
        return {}
    names, units = table[0], table[1]
    kernel, found = names.index("Kernel Name"), {}
    for row in table[2:]:
        for i, name in enumerate(names):
            if name in METRICS and row[i]:
                by = IN_NS.get(units[i], 1)
                found.setdefault(row[kernel].split("(")[0], {}).setdefault(METRICS[name][0], []).append(float(row[i].replace(",", "")) * by)
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("report")
    p.add_argument("--launches", type=int, default=60)
    p.add_argument("--skip", type=int, default=200, help="launches before: the model is loaded and warm then")
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args()
    run = subprocess.run(["ncu", "--csv", "--page", "raw", "--launch-skip", str(a.skip), "--launch-count", str(a.launches), "--kill", "yes",
                          "--graph-profiling", "node", "--metrics", ",".join(METRICS), *a.command], capture_output=True, text=True)
    kernels = read(run.stdout)
    if not kernels:
        sys.exit(f"ncu has measured nothing (exit status {run.returncode}): " + (run.stdout + run.stderr)[-1000:])
    rows, units = [], dict(METRICS.values())
    for name, figures in sorted(kernels.items(), key=lambda k: -sum(k[1].get("time", [0])))[:KERNELS]:
        rows += [{"cell": f"ncu.{name}.{figure}", "value": statistics.median(v), "unit": units[figure]} for figure, v in figures.items()]
        print(f"  {name:40} {len(figures.get('time', []))} launches, " +
              ", ".join(f"{f} {statistics.median(v):.0f} {units[f]}" for f, v in figures.items()))
    with open(a.report, "w", encoding="utf-8") as f:
        json.dump({"target": "gpu-ncu", "rows": rows}, f)


if __name__ == "__main__":
    main()
