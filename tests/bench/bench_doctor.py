#!/usr/bin/env python3
"""How often `evenkeelctl diagnose` names the right kind: make bench-doctor [LOGS=DIR] [SHORT=1] -> build/reports/bench-doctor.json

Without LOGS: every log of tests/fixtures/doctor_logs.txt in variants that it was not written in (noise around it, other ranks, other numbers, cut, interleaved with
another process, terminal colours, log drivers' JSON, prefixes of journald and Kubernetes), and the time for 100 MiB. With LOGS: the logs of a folder beside their
labels in DIR/labels.tsv, lines of "FILE<tab>KIND[<tab>ENTRIES]" (several kinds that would be right: KIND|KIND; ENTRIES: those whose remedy would have helped, or
"none" or "any"). Kinds are the classes of `evenkeelctl diagnose --json`; HEALTHY is a log without a failure (right when
none is told, not even one without a name), UNSAID one that only tells what followed from its
cause: for it the answer "not known" is the right one. A device out of memory whose phase the log does not say
(DEVICE_OOM) is right for each of its three kinds. What was named on weak evidence ("confidence": "probable") is counted apart: a right one is right, and among the "probable" of them; a wrong one is not
wrong with confidence ("as probable").
What no entry names may still be told its probable kind: "by kind", right or wrong, is counted apart, too.
"""
import argparse
import collections
import json
import os
import pathlib
import platform
import random
import re
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OOM = {"STARTUP_OOM", "BURST_OOM", "FRAG_OOM"}
ALSO = {"KV_PRESSURE": {"OVERLOAD"}, "BUG": {"SIGNAL"}, "FILES": {"PORT", "DISK"}, **{k: {"DEVICE_OOM"} for k in OOM}}
NOISE = ["INFO:     10.4.0.9:50122 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK", "INFO:     127.0.0.1:40312 - \"GET /metrics HTTP/1.1\" 200 OK",
         "DEBUG 11-20 10:00:00 [core_client.py:112] Got 3 outputs", "INFO 11-20 10:00:00 [loggers.py:118] Engine 000: Avg prompt throughput: 812.0 tokens/s, Avg generation throughput: 95.5 tokens/s, "
         "Running: 9 reqs, Waiting: 0 reqs, GPU KV cache usage: 23.4%, Prefix cache hit rate: 41.0%", "INFO 11-20 10:00:00 [logger.py:40] Received request cmpl-1: prompt: 'why CUDA out of memory?', params: SamplingParams(n=1)"]


def read_fixture():
    cases = []
    for line in (ROOT / "tests/fixtures/doctor_logs.txt").read_text().splitlines():
        if line.startswith("== "):
            cases.append((line[3:], []))
        elif cases:
            cases[-1][1].append(line)
    return cases


def other_numbers(line, rng):
    """Sizes grow by one factor, so that they stay in proportion."""
    return re.sub(r"(\d+\.\d+) (GiB|MiB)", lambda m: f"{float(m[1]) * 0.875:.2f} {m[2]}", line)


def noisy(lines, rng):
    """Statistics and requests before and after; none of them says that it was ready."""
    quiet = [n for n in NOISE if "POST" not in n and "Received" not in n]
    out = [rng.choice(NOISE[2:3]) for _ in range(20)]
    for line in lines:
        out += [line] + [rng.choice(quiet[1:2]) for _ in range(2)]
    return out


VARIANTS = {
    "plain": lambda lines, rng: lines,
    "noise": noisy,
    "numbers": lambda lines, rng: [other_numbers(x, rng) for x in lines],
    "ranks": lambda lines, rng: [f"(Worker_TP{k} pid={700 + k}) {x}" if re.search(r"Error|ERROR", x) else x for x in lines for k in ((0, 1, 2, 3) if re.search(r"Error|ERROR", x) else (0,))],
    "cut": lambda lines, rng: [lines[0][len(lines[0]) // 2:]] + lines[1:] if len(lines) > 2 else lines + ["INFO: half a li"],
    "interleaved": lambda lines, rng: [y for x in lines for y in (x, f"(APIServer pid=1) {NOISE[1]}")],
    "colours": lambda lines, rng: [f"\x1b[1;36m{x[:14]}\x1b[0;0m\x1b[31m{x[14:]}\x1b[0m\r" for x in lines],
    "docker": lambda lines, rng: [json.dumps({"log": x + "\n", "stream": "stderr", "time": "2026-11-20T10:00:00Z"}) for x in lines],
    "journald": lambda lines, rng: [f"Nov 20 10:00:0{i % 10} gpu3 vllm[4112]: {x}" for i, x in enumerate(lines)],
    "kubernetes": lambda lines, rng: [f"2026-11-20T10:00:0{i % 10}.123456789Z stderr F {x}" for i, x in enumerate(lines)],
}


def answer_of(said):
    told = [f for f in said["findings"] if f["explains"]] if said["known"] else []
    first = (told or said["findings"] or [None])[0]
    return {"kind": told[0]["class"] if told else None, "sure": bool(told) and told[0]["confidence"] == "sure", "entry": first and first["id"], "failed": bool(told) or said["unknown"] is not None,
            "probably": (said["unknown"] or {}).get("probably"), "helped": bool(first and first["remedies"])}


def diagnose(program, folder):
    """What is said of each file of a folder, by its name: one call, since most of its time would be the catalog's."""
    done = subprocess.run([program, "diagnose", "--json", "--each", folder], capture_output=True, timeout=600)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    return {pathlib.Path(said["source"]).name: answer_of(said) for said in map(json.loads, done.stdout.splitlines())}


def is_right(label, kind):
    wanted = set(label.split("|"))
    return any(kind == w or kind in ALSO.get(w, ()) for w in wanted)


class Score:
    def __init__(self):
        self.rows = collections.OrderedDict()
        self.missed = []

    def add(self, name, label, said):
        kind, entry, probably = said["kind"], said["entry"], said["probably"]
        row = self.rows.setdefault(label.split("|")[0], collections.Counter())
        row["logs"] += 1
        allowed = set(label.split("|"))
        if kind is None and ("UNSAID" in allowed or ("HEALTHY" in allowed and not said["failed"])):
            outcome = "right"
        else:
            outcome = "unknown" if kind is None else "right" if is_right(label, kind) else "wrong" if said["sure"] else "wrong_probable"
        row[outcome] += 1
        row["right_probable"] += outcome == "right" and kind is not None and not said["sure"]
        if outcome == "unknown" and probably is not None:
            row["guess_right" if is_right(label, probably) else "guess_wrong"] += 1
        row["helped"] += outcome == "right" and said["helped"]
        if outcome != "right":
            self.missed.append(f"{name}: {label}, said {kind and (kind if said['sure'] else 'probably ' + kind) or 'unknown'} ({entry}, probably {probably})")

    def table(self):
        lines = [f"{'kind':<12} {'logs':>5} {'right':>6} {'probable':>9} {'wrong':>6} {'as probable':>12} {'unknown':>8}  of these by kind: right, wrong"]
        total = collections.Counter()
        for row in self.rows.values():
            total.update(row)
        for kind, r in [*self.rows.items(), ("all", total)]:
            lines.append(f"{kind:<12} {r['logs']:>5} {r['right']:>6} {r['right_probable']:>9} {r['wrong']:>6} {r['wrong_probable']:>12} {r['unknown']:>8} {r['guess_right']:>23} {r['guess_wrong']:>6}")
        return lines, total


def speed(program):
    """100 MiB of statistics and requests with one failure at the end: the least time by the clock, and of the processor (machines are shared)."""
    block = ("\n".join(NOISE) + "\n") * 400
    with tempfile.NamedTemporaryFile("w", suffix=".log") as f:
        size = 0
        while size < 100 << 20:
            size += f.write(block)
        f.write("OSError: [Errno 98] Address already in use\n")
        f.flush()
        clock, cpu = [], []
        for _ in range(3):
            begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([program, "diagnose", "--json", f.name], stdout=subprocess.DEVNULL, check=True)
            clock.append(time.monotonic() - begin)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(clock), min(cpu)


def report(score, seconds, short):
    lines, total = score.table()
    cells = [{"cell": f"doctor.{kind}.{what}", "value": row[what], "unit": "logs", "spread": None} for kind, row in score.rows.items() for what in ("logs", "right", "right_probable", "wrong", "wrong_probable", "unknown", "guess_right", "guess_wrong")]
    cells.append({"cell": "doctor.wrong_probable", "value": round(total["wrong_probable"] / max(total["logs"], 1), 4), "unit": "share", "spread": None})
    for what, goal in (("right", 0.9), ("wrong", 0.03)):
        share = total[what] / max(total["logs"], 1)
        cells.append({"cell": f"doctor.{what}", "value": round(share, 4), "unit": "share", "spread": None, "goal": goal, "met": share >= goal if what == "right" else share <= goal})
    if seconds is not None:
        cells.append({"cell": "doctor.100_mib", "value": round(seconds[0], 2), "unit": "s", "spread": None, "goal": 2, "met": seconds[0] <= 2})
        cells.append({"cell": "doctor.100_mib.cpu", "value": round(seconds[1], 2), "unit": "s", "spread": None})
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    out = {"target": "bench-doctor", "commit": commit, "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}, "rows": cells}
    path = ROOT / "build/reports/bench-doctor.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not short:
        path.write_text(json.dumps(out, indent=1) + "\n")
    print("\n".join(lines))
    if seconds is not None:
        print(f"100 MiB of log in {seconds[0]:.2f} s, {seconds[1]:.2f} s of the processor")
    return total


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--program", default=ROOT / "build/release/evenkeelctl")
    ask.add_argument("--logs", default="")
    ask.add_argument("--short", action="store_true", help="three variants, no timing: for make check")
    ask.add_argument("--missed", action="store_true", help="name the logs that were not named right")
    o = ask.parse_args()
    score, rng = Score(), random.Random(25)
    if o.logs:
        said = diagnose(o.program, o.logs)
        for line in (pathlib.Path(o.logs) / "labels.tsv").read_text().splitlines():
            name, label = line.split("\t")[:2]
            score.add(name, label, said[name])
    else:
        names = ["plain", "ranks", "docker"] if o.short else list(VARIANTS)
        labels = {}
        with tempfile.TemporaryDirectory() as folder:
            for i, (label, lines) in enumerate(read_fixture()):
                for name in names:
                    labels[f"{i}.{name}"] = label
                    (pathlib.Path(folder) / f"{i}.{name}").write_text("\n".join(VARIANTS[name](lines, rng)) + "\n")
            said = diagnose(o.program, folder)
        for name, label in labels.items():
            score.add(name, label, said[name])
    total = report(score, None if o.short or o.logs else speed(o.program), o.short)
    if o.missed or (o.short and score.missed):
        print("\n".join(score.missed))
    if not o.logs and (total["right"] < 0.9 * total["logs"] or total["wrong"] + total["wrong_probable"] > 0.03 * total["logs"]):
        sys.exit("bench-doctor: fewer than 90 % right or more than 3 % wrong")


if __name__ == "__main__":
    main()
