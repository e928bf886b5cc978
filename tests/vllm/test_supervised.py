"""Protects: a real vLLM under evenkeeld. Its start and readiness, its API key, a hang, a dead engine, pressure and HAProxy's maxconn, new
flags by restart, a drain, running out of memory, and the one command that users type. Opt-in (make check-vllm): each start takes most of
a minute on two cores, so the tests share a server and follow one another. What was measured goes to build/reports/check-vllm.json."""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "tests/vllm"))
from ask import VLLM_ENV, VLLM_PYTHON as PYTHON, free_port, is_newest, measured_with  # noqa: E402
from conftest import BUILD, MODEL, get, gone, wait_for  # noqa: E402
from test_edge import HAProxy  # noqa: E402

KEY = "sk-supervised"
START_S = 600 # half a minute on a quiet machine; the cores may be shared
LAW = "    policy: {window_s: 6, warmup_s: 1, settle_s: 3, effect_s: 6, raise_every_s: 2, raise_after_cut_s: 60}\n"
TIMES, TIMES_ALL = [], 10  # (what, seconds); a run of all tests has so many


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    out = ROOT / "build/reports/check-vllm.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"cell": name, "value": round(value, 1), "unit": "s"} for name, value in TIMES]
    out.write_text(json.dumps({"target": "check-vllm", "rows": rows}, indent=1) + "\n")
    table = measured_with() + "\n\n| what | seconds |\n|---|---|\n" + "".join(f"| {name} | {value:.1f} |\n" for name, value in TIMES)
    print("\n" + table)
    doc = ROOT / "docs/vllm.md"
    head, rest = doc.read_text().split("<!-- written by make check-vllm -->\n")
    if len(TIMES) == TIMES_ALL and is_newest():
        doc.write_text(head + "<!-- written by make check-vllm -->\n" + table + "<!-- end -->" + rest.split("<!-- end -->")[1])


class Supervised:
    """evenkeeld with one vLLM, by a configuration or by a command line."""

    companion = "off"  # test_companion.py is the one that has it
    program = PYTHON
    env = VLLM_ENV

    def __init__(self, run, more="", words=None, args=()):
        self.run, self.page, self.port, self.agent = run, free_port(), free_port(), free_port()
        self.more, self.args = more, list(args)
        (run / "key").write_text(f"# of the test\n{KEY}\n")
        self.write()
        self.command = [BUILD / "evenkeeld", *([str(w).replace("{port}", str(self.port)).replace("{page}", str(self.page)) for w in words]
                                              if words else ["--config", run / "c.yaml"])]
        self.process = None

    def write(self):
        env = ", ".join(f"{k}: {json.dumps(v)}" for k, v in self.env.items())
        (self.run / "c.yaml").write_text(f"""\
listen: 127.0.0.1:{self.page}
run_dir: {self.run}/r
state_dir: {self.run}/s
servers:
  main:
    engine: vllm
    program: {self.program}
    model: {MODEL}
    port: {self.port}
    api_key_file: {self.run}/key
    env: {{{env}}}
    args: {json.dumps(self.args)}
    companion: "{self.companion}"
    poll_s: 0.5
    hang_s: 6
    drain_deadline_s: 60
    start_deadline_s: {START_S}
    log_file: {self.run}/vllm.log
{self.more.replace('{agent}', str(self.agent)).replace('{run}', str(self.run))}""")

    def start(self):
        self.begun = time.monotonic()
        with open(self.run / "evenkeeld.log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **VLLM_ENV})
        wait_for("the API", self.server)
        return self

    def server(self):
        return json.loads(get(self.page, "/api/v1/servers")[1])["servers"][0]

    def decisions(self, *reasons):
        all_ = json.loads(get(self.page, "/api/v1/servers/main/decisions?limit=200")[1])["decisions"]
        return [d for d in all_ if not reasons or d["reason"] in reasons]

    def said(self):
        return (self.run / "evenkeeld.log").read_text()

    def output(self):
        return (self.run / "vllm.log").read_text(errors="replace")

    def ready(self, other_than=None):
        wait_for("ready", lambda: self.server()["ready"] and self.server()["pid"] not in (0, other_than), START_S, 0.2)
        return self

    def ctl(self, *words):
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "r/evenkeeld.sock", *words], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def pids(self):
        """The server and all below it, by name: {name: pid}."""
        main = self.server()["pid"]
        rows = [line.split(None, 3) for line in subprocess.run(["ps", "-eo", "pid,ppid,sid,args"], capture_output=True, text=True).stdout.splitlines()[1:]]
        return {r[3].split()[0] if r[3].startswith("VLLM::") else "api" if int(r[0]) == main else r[3][:40]: int(r[0]) for r in rows if int(r[2]) == main}

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.returncode


class Stream(threading.Thread):
    """A streaming completion; what came of it."""

    def __init__(self, port, tokens, key=KEY, prompt=None, patience_s=120):
        super().__init__(daemon=True)
        self.port, self.tokens, self.key, self.patience_s = port, tokens, key, patience_s
        self.prompt = prompt or f"Once upon a time {id(self)}"
        self.status, self.finish, self.pieces, self.error = 0, None, 0, None
        self.start()

    def run(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience_s)
            c.request("POST", "/v1/completions", json.dumps({"prompt": self.prompt, "max_tokens": self.tokens, "stream": True,
                                                             "ignore_eos": True, "temperature": 0}),
                      {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"})
            answer = c.getresponse()
            self.status = answer.status
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    self.error = event.get("error", self.error)
                    for choice in event.get("choices", []):
                        self.pieces += 1
                        self.finish = choice["finish_reason"] or self.finish
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = error


def remedies(s):
    """Starts with other flags, newest first."""
    return [d for d in s.decisions("REMEDY") if d["action"] == "restart"]


def flag(pid, name):
    """The last value of a flag of a process, None while it has none (or has not begun to run its program)."""
    words = open(f"/proc/{pid}/cmdline").read().split("\0")
    values = [b for a, b in zip(words, words[1:]) if a == name]
    return values[-1] if values else None


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """A pool of 70 blocks of 32 tokens: eight answers of 700 tokens do not fit into it together."""
    s = Supervised(tmp_path_factory.mktemp("v"), f"    edge: 127.0.0.1:{{agent}}\n    limits: {{max_num_running_seqs: {{max: 8}}}}\n{LAW}",
                   args=["--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8",
                         "--block-size", "32", "--num-gpu-blocks-override", "70"]).start()
    h = HAProxy(s.run, s.port, s.agent, "weight 100")
    yield s, h
    s.end()
    h.end()


def test_ready_by_a_real_completion(vllm):
    s, h = vllm
    s.ready()
    TIMES.append(("start until a token was made", time.monotonic() - s.begun))
    log = s.output()
    assert log.index("GET /health HTTP/1.1\" 200") < log.index("POST /v1/completions HTTP/1.1\" 200")
    # the key: not on any command line, asked for by the server, known to evenkeeld alone
    assert KEY not in " ".join(open(f"/proc/{s.server()['pid']}/cmdline").read().split("\0"))
    wait_for("its name", lambda: s.server()["model"] == "tiny")
    wrong = Stream(s.port, 1, key="sk-wrong")
    wrong.join(10)
    assert wrong.status == 401 and "asks for an API key" not in s.said()
    wait_for("HAProxy sends to it", lambda: h.server()["status"] == "UP" and h.server()["slim"] == "8", 20)


def test_metrics_are_read(vllm):
    s, h = vllm
    stream = Stream(h.port, 200)
    wait_for("a running request", lambda: s.server()["signals"].get("running") == 1, 20)
    stream.join(60)
    assert stream.finish == "length" and stream.pieces > 50
    page = get(s.page, "/metrics")[1].decode()
    assert 'engine="vllm"' in page or 'server="main"' in page
    assert s.server()["signal_good"]


def test_pressure_lowers_maxconn_in_front(vllm):
    s, h = vllm
    begin = time.monotonic()
    streams = []
    def press():
        streams[:] = [t for t in streams if t.is_alive()]
        while len(streams) < 8:
            streams.append(Stream(h.port, 700))
        return s.decisions("LOWER_KV_HARM", "LOWER_PANIC")
    lowered = wait_for("a lower limit", press, 180, 0.5)[0]
    TIMES.append(("pressure until maxconn was lowered", time.monotonic() - begin))
    assert lowered["applied"] and lowered["to"] < 8
    wait_for("HAProxy knows", lambda: int(h.server()["slim"]) <= lowered["to"], 10)
    for t in streams:
        t.join(120)
    assert all(t.finish == "length" and not t.error for t in streams), [(t.finish, t.error) for t in streams]


def test_a_hang_behind_a_healthy_page(vllm):
    s, h = vllm
    before, streams = s.pids(), [Stream(s.port, 900) for _ in range(2)]
    wait_for("streams", lambda: all(t.pieces > 3 for t in streams), 30)
    os.kill(before["VLLM::EngineCore"], signal.SIGSTOP)
    begin = time.monotonic()
    assert get(s.port, "/health")[0] == 200
    hang = wait_for("two proofs of a hang", lambda: s.decisions("HANG_NOPROGRESS"), 60)[0]
    TIMES.append(("engine stopped until it was ended as hung (hang_s 6)", time.monotonic() - begin))
    assert "one token failed too" in hang["why"]
    wait_for("all of it gone", lambda: all(gone(p) for p in before.values()), 10)
    s.ready(before["api"])
    TIMES.append(("engine stopped until it served again", time.monotonic() - begin))


def test_a_dead_engine(vllm):
    """It ends with status 0 and leaves a worker behind: neither is taken for an end that somebody asked for."""
    s, h = vllm
    before, stream = s.pids(), Stream(s.port, 900)
    wait_for("a stream", lambda: stream.pieces > 3, 30)
    os.kill(before["VLLM::EngineCore"], signal.SIGKILL)
    begin = time.monotonic()
    wait_for("its end is noticed", lambda: s.server()["state"] in ("backoff", "starting") and s.server()["pid"] != before["api"], 60, 0.05)
    TIMES.append(("engine killed until evenkeeld saw the end (vLLM waits itself)", time.monotonic() - begin))
    crash = s.decisions("CRASH")[0]
    wait_for("all of it gone", lambda: all(gone(p) for p in before.values()), 5)
    left = [line for line in s.said().splitlines() if "left behind" in line]
    s.ready(before["api"])
    TIMES.append(("engine killed until it served again", time.monotonic() - begin))
    assert "engine process ended without a word" in crash["why"] and "status 0" in crash["why"], crash
    assert left and crash["why"].startswith("SIGNAL"), (left, crash)


def test_new_flags_by_restart_and_a_drain(vllm):
    """The router knows first, then SIGTERM; running answers end as they should; the next process has the new flags."""
    s, h = vllm
    before = s.server()["pid"]
    wait_for("HAProxy has it", lambda: h.server()["status"] == "UP", 20)
    streams = [Stream(h.port, 600) for _ in range(2)]
    wait_for("streams", lambda: all(t.pieces > 3 for t in streams) or any(not t.is_alive() for t in streams), 60)
    assert all(t.is_alive() for t in streams), [(t.status, t.pieces, t.error) for t in streams]
    s.args[s.args.index("--max-num-seqs") + 1] = "4"
    s.write()
    s.process.send_signal(signal.SIGHUP)
    wait_for("the new configuration", lambda: "read the configuration again" in s.said())
    begin = time.monotonic()
    s.ctl("restart")
    wait_for("HAProxy sends no more", lambda: "DRAIN" in h.server()["status"] or "drain" in h.server()["agent_status"] + h.server()["last_agt"].lower(), 5, 0.02)
    told = time.monotonic() - begin
    assert s.server()["pid"] == before
    TIMES.append(("restart asked until HAProxy drained (SIGTERM follows after 3 s)", told))
    for t in streams:
        t.join(90)
    assert all(t.finish == "length" and t.pieces > 300 and not t.error for t in streams), [(t.finish, t.pieces, t.error) for t in streams]
    s.ready(before)
    TIMES.append(("restart with new flags until it served again", time.monotonic() - begin))
    assert flag(s.server()["pid"], "--max-num-seqs") == "4" and flag(s.server()["pid"], "--shutdown-timeout") == "60"
    wait_for("HAProxy has it again", lambda: h.server()["status"] == "UP" and int(h.server()["slim"]) <= 4, 20)
    last = Stream(h.port, 20)
    last.join(30)
    assert last.finish == "length"


def test_a_lowered_limit_is_a_flag_of_the_next_start(tmp_path):
    """Without HAProxy and live limits: what the law lowered is kept for the next start, which nobody forces."""
    s = Supervised(tmp_path, f"    actuator: restart\n    limits: {{max_num_running_seqs: {{max: 8}}}}\n{LAW}",
                   args=["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", "--block-size", "32",
                         "--num-gpu-blocks-override", "70"]).start().ready()
    try:
        pid, streams = s.server()["pid"], []

        def press():
            streams[:] = [t for t in streams if t.is_alive()]
            while len(streams) < 8:
                streams.append(Stream(s.port, 700))
            return s.decisions("NEXT_START")
        wait_for("a limit for the next start", press, 180, 0.5)
        to = s.decisions("LOWER_KV_HARM", "LOWER_PANIC")[0]["to"]
        assert s.server()["pid"] == pid
        for t in streams:
            t.join(120)
        assert all(t.finish == "length" and not t.error for t in streams)
        to = s.decisions("LOWER_KV_HARM", "LOWER_PANIC")[0]["to"]
        s.ctl("restart")
        wait_for("the next process with the flag", lambda: s.server()["pid"] not in (0, pid) and flag(s.server()["pid"], "--max-num-seqs") == str(to), 60)
        assert to < 8
    finally:
        s.end()


def test_out_of_memory(tmp_path):
    """Lines as a GPU's vLLM writes them, by a wrapper: the class is named by them, and the next start has other flags."""
    s = Supervised(tmp_path, f"    command: [{ROOT}/tests/vllm/oom_wrapper.sh, -m, vllm.entrypoints.openai.api_server, --model, {MODEL}, --port, 'PORT', --host, 127.0.0.1]\n")
    s.args = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.9"]
    s.write()
    text = (tmp_path / "c.yaml").read_text().replace("'PORT'", f"'{s.port}'").replace(f"    program: {PYTHON}\n    model: {MODEL}\n", "")
    text = text.replace("    env: {", f"    env: {{OOM_DIR: {tmp_path}, OOM_PYTHON: {PYTHON}, ")
    (tmp_path / "c.yaml").write_text(text)
    (tmp_path / "start").touch()
    s.start()
    try:
        first = wait_for("a remedy", lambda: remedies(s), 30)[-1]
        assert first["why"].startswith("STARTUP_OOM"), first
        s.ready()
        words = open(f"/proc/{s.server()['pid']}/cmdline").read()
        assert "--max-num-batched-tokens\0001536\0" in words, (first["why"], words)
        pid, before = s.server()["pid"], s.pids()
        (tmp_path / "burst").touch()
        begin = time.monotonic()
        burst = wait_for("its remedy", lambda: [d for d in remedies(s) if d != first], 60)[0]
        wait_for("all of it gone", lambda: all(gone(p) for p in before.values()), 10)
        assert "BURST_OOM" in burst["why"] and "left behind" in s.said(), burst
        s.ready(pid)
        TIMES.append(("out of memory while serving until it served again with other flags", time.monotonic() - begin))
        assert open(f"/proc/{s.server()['pid']}/cmdline").read() != words
    finally:
        s.end()


def test_one_command(tmp_path):
    s = Supervised(tmp_path, words=["--engine", "vllm", "--model", MODEL, "--program", PYTHON, "--port", "{port}", "--listen", "127.0.0.1:{page}",
                                    "--run-dir", tmp_path / "r", "--state-dir", tmp_path / "s", "--api-key-file", tmp_path / "key", "--companion", "off", "--",
                                    "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]).start()
    try:
        s.ready()
        stream = Stream(s.port, 400)
        wait_for("a stream", lambda: stream.pieces > 3, 30)
        begin = time.monotonic()
        assert s.end() == 0
        TIMES.append(("SIGTERM to evenkeeld until all had ended, one answer running", time.monotonic() - begin))
        stream.join(5)
        assert stream.finish == "length" and not stream.error
    finally:
        s.end()
