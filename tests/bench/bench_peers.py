#!/usr/bin/env python3
"""Evenkeel beside llama.cpp and vLLM on this machine's CPU: the same weights, the same threads, in turns in one run.

usage: bench_peers.py --build DIR --models DIR --llama DIR --vllm PYTHON [--repeat 5] [--peers llama,vllm] [--parts engine,serve,tiny]
       [--hybrid]

Engine cells: evenkeel-bench engine beside llama-bench and llama-batched-bench, in bf16, int8 (Q8_0) and int4 (Q4_0). Serving cells: one load
(evenkeel-bench serve) on the three servers. Goals are the project's bars for the kind of machine; what this one can do at most stands beside them in
the report; --hybrid measures the engine on the shapes of Qwen3.5-0.8B. Writes build/reports/bench-peers.json or bench-hybrid.json."""
import argparse
import json
import os
import pathlib
import platform
import shutil
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
NAME = "qwen2-0.5b"
HYBRID = "qwen3.5-0.8b"
FORMS = {"bf16": ("auto", "BF16"), "int8": ("int8", "Q8_0"), "int4": ("int4", "Q4_0")}
MANY, MANY_TOKENS = 16, 128  # clients at once; tokens of each prompt and of each answer
# Our value has to be at least so many times the peer's, by the instructions that products of bfloat16 can use.
SERVED = {"serve.16.output/vLLM": 1.8, "serve.16.ttft/vLLM": 2, "tiny.64/vLLM": 5}
WITHOUT_AMX = {**SERVED, "decode.1.bf16": 1, "decode.1.int8": 1.1, "decode.1.int4": 1.1, "serve.decode.1/vLLM": 1.3, "serve.decode.16/vLLM": 2}
BARS = {
    "AMX": {**SERVED, "prefill.512.bf16": 6, "prefill.512.int8": 4, "decode.1.bf16": 1.2, "decode.1.int8": 1.1, "decode.1.int4": 1.1, "decode.16.bf16": 3,
            "decode.16.int8": 2.5, "serve.16.output/llama.cpp": 4, "serve.16.ttft/llama.cpp": 4, "serve.prefill.512/vLLM": 1.8, "serve.decode.1/vLLM": 2.5,
            "serve.decode.16/vLLM": 1.8, "tiny.1/vLLM": 8},
    "AVX-512 with bf16": {**WITHOUT_AMX, "prefill.512.bf16": 2.6, "serve.prefill.512/vLLM": 1.25},
    "AVX-512": {**WITHOUT_AMX, "prefill.512.bf16": 2, "serve.prefill.512/vLLM": 1.4},
    "AVX2": {},
}
HYBRID_BARS = {"decode.1.bf16": 1.1, "prefill.512.bf16": 1.5, "serve.decode.1/vLLM": 1.1, "serve.prefill.512/vLLM": 1.5}


def kind_of(flags):
    return "AMX" if "amx_bf16" in flags else "AVX-512 with bf16" if "avx512_bf16" in flags else "AVX-512" if "avx512f" in flags else "AVX2"


def say(text):
    print(text, flush=True)


def values_of(*words):
    return {row["cell"]: row["value"] for row in report_of(*words)["rows"]}


class Figures:
    """Values of (cell, who) over the rounds."""

    def __init__(self):
        self.values, self.limits = {}, {}

    def add(self, cell, who, value):
        self.values.setdefault((cell, who), []).append(value)
        say(f"  {cell:24} {who:12} {value:10.1f}")

    def note_limit(self, cell, value):
        """What the machine's bandwidth or arithmetic, measured beside the cell, would do."""
        self.limits.setdefault(cell, []).append(value)

    def median(self, cell, who):
        return statistics.median(self.values[cell, who])

    def limit(self, cell):
        """Of an engine cell, or of the serving cell that is bound alike; None: not known."""
        values = self.limits.get(cell) or self.limits.get(cell.removeprefix("serve.") + ".bf16")
        return statistics.median(values) if values else self.limit_of_many(cell)

    def limit_of_many(self, cell):
        """Of MANY clients that ask at once: all prompts read, then all answers; and so many prompts that the median has its first token."""
        if cell not in ("serve.16.output", "serve.16.ttft") or not (self.limits.get("prefill.512.bf16") and self.limits.get("decode.16.bf16")):
            return None
        prompt_s, answer_s = MANY_TOKENS / self.limit("prefill.512.bf16"), MANY * MANY_TOKENS / self.limit("decode.16.bf16")
        if cell == "serve.16.ttft":
            return (MANY // 2 + 1) * prompt_s * 1000
        return MANY * MANY_TOKENS / (MANY * prompt_s + answer_s)


class Server:
    """A server on a free port; `line` gets the port."""

    def __init__(self, who, line, model, env=None, seconds=1200):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.who, self.model, self.log = who, model, tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(w) for w in line(self.port)], stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})},
                                        start_new_session=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2).status == 200:
                    return
            except OSError:
                time.sleep(0.25)
        self.log.seek(0)
        text = self.log.read().decode(errors="replace")[-1500:]
        self.stop()
        sys.exit(f"{who} did not become ready:\n{text}")

    def load(self, bench, clients, requests, prompt, output, vocab):
        return values_of(bench, "serve", "--url", f"http://127.0.0.1:{self.port}", "--served-model", self.model, "--clients", clients, "--requests",
                         requests, "--prompt", prompt, "--output", output, "--vocab", vocab)

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def engine_round(a, f):
    for form in a.forms:
        quantization, gguf = FORMS[form]
        decode = ["--decode", 1] + ([] if form == "int4" or a.hybrid else ["--decode", 16])
        prefill = ["--prefill", 512] + ([] if a.hybrid else ["--prefill", 2048])
        report = report_of(a.bench, "engine", "--model", a.directory, "--quantization", quantization, "--threads", a.threads, "--repeat", 1,
                          "--steps", 16 if a.hybrid else 32, *prefill, *decode)
        for row in report["rows"]:
            cell = row["cell"]
            if cell == "machine.read" or (cell == "machine.peak_bf16" and form == "bf16"):
                f.add(cell, "evenkeel", row["value"])
            if not cell.startswith(("prefill.", "decode.")) or "/" in cell:
                continue
            cell = cell.rsplit(".", 1)[0] + "." + form
            f.add(cell, "evenkeel", row["value"])
            if row["peer_value"] and (form == "bf16" or row["peer"] == "read bandwidth"):
                f.note_limit(cell, row["peer_value"])
        if "llama" not in a.peers or (a.wheel and form != "bf16"):
            continue
        if a.wheel:
            out = run(a.llama, ROOT / "tests/bench/llama_wheel.py", a.models / f"{a.name}-BF16.gguf", a.threads, 512, 16)
            for cell, value in json.loads(out.strip().splitlines()[-1]).items():
                f.add({"prefill": "prefill.512.bf16", "decode": "decode.1.bf16"}[cell], "llama.cpp", value)
            continue
        model = a.models / f"{a.name}-{gguf}.gguf"
        for row in json.loads(run(a.llama / "llama-bench", "-m", model, "-t", a.threads, "-p", "512,2048", "-n", 32, "-r", 1, "-o", "json")):
            cell = f"prefill.{row['n_prompt']}" if row["n_prompt"] else "decode.1"
            f.add(f"{cell}.{form}", "llama.cpp", row["avg_ts"])
        if form != "int4":
            out = run(a.llama / "llama-batched-bench", "-m", model, "-t", a.threads, "-tb", a.threads, "-c", 4096, "-b", 2048, "-ub", 512, "-npp", 128,
                      "-ntg", 32, "-npl", 16, "--output-format", "jsonl")
            f.add(f"decode.16.{form}", "llama.cpp", json.loads(out.strip().splitlines()[-1])["speed_tg"])


def servers_of(a):
    yield Server("evenkeel", lambda p: [a.build / "evenkeel-server", "--model", a.directory, "--served-model-name", "m", "--host", "127.0.0.1", "--port", p,
                                        "--threads", a.threads, "--max-model-len", 2048, "--max-num-seqs", 32], "m")
    if "llama" in a.peers and not a.wheel:
        yield Server("llama.cpp", lambda p: [a.llama / "llama-server", "-m", a.models / f"{NAME}-BF16.gguf", "-a", "m", "-t", a.threads, "-tb", a.threads,
                                             "-np", 16, "-c", 16 * 1024, "--offline", "--host", "127.0.0.1", "--port", p], "m")
    if "vllm" in a.peers:
        yield vllm(a, a.directory)


def vllm(a, model):
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": f"0-{a.threads - 1}"}
    return Server("vLLM", lambda p: [a.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m", "--dtype", "bfloat16",
                                     "--host", "127.0.0.1", "--port", p, "--max-model-len", 2048, "--no-enable-prefix-caching"], "m", env)


def serve_round(a, f, server):
    one = server.load(a.bench, 1, 2, 512, 32, 120000)
    f.add("serve.prefill.512", server.who, 512 / one["serve.ttft.p50"] * 1000)
    f.add("serve.decode.1", server.who, 1000 / one["serve.per_token.p50"])
    if a.hybrid:
        return
    many = server.load(a.bench, MANY, MANY, MANY_TOKENS, MANY_TOKENS, 120000)
    f.add("serve.16.output", server.who, many["serve.output"])
    f.add("serve.16.ttft", server.who, many["serve.ttft.p50"])
    f.add("serve.decode.16", server.who, 16 * 1000 / many["serve.gap.p50"])


def tiny_servers(a):
    tiny = ROOT / "models/evenkeel-tiny"
    yield Server("evenkeel", lambda p: [a.build / "evenkeel-server", "--model", tiny, "--served-model-name", "m", "--host", "127.0.0.1", "--port", p,
                                        "--threads", a.threads], "m")
    if "vllm" in a.peers:
        yield vllm(a, tiny)


def tiny_round(a, f, server):
    f.add("tiny.1", server.who, server.load(a.bench, 1, 4, 64, 128, 1000)["serve.output"])
    f.add("tiny.64", server.who, server.load(a.bench, 64, 128, 64, 128, 1000)["serve.output"])


def rounds(a, f, make, each):
    """All servers up, then turns; each has the machine to itself while it is measured."""
    running = []
    try:
        for server in make(a):
            running.append(server)
            say(f"  {server.who} is ready")
        for i in range(a.repeat):
            for server in running if i % 2 == 0 else running[::-1]:
                each(a, f, server)
    finally:
        for server in running:
            server.stop()


def rows_of(f, bars):
    rows, less = [], {"serve.16.ttft"}
    cells = list(dict.fromkeys(cell for cell, _ in f.values))
    for cell in cells:
        ours = f.values.get((cell, "evenkeel"))
        peers = [who for c, who in f.values if c == cell and who != "evenkeel"]
        unit = "ms" if cell in less else "GFLOP/s" if cell == "machine.peak_bf16" else "GB/s" if cell.startswith("machine") else "tok/s"
        row = {"cell": cell, "value": statistics.median(ours), "unit": unit, "spread": [min(ours), max(ours)]}
        if not peers:
            rows.append(row)
        for who in peers:
            theirs = f.median(cell, who)
            goal = bars.get(cell if who == "llama.cpp" and cell in bars else f"{cell}/{who}")
            limit = f.limit(cell)
            ratio, most = (value and (theirs / value if cell in less else value / theirs) for value in (row["value"], limit))
            rows.append({**row, "peer": who, "peer_value": theirs, "ratio": ratio, "goal": goal, "met": ratio >= goal if goal else None,
                         "most": most})
    for form in ("bf16", "int8"):
        if (f"prefill.2048.{form}", "evenkeel") in f.values:
            ratio = f.median(f"prefill.2048.{form}", "evenkeel") / f.median(f"prefill.512.{form}", "evenkeel")
            rows.append({"cell": f"prefill.2048/512.{form}", "value": ratio, "unit": "x", "goal": 0.9, "met": ratio >= 0.9})
    if ("decode.1.bf16", "evenkeel") in f.values and bars is not HYBRID_BARS:
        share = f.median("decode.1.bf16", "evenkeel") * 0.98806 / f.median("machine.read", "evenkeel")
        rows.append({"cell": "decode.1.bf16/read bandwidth", "value": share, "unit": "x", "goal": 0.8, "met": share >= 0.8})
    return rows


def versions(a):
    said = {}
    if "llama" in a.peers and a.wheel:
        said["llama.cpp"] = run(a.llama, "-c", "import importlib.metadata as m; print('xllamacpp', m.version('xllamacpp'))").strip()
    elif "llama" in a.peers:
        out = subprocess.run([a.llama / "llama-server", "--version"], capture_output=True, text=True)
        said["llama.cpp"] = next((x.split(":", 1)[1].strip() for x in (out.stdout + out.stderr).splitlines() if x.startswith("version")), "unknown")
    if "vllm" in a.peers:
        said["vLLM"] = run(a.vllm, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))").strip()
    return said


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--models", type=pathlib.Path, required=True)
    p.add_argument("--llama", type=pathlib.Path, required=True, help="directory of llama.cpp's programs, or a Python that has xllamacpp (bf16 alone)")
    p.add_argument("--vllm", type=pathlib.Path, required=True, help="Python that has vLLM")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--peers", default="llama,vllm")
    p.add_argument("--parts", default="engine,serve,tiny")
    p.add_argument("--hybrid", action="store_true")
    p.add_argument("--commit", default="unknown")
    a = p.parse_args()
    a.peers = a.peers.split(",")
    a.name, a.forms = (HYBRID, ("bf16",)) if a.hybrid else (NAME, tuple(FORMS))
    target = "bench-hybrid" if a.hybrid else "bench-peers"
    a.bench, a.directory = a.build / "evenkeel-bench", a.models / a.name
    a.wheel = not a.llama.is_dir()
    for who, path in (("llama", a.llama if a.wheel else a.llama / "llama-bench"), ("vllm", a.vllm)):
        if who in a.peers and not shutil.which(str(path)):
            say(f"  {path} is not there: measuring without {who}")
            a.peers.remove(who)
    f, begin = Figures(), time.monotonic()
    if "engine" in a.parts:
        for i in range(a.repeat):
            say(f"engine, round {i + 1} of {a.repeat}")
            engine_round(a, f)
    if "serve" in a.parts:
        say("serving")
        rounds(a, f, servers_of, serve_round)
    if "tiny" in a.parts:
        say("serving evenkeel-tiny")
        rounds(a, f, tiny_servers, tiny_round)
    cpu = next((x.split(":", 1)[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")), platform.machine())
    flags = next((x for x in open("/proc/cpuinfo") if x.startswith("flags")), "").split()
    isa = ", ".join(n for n in ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8") if n in flags)
    kind = kind_of(flags)
    rows = rows_of(f, HYBRID_BARS if a.hybrid else BARS[kind])
    reports = ROOT / "build/reports"
    reports.mkdir(parents=True, exist_ok=True)
    (reports / f"{target}.json").write_text(json.dumps({"target": target, "commit": a.commit, "machine": {
        "cpu": cpu, "cores": os.cpu_count(), "isa": isa, "kind": kind, **versions(a)}, "rows": rows}, indent=1) + "\n")
    say(f"\n{'':30}{'evenkeel':>10} {'':6}{'peer':>10} {'ratio':>7} {'bar':>5} {'most':>6}")
    for r in rows:
        say(f"{r['cell']:30}{r['value']:10.1f} {r['unit']:6}{r.get('peer_value') or 0:10.1f} {r.get('ratio') or 0:7.2f} {r.get('goal') or 0:5.1f} {r.get('most') or 0:6.2f}  "
            f"{r.get('peer') or '':10}{'' if r.get('met') is None else 'met' if r['met'] else 'MISSED'}")
    say(f"\n{time.monotonic() - begin:.0f} s; written to build/reports/{target}.json")


if __name__ == "__main__":
    main()
