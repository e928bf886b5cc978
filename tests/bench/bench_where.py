#!/usr/bin/env python3
"""make bench-where: where the time of 16 clients goes: computing, the engine's host work, HTTP, the tokenizer.

Starts the server, lets evenkeel-bench serve keep CLIENTS requests (128 tokens in, 128 out) under way, and reads two things afterwards: the flight recorder's
steps, which say when the device had a step and how long the engine's thread planned, filled masks and waited; and the processor time of the server's
threads, by their names. Shares of the time that the load took; of processor time, shares of one core. The tokenizer is asked alone, for texts of as many
tokens. Then long prompts keep all compute threads busy while /metrics is read on the control socket READS=n (200) times, 20 a second, by a reader that
does not wait for a core itself where that is allowed. REPEAT=n (3) loads, MODEL=DIR, CLIENTS=n (16). Writes build/reports/bench-where.json."""
import collections
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from program import report_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e")]
from bare import Bare  # noqa: E402

BUILD = ROOT / os.environ.get("B", "build/release")
MODEL = pathlib.Path(os.environ.get("MODEL") or ROOT / "models/evenkeel-tiny")
REPEAT, CLIENTS, PROMPT, OUTPUT = int(os.environ.get("REPEAT") or 3), int(os.environ.get("CLIENTS") or 16), 128, 128
HEAD = struct.Struct("=8s4I2q2Q4IQ" + "4I" * 3)  # common/recorder.h
STEP = struct.Struct("=4Q4I4I3I5I3Ii4I")
TICK = os.sysconf("SC_CLK_TCK")


def steps_of(path, begin_us, end_us):
    """(landed at, step, plan, wait, mask) of each step that landed between."""
    data = path.read_bytes()
    head = HEAD.unpack_from(data)
    assert head[0] == b"EKFLIGHT" and head[1] == 1, "another format of the recorder: see common/recorder.h"
    offset, size, count = head[18:21]
    found = []
    for at in range(offset, offset + size * count, size):
        number, _, at_us, _, step_us, plan_us, wait_us, mask_us = STEP.unpack_from(data, at)[:8]
        if number and begin_us <= at_us <= end_us:
            found.append((at_us, step_us, plan_us, wait_us, mask_us))
    return sorted(found)


def busy_us(steps, begin_us, end_us=float("inf")):
    """Time with a step under way: two may be."""
    total, until = 0, begin_us
    for at, step, *_ in steps:
        total += max(0, min(at, end_us) - max(until, at - step))
        until = max(until, min(at, end_us))
    return total


def threads_of(pid):
    """Processor seconds of its threads by name."""
    seconds = collections.Counter()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        fields = rest.split()
        seconds[name] += (int(fields[11]) + int(fields[12])) / TICK
    return seconds


def tokenizer_us(server, count):
    """Processor time of the server for a text, beside the same exchange without one."""
    text = json.dumps({"prompt": " ".join(f"word {i} of a text" for i in range(PROMPT // 4))})
    used = []
    for path, body in ("/tokenize", text), ("/v1/models", ""):
        before = sum(threads_of(server.process.pid).values())
        for _ in range(count):
            assert server.ask(path, "POST" if body else "GET", body)[0] == 200
        used.append(sum(threads_of(server.process.pid).values()) - before)
    return max(0.0, used[0] - used[1]) / count * 1e6


def measure(server, requests):
    before, begin = threads_of(server.process.pid), time.monotonic()
    report = report_of(BUILD / "evenkeel-bench", "serve", "--url", f"http://127.0.0.1:{server.port}", "--served-model", "tiny", "--clients", CLIENTS,
                       "--requests", requests, "--prompt", PROMPT, "--output", OUTPUT, "--vocab", 1000)
    end, after = time.monotonic(), threads_of(server.process.pid)
    steps = steps_of(pathlib.Path(str(server.control) + ".ring"), begin * 1e6, end * 1e6)
    first = steps[0][0] - steps[0][1]
    wall = steps[-1][0] - first  # from the first step on: what the client needs to begin is its own
    used = {name: (after[name] - before[name]) * 1e8 / wall for name in after}
    busy = busy_us(steps, first)
    values = {"steps.computing": 100 * busy / wall, "steps.none": 100 - 100 * busy / wall}
    for i, name in enumerate(("plan", "wait", "mask")):
        values[f"engine.{name}"] = 100 * sum(s[2 + i] for s in steps) / wall
    for name in ("compute", "engine", "http", "encoder"):
        values[f"core.{name}"] = used.pop(name, 0)
    values["core.other"] = sum(used.values())
    values["output"] = next(r["value"] for r in report["rows"] if r["cell"] == "serve.output")
    return values


def in_front(ours):
    """A reader stands for one on another machine. False where that is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR if ours else os.SCHED_OTHER, os.sched_param(1 if ours else 0))
    except PermissionError:
        return False
    return True


def beside_prompts(server):
    """Milliseconds of each reading while prompts of nearly the model's length are computed, and the share of the time with a step under way."""
    longest = json.loads(server.ask("/v1/models")[2])["data"][0]["max_model_len"]
    stop, times = threading.Event(), []

    def prompts():
        for n in range(1 << 20):  # none begins as another one
            if stop.is_set():
                return
            body = json.dumps({"prompt": [1000 - (n * 7 + i * (n + 1)) % 900 for i in range(longest - 8)], "max_tokens": 1})
            assert server.ask("/v1/completions", "POST", body)[0] == 200

    threads = [threading.Thread(target=prompts) for _ in range(2)]
    for t in threads:
        t.start()
    begin = time.monotonic()
    in_front(True)
    for i in range(int(os.environ.get("READS") or 200)):
        time.sleep(max(0.0, begin + 0.05 * (i + 1) - time.monotonic()))
        at = time.monotonic()
        assert server.local("/metrics")[0] == 200
        times.append((time.monotonic() - at) * 1e3)
    in_front(False)
    end = time.monotonic()
    stop.set()
    for t in threads:
        t.join()
    steps = steps_of(pathlib.Path(str(server.control) + ".ring"), begin * 1e6, time.monotonic() * 1e6)  # some may end after it
    return sorted(times), 100 * busy_us(steps, begin * 1e6, end * 1e6) / (end - begin) / 1e6


def main():
    rows, rounds, requests = [], [], CLIENTS * int(os.environ.get("EACH") or 4)
    with tempfile.TemporaryDirectory() as run:
        server = Bare(pathlib.Path(run), "--threads", os.environ.get("THREADS") or str(os.cpu_count()), "--max-num-seqs", CLIENTS, model=MODEL, build=BUILD)
        try:
            measure(server, CLIENTS)  # warm
            rounds = [measure(server, requests) for _ in range(REPEAT)]
            text_us = tokenizer_us(server, 300)
            reads, computing = beside_prompts(server)
        finally:
            server.process.terminate()
            server.process.wait(60)
    for name in rounds[0]:
        values = [r[name] for r in rounds]
        rows.append({"cell": f"where.{CLIENTS}.{name}", "value": statistics.median(values), "unit": "tok/s" if name == "output" else "%", "spread": [min(values), max(values)]})
    of_output = text_us * statistics.median(r["output"] for r in rounds) / OUTPUT / 1e4  # requests a second times microseconds each
    rows.append({"cell": f"where.{CLIENTS}.tokenizer", "value": of_output, "unit": "%"})
    rows.append({"cell": "where.prompts.steps.computing", "value": computing, "unit": "%"})
    for name, share, goal in ("p50", 0.5, None), ("p99", 0.99, 20):
        rows.append({"cell": f"where.prompts.metrics.{name}", "value": reads[min(int(len(reads) * share), len(reads) - 1)], "unit": "ms", "goal": goal,
                     "spread": [reads[0], reads[-1]]})
    for row in rows:
        print(f"  {row['cell']:<28} {row['value']:10.2f} {row['unit']}")
    cpu = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/bench-where.json").write_text(json.dumps({"target": "bench-where", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": rows},
                                                                    indent=1) + "\n")


if __name__ == "__main__":
    main()
