"""Several appliances on one machine, and the routers that people put in front of them: HAProxy, vllm-router and Envoy, all real.

Used by tests/fleet/check_fleet.py (make check-fleet) and, with HAProxy alone, by tests/e2e/test_fleet.py."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from client import stream  # noqa: E402
from conftest import BUILD, Appliance, free_port, get, metric, wait_for  # noqa: E402

BLOCK = 16


class Fleet:
    """Appliances with an agent-check, KV events and one lease for the restarts of all."""

    def __init__(self, run, count=3, seqs=16, flags=(), paced=False):
        """paced: each step takes 20 ms, whatever is in it, as on a GPU (tests/tools/paced.c)."""
        self.run, self.all = run, []
        if paced:
            shutil.copy(BUILD / "evenkeel-server", run)
            shutil.copy(BUILD / "tests/tools/paced.so", run / "libevenkeel-cuda.so")
            flags = [*flags, "--device", "cuda"]
        for i in range(count):
            folder = run / f"host{i}"
            folder.mkdir()
            agent, events, replays = free_port(23100 + 10 * i), free_port(23200 + 10 * i), free_port(23300 + 10 * i)
            config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replays}"}
            a = Appliance(folder, extra=f"    edge: 127.0.0.1:{agent}\n",
                          server_flags=["--max-num-seqs", seqs, "--block-size", BLOCK, "--threads", 1, "--num-gpu-blocks-override", 1025,
                                        "--max-model-len", 1024, "--kv-events-config", json.dumps(config), *flags])
            a.agent, a.events, a.replays = agent, events, replays
            text = a.config.read_text() + f"restart_lease: {run}/restart.lease\n"
            a.config.write_text(text.replace(f"{BUILD}/evenkeel-server", f"{run}/evenkeel-server") if paced else text)
            self.all.append(a.start())
            a.ready()  # it has its ports before the next one looks for free ones

    def sum(self, name, **labels):
        return [metric(a.metrics(), name, **labels) or 0 for a in self.all]

    def finished(self):
        return [sum(metric(page, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length")) for page in (a.metrics() for a in self.all)]

    def roll(self, seconds=90):
        """Restarts all of them in turn; returns the most that were away at once."""
        pids, away = [a.server()["pid"] for a in self.all], 0
        for a in self.all:
            a.ctl("roll")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = [a.server() for a in self.all]
            away = max(away, sum(not s["ready"] for s in seen))
            if all(s["ready"] and s["pid"] not in (0, p) for s, p in zip(seen, pids)):
                return away
            time.sleep(0.1)
        raise RuntimeError(f"not restarted within {seconds} s: {[(s['state'], s['pid']) for s in seen]}")

    def end(self):
        for a in self.all:
            a.destroy()


class Router:
    """A process with a port of its own."""

    def __init__(self, run, words, port, ready="/v1/models", env=None):
        self.port = port
        self.log = open(run / "router.log", "ab")
        self.process = subprocess.Popen([str(w) for w in words], stdout=self.log, stderr=self.log, env=env)
        wait_for(f"{words[0]} answers", lambda: get(port, ready)[0] == 200, 30)

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def haproxy(fleet, blind=False):
    """blind: it has looked once, at its begin, and sees nothing of what happens then."""
    port = free_port(23000)
    looks = "check inter 1h" if blind else "check inter 500ms agent-check agent-addr 127.0.0.1 agent-port {} agent-inter 200ms"
    servers = "".join(f"    server s{i} 127.0.0.1:{a.port} weight 100 {looks.format(a.agent)}\n"
                      for i, a in enumerate(fleet.all))
    path = fleet.run / "haproxy.cfg"
    path.write_text((ROOT / "packaging/deploy/haproxy.cfg").read_text().split("    # servers\n")[0].replace("bind :8000", f"bind 127.0.0.1:{port}")
                    .replace("/run/haproxy/admin.sock", str(fleet.run / "haproxy.sock")) + servers)
    return Router(fleet.run, ["haproxy", "-db", "-f", path], port)


def vllm_router(fleet, policy):
    port, urls = free_port(23010), [f"http://127.0.0.1:{a.port}" for a in fleet.all]
    words = [ROOT / "build/venv-fleet/bin/vllm-router", "--port", port, "--prometheus-port", free_port(23020), "--policy", policy, "--worker-urls", *urls,
             "--health-check-interval-secs", 1, "--health-check-timeout-secs", 2, "--worker-startup-check-interval", 1, "--cb-timeout-duration-secs", 5]
    if policy == "cache_aware":
        words += ["--balance-abs-threshold", 4, "--balance-rel-threshold", 1.2]  # the defaults are for many more requests
    if policy == "kv_aware":
        words += ["--kv-event-block-size", BLOCK, "--kv-event-model", "tiny"]
        for url, a in zip(urls, fleet.all):
            words += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{a.events}", "--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{a.replays}"]
    return Router(fleet.run, words, port)


def envoy(fleet):
    port = free_port(23030)
    endpoints = "".join(f"          - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {a.port}}}}}}}\n" for a in fleet.all)
    head, tail = (ROOT / "packaging/deploy/envoy.yaml").read_text().split("          # endpoints\n")
    tail = tail[tail.index("          # end\n"):]
    path = fleet.run / "envoy.yaml"
    path.write_text((head + endpoints + tail).replace("port_value: 8080", f"port_value: {port}").replace("port_value: 9901", f"port_value: {free_port(23040)}"))
    return Router(fleet.run, [ROOT / "build/venv-fleet/bin/envoy", "-c", path, "--concurrency", 1, "-l", "warning", "--use-dynamic-base-id"], port)


class Clients:
    """n clients that ask and count: done, refused (no answer, or 5xx), lost (an answer that did not come to its end)."""

    def __init__(self, port, n, tokens=24, prompt="{} is the number of a story"):
        self.port, self.tokens, self.prompt, self.over = port, tokens, prompt, False
        self.done, self.refused, self.lost = [0] * n, [], []
        self.failed_at = []  # when the requests of the last two began
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def run(self, number):
        turn = 0
        while not self.over:
            turn, pieces, last, begun = turn + 1, 0, None, time.monotonic()
            body = {"model": "tiny", "prompt": self.prompt.format(1000 * number + turn), "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
            try:
                for _, last in stream(self.port, "/v1/completions", body, timeout=90):
                    pieces += 1
                if not isinstance(last, dict) or last.get("completion_tokens") != self.tokens:
                    self.lost.append(f"ended after {pieces} pieces")
                    self.failed_at.append(begun)
                else:
                    self.done[number] += 1
            except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
                (self.lost if pieces else self.refused).append(repr(error)[:200])
                self.failed_at.append(begun)
                time.sleep(0.1)

    def end(self):
        self.over = True
        for t in self.threads:
            t.join(100)
        return sum(self.done), len(self.refused), len(self.lost)


def kill_one(fleet):
    """kill -9 of the server with the most streams. Returns when, and a function that says how many streams the others have cut since."""
    pids = [a.server()["pid"] for a in fleet.all]
    running = wait_for("streams", lambda: max(seen := fleet.sum("vllm:num_requests_running")) > 1 and seen)
    which = running.index(max(running))
    others = [a for a in fleet.all if a is not fleet.all[which]]

    def cut():
        pages = [a.metrics() for a in others]
        return sum(metric(p, "evenkeel_http_aborted_total") + sum(metric(p, "vllm:request_success_total", finished_reason=r) for r in ("abort", "error")) for p in pages)
    before, at = cut(), time.monotonic()
    os.kill(pids[which], signal.SIGKILL)
    return at, lambda: int(cut() - before)


def hit_rate(fleet, port, prefixes=12, turns=5):
    """Prompts with shared beginnings, one after the other, fresh ones in each call; the share of prompt tokens that was found."""
    before = fleet.sum("vllm:prefix_cache_queries_total"), fleet.sum("vllm:prefix_cache_hits_total")
    fresh = time.monotonic_ns()
    for turn in range(turns):
        for p in range(prefixes):
            text = f"Document {fresh} {p}: " + " ".join(f"line {i * 7 + p} of it" for i in range(60)) + f" Question {turn}?"
            for _ in stream(port, "/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 2, "temperature": 0}):
                pass
    after = fleet.sum("vllm:prefix_cache_queries_total"), fleet.sum("vllm:prefix_cache_hits_total")
    return (sum(after[1]) - sum(before[1])) / max(1, sum(after[0]) - sum(before[0]))
