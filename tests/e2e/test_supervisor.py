"""Protects: what evenkeeld does with servers that misbehave in ways a real one rarely does. The servers are fakes
(fake_engine.py), so each test takes seconds; the same paths run against the real one in test_faults.py."""
import fcntl
import gzip
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from conftest import BUILD, free_port, get, metric, wait_for

FAKE = pathlib.Path(__file__).with_name("fake_engine.py")
GOLDEN = pathlib.Path(__file__).parents[1] / "fixtures/replay"


class Fakes:
    """evenkeeld with fake engines; `servers` maps a name to (arguments, further lines of YAML)."""

    def __init__(self, run, servers):
        self.run, self.page, self.ports = run, free_port(29464), {}
        self.servers = servers
        self.write()
        self.process = None

    def write(self, extra=""):
        text = f"listen: 127.0.0.1:{self.page}\nrun_dir: {self.run}/r\nstate_dir: {self.run}/s\n{extra}servers:\n"
        for i, (name, (arguments, more)) in enumerate(self.servers.items()):
            self.ports.setdefault(name, free_port(28000 + 10 * i))
            arguments = arguments and [a.replace("{port}", str(self.ports[name])) for a in arguments]
            command = "" if arguments is None else f"    command: {json.dumps([str(FAKE), *arguments])}\n    port: {self.ports[name]}\n"
            text += (f"  {name}:\n{command}"
                     f"    poll_s: 0.2\n    log_file: {self.run}/{name}.log\n{more.replace('{run}', str(self.run))}")
        (self.run / "c.yaml").write_text(text)

    def start(self):
        self.log = open(self.run / "evenkeeld.log", "ab")
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", self.run / "c.yaml"], stdout=self.log, stderr=self.log)
        wait_for("the API", lambda: self.all())
        return self

    def all(self):
        return {s["name"]: s for s in json.loads(get(self.page, "/api/v1/servers")[1])["servers"]}

    def ready(self, *names):
        wait_for("ready", lambda: all(self.all()[n]["ready"] for n in names or self.servers), 60)
        return self

    def reasons(self, name):
        return [d["reason"] for d in json.loads(get(self.page, f"/api/v1/servers/{name}/decisions?limit=200")[1])["decisions"]]

    def decisions(self, name, reason):
        """Newest first."""
        return [d for d in json.loads(get(self.page, f"/api/v1/servers/{name}/decisions?limit=200")[1])["decisions"] if d["reason"] == reason]

    def decisions_all(self, name):
        """Newest first."""
        return json.loads(get(self.page, f"/api/v1/servers/{name}/decisions?limit=200")[1])["decisions"]

    def ask(self, method, path, body=""):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(f"{self.run}/r/evenkeeld.sock")
            s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            data = b""
            while part := s.recv(65536):
                data += part
        head, body = data.split(b"\r\n\r\n", 1)
        return int(head.split(b" ")[1]), json.loads(body)

    def metrics(self):
        return get(self.page, "/metrics")[1].decode()

    def end(self):
        pids = []
        try:
            pids = [s["pid"] for s in self.all().values() if s["pid"]]
        except (OSError, ValueError):
            pass
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture
def fakes(tmp_path):
    made = []

    def make(extra="", **servers):
        made.append(Fakes(tmp_path, servers))
        made[-1].write(extra)
        return made[-1].start()

    yield make
    for f in made:
        f.end()


def test_a_hang_is_killed_with_two_proofs(fakes):
    f = fakes(a=(["--load", "4"], "    hang_s: 2\n")).ready()
    pid = f.all()["a"]["pid"]
    os.kill(pid, signal.SIGUSR1)
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    assert "HANG_NOPROGRESS" in f.reasons("a")
    assert metric(f.metrics(), "evenkeel_supervisor_restarts_total", cause="hang") == 1


def test_a_thread_that_is_lost_is_seen_whatever_else_is_served(fakes, tmp_path):
    """The canary is answered; a body has been read for far longer than the server's own watchdog would let it."""
    junk = tmp_path / "junk"
    f = fakes(a=(["--junk", str(junk)], "    hang_s: 1\n")).ready()
    pid = f.all()["a"]["pid"]
    junk.write_text("lost")
    wait_for("it is told", lambda: f.decisions("a", "HANG_NOPROGRESS"), 60)
    junk.unlink()
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    assert "has not come back for 120 s, whatever else is served; killing it" in str(f.decisions("a", "HANG_NOPROGRESS"))
    assert metric(f.metrics(), "evenkeel_supervisor_exits_total", server="a", **{"class": "LOOP"}) == 1
    assert metric(f.metrics(), "evenkeel_supervisor_restarts_total", cause="hang") == 1


def test_a_lock_that_a_forked_server_still_has_is_waited_for(fakes, tmp_path):
    """Until it is its own program it has the descriptors of the evenkeeld that forked it, which may have ended for the next one."""
    (tmp_path / "r").mkdir(exist_ok=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open(tmp_path / "r/evenkeeld.lock", "w") as lock:
        lock.write(f"{gone.pid}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.7, lock.close).start()
        fakes(a=([], "")).ready()


def test_two_do_not_share_a_state(fakes, tmp_path):
    """Else the second one takes the first for dead, its server for crashed, and both write over each other."""
    f = fakes(a=([], "")).ready()
    (tmp_path / "d.yaml").write_text(f"listen: 'off'\nrun_dir: {tmp_path}/other\nstate_dir: {tmp_path}/s\nservers:\n"
                                     f"  a:\n    command: [/bin/false]\n    port: {free_port(28500)}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "d.yaml"], capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 77) and f"another evenkeeld (process {f.process.pid}) runs with state_dir {tmp_path}/s" in done.stderr, done
    assert f.all()["a"]["ready"]


@pytest.mark.long
def test_a_stopped_process_and_an_idle_one_are_left_alone(fakes):
    f = fakes(a=(["--load", "4"], "    hang_s: 1\n"), b=([], "    hang_s: 1\n")).ready()
    before = {n: s["pid"] for n, s in f.all().items()}
    os.kill(before["a"], signal.SIGSTOP)
    wait_for("it is said", lambda: f"Process {before['a']} is stopped by a signal" in str(f.decisions("a", "SIGNAL_DEGRADED")))
    time.sleep(2)
    halted = f.all()["a"]
    assert halted["halted"] and not halted["ready"] and f.all()["b"]["ready"] and not f.all()["b"]["halted"]
    assert metric(f.metrics(), "evenkeel_supervisor_server_ready", server="a") == 0
    status = subprocess.run([BUILD / "evenkeelctl", "--socket", f.run / "r/evenkeeld.sock", "status"], capture_output=True, text=True, timeout=60)
    assert [line.split()[2] for line in status.stdout.splitlines() if line.startswith(("a ", "b "))] == ["halted", "ready"], status
    os.kill(before["a"], signal.SIGCONT)
    assert {n: s["pid"] for n, s in f.all().items()} == before
    wait_for("read again", lambda: f.all()["a"]["signal_good"] and f.all()["a"]["ready"] and not f.all()["a"]["halted"])
    assert any(f"Process {before['a']} goes on" in d["why"] for d in f.decisions("a", "SIGNAL_DEGRADED"))
    os.kill(before["b"], signal.SIGSTOP)  # nothing runs in it: it is told all the same
    wait_for("of the idle one, too", lambda: f.all()["b"]["halted"] and not f.all()["b"]["ready"])
    os.kill(before["b"], signal.SIGCONT)
    wait_for("ready", lambda: f.all()["b"]["ready"])


def test_a_process_stopped_for_too_long_is_ended(fakes):
    f = fakes(a=(["--load", "4"], "    hang_s: 1\n    halt_s: 3\n")).ready()
    pid = f.all()["a"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    told = str(f.decisions("a", "SIGNAL_DEGRADED"))
    assert "(halt_s)" in told and "goes on" not in told  # it was killed instead
    assert re.search(r"metrics could not be read for \d+ s, and a request of one token failed", str(f.decisions("a", "HANG_NOPROGRESS")))


@pytest.mark.long
def test_junk_metrics_hold_everything(fakes, tmp_path):
    """F32: whatever comes instead of a page: limits stay, nothing is restarted, evenkeeld answers; good pages end it."""
    word = tmp_path / "junk"
    f = fakes(a=(["--load", "24", "--max-num-seqs", "24", "--junk", str(word)], "    hang_s: 2\n" + FAST_LAW)).ready()
    pid = f.all()["a"]["pid"]
    for kind in ("500", "html", "half", "nan", "large", "missing", "hang"):
        wait_for("good pages", lambda: f.all()["a"]["signal_good"] and f.all()["a"]["policy_state"] != "degraded", 60)
        word.write_text(kind)
        wait_for(f"{kind}: it holds", lambda: f.all()["a"]["policy_state"] == "degraded", 60)
        before = f.all()["a"]["limits"]["max_num_running_seqs"]["value"]
        time.sleep(0.5)
        now = f.all()["a"]
        assert now["limits"]["max_num_running_seqs"]["value"] == before and now["pid"] == pid and now["ready"], kind
        word.unlink()
    assert "SIGNAL_DEGRADED" in f.reasons("a") and "CRASH" not in f.reasons("a")


def test_two_servers_are_independent(fakes):
    f = fakes(a=([], ""), b=(["--exit-code", "2"], "")).ready("a")  # of what may vanish (78) there is a look after 5 s
    wait_for("b is given up", lambda: f.all()["b"]["state"] == "breaker_open")
    assert f.all()["a"]["ready"] and "BREAKER_OPEN" in f.reasons("b")
    pid = f.all()["a"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for("it is gone", lambda: f.all()["a"]["pid"] != pid)
    assert get(f.ports["a"], "/livez", timeout=60)[0] == 200  # waits in the kept socket
    assert f.all()["b"]["restarts"] == 0


def test_commands_about_one_server(fakes):
    """--server, before or behind the command, in JSON as well; where it means nothing that is said."""
    f = fakes(a=([], ""), b=([], "")).ready()

    def ctl(*words):
        return subprocess.run([BUILD / "evenkeelctl", "--socket", f.run / "r/evenkeeld.sock", *words], capture_output=True, text=True, timeout=60)
    for words in (["-s", "b", "status", "--json"], ["status", "-s", "b", "--json"], ["--json", "limits", "get", "--server", "b"]):
        assert [s["name"] for s in json.loads(ctl(*words).stdout)["servers"]] == ["b"], words
    for words in (["-s", "b", "endpoint-snippet", "prometheus"], ["endpoint-snippet", "prometheus", "-s", "b"]):
        text = ctl(*words).stdout
        assert "server: b}" in text and "server: a}" not in text, words
    assert ctl("endpoint-snippet", "haproxy", "-s", "c").returncode == 1
    for words in (["-s", "b", "plan", "m"], ["preflight", "-s", "b"], ["debug", "on", "--server=b"], ["recover", "-s", "b"]):
        done = ctl(*words)
        assert done.returncode == 2 and "about no single server" in done.stderr, (words, done)


def test_an_exit_with_status_0_is_a_failure_and_no_storm(fakes):
    f = fakes(a=(["--exit-code", "0", "--start-s", "0"], ""))
    wait_for("given up", lambda: f.all()["a"]["state"] == "breaker_open", 60)
    assert metric(f.metrics(), "evenkeel_supervisor_decisions_total", reason="STARTED") <= 3


def test_restart_refuses_nobody(fakes):
    f = fakes(a=(["--load", "2"], "")).ready()
    pid = f.all()["a"]["pid"]
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202
    for _ in range(20):
        assert get(f.ports["a"], "/livez", timeout=60)[0] == 200
        time.sleep(0.05)
    wait_for("another process", lambda: f.all()["a"]["ready"] and f.all()["a"]["pid"] != pid)


def test_limits_pins_and_what_is_kept(fakes):
    f = fakes(a=([], "")).ready()
    wait_for("limits", lambda: f.all()["a"]["limits"]["max_num_running_seqs"]["value"])
    status, body = f.ask("PATCH", "/api/v1/servers/a/limits", '{"max_num_running_seqs": 5, "pin": true}')
    assert status == 200 and body["limits"]["max_num_running_seqs"] == {"value": 5, "ceiling": 16, "max": 16, "min": 1, "pinned": True}
    status, body = f.ask("PATCH", "/api/v1/servers/a/limits", '{"max_num_running_seqs": 17}')
    assert status == 400 and "ceiling 16" in body["error"]["message"] and body["error"]["field"] == "max_num_running_seqs"
    os.kill(f.all()["a"]["pid"], signal.SIGKILL)
    wait_for("the pin outlives the process",
             lambda: f.all()["a"]["ready"] and f.all()["a"]["limits"]["max_num_running_seqs"]["value"] == 5
             and f.all()["a"]["limits"]["max_num_running_seqs"]["pinned"])


def test_writing_over_tcp_is_refused(fakes):
    import http.client
    f = fakes(a=([], "")).ready()
    for method, path in (("POST", "/api/v1/servers/a/drain"), ("PATCH", "/api/v1/servers/a/limits"), ("DELETE", "/")):
        c = http.client.HTTPConnection("127.0.0.1", f.page, timeout=60)
        c.request(method, path, "{}")
        assert c.getresponse().status in (403, 405)
        c.close()
    assert f.all()["a"]["ready"]


def test_reload_is_all_or_nothing(fakes):
    f = fakes(a=([], "")).ready()
    pid = f.all()["a"]["pid"]
    (f.run / "c.yaml").write_text("servers: {a: {prot: 1}}\n")
    f.process.send_signal(signal.SIGHUP)
    wait_for("refused", lambda: metric(f.metrics(), "evenkeel_supervisor_config_last_reload_successful") == 0)
    f.servers["a"] = ([], "    limits: {max_num_running_seqs: {max: 7}}\n")
    f.write()
    f.process.send_signal(signal.SIGHUP)
    wait_for("bounded", lambda: f.all()["a"]["limits"]["max_num_running_seqs"]["value"] == 7)
    assert f.all()["a"]["pid"] == pid and metric(f.metrics(), "evenkeel_supervisor_config_last_reload_successful") == 1


def test_junk_on_the_api(fakes):
    f = fakes(a=([], "")).ready()
    for junk in (b"\0" * 100, b"GET " + b"a" * 100000, b"PATCH /api/v1/servers/a/limits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200000):
        with socket.create_connection(("127.0.0.1", f.page), timeout=1) as s:
            try:
                s.sendall(junk)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except OSError:
                pass
    assert f.all()["a"]["ready"] and f.process.poll() is None


def test_sockets_go_to_systemds_store(tmp_path):
    """Without systemd: a socket of our own plays NOTIFY_SOCKET, and hands the descriptors back as LISTEN_FDS would."""
    f = Fakes(tmp_path, {"a": ([], "")})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(10)
        f.log = open(tmp_path / "evenkeeld.log", "ab")
        f.process = subprocess.Popen([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--leave-servers"], stdout=f.log,
                                     stderr=f.log, env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"})
        try:
            seen, kept = "", []
            while not ("READY=1" in seen and "FDSTORE=1" in seen and "WATCHDOG=1" in seen):
                data, fds, _, _ = socket.recv_fds(notify, 4096, 4)
                seen += data.decode() + "\n"
                kept += fds
            assert "FDNAME=listen-a" in seen and len(kept) == 1
            assert socket.socket(fileno=kept[0]).getsockname()[1] == f.ports["a"]
            f.ready()
            pid = f.all()["a"]["pid"]
            f.process.terminate()
            assert f.process.wait(60) == 0
            assert get(f.ports["a"], "/health")[0] == 200  # left running
            f.start().ready()
            assert f.all()["a"]["pid"] == pid
        finally:
            f.end()


def test_output_is_bounded_before_it_is_ready(tmp_path):
    """A server that never becomes ready is never scraped, and its output must be bounded all the same."""
    f = Fakes(tmp_path, {"a": ([], "    log_max_bytes: 65536\n")})
    text = (tmp_path / "c.yaml").read_text()
    flood = ["sh", "-c", "while :; do printf '%01000d\\n' 0; sleep 0.002; done"]
    (tmp_path / "c.yaml").write_text(text.replace(f"command: {json.dumps([str(FAKE)])}", f"command: {json.dumps(flood)}"))
    f.start()
    try:
        wait_for("rotation", lambda: (tmp_path / "a.log.1").stat().st_size > 0)
        assert not f.all()["a"]["ready"]
    finally:
        f.end()


@pytest.mark.parametrize("which", ["run_dir", "state_dir"])
def test_directory_that_cannot_be_used(tmp_path, which):
    """The sentence names the directory and the setting, and the exit code says configuration."""
    dirs = {"run_dir": tmp_path, "state_dir": tmp_path, which: "/proc/evenkeel"}
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in dirs.items()]
    r = subprocess.run([BUILD / "evenkeeld", "--model", "/nonexistent", "--listen", "off", *flags], capture_output=True, text=True, timeout=60)
    assert r.returncode == 78
    assert "/proc/evenkeel" in r.stderr and f"set {which} to" in r.stderr


def test_start_failure_is_said_in_the_servers_words(tmp_path):
    """Protects: the operator reads the file and the remedy in `explain`, not only an exit code."""
    f = Fakes(tmp_path, {"a": ([], "")})
    text = (tmp_path / "c.yaml").read_text()
    real = [str(BUILD / "evenkeel-server"), "--model", str(tmp_path / "no-model")]
    (tmp_path / "c.yaml").write_text(text.replace(f"command: {json.dumps([str(FAKE)])}", f"command: {json.dumps(real)}"))
    f.start()
    try:
        wait_for("the breaker", lambda: "BREAKER_OPEN" in f.reasons("a"))
        why = json.dumps(json.loads(get(f.page, "/api/v1/servers/a/decisions")[1]))
        assert "config.json: there is no such file" in why
    finally:
        f.end()


def test_a_run_directory_that_was_cleaned_away_is_made_again(fakes, tmp_path):
    """Who cleans /tmp must not turn the next crash into an outage."""
    f = fakes(a=([], "")).ready()
    pid = f.all()["a"]["pid"]
    for file in (tmp_path / "r/a").iterdir():
        file.unlink()
    (tmp_path / "r/a").rmdir()
    os.kill(pid, signal.SIGKILL)
    wait_for("another one is ready", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)


def test_a_start_that_hangs_is_ended_and_named(fakes):
    f = fakes(a=(["--start-s", "600"], "    start_deadline_s: 1\n"))
    said = wait_for("ended", lambda: f.decisions("a", "CRASH"), 30)[-1]["why"]
    assert "Not ready within 1 s" in said
    wait_for("named", lambda: any("start_deadline_s" in d["why"] for d in f.decisions("a", "CRASH")), 60)
    wait_for("counted", lambda: (metric(f.metrics(), "evenkeel_supervisor_restarts_total", cause="start_failed") or 0) >= 1, 60)


def law_of(text):
    """What the law decided, of decisions as JSON lines or as a list; times differ (wall clock, recorded clock)."""
    rows = [json.loads(line) for line in text.splitlines()] if isinstance(text, str) else text
    return [(d["action"], d["reason"], d.get("from"), d.get("to"), d["why"]) for d in rows
            if d["action"] in ("lower", "raise", "revert", "reserve", "shed") or d["reason"].startswith(("SAT_", "KV_", "SIGNAL_", "OSC_"))]


FAST_LAW = "    policy: {window_s: 4, warmup_s: 1, settle_s: 2, effect_s: 4, raise_every_s: 1, raise_after_cut_s: 2}\n"


def test_an_engine_without_a_counter_of_preemptions(fakes):
    """The law says once that it lacks the counter, and cuts on what else shows harm; it is not degraded."""
    f = fakes(a=(["--load", "24", "--max-num-seqs", "24", "--no-preemptions"], FAST_LAW))
    f.ready()
    wait_for("a cut", lambda: "LOWER_KV_HARM" in f.reasons("a"), 60)
    reasons = f.reasons("a")
    assert reasons.count("SIGNAL_ABSENT") == 1 and "SIGNAL_DEGRADED" not in reasons
    assert "no counter of preemptions" in f.decisions("a", "SIGNAL_ABSENT")[0]["why"]


def test_a_replay_decides_what_was_decided(fakes):
    """--record and --replay: the law over the recording says the same sentences, also across a crash; twice the same bytes."""
    f = fakes(a=(["--load", "24", "--max-num-seqs", "24"], f"    record: {{run}}/rec\n{FAST_LAW}"))
    f.ready()
    wait_for("a cut", lambda: "LOWER_KV_HARM" in f.reasons("a"), 60)
    os.kill(f.all()["a"]["pid"], signal.SIGKILL)
    wait_for("cuts of the next process", lambda: f.reasons("a").count("LOWER_KV_HARM") >= 3, 60)
    assert f.ask("POST", "/api/v1/servers/a/drain")[0] == 202  # the law rests: what is compared does not grow
    wait_for("draining", lambda: f.all()["a"]["state"] in ("draining", "drained"))
    live = json.loads(get(f.page, "/api/v1/servers/a/decisions?limit=200")[1])["decisions"]
    run = [BUILD / "evenkeeld", "--replay", f.run / "rec"]
    first = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert first.returncode == 0, first.stderr
    assert law_of(first.stdout) == law_of(live[::-1])
    with open(f.run / "rec", "rb") as piped:
        again = subprocess.run([BUILD / "evenkeeld", "--replay", "-"], stdin=piped, capture_output=True, text=True, timeout=60)
    assert again.stdout == first.stdout
    f.servers["a"] = (f.servers["a"][0], FAST_LAW + "    mode: observe\n")
    f.write()
    observed = subprocess.run([*run, "--config", f.run / "c.yaml"], capture_output=True, text=True, timeout=60)
    assert observed.returncode == 0 and not [d for d in law_of(observed.stdout) if d[0] != "note"]


@pytest.mark.parametrize("name", sorted(p.name.removesuffix(".rec.gz") for p in GOLDEN.glob("*.rec.gz")))
def test_golden_replays(name):
    """The law's decisions over recordings that are kept, byte for byte. A change of the law is seen here as a difference to be read:
    REGOLD=1 writes them anew."""
    recording = gzip.decompress((GOLDEN / f"{name}.rec.gz").read_bytes())
    done = subprocess.run([BUILD / "evenkeeld", "--replay", "-"], input=recording, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    want = GOLDEN / f"{name}.decisions"
    if os.environ.get("REGOLD"):
        want.write_bytes(done.stdout)
    assert done.stdout == want.read_bytes() and done.stdout


def test_replay_refuses_junk(tmp_path):
    for text, said in ((b"hello\n", "make recordings with --record"), (b"# {}\n", "recording"), (b"@1 5\na", "ends early"),
                       (b'# {"version":2,"limits":{}}\n', "version"), (b"#" + b"x" * 100000, "longer than")):
        (tmp_path / "r").write_bytes(text)
        done = subprocess.run([BUILD / "evenkeeld", "--replay", tmp_path / "r"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and said in done.stderr and not done.stdout, (text[:20], done)


def test_while_the_breaker_is_open_clients_are_told(fakes):
    """Not half an hour of silence in the kept socket, but 503 with Retry-After at once; and the next process takes over."""
    f = fakes(a=(["--exit-code", "78"], ""))
    wait_for("given up", lambda: f.all()["a"]["state"] == "breaker_open")
    with socket.create_connection(("127.0.0.1", f.ports["a"]), timeout=60) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
        data = b""
        while part := s.recv(4096):
            data += part
    head, body = data.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 60" in head and json.loads(body)["error"]["code"] == 503
    silent = [socket.create_connection(("127.0.0.1", f.ports["a"]), timeout=5) for _ in range(200)]  # more than it holds at once
    assert get(f.ports["a"], "/health", timeout=60)[0] == 503
    for s in silent:
        s.close()
    f.servers["a"] = ([], "")
    f.write()
    f.process.send_signal(signal.SIGHUP)
    f.ready()
    assert get(f.ports["a"], "/livez", timeout=60)[0] == 200


def test_idle_connections_do_not_hold_the_page(fakes):
    f = fakes(a=([], "")).ready()
    idle = [socket.create_connection(("127.0.0.1", f.page), timeout=5) for _ in range(300)]
    wait_for("the page", lambda: f.all()["a"]["ready"], 30, 0.2)
    for s in idle:
        s.close()


def test_a_kill_that_nobody_saw_is_not_clean(fakes):
    """Of an adopted server the kernel tells the status, or nobody does; then that it left no exit record says enough."""
    f = fakes(a=([], "")).ready()
    f.process.kill()
    f.process.wait()
    f.start().ready()
    pid = f.all()["a"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for("another one", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"])
    why = [d["why"] for d in json.loads(get(f.page, "/api/v1/servers/a/decisions")[1])["decisions"] if d["reason"] == "CRASH"]
    assert re.match(r"SIGNAL: (Signal 9 \(SIGKILL\) ended it|It ended .*without an exit record, so by a signal)", why[0]), why


def test_a_host_name_is_refused(tmp_path):
    """Looking one up may take the only thread for half a minute."""
    (tmp_path / "c.yaml").write_text("servers: {a: {model: /m, host: gpu7.example}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "host 'gpu7.example' of server a is no address" in done.stderr, done


@pytest.mark.long
def test_a_server_that_somebody_else_runs_is_watched_not_touched(tmp_path):
    """attach: it may come and go; the law advises; its hang is said; it is never started, signalled or ended."""
    port = free_port(27000)

    def somebody_else():
        return subprocess.Popen([str(FAKE), "--port", str(port), "--load", "24", "--max-num-seqs", "24"], stdout=subprocess.DEVNULL)
    f = Fakes(tmp_path, {"a": (None, f"    attach: http://127.0.0.1:{port}\n    engine: vllm\n    hang_s: 1\n    limits: {{max_num_running_seqs: {{max: 24}}}}\n{FAST_LAW}")})
    f.start()
    theirs = None

    def told():  # how often it said that it watches or waits
        return f.reasons("a").count("ATTACHED")
    try:
        wait_for("it waits", lambda: told() == 1)
        assert f.all()["a"]["state"] == "starting"
        theirs = somebody_else()
        f.ready()
        wait_for("advice", lambda: "LOWER_KV_HARM" in f.reasons("a"), 60)
        assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 409 and f.all()["a"]["pid"] == 0
        theirs.send_signal(signal.SIGUSR1)
        wait_for("the hang is said", lambda: "HANG_NOPROGRESS" in f.reasons("a"), 60)
        assert theirs.poll() is None
        theirs.kill()
        theirs.wait()
        wait_for("it is missed", lambda: f.all()["a"]["state"] == "starting" and told() == 2, 60)
        theirs = somebody_else()
        f.ready()
        f.process.terminate()
        assert f.process.wait(60) == 0 and theirs.poll() is None
    finally:
        f.end()
        if theirs:
            theirs.kill()


def test_who_waits_for_a_server_that_is_taken_out_is_told(tmp_path):
    """What was asked of a server that does not answer, and that a reload takes out meanwhile: 502 then, and nothing of the kind beside it."""
    theirs = {n: subprocess.Popen([str(FAKE), "--control-socket", tmp_path / n, "--engine-process"], stdout=subprocess.DEVNULL) for n in "ab"}
    f = Fakes(tmp_path, {n: (None, f"    attach: http://127.0.0.1:{free_port(first)}\n    control_socket: {tmp_path / n}\n")
                         for n, first in (("a", 27000), ("b", 27100))})
    f.start()
    answers = {}

    def order(name, verb):
        begun = time.monotonic()
        answers[name] = (*f.ask("POST", f"/api/v1/servers/{name}/{verb}"), time.monotonic() - begun)
    try:
        f.ready()
        wait_for("its engine is known", lambda: all(s["engine_process"] for s in f.all().values()))
        for p in theirs.values():
            p.send_signal(signal.SIGSTOP)
        waiting = [threading.Thread(target=order, args=(n, "engine-restart")) for n in "ab"]
        for t in waiting:
            t.start()
        wait_for("both were noted", lambda: all("OPERATOR" in f.reasons(n) for n in "ab"))
        del f.servers["a"]
        f.write()
        assert f.ask("POST", "/api/v1/reload")[0] == 200
        waiting[0].join(10)
        status, said, took = answers["a"]
        assert status == 502 and "a ended, or was taken out, before it answered" in said["error"]["message"] and took < 6, answers
        theirs["a"].kill()  # nothing listens to it any more
        theirs["b"].send_signal(signal.SIGCONT)
        waiting[1].join(10)
        assert answers["b"][0] == 202, answers
        f.process.terminate()
        assert f.process.wait(60) == 0  # also where a sanitizer looks at what is left
    finally:
        for p in theirs.values():
            p.kill()
            p.wait()
        f.end()


@pytest.mark.parametrize("url, said", [("127.0.0.1:8000", "write http://ADDRESS:PORT"), ("http://127.0.0.1", "write http://ADDRESS:PORT"),
                                       ("http://127.0.0.1:99999", "write http://ADDRESS:PORT"), ("http://gpu7:8000", "is no address"),
                                       ("http://127.0.0.1:80/v1", "write http://ADDRESS:PORT")])
def test_attach_to_what(tmp_path, url, said):
    (tmp_path / "c.yaml").write_text(f"servers: {{a: {{engine: vllm, attach: '{url}'}}}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr, done
