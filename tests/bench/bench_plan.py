#!/usr/bin/env python3
"""make bench-plan: what `evenkeelctl plan` predicts for this machine's CPU beside what evenkeel-server's engine does on it.

usage: bench_plan.py --build DIR [--parts tiny-bf16,0.5b-int8-long,...] [--repeat 3] [--commit X]

Two models (the embedded one, whose weights stay in the last cache, and random weights with the shapes of Qwen2.5-0.5B), in bf16 and int8: prompts
alone, decode steps of 1, 8 and 16 sequences after a short and a long context (evenkeel-bench engine), and for the larger one a real server: time to
the first token of one client, time between tokens and output of eight clients with mixed lengths. What the machine reads and computes at most is
measured before and after each part; the predictions come from the program itself (--machine). Parts are kept in build/plan/raw.json, so that they
may be measured one by one while the machine is quiet. Writes build/reports/bench-plan.json."""
import argparse
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from program import report_of, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
RAW = ROOT / "build/plan/raw.json"
MODELS = {  # directory, length of a long prompt, of a long context, steps of a decode
    "tiny": (ROOT / "models/evenkeel-tiny", 1920, 1920, 64),
    "0.5b": (ROOT / "build/models/qwen2-0.5b", 2048, 2048, 32),
}
FORMS = {"bf16": ("auto", "auto"), "int8": ("int8", "8")}  # evenkeel-bench's --quantization, plan's --weight-bits
SEQS = (1, 8, 16)
SHORT, PROMPT, CLIENTS, REQUESTS = 128, 512, 8, 32
PARTS = [f"{m}-{f}-{k}" for m in MODELS for f in FORMS for k in ("short", "long", "serve") if (m, k) != ("tiny", "serve")]


def limits(a):
    return report_of(a.build / "evenkeel-bench", "kernels", "--limits", "--threads", a.threads, "--repeat", 2)


def engine(a, model, form, context, prefill, seqs):
    """Seconds of a prompt, or of a decode step: median, least, most."""
    directory, _, _, steps = MODELS[model]
    words = [w for n in prefill for w in ("--prefill", n)] + [w for n in seqs for w in ("--decode", n)]
    report = report_of(a.build / "evenkeel-bench", "engine", "--model", directory, "--quantization", FORMS[form][0], "--threads", a.threads,
                       "--repeat", a.repeat, "--steps", steps, "--context", context, *words)
    cells = {}
    for row in report["rows"]:
        kind, _, rest = row["cell"].partition(".")
        if kind not in ("prefill", "decode") or "/" in row["cell"]:
            continue
        count = int(rest.split(".")[0])
        times = [count / v for v in (row["value"], row["spread"][1], row["spread"][0])]
        cells[f"prefill.{count}" if kind == "prefill" else f"decode.{count}.{context}"] = [t * 1e3 for t in times]
    return cells


def trace_file():
    """Mixed lengths, always the same: prompts of 128 to 384 tokens, answers of 32 to 96."""
    path, draw = ROOT / "build/plan/trace.csv", random.Random(7)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{draw.randint(128, 384)},{draw.randint(32, 96)}" for _ in range(REQUESTS)]
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows) + "\n")
    return path


def serve(a, model, form):
    directory = MODELS[model][0]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [a.build / "evenkeel-server", "--model", directory, "--served-model-name", "m", "--host", "127.0.0.1", "--port", port, "--threads", a.threads,
             "--max-model-len", 4096, "--max-num-seqs", 16, "--quantization", FORMS[form][0]]
    process = subprocess.Popen([str(w) for w in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    sys.exit("evenkeel-server did not become ready")
                time.sleep(0.1)
        load = [a.build / "evenkeel-bench", "serve", "--url", f"http://127.0.0.1:{port}", "--vocab", 120000]
        one = report_of(*load, "--clients", 1, "--requests", 5, "--prompt", PROMPT, "--output", 32)
        many = report_of(*load, "--clients", CLIENTS, "--requests", REQUESTS, "--trace", trace_file())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    one, many = ({row["cell"]: row["value"] for row in r["rows"]} for r in (one, many))
    return {f"ttft.1.{PROMPT}": [one["serve.ttft.p50"]] * 3, "between.1": [one["serve.per_token.p50"]] * 3,
            f"between.{CLIENTS}": [many["serve.per_token.p50"]] * 3, f"output.{CLIENTS}": [many["serve.output"]] * 3}


def measure(a, part):
    model, form, kind = part.split("-")
    _, prompt, context, _ = MODELS[model]
    before = limits(a)
    if kind == "short":
        cells = engine(a, model, form, SHORT, (512, prompt), SEQS)
    elif kind == "long":
        cells = engine(a, model, form, context, (32,), SEQS)
        del cells["prefill.32"]
    else:
        cells = serve(a, model, form)
    after = limits(a)
    for row, again in zip(before["rows"], after["rows"]):
        row["value"] = statistics.mean((row["value"], again["value"]))
    return {"machine": before, "cells": cells, "commit": a.commit}


def plan(a, machine, model, form, *words):
    out = run(a.build / "evenkeelctl", "plan", MODELS[model][0], "--machine", machine, "--weight-bits", FORMS[form][1], "--json", *words)
    return json.loads(out)


def predict(a, machine, model, form, cell):
    """Value, its band, the unit."""
    steps = MODELS[model][3]
    kind, n, *rest = cell.split(".")
    if kind in ("prefill", "ttft"):
        answer = plan(a, machine, model, form, "--prompt", n if kind == "prefill" else rest[0], "--output", steps, "--max-num-seqs", 1)
        return answer["alone"]["prefill_s" if kind == "prefill" else "ttft_s"] * 1e3, answer["band_prefill"], "ms"
    if kind == "decode":
        answer = plan(a, machine, model, form, "--prompt", rest[0], "--output", steps, "--max-num-seqs", n)
        return answer["full"]["decode_step_s"] * 1e3, answer["band_decode"], "ms"
    load = ["--trace", trace_file()] if n != "1" else ["--prompt", PROMPT, "--output", 32]
    answer = plan(a, machine, model, form, *load, "--max-num-seqs", n)
    return (answer["full"]["output_tokens_per_s"], answer["band_decode"], "tok/s") if kind == "output" else (
        answer["full"]["inter_token_s"] * 1e3, answer["band_decode"], "ms")


def rows_of(a, raw):
    rows = []
    for part in (p for p in PARTS if p in raw):
        model, form, _ = part.split("-")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(raw[part]["machine"], f)
            f.flush()
            for cell, (value, least, most) in raw[part]["cells"].items():
                want, band, unit = predict(a, f.name, model, form, cell)
                rows.append({"cell": f"{model}.{form}.{cell}", "value": value, "unit": unit, "spread": [least, most], "peer": "predicted",
                             "peer_value": want, "ratio": value / want, "band": band, "goal": f"within {band}", "met": 1 / band <= value / want <= band})
    return rows


def limits_of(raw):
    """Of the machine, over all parts."""
    found = {}
    for part in raw.values():
        for row in part["machine"]["rows"]:
            found.setdefault((row["cell"], row["unit"]), []).append(row["value"])
    return [{"cell": c, "value": statistics.median(v), "unit": u, "spread": [min(v), max(v)]} for (c, u), v in found.items()]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--parts", default="", help="only parts that contain one of these words; 'none' only predicts again")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--commit", default="unknown")
    a = p.parse_args()
    words = [w for w in a.parts.split(",") if w]
    raw = json.loads(RAW.read_text()) if words and RAW.exists() else {}
    begin = time.monotonic()
    for part in PARTS:
        if words and not any(w in part for w in words):
            continue
        raw[part] = measure(a, part)
        RAW.parent.mkdir(parents=True, exist_ok=True)
        RAW.write_text(json.dumps(raw, indent=1))
        print(f"  {part:18} {time.monotonic() - begin:5.0f} s", flush=True)
    rows = rows_of(a, raw)
    if not rows:
        sys.exit("nothing was measured")
    machine = next(iter(raw.values()))["machine"]["machine"]
    path = ROOT / "build/reports/bench-plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    commits = sorted({part["commit"] for part in raw.values()})
    path.write_text(json.dumps({"target": "bench-plan", "commit": ", ".join(commits), "machine": machine, "rows": limits_of(raw) + rows}, indent=1) + "\n")
    print(f"\n{'':28}{'predicted':>10}{'measured':>10} {'':6}{'ratio':>7}")
    for r in rows:
        print(f"{r['cell']:28}{r['peer_value']:10.3f}{r['value']:10.3f} {r['unit']:6}{r['ratio']:7.2f}  {'' if r['met'] else 'OUT OF ITS BAND'}")
    print(f"{sum(r['met'] for r in rows)} of {len(rows)} predictions are within their band; written to build/reports/bench-plan.json")


if __name__ == "__main__":
    main()
