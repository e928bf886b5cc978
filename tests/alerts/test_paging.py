"""Protects: that somebody is called, and only then. A real Prometheus, Alertmanager and webhook; the shipped rules with shorter times.

Pressure: evenkeeld keeps blocks free and lowers the limit, and the alert on its cause is kept back. An operator pins the limit: the alert comes. The load ends:
it is resolved. evenkeeld is killed: a page; it is back: resolved.
"""
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from client import stream  # noqa: E402
from conftest import Appliance, wait_for  # noqa: E402
from demo import free_port  # noqa: E402


def shorter(text):
    """Minutes of waiting become seconds (but more than evenkeeld takes to act), minutes of rate a few seconds more."""
    text = re.sub(r"for: (\d+)m", lambda m: f"for: {max(12, 2 * int(m[1]))}s", text)
    text = re.sub(r"for: (\d+)h", "for: 1m", text)
    text = re.sub(r"offset (\d+)m", lambda m: f"offset {max(10, 4 * int(m[1]))}s", text)
    return re.sub(r"\[(\d+)m\]", lambda m: f"[{max(10, 4 * int(m[1]))}s]", text).replace("interval: 15s", "interval: 1s")


class Sink(http.server.ThreadingHTTPServer):
    """Keeps what Alertmanager delivers: (receiver, alert, status)."""

    def __init__(self):
        self.got = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def has(self, receiver, alert, status):
        return (receiver, alert, status) in self.got


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got += [(self.path[1:], a["labels"]["alertname"], a["status"]) for a in body["alerts"]]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def stack(tmp_path):
    appliance = Appliance(tmp_path, server_flags=["--num-gpu-blocks-override", "120", "--max-num-seqs", "32", "--stalled-share", "0"],
                          policy="window_s: 3, settle_s: 5, effect_s: 60, warmup_s: 1, cut_factor: 0.95, preempt_rate: 0.2")
    sink, prometheus, manager = Sink(), free_port(19090), free_port(19093)
    rules = []
    for name in ("evenkeel.rules.yml", "evenkeel-slo.rules.yml"):
        (tmp_path / name).write_text(shorter((ROOT / "alerts" / name).read_text()))
        rules.append(str(tmp_path / name))
    (tmp_path / "prometheus.yml").write_text(f"""\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: {json.dumps(rules)}
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{manager}"]}}]}}]}}
scrape_configs:
  - {{job_name: evenkeel-server, static_configs: [{{targets: ["127.0.0.1:{appliance.port}"]}}]}}
  - {{job_name: evenkeeld, static_configs: [{{targets: ["127.0.0.1:{appliance.page}"]}}]}}
""")
    example = (ROOT / "alerts/alertmanager.example.yml").read_text().replace("127.0.0.1:9099", f"127.0.0.1:{sink.server_address[1]}")
    example = re.sub(r" *active_time_intervals: .*\n", "", example)  # it is always working hours here
    example = re.sub(r"group_wait: \d+s", "group_wait: 1s", re.sub(r"group_interval: \d+m", "group_interval: 2s", example))
    (tmp_path / "alertmanager.yml").write_text(example)
    log = open(tmp_path / "monitoring.log", "wb")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    processes = [subprocess.Popen(words, stdout=log, stderr=log, cwd=tmp_path) for words in (
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{prometheus}",
         "--rules.alert.resend-delay=1s"],
        [alertmanager, f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/am", f"--web.listen-address=127.0.0.1:{manager}",
         "--cluster.listen-address="])]
    appliance.start().ready()
    yield appliance, sink, manager
    for p in processes:
        p.terminate()
        p.wait(20)
    appliance.destroy()
    sink.shutdown()


class Load:
    def __init__(self, port, clients):
        self.port, self.over = port, False
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(clients)]
        for t in self.threads:
            t.start()

    def work(self, number):
        while not self.over:
            try:
                for _ in stream(self.port, "/v1/completions", {"model": "tiny", "prompt": f"{number} " * 20, "max_tokens": 300, "ignore_eos": True}):
                    if self.over:
                        return
            except (OSError, RuntimeError, ValueError):
                time.sleep(0.2)

    def end(self):
        self.over = True
        for t in self.threads:
            t.join(30)


def inhibited(manager, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{manager}/api/v2/alerts?active=true&inhibited=true", timeout=5) as answer:
        return [a for a in json.load(answer) if a["labels"]["alertname"] == name and a["status"]["inhibitedBy"]]


def called(sink, status):
    """The worse of the two keeps the other back."""
    return sink.has("ticket", "EvenkeelKvPressure", status) or sink.has("page", "EvenkeelKvCritical", status)


def test_who_is_called(stack):
    appliance, sink, manager = stack
    wait_for("the dead man's switch arrives", lambda: sink.has("deadman", "EvenkeelDeadMan", "firing"), 30)
    load = Load(appliance.port, 40)
    wait_for("evenkeeld acts", lambda: any(d["action"] in ("lower", "reserve") and d["applied"] for d in appliance.decisions()), 40)
    wait_for("the cause is kept back while it does", lambda: inhibited(manager, "EvenkeelKvPressure"), 60)
    assert not called(sink, "firing"), sink.got
    assert not any(name == "EvenkeelControllerActing" for _, name, _ in sink.got)

    begin = time.monotonic()
    appliance.ctl("limits", "pin", "max_num_running_seqs=32")
    wait_for("pinned, nothing is lowered, and the alert comes", lambda: called(sink, "firing"), 90)
    print(f"\nan operator's pin: alerted after {time.monotonic() - begin:.0f} s")
    load.end()
    wait_for("it is resolved when the load ends", lambda: called(sink, "resolved"), 60)

    appliance.process.kill()
    appliance.process.wait()
    wait_for("a page when evenkeeld is dead", lambda: sink.has("page", "EvenkeeldDown", "firing"), 30)
    appliance.start().ready()
    wait_for("resolved when it is back", lambda: sink.has("page", "EvenkeeldDown", "resolved"), 30)
