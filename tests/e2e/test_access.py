"""Protects: access to the API: who may call from where (Host, origins, peers), what is logged, streams that are quiet or not read."""
import json
import os
import re
import socket
import subprocess
import time

import pytest

from bare import Bare, count_answers, parse, read_all
from conftest import BUILD, Patience, metric, slower, wait_for

COMPLETE = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 2})


@pytest.fixture(scope="module")
def fenced(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("fenced"), "--allowed-hosts", "api.example.org", "*.inside.net", "--allowed-origins", "https://app.example.org",
             "--root-path", "/llm", "--enable-log-requests", "--max-connections-per-peer", "40")
    yield s
    s.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    s = Bare(tmp_path_factory.mktemp("plain"), "--sse-keep-alive", "0.5", "--enable-log-requests", "--request-timeout", "1", "--keep-alive-timeout", "2")
    yield s
    s.stop()


@pytest.mark.parametrize("host, path, status", [
    ("api.example.org", "/v1/models", 200), ("api.example.org:8000", "/v1/models", 200), ("API.example.org", "/v1/models", 200),
    ("a.inside.net", "/v1/models", 200), ("inside.net", "/v1/models", 400), ("evil.org", "/v1/models", 400), ("127.0.0.1", "/v1/models", 400),
    ("evil.org", "/metrics", 400), ("10.0.0.1:8000", "/health", 200), ("x", "/readyz", 200), ("api.example.org.evil.org", "/v1/models", 400)])
def test_hosts(fenced, host, path, status):
    assert fenced.ask(path, headers={"Host": host})[0] == status


def test_hosts_do_not_close_the_control_socket(fenced):
    assert fenced.local("/v1/runtime_config")[0] == 200


@pytest.mark.parametrize("path, status", [("/llm/v1/models", 200), ("/v1/models", 200), ("/llm/llm/v1/models", 404), ("/llmx/v1/models", 404),
                                          ("/llm", 404), ("/llm/health", 200), ("/llm/v1/models/tiny", 200)])
def test_root_path(fenced, path, status):
    assert fenced.ask(path, headers={"Host": "api.example.org"})[0] == status


def test_a_unix_socket_is_for_user_and_group(tmp_path):
    """Nobody else may connect, whatever the umask: without a key the socket is all that there is."""
    old = os.umask(0)
    try:
        s = Bare(tmp_path, "--uds", tmp_path / "api.sock", port=False)
    finally:
        os.umask(old)
    try:
        assert os.stat(tmp_path / "api.sock").st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as c:
            c.settimeout(10)
            c.connect(str(tmp_path / "api.sock"))
            assert s.exchange(c, "/v1/models", "GET", b"", None)[0] == 200
    finally:
        s.stop()


def test_origins(fenced):
    us, them = "https://app.example.org", "https://evil.org"
    host = {"Host": "api.example.org"}
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    status, headers, body = fenced.ask("/v1/completions", "OPTIONS", headers={**host, **ask, "Origin": us})
    assert status == 204 and body == b"" and headers["access-control-allow-origin"] == us and headers["vary"] == "Origin"
    assert headers["access-control-allow-headers"] == ask["Access-Control-Request-Headers"] and headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = fenced.ask("/v1/completions", "OPTIONS", headers={**host, **ask, "Origin": them})
    assert status == 403 and "access-control-allow-origin" not in headers
    for origin in (us, them, "null", us + ".evil.org", us.upper()):
        status, headers, _ = fenced.ask("/v1/models", headers={**host, "Origin": origin})
        assert status == 200 and headers.get("access-control-allow-origin") == (us if origin == us else None)
    assert fenced.ask("/v1/completions", "OPTIONS", headers={**host, "Origin": us})[0] == 405  # not a preflight


def test_no_origin_is_let_in_by_default(plain):
    status, headers, _ = plain.ask("/v1/models", headers={"Origin": "http://localhost:3000"})
    assert status == 200 and not [h for h in headers if h.startswith("access-control")]
    status, headers, _ = plain.ask("/v1/models", "OPTIONS", headers={"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"})
    assert status == 405 and not [h for h in headers if h.startswith("access-control")]


FOREIGN = [{"Host": "evil.org"}, {"Host": "evil.org:8000"}, {"Host": "localhost.evil.org"}, {"Host": "127.0.0.1.nip.io"}, {"Host": "gateway"},
           {"Origin": "http://evil.org"}, {"Origin": "https://evil.org:8000"}, {"Origin": "null"}, {"Host": "127.0.0.1", "Origin": "http://evil.org"}]
OWN = [{"Host": "localhost"}, {"Host": "LOCALHOST:8000"}, {"Host": "127.0.0.1:8000"}, {"Host": "[::1]:8000"}, {"Host": "app.localhost"},
       {"Origin": "http://localhost:3000"}, {"Origin": "http://127.0.0.1"}, {"Origin": "http://[::1]:80"}]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_rebound_name_reaches_nothing(plain, headers):
    """DNS rebinding: a page of evil.org whose name resolves to 127.0.0.1 sends its own name. Health has nothing to tell."""
    for path, method, body in (("/v1/models", "GET", ""), ("/v1/completions", "POST", COMPLETE), ("/metrics", "GET", ""), ("/nothing", "GET", "")):
        status, got, text = plain.ask(path, method, body, headers)
        assert status == 400 and b"--allowed-" in text and "access-control-allow-origin" not in got, (path, text)
    assert plain.ask("/health", headers=headers)[0] == 200


@pytest.mark.parametrize("headers", OWN)
def test_own_names_are_answered(plain, headers):
    assert plain.ask("/v1/models", headers=headers)[0] == 200


@pytest.mark.parametrize("flags", [("--api-key", "k"), ("--allowed-hosts", "*"), ("--allowed-hosts", "gateway", "evil.org"),
                                   ("--allowed-hosts", "*", "--allowed-origins", "http://a.org")])
def test_other_names_where_they_are_meant(tmp_path, flags):
    """A key keeps pages out by itself; --allowed-hosts says which names there are."""
    s = Bare(tmp_path, *flags)
    try:
        for headers in ({"Host": "gateway"}, {"Host": "evil.org", "Origin": "http://evil.org"}):
            assert s.ask("/v1/models", headers={**headers, "Authorization": "Bearer k"})[0] == 200
    finally:
        s.stop()


def test_an_allowed_origin_on_the_loopback(tmp_path):
    s = Bare(tmp_path, "--allowed-origins", "http://a.org")
    try:
        assert s.ask("/v1/models", headers={"Origin": "http://a.org"})[0] == 200
        assert s.ask("/v1/models", headers={"Origin": "http://b.org"})[0] == 400
        assert s.ask("/v1/models", headers={"Origin": "http://a.org", "Host": "a.org"})[0] == 400
    finally:
        s.stop()


@pytest.mark.parametrize("headers, status", [({"Host": "evil.org"}, 400), ({"Origin": "http://evil.org"}, 400), ({"Origin": "null"}, 400),
                                             ({"Host": "localhost:9464"}, 200), ({"Origin": "http://127.0.0.1:9464"}, 200)])
def test_a_rebound_name_does_not_reach_evenkeelds_page(appliance, headers, status):
    a = appliance()
    for path in ("/", "/api/v1/servers", "/metrics"):
        with socket.create_connection(("127.0.0.1", a.page), timeout=60) as s:
            assert Bare.exchange(s, path, "GET", b"", headers)[0] == status, path


def test_peers(fenced):
    """One address has its share of connections; when they end there is room again."""
    held = []
    for _ in range(40):
        held.append(socket.create_connection(("127.0.0.1", fenced.port), timeout=60))
    time.sleep(0.3)
    with socket.create_connection(("127.0.0.1", fenced.port), timeout=60) as one_more:
        assert one_more.recv(100) == b""  # closed at once
    assert metric(fenced.metrics(), "evenkeel_http_peer_refusals_total") >= 1
    for s in held:
        s.close()
    wait_for("room again", lambda: fenced.ask("/llm/health")[0] == 200)


@pytest.mark.parametrize("flags, says", [
    (["--allowed-origins", "*", "--api-key", "k"], "--allowed-origins"), (["--allowed-origins", "*", "--allow-credentials"], "--allow-credentials"),
    (["--allowed-origins", "[1]"], "JSON list"), (["--allowed-origins", '["a'], "JSON list"), (["--allowed-hosts", "a b"], "visible ASCII"),
    (["--allowed-hosts", ""], "empty"), (["--root-path", "llm"], "--root-path"), (["--root-path", "/llm/"], "--root-path"), (["--root-path", "/"], "--root-path"),
    (["--max-connections-per-peer", "-1"], "max-connections-per-peer"), (["--sse-keep-alive", "soon"], "sse-keep-alive")])
def test_wrong_settings(flags, says):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", "/nonexistent", *flags, "--check-config"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_json_lists_as_in_vllm():
    done = subprocess.run([BUILD / "evenkeel-server", "--allowed-origins", '["https://a.org", "https://b.org"]', "--allowed-methods", '["GET"]', "--check-config"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_request_log(plain):
    trace = "0af7651916cd43dd8448eb211c80319c"
    secret = "the-secret-of-the-prompt"
    body = json.dumps({"model": "tiny", "prompt": secret, "max_tokens": 2, "ignore_eos": True})
    status, headers, _ = plain.ask("/v1/completions?q=secret-query", "POST", body, {"X-Request-Id": "my-id.1", "traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    assert status == 200 and headers["x-request-id"] == "my-id.1"
    for bad in ("00-" + "0" * 32 + "-b7ad6b7169203331-01", "junk", f"01-{trace}-b7ad6b7169203331-01", f"00-{trace}-b7ad6b7169203331-01-x"):
        assert plain.ask("/v1/models", headers={"traceparent": bad, "X-Request-Id": "evil\tid"})[0] == 200
    assert plain.ask("/nothing/secret-path")[0] == 404
    lines = wait_for("lines", lambda: [x for x in plain.log().splitlines() if "Request " in x and "other" in x] and plain.log().splitlines())
    mine = next(x for x in lines if "my-id.1" in x)
    assert f"trace {trace}" in mine and "POST /v1/completions" in mine and "status 200" in mine and f"{len(body)} bytes" in mine and "2 tokens" in mine
    text = plain.log()
    assert "secret" not in text and "evil" not in text and text.count("trace ") == 1
    assert re.search(r"Request \w+: other, status 404", text)


def test_disable_log_requests_wins(tmp_path):
    s = Bare(tmp_path, "--disable-log-requests")
    try:
        assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200
        assert "Request " not in s.log() and "disable-log-requests" in s.log()
    finally:
        s.stop()


@pytest.mark.parametrize("given, kept", [("a", True), ("A-b_c.d:9", True), ("a" * 159, True), ("a" * 160, False), ("a b", False), ("<x>", False), ("a\"b", False), ("é", False)])
def test_request_ids(plain, given, kept):
    _, headers, _ = plain.ask("/v1/models", headers={"X-Request-Id": given})
    assert (headers["x-request-id"] == given) is kept


def stream_head(max_tokens):
    body = json.dumps({"model": "tiny", "prompt": "Story", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
            + b"Connection: close\r\n\r\n" + body)


@pytest.mark.long
def test_quiet_streams_say_that_they_are_alive(tmp_path):
    """A request that waits behind others is told so before its first token, and still ends well."""
    s = Bare(tmp_path, "--sse-keep-alive", "0.05", "--max-num-seqs", "1")
    try:
        with socket.create_connection(("127.0.0.1", s.port), timeout=60) as first, socket.create_connection(("127.0.0.1", s.port), timeout=20) as second:
            first.sendall(stream_head(1500))
            assert first.recv(10)
            second.sendall(stream_head(3))
            data = read_all(second)
        assert data.startswith(b"HTTP/1.1 200") and b": still here\n\n" in data.split(b"data: {")[0] and data.count(b"data: [DONE]") == 1
    finally:
        s.stop()


@pytest.mark.long
def test_a_reader_that_does_not_read(tmp_path):
    """Its stream is ended, its blocks are free, others go on."""
    server = Bare(tmp_path)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(20)
    try:
        s.connect(("127.0.0.1", server.port))
        s.sendall(long_stream(8))  # more than any buffer of the system takes
        wait_for("the slow reader is cut", lambda: metric(server.metrics(), "evenkeel_http_slow_readers_total") == 1, 60, 0.5)
        wait_for("its request has ended", lambda: metric(server.metrics(), "vllm:num_requests_running") == 0)
        assert server.ask("/v1/completions", "POST", COMPLETE)[0] == 200
    finally:
        s.close()
        server.stop()


@pytest.mark.long
def test_a_reader_that_is_slow_but_steady(tmp_path):
    """It reads 8 KiB a second of an answer that was made long before: it gets all of it."""
    server = Bare(tmp_path)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(20)
    try:
        s.connect(("127.0.0.1", server.port))
        s.sendall(long_stream())
        data, until, patience = b"", time.monotonic() + 16, Patience(60)
        while time.monotonic() < until or (running := metric(server.metrics(), "vllm:num_requests_running")):
            data += s.recv(800)
            time.sleep(0.1)
            assert patience.left(), "the answer was not made"
        assert running == 0
        assert (data + read_all(s)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert metric(server.metrics(), "evenkeel_http_slow_readers_total") == 0
    finally:
        s.close()
        server.stop()


def long_stream(n=1):
    body = json.dumps({"model": "tiny", "prompt": "Story", "max_tokens": 1900, "ignore_eos": True, "stream": True, "logprobs": 5, "n": n}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("begin", [b"", b"G", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
                                   b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
                                   b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"])
def test_slow_senders(plain, begin):
    """A byte now and then does not keep a connection open: the whole request has --request-timeout."""
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        s.sendall(begin)
        start = time.monotonic()
        s.settimeout(0.5)
        closed = False
        while not closed and time.monotonic() - start < 90:
            try:
                s.sendall(b"a" if begin else b"")
                closed = s.recv(1000) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed and time.monotonic() - start < 8 * slower()


def test_idle_connections_are_closed(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert parse(s.recv(65536))[0] == 200
        start = time.monotonic()
        assert s.recv(100) == b"" and 1 < time.monotonic() - start < 10 * slower()


def test_pipelined_requests(plain):
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        s.sendall(one * 20 + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert count_answers(read_all(s)) == 21


def test_refused_bodies_are_read_first(plain):
    """A client that sends its whole body before it reads gets the refusal, and the connection goes on."""
    body = b"x" * 1000000
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        for path in (b"/nothing", b"/v1/models", b"/drain"):
            s.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            data = s.recv(65536)
            assert parse(data)[0] in (404, 405), data
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert parse(s.recv(65536))[0] == 200


def test_expect(plain):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        s.sendall(head % len(COMPLETE))
        assert s.recv(1000).startswith(b"HTTP/1.1 100 ")
        s.sendall(COMPLETE.encode())
        assert parse(s.recv(65536))[0] == 200
    with socket.create_connection(("127.0.0.1", plain.port), timeout=60) as s:
        s.sendall(head % (1 << 40))
        data = read_all(s)
        assert parse(data)[0] == 413 and b"100 Continue" not in data


def test_times_of_a_request_in_its_answer(tmp_path):
    s = Bare(tmp_path, "--enable-per-request-metrics")
    names = {"time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second"}
    ask = {"model": "tiny", "prompt": "Story", "max_tokens": 20, "ignore_eos": True}
    try:
        got = json.loads(s.ask("/v1/completions", "POST", json.dumps(ask))[2])["metrics"]
        assert set(got) == names and all(v >= 0 for v in got.values()) and got["queue_time_ms"] <= got["time_to_first_token_ms"]
        one = json.loads(s.ask("/v1/completions", "POST", json.dumps({**ask, "max_tokens": 1}))[2])["metrics"]
        assert one["mean_itl_ms"] is None and one["time_to_first_token_ms"] > 0
        many = json.loads(s.ask("/v1/completions", "POST", json.dumps({**ask, "n": 3, "temperature": 1}))[2])["metrics"]
        assert many["tokens_per_second"] > 0
        _, _, text = s.ask("/v1/completions", "POST", json.dumps({**ask, "stream": True, "stream_options": {"include_usage": True}}))
        told = [line for line in text.decode().splitlines() if '"metrics"' in line]
        assert len(told) == 1 and set(json.loads(told[0][6:])["metrics"]) == names
        stopped = json.loads(s.ask("/v1/completions", "POST", json.dumps({**ask, "stop": ["e"]}))[2])
        assert set(stopped["metrics"]) == names
    finally:
        s.stop()
    plain = Bare(tmp_path)
    try:
        assert b'"metrics":null' in plain.ask("/v1/completions", "POST", json.dumps(ask))[2]
    finally:
        plain.stop()


def test_what_a_drain_cut_that_was_taken_back_is_no_reason_at_the_end(tmp_path):
    """64 says that the end cut requests. A drain of an hour ago did, and was followed by a resume."""
    s = Bare(tmp_path)
    long = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True})
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as stream:
        stream.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(long)}\r\n\r\n{long}"
                       .encode())
        assert b"200 OK" in stream.recv(65536)
        assert s.local("/drain", "POST", json.dumps({"deadline_s": 0}))[0] == 200
        assert b"shutting down" in read_all(stream)
    wait_for("drained", lambda: b'"drained"' in s.local("/drain", "POST", json.dumps({"deadline_s": 0}))[2])
    assert s.local("/resume", "POST", "{}")[0] == 200
    assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200
    assert s.stop() == 0, s.log()


def test_bodies_share_a_room(tmp_path):
    """Every connection may bring a body, and all of them together took what they liked: 256 times the largest one is all that there is."""
    s = Bare(tmp_path, "--max-body-bytes", "131072", "--request-timeout", "30")
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 2, "user": "x" * 130000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    held, before = [], metric(s.metrics(), "process_resident_memory_bytes")
    try:
        for _ in range(275):
            c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
            c.sendall(head + body[:-1])
            held.append(c)
        wait_for("they have arrived", lambda: metric(s.metrics(), "process_resident_memory_bytes") > before + 256 * 130000)
        time.sleep(0.5)
        answers = []
        for c in held:
            c.sendall(body[-1:])
            answers.append(parse(read_all(c)))
        refused = sum(a[0] == 503 for a in answers)  # 257 find room, or 256 and what JSON the first of them becomes
        assert 1 <= refused <= 19 and sum(a[0] == 200 for a in answers) == 275 - refused
        said = [a for a in answers if a[0] == 503]
        assert all(headers["retry-after"] == "1" for _, headers, _ in said)
        assert all(b"The open requests take all the memory" in text for _, _, text in said)
        assert s.ask("/v1/completions", "POST", COMPLETE)[0] == 200  # small ones are always taken
    finally:
        for c in held:
            c.close()
    wait_for("room again", lambda: s.ask("/v1/completions", "POST", body)[0] == 200)
    assert s.stop() == 0
