"""Protects: what HAProxy in front is told, by a real HAProxy: up, drain, down, and the limit that an engine cannot change while it runs."""
import csv
import io
import pathlib
import shutil
import socket
import subprocess

import pytest

from conftest import BUILD, MODEL, free_port, get, wait_for
from test_supervisor import FAST_LAW, fakes  # noqa: F401

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="needs HAProxy (tools/deps.sh test)")


class HAProxy:
    def __init__(self, run, server, agent, more="", queue_s=10):
        self.port, self.run = free_port(26000), run
        (run / "haproxy.cfg").write_text(f"""\
global
    stats socket {run}/haproxy.sock mode 600 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout queue {queue_s}s
listen llm
    bind 127.0.0.1:{self.port}
    server s1 127.0.0.1:{server} check inter 500ms agent-check agent-addr 127.0.0.1 agent-port {agent} agent-inter 200ms maxconn 500 {more}
""")
        self.process = subprocess.Popen(["haproxy", "-db", "-f", run / "haproxy.cfg"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def server(self, name="s1"):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(str(self.run / "haproxy.sock"))
            s.sendall(b"show stat\n")
            data = b""
            while part := s.recv(65536):
                data += part
        rows = list(csv.DictReader(io.StringIO(data.decode().lstrip("# "))))
        return next(r for r in rows if r["svname"] == name)

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def edge(fakes, tmp_path):  # noqa: F811
    made = []

    def make(arguments, more):
        agent = free_port(25000)
        f = fakes(a=(arguments, f"    edge: 127.0.0.1:{agent}\n{more}")).ready()
        made.append(HAProxy(tmp_path, f.ports["a"], agent, "weight 100"))
        return f, made[-1]

    yield make
    for h in made:
        h.end()


def test_up_drain_and_down(edge):
    f, h = edge([], "")
    wait_for("up", lambda: h.server()["status"] == "UP" and h.server()["agent_status"] == "L7OK", 60)
    assert get(h.port, "/livez", timeout=60)[0] == 200
    assert f.ask("POST", "/api/v1/servers/a/drain")[0] == 202
    wait_for("drain", lambda: h.server()["status"].startswith("DRAIN"))
    assert f.ask("POST", "/api/v1/servers/a/resume")[0] in (200, 202)
    wait_for("up again", lambda: h.server()["status"] == "UP")
    f.servers["a"] = (["--exit-code", "78"], f.servers["a"][1])
    f.write()
    f.ask("POST", "/api/v1/servers/a/restart")
    f.process.send_signal(1)
    f.ask("POST", "/api/v1/servers/a/restart")
    wait_for("down", lambda: h.server()["status"].startswith("DOWN"), 60)


def test_a_fresh_process_gets_its_share_step_by_step(edge):
    """The weight grows from 10 % to all of it; a process that evenkeeld only takes over has all of it."""
    f, h = edge([], "    edge_ramp_s: 4\n")
    seen = []
    wait_for("all of it again", lambda: seen.append(int(h.server()["weight"])) or seen[-1] == 100 and min(seen) < 100, 60)
    part = [w for w in seen if w < 100]
    assert part == sorted(part) and len(set(part)) >= 3 and part[0] >= 10, seen
    f.process.kill()
    f.process.wait()
    f.start().ready()
    wait_for("up", lambda: h.server()["status"] == "UP" and h.server()["agent_status"] == "L7OK", 60)
    assert h.server()["weight"] == "100"


def test_a_limit_that_the_engine_cannot_change_is_kept_in_front(edge):
    """A vLLM has no live limits: the law lowers HAProxy's maxconn, and raises it again when there is room."""
    f, h = edge(["--load", "24", "--max-num-seqs", "24", "--port", "{port}"],
                f"    engine: vllm\n    limits: {{max_num_running_seqs: {{max: 100}}}}\n{FAST_LAW}")  # its flag bounds it
    wait_for("the ceiling", lambda: h.server()["slim"] == "24", 60)
    wait_for("a lower one", lambda: int(h.server()["slim"]) < 24, 90, 0.2)
    lowered = f.decisions("a", "LOWER_KV_HARM")[-1]
    assert lowered["applied"] and lowered["from"] == 24


def test_an_operator_sets_the_limit_in_front(edge):
    """`limits set` and `limits pin` reach a vLLM through HAProxy's maxconn, and a pin outlives both programs."""
    f, h = edge(["--max-num-seqs", "24", "--port", "{port}"], "    engine: vllm\n")

    def limits(verb, *words):
        return subprocess.run([BUILD / "evenkeelctl", "--socket", f"{f.run}/r/evenkeeld.sock", "limits", verb, *words], capture_output=True, text=True, timeout=60)

    def limit():
        return f.all()["a"]["limits"]["max_num_running_seqs"]
    wait_for("its flag", lambda: h.server()["slim"] == "24", 60)
    said = limits("set", "max_num_running_seqs=7")
    assert said.returncode == 0 and limit()["value"] == 7 and not limit()["pinned"], said
    wait_for("seven", lambda: h.server()["slim"] == "7", 20)
    assert limits("pin", "max_num_running_seqs=5").returncode == 0 and limit()["pinned"]
    wait_for("five", lambda: h.server()["slim"] == "5", 20)
    above = limits("set", "max_num_running_seqs=25")
    assert above.returncode != 0 and "above its ceiling 24" in above.stdout + above.stderr
    tokens = limits("set", "max_num_batched_tokens=512")
    assert tokens.returncode != 0 and "--max-num-batched-tokens" in tokens.stdout + tokens.stderr and limit()["value"] == 5
    pid = f.all()["a"]["pid"]
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    wait_for("still five", lambda: h.server()["status"] == "UP" and h.server()["slim"] == "5", 20)
    f.process.kill()
    f.process.wait()
    f.start().ready()
    wait_for("five again", lambda: limit() == {**limit(), "value": 5, "pinned": True} and h.server()["slim"] == "5", 20)
    assert limits("unpin", "max_num_running_seqs").returncode == 0 and not limit()["pinned"]
    assert [d["why"] for d in f.decisions("a", "OPERATOR") if "max_num_running_seqs 7 set" in d["why"]]


def test_without_anything_in_front_one_sentence_says_what_to_do(fakes):  # noqa: F811
    f = fakes(a=(["--port", "{port}"], "    engine: vllm\n")).ready()
    status, body = f.ask("PATCH", "/api/v1/servers/a/limits", '{"max_num_running_seqs": 4}')
    said = body["error"]["message"]
    assert status == 409 and all(word in said for word in ("edge", "companion", "--max-num-seqs")), said


def test_a_vllms_own_word_comes_before_what_is_assumed(fakes):  # noqa: F811
    """No flag says them: on a large card a vLLM has other defaults, and says so when it starts."""
    says = "INFO non-default args: {'model': '/m', 'max_num_seqs': 1024}\\nINFO [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=8192."
    f = fakes(a=(["--port", "{port}", "--says", says.replace("\\n", "\n")], "    engine: vllm\n"),
              b=(["--port", "{port}", "--says", says.replace("\\n", "\n"), "--max-num-seqs", "20"], "    engine: vllm\n")).ready()
    limits = {n: {k: v["max"] for k, v in s["limits"].items()} for n, s in f.all().items()}
    assert limits["a"] == {"max_num_running_seqs": 1024, "max_num_batched_tokens": 8192}
    assert limits["b"]["max_num_running_seqs"] == 20  # a flag of the command line
    said = subprocess.run([BUILD / "evenkeelctl", "recover", "--socket", f"{f.run}/r/evenkeeld.sock", "--below", "/nowhere", "--wait", "30"],
                          capture_output=True, text=True, timeout=90)
    assert said.returncode == 0, said.stdout
    argv = pathlib.Path(f"/proc/{f.all()['a']['pid']}/cmdline").read_text().split("\0")
    assert "16" in argv and "--max-num-batched-tokens" not in argv  # it has no more than 8192 already


def test_limits_for_the_next_start(fakes):  # noqa: F811
    """actuator: restart. Pressure restarts nothing, but the next start, for whatever reason, has the lower limit, and the one after it too."""
    f = fakes(a=(["--load", "24", "--max-num-seqs", "24", "--port", "{port}"],
                 f"    engine: vllm\n    actuator: restart\n    limits: {{max_num_running_seqs: {{max: 24}}}}\n{FAST_LAW}")).ready()
    said = wait_for("it is kept", lambda: f.decisions("a", "NEXT_START"), 90, 0.2)[0]["why"]
    lowered = f.decisions("a", "LOWER_KV_HARM")[-1]
    assert f"--max-num-seqs {lowered['to']}" in said and not lowered["applied"]
    pid = f.all()["a"]["pid"]
    assert "restart" not in {d["action"] for d in f.decisions("a", "LOWER_KV_HARM")} and "RESTART_BUDGET" not in f.reasons("a")
    assert f.ask("POST", "/api/v1/servers/a/restart")[0] == 202
    wait_for("another process", lambda: f.all()["a"]["pid"] not in (0, pid) and f.all()["a"]["ready"], 60)
    argv = pathlib.Path(f"/proc/{f.all()['a']['pid']}/cmdline").read_text().split("\0")
    assert int(argv[len(argv) - 1 - argv[::-1].index("--max-num-seqs") + 1]) <= lowered["to"]
    assert f.reasons("a").count("STARTED") == 2, "one start, and the operator's"


@pytest.mark.parametrize("keys, says", [("model: m", "leave it out"), ("engine: vllm, command: [x], edge: '127.0.0.1:9'", "or edge"),
                                        ("engine: vllm, attach: 'http://127.0.0.1:1'", "leave it out")])
def test_restart_is_the_last_actuator(tmp_path, keys, says):
    (tmp_path / "c.yaml").write_text(f"servers: {{a: {{actuator: restart, {keys}}}}}\n")
    done = subprocess.run([BUILD / "evenkeeld", "--config", tmp_path / "c.yaml", "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and says in done.stderr, done


def test_a_limit_that_was_lowered_is_a_smaller_weight(appliance, tmp_path):
    """Traffic moves to the others: HAProxy's weight is the limit's share of its ceiling."""
    agent = free_port(25100)
    a = appliance(server_flags=["--max-num-seqs", "16"], extra=f"    edge: 127.0.0.1:{agent}\n    edge_ramp_s: 0\n")
    h = HAProxy(tmp_path, a.port, agent, "weight 100")
    try:
        wait_for("all of it", lambda: h.server()["agent_status"] == "L7OK" and h.server()["weight"] == "100", 60)
        a.ctl("limits", "pin", "max_num_running_seqs=4")
        wait_for("a quarter", lambda: h.server()["weight"] == "25", 60)
        # why all documents say so: of the default of 1 a quarter is nothing
        (tmp_path / "one").mkdir()
        one = HAProxy(tmp_path / "one", a.port, agent, "")
        try:
            wait_for("no requests at all", lambda: one.server()["agent_status"] == "L7OK" and one.server()["weight"] == "0", 60)
            assert get(one.port, "/livez", timeout=40)[0] == 503
        finally:
            one.end()
        a.ctl("limits", "unpin", "max_num_running_seqs")
        a.ctl("limits", "set", "max_num_running_seqs=16")
        wait_for("all of it again", lambda: h.server()["weight"] == "100", 60)
    finally:
        h.end()


def test_restarts_in_turn(fakes):  # noqa: F811
    """Both are asked at once; the one that comes second waits until the first one has served a request."""
    f = fakes(a=([], ""), b=([], "")).ready()
    pids = {name: s["pid"] for name, s in f.all().items()}
    for name in "ab":
        assert f.ask("POST", f"/api/v1/servers/{name}/roll")[0] == 202
    down = []

    def both_again():
        seen = f.all()
        down.append(sum(not s["ready"] for s in seen.values()))
        return all(s["ready"] and s["pid"] != pids[n] for n, s in seen.items())

    wait_for("both have restarted", both_again, 40, 0.02)
    assert max(down) == 1, "never both at once"
    assert any("another server is not ready" in d["why"] or "has the lease" in d["why"] for n in "ab" for d in f.decisions(n, "LEASE_WAIT")), "the second one waited"


def test_the_snippet_alone_takes_a_drained_server_out(appliance, tmp_path):
    """Without an agent-check all that HAProxy has is /health: a port that answers is no server that serves."""
    port = free_port(25300)
    second = (f"  s2:\n    command: [{BUILD}/evenkeel-server, --model, {MODEL}]\n    host: 127.0.0.1\n    port: {port}\n"
              f"    log_file: {tmp_path}/s2.log\n")
    a = appliance(extra=second)
    wait_for("both", lambda: all(s["ready"] for s in a.api("/api/v1/servers")["servers"]), 60)
    text = a.ctl("endpoint-snippet", "haproxy", "--address", "127.0.0.1").stdout
    h = HAProxy(tmp_path, a.port, 1)
    h.end()
    cfg = (tmp_path / "haproxy.cfg").read_text().split("    server s1")[0]
    (tmp_path / "haproxy.cfg").write_text(cfg + text)
    h.process = subprocess.Popen(["haproxy", "-db", "-f", tmp_path / "haproxy.cfg"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("up", lambda: h.server("127.0.0.1-s1")["status"] == h.server("127.0.0.1-s2")["status"] == "UP", 60)
        assert a.ctl("-s", "s1", "drain").returncode == 0
        seen = []
        wait_for("down", lambda: seen.append(get(h.port, "/v1/models", timeout=60)[0]) or h.server("127.0.0.1-s1")["status"].startswith("DOWN"), 60)
        seen += [get(h.port, "/v1/models", timeout=60)[0] for _ in range(20)]
        assert set(seen) == {200} and h.server("127.0.0.1-s2")["status"] == "UP", seen
        assert a.ctl("-s", "s1", "resume").returncode == 0
        wait_for("up again", lambda: h.server("127.0.0.1-s1")["status"] == "UP", 60)
    finally:
        h.end()
