#!/usr/bin/env python3
"""make check-fleet: three appliances with the embedded model behind HAProxy, vllm-router (power_of_two, cache_aware, kv_aware) and Envoy.

For each: all three restart in turn under the lease while 32 clients stream; a kill -9 of one while 12 stream; prompts with shared beginnings; and,
with three whose steps take as long as a GPU's, a limit pinned low on one while 24 ask. Prints a table, writes build/reports/fleet.json. ROUTERS="haproxy envoy" takes some of them."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fleet import ROOT, Clients, Fleet, envoy, haproxy, hit_rate, kill_one, vllm_router, wait_for  # noqa: E402

ROUTERS = {"haproxy": haproxy, "power_of_two": lambda f: vllm_router(f, "power_of_two"), "cache_aware": lambda f: vllm_router(f, "cache_aware"),
           "kv_aware": lambda f: vllm_router(f, "kv_aware"), "envoy": envoy}
ROWS = []


def row(cell, value, unit, goal=None, met=None, note=""):
    ROWS.append({"cell": cell, "value": round(value, 4), "unit": unit, "goal": goal, "met": met})
    print(f"  {cell:<34} {value:>9.4g} {unit:<9} {goal or '':<22} {'' if met is None else 'met' if met else 'MISSED':<7} {note}", flush=True)


def restarts(name, fleet, port):
    clients = Clients(port, 32)
    time.sleep(1.5)
    begin = time.monotonic()
    away = fleet.roll()
    took = time.monotonic() - begin
    time.sleep(1)
    done, refused, lost = clients.end()
    row(f"{name}.roll.lost", lost, "streams", "0", lost == 0, clients.lost[0] if lost else f"of {done}, in {took:.0f} s")
    row(f"{name}.roll.refused", refused, "requests", "0", refused == 0, clients.refused[0] if refused else "")
    row(f"{name}.roll.away_at_once", away, "servers", "<= 1", away <= 1)


def kill(name, fleet, port):
    clients = Clients(port, 12, tokens=900)
    time.sleep(1.5)
    at, cut_elsewhere = kill_one(fleet)
    time.sleep(2)
    done, refused, lost = clients.end()
    elsewhere, after = cut_elsewhere(), sum(begun > at for begun in clients.failed_at)
    row(f"{name}.kill.own", lost + refused - after, "streams", note=f"{lost} broke, {refused} had no answer yet {(clients.refused + [''])[0][:150]}")
    row(f"{name}.kill.cut_elsewhere", elsewhere, "streams", "0", elsewhere == 0)
    row(f"{name}.kill.failed_after", after, "requests", "0", after == 0)
    for a in fleet.all:
        a.ready()
    time.sleep(10)  # breakers and ejections that it caused end by themselves


def shares(fleet, port, seconds):
    clients = Clients(port, 24, tokens=40)
    time.sleep(1)
    before = fleet.finished()
    time.sleep(seconds)
    after = fleet.finished()
    clients.end()
    delta = [b - a for a, b in zip(before, after)]
    return [d / max(1, sum(delta)) for d in delta]


def lowered(name, fleet, port):
    whole = shares(fleet, port, 6)[0]
    fleet.all[0].ctl("limits", "pin", "max_num_running_seqs=1")
    time.sleep(1)
    small = shares(fleet, port, 6)[0]
    fleet.all[0].ctl("limits", "unpin", "max_num_running_seqs")
    fleet.all[0].ctl("limits", "set", "max_num_running_seqs=16")
    row(f"{name}.lowered.share", small, "of work", f"< half of {whole:.2f}", small < whole / 2)


def main():
    for words in (["haproxy", "-c", "-f", ROOT / "packaging/deploy/haproxy.cfg"],
                  [ROOT / "build/venv-fleet/bin/envoy", "--mode", "validate", "-c", ROOT / "packaging/deploy/envoy.yaml"]):
        good = subprocess.run([str(w) for w in words], capture_output=True).returncode == 0
        row(f"example.{pathlib.Path(words[-1]).name}", int(good), "valid", "1", good)
    wanted = os.environ.get("ROUTERS", "").split() or list(ROUTERS)
    rates = {}
    with tempfile.TemporaryDirectory(prefix="evenkeel-fleet-") as run:
        fleet = Fleet(pathlib.Path(run))
        try:
            for name in wanted:
                router = ROUTERS[name](fleet)
                try:
                    restarts(name, fleet, router.port)
                    kill(name, fleet, router.port)
                    rates[name] = hit_rate(fleet, router.port)
                finally:
                    router.end()
            best = hit_rate(fleet, fleet.all[0].port)  # one server has seen it all: no router can do better
        finally:
            fleet.end()
    with tempfile.TemporaryDirectory(prefix="evenkeel-fleet-") as run:
        fleet = Fleet(pathlib.Path(run), paced=True)
        try:
            for name in wanted:
                router = ROUTERS[name](fleet)
                try:
                    lowered(name, fleet, router.port)
                finally:
                    router.end()
        finally:
            fleet.end()
    row("best_possible.hit_rate", best, "of tokens")
    blind = rates.pop("power_of_two", None)
    if blind is not None:
        row("power_of_two.hit_rate", blind, "of tokens")
    for name, rate in rates.items():
        aware = name.endswith("_aware")
        row(f"{name}.hit_rate", rate, "of tokens", f">= {best - 0.01:.3f}" if aware else None, rate >= best - 0.01 if aware else None)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/fleet.json").write_text(json.dumps(
        {"target": "fleet", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    missed = [r["cell"] for r in ROWS if r["met"] is False]
    print(f"{len(ROWS) - len(missed)} rows, {len(missed)} missed{': ' + ', '.join(missed) if missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
