"""Protects: the companion in a real vLLM under evenkeeld. Live limits obeyed while it serves, preemptions as they happen, a true 429, a drain
that cuts nobody, restarts and a kill -9 that refuse nobody, the law on live limits, and vLLM as it is where a part is missing or the
companion is off. Opt-in (make check-vllm). What was measured goes to build/reports/check-vllm-companion.json and docs/vllm.md."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "tests/vllm"))
sys.path.insert(0, str(ROOT / "tests/companion"))
import routes  # noqa: E402
sys.path.append(str(ROOT / "supervisor/companion"))
from conftest import BUILD, MODEL, get, wait_for  # noqa: E402
from ask import VLLM_ENV, VLLM_PYTHON as PYTHON, is_newest, measured_with  # noqa: E402
from evenkeel_vllm import board  # noqa: E402
from test_supervised import KEY, LAW, START_S, Stream, Supervised, flag  # noqa: E402

FLAGS = ["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8",
         "--block-size", "32", "--num-gpu-blocks-override", "70"]
ROWS, ROWS_ALL = [], 8  # (what, value, unit)


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    out = ROOT / "build/reports/check-vllm-companion.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"target": "check-vllm-companion", "rows": [dict(zip(("cell", "value", "unit"), row)) for row in ROWS]}, indent=1) + "\n")
    table = measured_with() + "\n\n| what | measured |\n|---|---|\n" + "".join(f"| {what} | {value:g}{' ' + unit if unit else ''} |\n" for what, value, unit in ROWS)
    print("\n" + table)
    doc = ROOT / "docs/vllm.md"
    mark = "<!-- written by make check-vllm-companion -->\n"
    if len(ROWS) == ROWS_ALL and is_newest() and mark in doc.read_text():
        head, rest = doc.read_text().split(mark)
        doc.write_text(head + mark + table + "<!-- end -->" + rest.split("<!-- end -->", 1)[1])


class Control(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


class Companion(Supervised):
    companion = "on"

    def control(self, method, path, body=None):
        c = Control(self.run / "r/main/control.sock")
        c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        text = answer.read().decode()
        c.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def limit(self, **body):
        status, said = self.control("PATCH", "/v1/runtime_config", body)
        assert status == 200, said
        return said

    def series(self, name, labels=""):
        text = self.control("GET", "/metrics")[1]
        got = [float(m) for m in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*{re.escape(labels)}[^}}]*}})? (\S+)$", text, re.M)]
        return sum(got) if got else None


def finished(streams, seconds=180):
    for t in streams:
        t.join(seconds)
    return [(t.status, t.finish, t.error) for t in streams]


class Asker(threading.Thread):
    """Connects anew for each short completion until it is told to end; what became of each."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.over, self.refused, self.unconnected, self.cut, self.served, self.longest = port, threading.Event(), 0, 0, 0, 0, 0.0
        self.start()

    def run(self):
        while not self.over.is_set():
            begin = time.monotonic()
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
            try:
                c.connect()
            except OSError:
                self.refused += 1
                self.unconnected += 1
                time.sleep(0.05)
                continue
            try:
                c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4, "ignore_eos": True}),
                          {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
                answer = c.getresponse()
                body = json.loads(answer.read())
                if answer.status == 200 and body["choices"][0]["finish_reason"] == "length":
                    self.served += 1
                else:
                    self.refused += 1
                    self.what = (answer.status, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.cut += 1
                self.what = repr(error)
            c.close()
            self.longest = max(self.longest, time.monotonic() - begin)
            time.sleep(0.2)


def all_ended(askers):
    for t in askers:
        t.over.set()
    for t in askers:
        t.join(START_S)
    return {"refused": sum(t.refused for t in askers), "unconnected": sum(t.unconnected for t in askers), "cut": sum(t.cut for t in askers), "served": sum(t.served for t in askers),
            "what": [t.what for t in askers if hasattr(t, "what")][:3]}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """A pool of 70 blocks of 32 tokens: eight answers of 700 tokens do not fit into it together."""
    s = Companion(tmp_path_factory.mktemp("c"), f"    mode: advise\n{LAW}", args=FLAGS).start()
    yield s
    s.end()


def test_no_route_is_unknown(vllm):
    """tests/companion/routes.py, by which the middleware is tested, has all that this one answers to POST."""
    status, text = vllm.ready().control("GET", "/openapi.json")
    assert status == 200
    assert {path for path, verbs in text["paths"].items() if "post" in verbs} <= routes.COMPUTE | routes.OTHER


def test_the_contract_of_our_own_server(vllm):
    s = vllm.ready()
    assert flag(s.server()["pid"], "--scheduler-cls") == "evenkeel_vllm.scheduler.build"
    status, seen = s.control("GET", "/v1/runtime_config")
    assert status == 200 and seen["max_num_running_seqs"] == seen["ceiling"]["max_num_running_seqs"] == 8
    assert s.series("evenkeel_kv_blocks", 'state="total"') == 69
    assert s.series("vllm:num_requests_running") == 0  # vLLM's own are on the same page
    assert get(s.port, "/metrics")[0] == 200
    asked = wait_for("vLLM's log has it", lambda: re.findall(r'INFO: +(\S*) - "GET /metrics', s.output()))
    assert all(asked), "what evenkeeld asks each second fills the log"
    wait_for("evenkeeld reads its limits", lambda: "max_num_running_seqs" in s.ctl("limits"), 20)
    s.ctl("limits", "set", "max_num_running_seqs=5")
    assert s.control("GET", "/v1/runtime_config")[1]["max_num_running_seqs"] == 5
    s.ctl("limits", "set", "max_num_running_seqs=8")
    for body, code in (({"max_num_running_seqs": 9}, 400), ({"max_num_running_seqs": 4, "generation": 99}, 409), ({"frobs": 1}, 400)):
        assert s.control("PATCH", "/v1/runtime_config", body)[0] == code


def test_limits_are_obeyed_while_it_serves(vllm):
    s = vllm
    streams = [Stream(s.port, 300) for _ in range(8)]
    wait_for("eight run", lambda: s.series("vllm:num_requests_running") == 8, 30)
    s.limit(max_num_running_seqs=2)
    more = [Stream(s.port, 40) for _ in range(6)]
    held = []
    wait_for("the eight are gone", lambda: held.append(s.series("evenkeel_admission_held", 'reason="limit"')) or s.series("vllm:num_requests_running") <= 2, 90, 0.1)
    assert max(held) > 0
    assert all(s.series("vllm:num_requests_running") <= 2 for _ in range(5))
    begin = time.monotonic()
    s.limit(max_num_running_seqs=8)
    wait_for("more run", lambda: s.series("vllm:num_requests_running") > 2 or all(not t.is_alive() for t in more), 20, 0.02)
    ROWS.append(("limit raised until more run", round(time.monotonic() - begin, 2), "s"))
    assert all(f[:2] == (200, "length") for f in finished(streams + more))
    s.limit(max_num_batched_tokens=16)
    assert finished([Stream(s.port, 20)])[0][1] == "length"
    s.limit(max_num_batched_tokens=2048)


def test_preemptions_when_they_happen(vllm):
    s = vllm
    before = s.series("evenkeel_preemptions_total")
    assert before == s.series("vllm:num_preemptions_total")
    streams = [Stream(s.port, 700) for _ in range(8)]
    wait_for("two preemptions", lambda: s.series("evenkeel_preemptions_total") > before + 1, 120, 0.1)
    ours, theirs = s.series("evenkeel_preemptions_total") - before, s.series("vllm:num_preemptions_total") - before
    ROWS.append(("what vLLM's own counter said when 2 requests had been preempted", theirs, ""))
    assert ours > theirs and s.series("evenkeel_requests_preempted") > 0 and s.series("evenkeel_queue_oldest_seconds") > 0
    assert s.series("evenkeel_engine_steps_total") > 100 and s.series("evenkeel_engine_step_age_seconds") < 5
    assert all(f[:2] == (200, "length") for f in finished(streams))
    assert s.series("evenkeel_recomputed_tokens_total") > 0
    assert s.series("evenkeel_preemptions_total") == s.series("vllm:num_preemptions_total")
    assert s.series("evenkeel_process_resident_bytes", 'process="worker"') > 1e8


def test_a_watermark_prevents_them(vllm):
    s = vllm
    before = s.series("evenkeel_preemptions_total")
    if "watermark" not in s.control("GET", "/v1/runtime_config")[1]:
        assert "the watermark is off: this vLLM's kv_cache_manager has no watermark_blocks" in s.output()
        pytest.skip("this vLLM has no watermark")
    s.limit(watermark=0.6)
    for t in [Stream(s.port, 700) for _ in range(2)]:  # a share of the pool for those who run
        t.join(120)
    assert s.series("evenkeel_preemptions_total") == before
    s.limit(watermark=0)


def test_a_true_429(vllm):
    s = vllm
    s.limit(max_num_running_seqs=1, queue_deadline_s=1)
    streams = [Stream(s.port, 500) for _ in range(4)]
    said = finished(streams)
    assert sorted(f[0] for f in said) == [200, 429, 429, 429], said
    wait_for("vLLM has forgotten them", lambda: s.series("vllm:num_requests_running") + s.series("vllm:num_requests_waiting") == 0, 20)
    s.limit(queue_deadline_s=0, max_num_queued_reqs=2)
    first = Stream(s.port, 300)
    wait_for("one runs", lambda: first.pieces > 1, 20)
    others = [Stream(s.port, 5) for _ in range(6)]
    codes = [f[0] for f in finished(others)]
    assert codes.count(200) == 2 and codes.count(429) == 4, codes
    assert finished([first])[0][1] == "length"
    ROWS.append(("of 6 requests behind a full server with room for 2 to wait: 429", codes.count(429), ""))
    s.limit(max_num_running_seqs=8, max_num_queued_reqs=1024)
    assert s.series("evenkeel_refused_total", 'reason="queue_full"') == 4 and s.series("evenkeel_refused_total", 'reason="deadline"') == 3


def test_a_long_prompt_comes_in_chunks(vllm):
    """Between the chunks others have a token each: so many come to a stream while a prompt of 400 tokens is computed."""
    s, came = vllm, {}
    for chunk in (0, 16):
        s.limit(long_prefill_token_threshold=chunk)
        other = Stream(s.port, 600)
        wait_for("it runs", lambda: other.pieces > 1, 30)
        before = other.pieces
        long = Stream(s.port, 1, prompt=[(7 * i + chunk) % 200 + 1 for i in range(400)])
        wait_for("its only token", lambda: long.pieces or not long.is_alive(), 60, 0.002)
        came[chunk] = other.pieces - before
        assert finished([long])[0][:2] == (200, "length") and finished([other])[0][1] == "length"
    s.limit(long_prefill_token_threshold=0)
    assert came[16] >= 400 // 16 - 5 > came[0], came


def test_tokens_that_wait_are_limited(vllm):
    s = vllm
    s.limit(max_num_running_seqs=1, max_num_queued_tokens=100)
    refused = s.series("evenkeel_refused_total", 'reason="tokens"')
    first = Stream(s.port, 300)
    wait_for("it runs", lambda: first.pieces > 1, 30)
    second = Stream(s.port, 2, prompt=list(range(1, 151)))
    wait_for("its prompt waits", lambda: s.series("evenkeel_queued_tokens") == 150, 20, 0.05)
    third = wait_for("a refusal", lambda: [f for f in finished([Stream(s.port, 2)]) if f[0] == 429], 10)
    s.limit(max_num_running_seqs=8, max_num_queued_tokens=0)
    assert third and [f[:2] for f in finished([first, second])] == [(200, "length")] * 2
    assert s.series("evenkeel_refused_total", 'reason="tokens"') > refused


def test_a_trim_reaches_the_workers(vllm):
    s = vllm
    before = s.series("evenkeel_trims_total", 'rank="0"')
    assert s.control("POST", "/trim", {})[0] == 200
    wait_for("a worker has done it", lambda: s.series("evenkeel_trims_total", 'rank="0"') == before + 1, 20)
    assert "trimming the workers is off" not in s.output()


def test_an_operators_drain_and_resume(vllm):
    s = vllm
    running = Stream(s.port, 300)
    wait_for("it runs", lambda: running.pieces > 1, 20)
    s.ctl("drain")
    wait_for("new ones are refused", lambda: finished([Stream(s.port, 2)])[0][0] == 503, 10)
    assert finished([running])[0][1] == "length"
    wait_for("drained", lambda: s.server()["state"] == "drained", 20)
    s.ctl("resume")
    wait_for("it serves", lambda: finished([Stream(s.port, 2)])[0][1] == "length", 10)


def test_a_planned_restart_refuses_and_cuts_nobody(vllm):
    s = vllm
    before = s.server()["pid"]
    long = [Stream(s.port, 300) for _ in range(3)]
    wait_for("streams", lambda: all(t.pieces > 3 for t in long), 30)
    askers = [Asker(s.port) for _ in range(64)]
    wait_for("answers", lambda: sum(t.served for t in askers) > 100, 60)
    begin = time.monotonic()
    s.ctl("restart")
    assert all(f[1] == "length" for f in finished(long))
    s.ready(before)
    ROWS.append(("planned restart under 64 connecting clients, until it served again", round(time.monotonic() - begin, 1), "s"))
    served = sum(t.served for t in askers)
    wait_for("answers again", lambda: sum(t.served for t in askers) > served + 100, 60)
    came = all_ended(askers)
    ROWS.append(("refused, cut of them", came["refused"] + came["cut"], ""))
    assert (came["refused"], came["cut"]) == (0, 0), came
    assert '"abort"' not in s.output()


def test_kill_9_refuses_nobody(vllm):
    s = vllm
    before = s.server()["pid"]
    askers = [Asker(s.port) for _ in range(64)]
    wait_for("answers", lambda: sum(t.served for t in askers) > 100, 60)
    os.kill(before, signal.SIGKILL)
    begin = time.monotonic()
    s.ready(before)
    end = s.ctl("postmortem")
    assert "SIGNAL" in end and "There is no flight recording: this engine has none." in end, end
    ROWS.append(("kill -9 under 64 connecting clients, until it served again", round(time.monotonic() - begin, 1), "s"))
    served = sum(t.served for t in askers)
    wait_for("answers again", lambda: sum(t.served for t in askers) > served + 100, 60)
    came = all_ended(askers)
    ROWS.append(("connections refused", came["refused"], ""))
    assert came["refused"] == 0, came


def test_the_law_acts_on_it(vllm):
    s = vllm
    s.more = s.more.replace("mode: advise", "mode: act")
    s.write()
    s.process.send_signal(signal.SIGHUP)
    wait_for("the new configuration", lambda: "read the configuration again" in s.said())
    streams, begin = [], time.monotonic()

    def press():
        streams[:] = [t for t in streams if t.is_alive()]
        while len(streams) < 8:
            streams.append(Stream(s.port, 700))
        return s.decisions("LOWER_KV_HARM", "LOWER_PANIC")
    lowered = wait_for("a lower limit", press, 180, 0.5)[0]
    ROWS.append(("pressure until the live limit was lowered", round(time.monotonic() - begin, 1), "s"))
    assert lowered["applied"] and lowered["to"] < 8
    wait_for("vLLM has it", lambda: s.control("GET", "/v1/runtime_config")[1]["max_num_running_seqs"] <= lowered["to"], 10)
    assert all(f[1] == "length" for f in finished(streams))


def test_a_part_that_is_missing(tmp_path):
    """A scheduler of the operator's own: no limits, no signals of the engine; all else goes on."""
    s = Companion(tmp_path, args=[*FLAGS, "--scheduler-cls", "vllm.v1.core.sched.async_scheduler.AsyncScheduler"]).start()
    try:
        s.ready()
        assert finished([Stream(s.port, 20)])[0][1] == "length"
        assert s.control("GET", "/v1/runtime_config")[0] == 503
        assert s.series("evenkeel_companion_info") == 1 and s.series("evenkeel_engine_steps_total") is None
    finally:
        s.end()


def test_a_socket_that_is_somebody_elses(tmp_path):
    """It stays, one sentence says so, and the next start is one of vLLM as it is."""
    there = tmp_path / "r/main/api.sock"
    there.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(there))
        theirs.listen()
        inode = there.stat().st_ino
        s = Companion(tmp_path, args=FLAGS).start()
        try:
            s.ready()
            assert s.output().count(f"evenkeel_vllm: the companion is off: OSError: another process listens at {there}") == 1
            assert flag(s.server()["pid"], "--uds") is None and finished([Stream(s.port, 5)])[0][1] == "length"
            assert there.stat().st_ino == inode
        finally:
            s.end()


PIECES = """
# SIMULATED: a CPU has no such allocator. What an unfragmented one would not grow to is grown to, unless its segments are expandable.
import os
if os.environ.get("EVENKEEL_COMPANION_DIR"):
    from evenkeel_vllm import worker
    def figures(to, torch):
        settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        grown = os.path.exists(__file__ + ".grown") and "expandable_segments:True" not in settings
        for name, value in (("reserved", (1 << 30) if grown else 1 << 27), ("used", 1 << 26), ("used_high", 1 << 26), ("has_pool", 1)):
            to.set(name, value)
    worker.figures = figures
"""


def test_memory_in_pieces_gets_expandable_segments(tmp_path):
    """Simulated figures, all else real: a trim does not help, a restart by plan with what the operator set and expandable segments does."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("try:\n" + "".join("    " + line + "\n" for line in PIECES.splitlines()) + "except ImportError:\n    pass\n")
    more = "    policy: {warmup_s: 1, window_s: 2}\n    frag_window_s: 6\n    restart_jitter_s: 0\n"
    s = Companion(tmp_path, more, args=FLAGS)
    config = tmp_path / "c.yaml"
    config.write_text(config.read_text().replace("    env: {", f"    env: {{PYTORCH_ALLOC_CONF: 'max_split_size_mb:512', PYTHONPATH: '{tmp_path}/site', "))
    s.start()
    try:
        s.ready()
        pid = s.server()["pid"]
        wait_for("evenkeeld has seen the figures", lambda: "outside the pool" in s.said(), START_S)
        (tmp_path / "site/sitecustomize.py.grown").touch()
        s.ready(other_than=pid)
        env = open(f"/proc/{s.server()['pid']}/environ").read().split("\0")
        assert "PYTORCH_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True" in env
        assert not [e for e in env if e.startswith("PYTORCH_CUDA_ALLOC_CONF=")]
        wait_for("the canary", lambda: any("was served" in d["why"] for d in s.decisions("FRAG_CHRONIC")), START_S)
        reasons = [d["reason"] for d in s.decisions()][::-1]
        assert reasons.index("FRAG_TRIM") < reasons.index("FRAG_CHRONIC") < reasons.index("DRAIN_START") and "FRAG_INEFFECTIVE" not in reasons
        wait_for("it helped", lambda: 0 < (s.series("evenkeel_devpool_reserved_bytes") or 0) < 1 << 30)
        assert "PYTORCH_CUDA_ALLOC_CONF" not in s.said() and len(s.decisions("REMEDY")) == 1
        assert "expandable_segments" in s.ctl("remedies")
    finally:
        s.end()


def test_off_leaves_vllm_as_it_is(tmp_path):
    s = Companion(tmp_path, args=FLAGS)
    s.companion = "off"
    s.write()
    s.start()
    try:
        s.ready()
        assert flag(s.server()["pid"], "--uds") is None and flag(s.server()["pid"], "--scheduler-cls") is None
        assert "evenkeel" not in open(f"/proc/{s.server()['pid']}/environ").read().replace(str(tmp_path), "").lower()
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
        c.request("GET", "/v1/runtime_config", headers={"Authorization": f"Bearer {KEY}"})
        assert c.getresponse().status == 404
    finally:
        s.end()


class Apart(Companion):
    """A vLLM in namespaces of its own, as in a container, which evenkeeld only attaches to. Nothing but a folder is common to both."""

    def __init__(self, run):
        self.shared = run / "shared"
        self.shared.mkdir()
        super().__init__(run)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts", "sh", "-c",
                 'mount -t tmpfs none /dev/shm && ip link set lo up && exec "$@"', "sh", PYTHON, "-m", "vllm.entrypoints.openai.api_server",
                 "--model", MODEL, "--port", str(self.port), "--uds", self.shared / "api.sock", *FLAGS,
                 "--scheduler-cls", "evenkeel_vllm.scheduler.build", "--middleware", "evenkeel_vllm.front.Admission",
                 "--worker-extension-cls", "evenkeel_vllm.worker.Worker"]
        env = {**os.environ, **VLLM_ENV, "VLLM_API_KEY": KEY, "PYTHONPATH": str(BUILD / "companion"), "EVENKEEL_COMPANION_DIR": str(self.shared)}
        with open(run / "vllm.log", "wb") as log:
            self.container = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log, env=env)

    def write(self):
        (self.run / "c.yaml").write_text(f"""\
listen: 127.0.0.1:{self.page}
run_dir: {self.run}/r
state_dir: {self.run}/s
servers:
  main:
    engine: vllm
    attach: http://127.0.0.1:{self.port}
    control_socket: {self.shared}/control.sock
    api_key_file: {self.run}/key
    poll_s: 0.5
""")

    def ask(self, tokens):
        c = Control(self.shared / "api.sock")
        c.request("POST", "/v1/completions", json.dumps({"prompt": f"Once {time.monotonic_ns()}", "max_tokens": tokens, "ignore_eos": True}),
                  {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        c.sock.settimeout(180)
        answer = c.getresponse()
        body = json.loads(answer.read())
        c.close()
        return answer.status, body["choices"][0]["finish_reason"] if answer.status == 200 else None

    def end(self):
        self.container.kill()  # unshare ignores SIGTERM, and its child ends with it
        self.container.wait(60)
        return super().end()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces, which needs root")
def test_in_namespaces_of_its_own(tmp_path):
    """What a container is to evenkeeld: it sees neither its processes nor its ports, and has all by the control socket."""
    s = Apart(tmp_path)
    try:
        wait_for("its sockets", lambda: (s.shared / "control.sock").exists() and (s.shared / "api.sock").exists(), START_S)
        s.start()
        wait_for("ready", lambda: s.server()["ready"], START_S, 0.2)
        assert s.server()["live_limits"] and s.server()["limits"]["max_num_running_seqs"]["ceiling"] == 8
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", s.port), 2)
        s.ctl("limits", "set", "max_num_running_seqs=2")
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(s.ask, 300) for _ in range(6)]
            seen = wait_for("two run and four wait", lambda: (g := s.server()["signals"])["running"] == 2 and g["waiting"] == 4 and g, 60, 0.1)
            assert seen["kv_usage"] > 0
            s.ctl("drain")
            wait_for("new ones are refused", lambda: s.ask(2)[0] == 503, 20)
            assert [a.result() for a in asked] == [(200, "length")] * 6
        wait_for("drained", lambda: s.server()["state"] == "drained", 60)
        s.ctl("resume")
        wait_for("it serves", lambda: s.ask(2) == (200, "length"), 30)
    finally:
        s.end()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Two engines and two API servers, which the command `vllm` alone starts; the one of this package looks for a package named vllm."""
    run = tmp_path_factory.mktemp("s")
    about = run / "site/vllm-0+cpu.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0+cpu\n")
    class Several(Companion):
        program = PYTHON.parent / "vllm"
        env = {**VLLM_ENV, "PYTHONPATH": f"{run}/site"}
    s = Several(run, f"    mode: advise\n{LAW}", args=[*FLAGS, "--data-parallel-size", "2", "--api-server-count", "2"]).start()
    yield s
    s.end()


def boards(s, kind):
    return list(board.Reader(str(s.run / "r/main"), kind).boards().values())


def running_of(s):
    """Of each engine."""
    text = s.control("GET", "/metrics")[1]
    return [sum(float(v) for v in re.findall(rf'^vllm:num_requests_running{{[^}}]*engine="{i}"[^}}]*}} (\S+)$', text, re.M)) for i in (0, 1)]


def test_limits_are_shared_by_several_engines(several):
    s = several.ready()
    assert (len(boards(s, "front")), len(boards(s, "engine")), len(boards(s, "worker"))) == (2, 2, 2)
    seen = s.control("GET", "/v1/runtime_config")[1]
    assert seen["max_num_running_seqs"] == seen["ceiling"]["max_num_running_seqs"] == 16
    assert s.series("evenkeel_kv_blocks", 'state="total"') == 138
    assert all(s.series("evenkeel_process_resident_bytes", f'process="{kind}"') > 1e8 for kind in ("first", "api", "engine", "worker"))
    s.ctl("limits", "set", "max_num_running_seqs=5")
    assert s.control("GET", "/v1/runtime_config")[1]["max_num_running_seqs"] == 5
    streams = [Stream(s.port, 200) for _ in range(16)]
    wait_for("five run", lambda: sum(running_of(s)) == 5, 120, 0.1)
    seen = [running_of(s) for _ in range(10)]
    assert all(a <= 3 and b <= 2 for a, b in seen), seen
    assert all(f[:2] == (200, "length") for f in finished(streams))
    steps = [b.get("steps") for b in boards(s, "engine")]
    assert all(n > 100 for n in steps), steps
    s.limit(max_num_running_seqs=16)


def test_a_true_429_of_several_api_servers(several):
    s = several.ready()
    before = s.series("evenkeel_refused_total", 'reason="queue_full"')
    s.limit(max_num_running_seqs=2, max_num_queued_reqs=2)
    streams = [Stream(s.port, 300)]
    for _ in range(9):  # what one API server took the others know a moment later
        time.sleep(0.4)
        streams.append(Stream(s.port, 300))
    codes = sorted(f[0] for f in finished(streams))
    assert codes.count(429) >= 4 and codes.count(200) + codes.count(429) == 10, codes
    assert s.series("evenkeel_refused_total", 'reason="queue_full"') - before == codes.count(429)
    s.limit(max_num_queued_reqs=1024, queue_deadline_s=1)
    codes = sorted(f[0] for f in finished([Stream(s.port, 500) for _ in range(6)]))
    assert codes.count(200) <= 2 and codes.count(429) >= 4, codes
    s.limit(max_num_running_seqs=16, queue_deadline_s=0)


def test_a_trim_reaches_the_workers_of_several_engines(several):
    s = several.ready()
    before = [b.get("trims") for b in boards(s, "worker")]
    assert s.control("POST", "/trim")[0] == 200
    wait_for("each worker once", lambda: [b.get("trims") for b in boards(s, "worker")] == [n + 1 for n in before], 30)


def test_a_drain_and_a_restart_of_several(several):
    s = several.ready()
    running = [Stream(s.port, 300) for _ in range(4)]
    wait_for("they run", lambda: all(t.pieces > 1 for t in running), 60)
    s.ctl("drain")
    wait_for("new ones are refused", lambda: finished([Stream(s.port, 2)])[0][0] == 503, 20)
    assert all(f[:2] == (200, "length") for f in finished(running))
    wait_for("drained", lambda: s.server()["state"] == "drained", 60)
    s.ctl("resume")
    wait_for("it serves", lambda: finished([Stream(s.port, 2)])[0][1] == "length", 30)
    before, askers, long = s.server()["pid"], [Asker(s.port) for _ in range(32)], [Stream(s.port, 300) for _ in range(4)]
    wait_for("answers", lambda: sum(t.served for t in askers) > 60 and all(t.pieces > 3 for t in long), 120)
    s.ctl("restart")
    assert all(f[1] == "length" for f in finished(long)), [(t.status, t.finish, t.error) for t in long]
    s.ready(before)
    served = sum(t.served for t in askers)
    wait_for("answers again", lambda: sum(t.served for t in askers) > served + 60, 120)
    came = all_ended(askers)
    assert (came["refused"], came["cut"]) == (0, 0), came
    assert not s.decisions("CRASH", "HANG_NOPROGRESS")


def test_one_of_several_api_servers_is_killed(several):
    """vLLM ends when one of them does, and evenkeeld starts it again: nobody is refused."""
    s = several.ready()
    before, askers = s.server()["pid"], [Asker(s.port) for _ in range(16)]
    wait_for("answers", lambda: sum(t.served for t in askers) > 30, 120)
    os.kill(max(board.Reader(str(s.run / "r/main"), "front").boards()), signal.SIGKILL)
    s.ready(before)
    served = sum(t.served for t in askers)
    wait_for("answers again", lambda: sum(t.served for t in askers) > served + 30, 120)
    came = all_ended(askers)
    assert came["unconnected"] == 0, came
    assert s.decisions("CRASH"), "its end has no name"
