#!/usr/bin/env python3
"""make bench-scrape: what reading the numbers costs, and whether bad readers are felt by a stream.

An appliance with one thread to compute, 8 streams that never end. First the time of /metrics at 20 readings a second, by a reader that does not wait
for a core itself (the real one is on another machine; where that is not allowed, it waits like the rest). Then, window by window in turn, the streams'
tokens a second before, after and with each kind of reader: 60 readings a second (gzip and OpenMetrics among them), 20 scrapers that send half a request
or read nothing, a flood of agent-checks, and an Alertmanager that is down, with Prometheus and the rules at work. SECONDS=n (1) is a window, REPEAT=n (10) how many of each. Writes
build/reports/scrape.json."""
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from conftest import Appliance, free_port, get, metric, wait_for  # noqa: E402

SECONDS, REPEAT, STREAMS = float(os.environ.get("SECONDS") or 1), int(os.environ.get("REPEAT") or 10), 8
ROWS = []


def row(cell, value, unit, goal=None, spread=None):
    met = None if goal is None else value <= goal
    ROWS.append({"cell": cell, "value": round(value, 3), "unit": unit, "spread": spread, "goal": goal, "met": met})
    print(f"  {cell:<28} {value:10.3f} {unit:<8} {'' if goal is None else f'goal <= {goal:g}':<14} {'' if met is None else 'met' if met else 'MISSED'}", flush=True)


class Scraper:
    """One connection that stays open, as Prometheus and the endpoint picker hold one."""

    def __init__(self, port, headers=""):
        self.port, self.s = port, socket.create_connection(("127.0.0.1", port), timeout=10)
        self.request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()

    def read(self):
        """Seconds and bytes of one page."""
        begin = time.perf_counter()
        self.s.sendall(self.request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.s.recv(1 << 18)
        head, body = data.split(b"\r\n\r\n", 1)
        length = int(next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")))
        while len(body) < length:
            body += self.s.recv(1 << 18)
        return time.perf_counter() - begin, length


class Bother(threading.Thread):
    """Does something a number of times a second until told to stop."""

    def __init__(self, what, per_s):
        super().__init__(daemon=True)
        self.what, self.gap, self.over, self.count = what, 1 / per_s, False, 0
        self.start()

    def run(self):
        due = time.perf_counter()
        while not self.over:
            self.what()
            self.count += 1
            due += self.gap
            time.sleep(max(0, due - time.perf_counter()))

    def end(self):
        self.over = True
        self.join(10)


def load(a):
    """Streams in processes of their own, with little work: this one is about the readers."""
    url = f"http://127.0.0.1:{a.port}/v1/completions"
    made = []
    for i in range(STREAMS):  # of different lengths, so that the mixture is always the same; one answer after the other
        body = json.dumps({"model": "tiny", "prompt": "A story", "max_tokens": 300 + 47 * i, "ignore_eos": True, "stream": True})
        made.append(subprocess.Popen(["curl", "-sN", "-H", "Content-Type: application/json", "-d", body] + ["-o", "/dev/null", url] * 900,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    return made


def rate(a, seconds):
    """Tokens a second by the server's own count and clock."""
    def look():
        page = a.metrics()
        return metric(page, "vllm:generation_tokens_total"), metric(page, "evenkeel_uptime_seconds")
    before = look()
    time.sleep(seconds)
    after = look()
    return (after[0] - before[0]) / (after[1] - before[1])


def many_scrapers(a):
    kinds = [Scraper(a.port), Scraper(a.port, "Accept: application/openmetrics-text;version=1.0.0\r\n"), Scraper(a.port, "Accept-Encoding: gzip\r\n")]
    return [Bother(s.read, 20) for s in kinds], []


def hanging_scrapers(a):
    made = []
    for i in range(20):
        s = socket.create_connection(("127.0.0.1", a.port), timeout=10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.sendall(b"GET /metrics HT" if i % 2 else b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        made.append(s)
    return [], made


def agent_flood(a):
    def check():
        with socket.create_connection(("127.0.0.1", a.agent), timeout=5) as s:
            assert s.recv(100)
    return [Bother(check, 100) for _ in range(3)], []


class Prometheus:
    """A real one with the shipped rules, which always fire one alert; its Alertmanager is down while it is bothered."""

    def __init__(self, a, run):
        self.dead, self.file = free_port(25400), run / "prometheus.yml"
        self.base = f"""\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{ROOT}/alerts/evenkeel.rules.yml, {ROOT}/alerts/evenkeel-slo.rules.yml]
scrape_configs:
  - {{job_name: evenkeel-server, static_configs: [{{targets: ["127.0.0.1:{a.port}"]}}]}}
  - {{job_name: evenkeeld, static_configs: [{{targets: ["127.0.0.1:{a.page}"]}}]}}
"""
        self.port = free_port(25410)
        self.file.write_text(self.base)
        self.process = subprocess.Popen(["prometheus", f"--config.file={self.file}", f"--storage.tsdb.path={run}/tsdb", "--rules.alert.resend-delay=1s",
                                         f"--web.listen-address=127.0.0.1:{self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("Prometheus", lambda: get(self.port, "/-/ready")[0] == 200, 30)

    def tell(self, text):
        self.file.write_text(text)
        self.process.send_signal(signal.SIGHUP)
        time.sleep(1)

    def without_alertmanager(self, a):
        self.tell(self.base + f'alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{self.dead}"]}}]}}]}}\n')
        return [self], []

    def end(self):
        """Of the bother."""
        self.tell(self.base)

    def missed(self):
        """Alerts that it could not deliver."""
        return metric(get(self.port, "/metrics")[1].decode(), "prometheus_notifications_errors_total", alertmanager=f"http://127.0.0.1:{self.dead}/api/v2/alerts")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def slowdown(a, kind):
    """The median over pairs of windows, alone and with them."""
    losses = []
    for _ in range(REPEAT):
        before = rate(a, SECONDS / 2)
        threads, sockets = kind(a)
        time.sleep(0.05)
        with_them = rate(a, SECONDS)
        for t in threads:
            t.end()
        for s in sockets:
            s.close()
        time.sleep(0.05)
        losses.append(100 * (1 - with_them / ((before + rate(a, SECONDS / 2)) / 2)))  # what drifts does so on both sides
    return statistics.median(losses), [round(min(losses), 2), round(max(losses), 2)]


def read_at_20_per_s(a):
    """Times in ms, sorted, and the size of a page."""
    scraper, times, size = Scraper(a.port), [], 0
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        print("  note: this reader waits for a core like the rest")
    for _ in range(400):
        took, size = scraper.read()
        times.append(took * 1000)
        time.sleep(max(0, 0.05 - took))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return sorted(times), size


def main():
    with tempfile.TemporaryDirectory(prefix="evenkeel-bench-") as run:
        agent = free_port(25300)
        a = Appliance(pathlib.Path(run), extra=f"    edge: 127.0.0.1:{agent}\n", server_flags=["--threads", 1], poll_s=1.0).start().ready()
        a.agent, streams, prometheus = agent, [], None
        try:
            streams = load(a)
            time.sleep(1.5)
            times, size = read_at_20_per_s(a)
            row("metrics.20_per_s.p50", times[len(times) // 2], "ms")
            row("metrics.20_per_s.p99", times[int(len(times) * 0.99) - 1], "ms", 5.0)
            row("metrics.page", size / 1024, "KiB", 256)
            for name, kind in (("60_scrapes_per_s", many_scrapers), ("20_hanging_scrapers", hanging_scrapers), ("300_agent_checks_per_s", agent_flood)):
                loss, spread = slowdown(a, kind)
                row(f"slower.{name}", loss, "%", 5.0, spread)
            prometheus = Prometheus(a, pathlib.Path(run))
            loss, spread = slowdown(a, prometheus.without_alertmanager)
            missed = prometheus.missed()
            row("slower.alertmanager_down", loss, "%", 5.0, spread)
            assert missed, "Prometheus had nothing to deliver"
        finally:
            if prometheus:
                prometheus.stop()
            for p in streams:
                p.kill()
                p.wait()
            a.destroy()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/scrape.json").write_text(json.dumps(
        {"target": "scrape", "commit": commit, "machine": {"cpu": cpu, "cores": os.cpu_count()}, "rows": ROWS}, indent=1) + "\n")
    return 0 if all(r["met"] is not False for r in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
