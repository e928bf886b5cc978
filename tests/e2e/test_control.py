"""Protects: pressure lowers the limit, quiet raises it, an operator's pin wins, and everything says why."""
import json
import subprocess
import threading
import time

import pytest

from conftest import BUILD, metric, slower, stream, wait_for

POLICY = ("window_s: 4, warmup_s: 1, usage_high: 0.85, usage_release: 0.80, settle_s: 4, effect_s: 8, raise_every_s: 2, "
          "raise_after_cut_s: 4")
CUTS = POLICY + ", reserve_most: 0"
# Admission without foresight: else nobody would be preempted, since these lengths are known.
FLAGS = ["--max-num-seqs", "16", "--max-model-len", "1024", "--num-gpu-blocks-override", "129", "--stalled-share", "0"]


class Load:
    def __init__(self, port, clients, body):
        self.stop, self.errors, self.done = threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.client, args=(port, body, n), daemon=True) for n in range(clients)]
        for t in self.threads:
            t.start()

    def client(self, port, body, number):
        turn = 0
        while not self.stop.is_set():
            turn += 1
            try:
                for _, _piece in stream(port, "/v1/completions", dict(body, prompt=f"Story {number} {turn}")):
                    if self.stop.is_set():
                        return
                self.done += 1
            except Exception as error:  # noqa: BLE001
                if not self.stop.is_set():
                    self.errors.append(error)
                return

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(60)


def test_pressure_lowers_and_quiet_raises(appliance):
    a = appliance(steady=True, server_flags=FLAGS, policy=CUTS)
    load = Load(a.port, 16, {"model": "tiny", "max_tokens": 600, "ignore_eos": True})
    lowered = wait_for("a cut", lambda: [d for d in a.decisions() if d["action"] == "lower"], 40, 0.3)[0]
    assert lowered["to"] < lowered["from"] and lowered["reason"].startswith("LOWER_") and lowered["why"]
    wait_for("the server runs no more than that",
             lambda: metric(a.metrics(), "evenkeel_limit", limit="max_num_running_seqs") <= 16, 10)
    load.end()
    assert not load.errors, load.errors[:3]
    low = a.server()["limits"]["max_num_running_seqs"]["value"]
    small = Load(a.port, 16, {"model": "tiny", "max_tokens": 24, "ignore_eos": True})
    wait_for("the limit climbs", lambda: a.server()["limits"]["max_num_running_seqs"]["value"] > low, 30, 0.3)
    small.end()
    assert not small.errors
    text = a.ctl("explain").stdout
    assert "LOWER_" in text and "RAISE_" in text
    assert json.loads(a.ctl("explain", "--json").stdout)
    page = a.metrics(a.page)
    assert metric(page, "evenkeel_supervisor_decisions_total", action="lower") >= 1


def law_of(decisions):
    return [(d["action"], d["reason"], d["from"], d["to"], d["why"]) for d in decisions if d["action"] in ("lower", "raise", "revert", "reserve")]


@pytest.mark.long
def test_harm_grows_the_reserve(appliance, tmp_path):
    """Before any cut an admission leaves more blocks free; without preemptions that goes back to what the server was started with. A
    replay of it decides the same."""
    a = appliance(server_flags=FLAGS, policy=POLICY + ", reserve_step: 0.1, reserve_most: 0.3, reserve_back_s: 1, recompute_share: 0.01",
                  extra=f"    record: {tmp_path}/rec\n")

    def reserve():
        return metric(a.metrics(), "evenkeel_limit", limit="watermark")
    assert reserve() == 0.01
    load = Load(a.port, 16, {"model": "tiny", "max_tokens": 600, "ignore_eos": True})
    more = wait_for("more reserve", lambda: [d for d in a.decisions() if d["reason"] == "RESERVE_MORE"], 40, 0.3)[-1]
    assert more["action"] == "reserve" and more["applied"] and (more["from"], more["to"]) == (10, 110) and "preemptions" in more["why"]
    assert reserve() >= 0.11
    load.end()
    assert not load.errors, load.errors[:3]
    wait_for("the server's own reserve", lambda: reserve() == 0.01, 90, 0.5)
    assert "RESERVE_LESS" in a.ctl("explain").stdout
    live = law_of(reversed(a.decisions(200)))
    replayed = subprocess.run([BUILD / "evenkeeld", "--replay", tmp_path / "rec"], capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 0, replayed.stderr
    assert law_of(json.loads(line) for line in replayed.stdout.splitlines())[:len(live)] == live and len(live) > 4


def test_pins(appliance):
    a = appliance(steady=True, server_flags=FLAGS, policy=CUTS)
    wait_for("its limits were read", lambda: a.server()["limits"]["max_num_running_seqs"]["value"])
    a.ctl("limits", "set", "max_num_running_seqs=5")
    a.ctl("limits", "pin", "max_num_running_seqs")
    wait_for("set", lambda: metric(a.metrics(), "evenkeel_limit", limit="max_num_running_seqs") == 5, 60)
    load = Load(a.port, 16, {"model": "tiny", "max_tokens": 24, "ignore_eos": True})
    time.sleep(6)
    assert metric(a.metrics(), "vllm:num_requests_running") <= 5
    assert a.server()["limits"]["max_num_running_seqs"] | {"value": 5, "pinned": True} == a.server()["limits"]["max_num_running_seqs"]
    a.ctl("limits", "unpin", "max_num_running_seqs")
    wait_for("unpinned, it climbs", lambda: a.server()["limits"]["max_num_running_seqs"]["value"] > 5, 20, 0.3)
    load.end()


def test_ctl_json(appliance):
    a = appliance()
    status = json.loads(a.ctl("status", "--json").stdout)
    assert status["servers"][0]["name"] == "s1"
    assert "s1" in a.ctl("status").stdout
    assert "max_num_running_seqs" in a.ctl("limits", "get").stdout
    assert a.ctl("nonsense", check=False).returncode == 2


def test_metrics_answer_quickly_under_load(appliance):
    a = appliance()
    load = Load(a.port, 16, {"model": "tiny", "max_tokens": 400, "ignore_eos": True})
    time.sleep(1)
    times = []
    for _ in range(40):
        begin = time.monotonic()
        a.metrics()
        times.append(time.monotonic() - begin)
    pace = slower()  # with the streams
    load.end()
    times.sort()
    print(f"/metrics under 16 streams: median {times[20] * 1000:.1f} ms, worst {times[-1] * 1000:.1f} ms")
    assert times[20] < 0.1 * pace, "the reserved thread must answer beside the streams"


def test_memory_stays_within_its_plan(appliance):
    """The plan says what everything takes: at the start it is met within 10 % (or 8 MiB), and a pool that was written to in full
    stays within the plan and what clients may take."""
    a = appliance(server_flags=["--max-num-seqs", "16", "--num-gpu-blocks-override", "257", "--max-num-batched-tokens", "512"])
    page = a.metrics()
    planned, taken, first = (metric(page, "evenkeel_memory_bytes", where="host", figure=f) for f in ("planned", "taken", "now"))
    assert abs(taken - planned) <= max(0.1 * planned, 8 << 20), (planned, taken)
    assert 0 < first <= taken
    load = Load(a.port, 16, {"model": "tiny", "max_tokens": 300, "ignore_eos": True})
    wait_for("the pool is full", lambda: metric(a.metrics(), "evenkeel_kv_blocks", state="free") == 0, 30, 0.2)
    wait_for("all of it was given out", lambda: metric(a.metrics(), "evenkeel_prefix_evictions_total") > 256, 30, 0.2)
    load.end()
    assert not load.errors, load.errors[:3]
    page = a.metrics()
    clients = metric(page, "evenkeel_planned_bytes", item="requests_and_http")
    now = metric(page, "evenkeel_memory_bytes", where="host", figure="now")
    print(f"planned {planned / 2**20:.1f} MiB, taken {taken / 2**20:.1f}, now {now / 2**20:.1f}, for clients {clients / 2**20:.1f}")
    assert first < now <= 1.1 * planned + clients


def test_a_standing_queue_is_cut_at_the_promise(appliance):
    """With ttft_slo_s, who cannot be served in time gets 429 then, not an answer minutes late; what runs goes on."""
    a = appliance(steady=True, server_flags=["--max-num-seqs", "2", "--max-model-len", "1024"], policy="window_s: 4, warmup_s: 1, ttft_slo_s: 2, shed_release_s: 3")
    load = Load(a.port, 80, {"model": "tiny", "max_tokens": 700, "ignore_eos": True})  # each seven seconds alone
    on = wait_for("shedding", lambda: [d for d in a.decisions() if d["reason"] == "SHED_ON"], 30, 0.2)[0]
    assert on["action"] == "shed" and on["applied"] and on["knob"] == "queue_deadline_ms" and (on["from"], on["to"]) == (0, 1600)
    wait_for("refusals", lambda: load.errors, 60)
    assert all("429" in str(e) for e in load.errors), load.errors[:3]
    assert metric(a.metrics(), "evenkeel_refused_total", reason="deadline") >= 1
    load.end()
    off = wait_for("the end of it", lambda: [d for d in a.decisions() if d["reason"] == "SHED_OFF"], 30, 0.2)[0]
    assert off["to"] == 0
