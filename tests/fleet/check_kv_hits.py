#!/usr/bin/env python3
"""make check-kv-hits: vllm-router's kv_aware policy with our KV events beside the same policy with a real vLLM's, on the same requests.

Two servers of each kind behind a router of its own, the embedded model, float32, blocks of 32 tokens, pools of equal size: one that holds every shared
beginning on each server, and one with which both together hold half of them, so that what is evicted counts. Requests come one after the other, some
beginnings more often than others, drawn with a fixed seed. The figure is the share of prompt tokens that was found, by the servers' own counters. Needs `make check-vllm`'s vLLM
(some 7 GB in build/vllm); writes build/reports/kv-hits.json."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/fleet"), str(ROOT / "tests/vllm"), str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from ask import VLLM_ENV, wait_ready  # noqa: E402
from client import stream  # noqa: E402
from conftest import BUILD, MODEL, free_port, get, metric  # noqa: E402
from fleet import Router  # noqa: E402

BLOCK, BEGINNINGS, REQUESTS = 32, 12, 120
LENGTH = 17 * BLOCK  # of a prompt
ROWS = []


def row(cell, value, peer=None):
    met = None if peer is None else value >= peer - 0.001
    ROWS.append({"cell": cell, "value": round(value, 4), "unit": "of tokens", "peer": "vLLM's own events" if peer is not None else None,
                 "peer_value": None if peer is None else round(peer, 4), "ratio": None if not peer else round(value / peer, 4),
                 "goal": None if peer is None else "vLLM's", "met": met})
    print(f"  {cell:<32} {value:8.4f} {'' if peer is None else f'vLLM {peer:.4f}  ' + ('met' if met else 'MISSED')}", flush=True)


class Server:
    def __init__(self, run, kind, number, blocks):
        self.port, self.events, self.replays = free_port(23400 + number), free_port(23420 + number), free_port(23440 + number)
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}", "replay_endpoint": f"tcp://*:{self.replays}"}
        words = ["--model", MODEL, "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", 1024, "--host", "127.0.0.1", "--port", self.port,
                 "--max-num-seqs", 4, "--block-size", BLOCK, "--num-gpu-blocks-override", blocks, "--kv-events-config", json.dumps(config)]
        if kind == "vllm":
            words = [ROOT / "build/vllm/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager", "--enable-prefix-caching"]
        else:
            words = [BUILD / "evenkeel-server", *words, "--threads", 1]
        self.log = open(run / f"{kind}-{number}.log", "wb")
        self.process = subprocess.Popen([str(w) for w in words], stdout=self.log, stderr=self.log, env={**os.environ, **VLLM_ENV}, start_new_session=True)

    def count(self, name):
        return metric(get(self.port, "/metrics")[1].decode(), name)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def router(run, servers):
    port, urls = free_port(23460), [f"http://127.0.0.1:{s.port}" for s in servers]
    words = [ROOT / "build/venv-fleet/bin/vllm-router", "--port", port, "--prometheus-port", free_port(23470), "--policy", "kv_aware", "--worker-urls", *urls,
             "--kv-event-block-size", BLOCK, "--kv-event-model", "tiny", "--worker-startup-check-interval", 1]
    for url, s in zip(urls, servers):
        words += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{s.events}", "--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{s.replays}"]
    return Router(run, words, port)


def ask(port, fresh):
    chance = random.Random(8)
    popular = chance.choices(range(BEGINNINGS), [1 / (b + 1) for b in range(BEGINNINGS)], k=REQUESTS)
    for turn, b in enumerate(popular):
        text = f"Document {fresh} {b}: " + " ".join(f"line {i * 7 + b} of it" for i in range(60)) + f" Question {turn}?"
        for _ in stream(port, "/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 2, "temperature": 0, "ignore_eos": True}, timeout=90):
            pass
        time.sleep(0.05)  # events are on their way for a moment, here as there


def rates(run, kind, sizes):
    """{name: share found} for each size of pool."""
    found = {}
    for name, blocks in sizes.items():
        servers = [Server(run, kind, i, blocks) for i in range(2)]
        try:
            for s in servers:
                wait_ready(s.process, s.port, 600)
            r = router(run, servers)
            try:
                time.sleep(2)
                before = [sum(s.count(f"vllm:prefix_cache_{what}_total") for s in servers) for what in ("hits", "queries")]
                ask(r.port, 1)
                after = [sum(s.count(f"vllm:prefix_cache_{what}_total") for s in servers) for what in ("hits", "queries")]
                found[name] = (after[0] - before[0]) / (after[1] - before[1])
                print(f"  note: {kind}, {name}: {after[1] - before[1]:.0f} tokens looked up", flush=True)
            finally:
                r.end()
        finally:
            for s in servers:
                s.end()
    return found


def main():
    with tempfile.TemporaryDirectory(prefix="evenkeel-kv-") as folder:
        run = pathlib.Path(folder)
        each = LENGTH // BLOCK
        sizes = {"all_fits": BEGINNINGS * each + 33, "half_fits": BEGINNINGS // 4 * each + 17}
        ours, theirs = rates(run, "evenkeel", sizes), rates(run, "vllm", sizes)
    for name in sizes:
        row(f"kv_aware.{name}", ours[name], theirs[name])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/kv-hits.json").write_text(json.dumps(
        {"target": "kv-hits", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
