"""Protects: evenkeeld does not trust the servers that it looks after. A FAKE server, which is a thread of this test and says what no engine says,
is attached beside one that behaves: whatever the first answers, evenkeeld watches the second as before, its API stays JSON, and nothing that a
terminal or a browser would obey comes out of it."""
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest

from conftest import BUILD, cpu_seconds, free_port, get, metric, resident_bytes, slower, wait_for

pytestmark = pytest.mark.long

GOOD = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="0",model_name="m"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 0
vllm:prompt_tokens_total{engine="0",model_name="m"} %d
vllm:generation_tokens_total{engine="0",model_name="m"} %d
"""
NAMES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total", "prompt_tokens_total",
         "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total")
OWN = ("engine_state", "engine_restarts_total", "engine_step_age_seconds", "queue_oldest_seconds", "max_gap_seconds", "kv_blocks", "limit",
       "devpool_reserved_bytes", "devpool_used_high_bytes", "reading_age_seconds", "admission_held", "admission_blocks")
CSI = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202e"  # for a terminal: a title, an empty screen, a colour, the rest backwards
TAGS = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def now():
    n = int(time.monotonic() * 1000)
    return GOOD % (n, n)


def sent(body, head=b"HTTP/1.1 200 OK\r\n", length=None):
    body = body.encode() if isinstance(body, str) else body
    return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (len(body) if length is None else length) + body


def values(*each):
    """All that evenkeeld reads, with these values, each of another engine."""
    lines = [f'vllm:{n}{{engine="{i}"}} {v}' for n in NAMES for i, v in enumerate(each)]
    lines += [f'evenkeel_{n}{{engine="{i}",state="{s}",limit="max_num_running_seqs",cause="planned"}} {v}'
              for n in OWN for s in ("released", "total") for i, v in enumerate(each)]
    lines += [f'vllm:time_to_first_token_seconds_bucket{{le="{b}",engine="{i}"}} {v}' for b in ("0.1", "1e308", "+Inf", "nan") for i, v in enumerate(each)]
    return sent("\n".join(lines) + "\n")


def endless(first, again, pause=0.0):
    """What never ends: the first bytes, and the others until the peer has had enough."""
    def play(connection):
        connection.sendall(first)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            connection.sendall(again)
            if pause:
                time.sleep(pause)
    return play


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def quiet(connection):
    connection.settimeout(30)
    while connection.recv(4096):
        pass


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PAGES = {
    "sums beyond numbers": lambda: values("1e308", "1e308"), "huge": lambda: values("1e308"), "negative": lambda: values("-5"),
    "not a number": lambda: values("NaN"), "infinite": lambda: values("+Inf"), "minus infinite": lambda: values("-Inf"), "tiny": lambda: values("1e-320"),
    "over 64 bits": lambda: values("18446744073709551616"), "over 32 bits": lambda: values("4294967297"), "minus zero": lambda: values("-0.0"),
    "to and fro": lambda: values(("1e308", "0")[int(time.monotonic() * 5) % 2]), "a million digits": lambda: values("9" * 1000),
    "many series": lambda: sent("".join(f'vllm:num_requests_running{{e="{i}"}} 1\n' for i in range(100_000))),
    "one series often": lambda: sent('vllm:kv_cache_usage_perc{a="b"} 0.5\n' * 100_000),
    "many buckets": lambda: sent("".join(f'vllm:time_to_first_token_seconds_bucket{{le="{i}"}} {i}\n' for i in range(70_000)) + now()),
    "many labels": lambda: sent(("vllm:num_requests_running{" + ",".join(f'l{i}="v"' for i in range(20)) + "} 1\n") * 20_000),
    "a long line": lambda: sent("x" * 4_000_000), "a long label": lambda: sent('vllm:num_requests_running{a="' + "x" * 4_000_000 + '"} 1\n'),
    "quotes without end": lambda: sent('vllm:num_requests_running{a="\\' * 200_000), "only comments": lambda: sent("# TYPE a gauge\n" * 200_000),
    "no bytes but zeros": lambda: sent(b"\0" * 1_000_000), "no text": lambda: sent(bytes(range(256)) * 4000), "nothing": lambda: sent(""),
    "line ends of old": lambda: sent(now().replace("\n", "\r")), "after the end": lambda: sent(now() + "# EOF\n" + now()),
    "for a terminal": lambda: sent(now().replace('"m"', f'"{CSI}"').encode()), "for a browser": lambda: sent(now().replace('"m"', '"' + TAGS.replace('"', '\\"') + '"')),
    "exemplars": lambda: sent((now().rstrip() + ' # {a="' + "b" * 3000 + '"} 1 1\n') * 100),
    "too large": lambda: sent("x 1\n" * 2_000_000), "a length that lies": lambda: sent(now(), length=10**18), "a negative length": lambda: sent(now(), length=-1),
    "no length that fits": lambda: sent(now(), length=10**30), "shorter than it says": lambda: sent(now(), length=1_000_000),
    "a redirect to evenkeeld": lambda: OK.replace(b"200 OK", b"302 Found") + b"Location: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n" % PAGE[0],
    "a redirect to a file": lambda: OK.replace(b"200 OK", b"301 Moved") + b"Location: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "packed": lambda: sent(b"\x1f\x8b\x08\0" + b"\0" * 100_000, OK + b"Content-Encoding: gzip\r\n"), "no protocol": lambda: b"ICY 200 OK\r\n\r\n" + now().encode(),
    "without a head": lambda: now().encode(), "another version": lambda: sent(now(), b"HTTP/9.9 200 OK\r\n"), "no status": lambda: b"HTTP/1.1 \r\n\r\n",
    "a status of no kind": lambda: sent(now(), b"HTTP/1.1 99999 X\r\n"), "another protocol": lambda: OK.replace(b"200 OK", b"101 Switching") + b"Upgrade: h2c\r\n\r\n" + bytes(500),
    "a body without end": lambda: endless(OK + b"\r\n", b"vllm:num_requests_running 1\n" * 1000), "heads without end": lambda: endless(OK, b"X-A: " + b"b" * 900 + b"\r\n"),
    "a head that trickles": lambda: endless(OK, b"X", 0.2), "a body that trickles": lambda: endless(OK + b"\r\n", b"x", 0.2),
    "news without end": lambda: endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"), "chunks without end": lambda: endless(CHUNKED, b"1\r\n#\r\n" * 500),
    "a chunk of all": lambda: CHUNKED + b"ffffffffffffffff\r\n" + now().encode(), "a chunk of less": lambda: CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n",
    "trailers without end": lambda: endless(CHUNKED + b"1\r\n#\r\n0\r\n", b"X-A: b\r\n" * 500), "a chunk's notes": lambda: endless(CHUNKED, b"1;" + b"x" * 60_000),
    "cut at once": lambda: b"", "reset": lambda: reset, "silence": lambda: quiet,
}
PAGE = [0]


class Server:
    """`page` makes what a question for /metrics is answered with: bytes, or what is called with the connection; `id` is the name of its model."""

    def __init__(self, page=None, id="m"):
        self.page, self.id, self.asked = page, id, 0
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            with connection:
                data = b""
                while b"\r\n\r\n" not in data:
                    part = connection.recv(65536)
                    if not part:
                        return
                    data += part
                answer = self.answer(data.split(b" ")[1].decode())
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    quiet(connection)
        except OSError:
            pass

    def answer(self, path):
        if path == "/metrics":
            self.asked += 1
            return self.page() if self.page else sent(now())
        if path == "/v1/models":
            return self.id if isinstance(self.id, bytes) else sent(json.dumps({"data": [{"id": self.id}]}))
        return sent("{}")

    def end(self):
        self.socket.close()


class Watched:
    """evenkeeld with a hostile server `a` and a good one `b`; both are attached, or `a` is what `lines` say."""

    def __init__(self, run, lines="", env=None, **hostile):
        self.run, self.page, self.env = run, free_port(29664), {**os.environ, **(env or {})}
        self.a, self.b = Server(**hostile), Server()
        PAGE[0] = self.page
        watched = "    attach: http://127.0.0.1:{}\n    engine: vllm\n    poll_s: 0.2\n"
        (run / "c.yaml").write_text(f"listen: 127.0.0.1:{self.page}\nrun_dir: {run}/r\nstate_dir: {run}/s\nservers:\n"
                                    f"  a:\n{lines or watched.format(self.a.port)}  b:\n{watched.format(self.b.port)}")
        self.start()
        wait_for("it is watched", lambda: all(s["ready"] for n, s in self.servers().items() if n == "b" or not lines))

    def start(self):
        self.log = open(self.run / "evenkeeld.log", "ab")
        self.process = subprocess.Popen([BUILD / "evenkeeld", "--config", self.run / "c.yaml"], stdout=self.log, stderr=self.log, env=self.env)
        wait_for("its API", self.servers)

    def read(self, path):
        """What API and page say is what they always say: JSON, and soon."""
        begun = time.monotonic()
        status, body = get(self.page, path)
        assert status == 200 and time.monotonic() - begun < 2 * slower(), (path, status, time.monotonic() - begun)
        return body

    def json(self, path):
        def never(what):
            raise AssertionError((path, what))
        return json.loads(self.read(path), parse_constant=never)

    def servers(self):
        return {s["name"]: s for s in self.json("/api/v1/servers")["servers"]}

    def scrapes(self, name, **labels):
        return metric(self.read("/metrics").decode(), "evenkeel_supervisor_scrapes_total", server=name, **labels) or 0

    def ctl(self, *words):
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "r/evenkeeld.sock", *words], capture_output=True, timeout=60 * slower(),
                              env={**os.environ, "LC_ALL": "C.UTF-8"})
        assert done.returncode in (0, 1, 3, 4), (words, done)
        return done.stdout + done.stderr

    def memory(self):
        return resident_bytes(self.process.pid) >> 20

    def busy_s(self):
        return cpu_seconds(self.process.pid)

    def look(self):
        """All places where something of a server comes out."""
        self.servers()
        for what in ("decisions", "failures", "history", "postmortem"):
            self.json(f"/api/v1/servers/a/{what}")
        harmless(self.read("/metrics").decode())
        html = self.read("/").decode()
        assert "<script>alert" not in html and "<img" not in html
        harmless(html)

    def end(self):
        self.process.terminate()
        try:
            assert self.process.wait(20 * slower()) == 0
        finally:
            self.process.kill()
            self.a.end()
            self.b.end()
        harmless((self.run / "evenkeeld.log").read_bytes().decode())


def harmless(text):
    """Nothing that a terminal obeys."""
    text = text if isinstance(text, str) else text.decode()
    bad = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    assert not bad, (bad, text[max(0, bad.start() - 80):bad.end() + 20])


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    w = Watched(tmp_path_factory.mktemp("hostile"))
    yield w
    w.end()


ENDLESS = [n for n in PAGES if "without end" in n or n == "a chunk's notes"]  # read as fast as they come, until a bound or the time is over


@pytest.mark.parametrize("name", PAGES)
def test_pages(watched, name):
    before, asked, memory, busy, begun = watched.scrapes("b", result="ok"), watched.a.asked, watched.memory(), watched.busy_s(), time.monotonic()
    watched.a.page = PAGES[name]
    try:
        wait_for("the other is watched meanwhile", lambda: watched.scrapes("b", result="ok") >= before + 4 and watched.a.asked > asked)
        wait_for("it was asked again", lambda: watched.a.asked > asked + 1)
        watched.look()
        harmless(watched.ctl("status") + watched.ctl("-s", "a", "explain") + watched.ctl("-s", "a", "top", "--once"))
        harmless(watched.ctl("status", "--json"))
        assert watched.memory() < memory + 48
        spent = (watched.busy_s() - busy) / (time.monotonic() - begun)
        assert spent < 0.5 or name in ENDLESS, spent
        print(f"{spent:.3f} of a processor, {watched.memory() - memory} MB more")
    finally:
        watched.a.page = None


IDS = {"terminal": CSI, "browser": TAGS, "long": "x" * 900_000, "zeros": "a\0b", "lines": "a\r\nb\nc: d", "format": "%s%n%99999999d", "quote": "\"}],\"x\":[{\"",
       "halves": sent(b'{"data":[{"id":"\\ud800x"}]}'), "no text": sent(b'{"data":[{"id":"\xff\xfe\xc0"}]}'), "deep": sent(b'{"data":' * 100_000),
       "lists": sent(b'{"data":' + b"[" * 500_000), "a number": sent('{"data":[{"id":1e999}]}'), "none": sent('{"data":[]}'), "many": sent('{"data":[' + '{"id":"x"},' * 90_000 + '{"id":"y"}]}'),
       "cut in a letter": "é" * 200, "too large": sent("x" * 3_000_000), "a name twice": sent('{"data":[{"id":"a","id":"b"}]}')}


@pytest.mark.parametrize("name", IDS)
def test_names_of_models(tmp_path, name):
    w = Watched(tmp_path, id=IDS[name])
    try:
        wait_for("it is watched", lambda: w.scrapes("a", result="ok") > 1)
        w.look()
        for words in (("status",), ("-s", "a", "explain"), ("-s", "a", "top", "--once"), ("status", "--json"), ("events",)):
            harmless(w.ctl(*words))
    finally:
        w.end()
