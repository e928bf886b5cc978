"""Protects: without a good API key nothing but health answers; one key cannot take all; keys are nowhere to be read; evenkeeld goes on
watching a server that asks for keys."""
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading

import openai
import pytest

from bare import Bare
from conftest import free_port, get, metric, wait_for

KEY = "sk-test-0123456789abcdef"
GOOD = {"Authorization": f"Bearer {KEY}"}
COMPLETE = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 2})
OPEN = ["/health", "/health/", "/api/version", "/livez", "/readyz", "/ping", "/load", "/version", "/metrics", "/", "/docs"]
CLOSED = [("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
          ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/nothing"), ("POST", "/v1/embeddings"), ("POST", "/api/chat"), ("POST", "/api/generate"),
          ("POST", "/api/embed"), ("POST", "/api/show"), ("GET", "/api/tags"), ("GET", "/api/ps"),
          ("POST", "/v1/responses"), ("POST", "/v1/messages"), ("GET", "/openapi.json"), ("GET", "/is_sleeping"), ("DELETE", "/v1/models"),
          ("GET", "/v1/runtime_config"), ("PATCH", "/v1/runtime_config"), ("POST", "/drain"), ("POST", "/resume"), ("POST", "/sleep"),
          ("POST", "/reset_prefix_cache"), ("POST", "/collective_rpc"), ("POST", "/invocations"), ("POST", "/pause"), ("GET", "/health//"), ("GET", "/v1/models/"),
          ("GET", "/healthz"), ("GET", "//v1/models"), ("GET", "/v1%2fmodels"), ("GET", "/./v1/models"), ("GET", "/V1/models"),
          ("GET", "/health/../v1/models"), ("GET", "/metrics/../v1/models"), ("GET", "/version%00/v1/models")]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    run = tmp_path_factory.mktemp("keys")
    keys = run / "keys"
    keys.write_text(f"main {KEY}\nfew sk-few max-concurrency=1\nfirst sk-first priority=-5..10\nhashed sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n")
    keys.chmod(0o600)
    s = Bare(run, "--api-key-file", keys, "--api-key", "sk-by-flag-1", "sk-by-flag-2", "--enable-log-requests", env={"VLLM_API_KEY": "sk-not-used"},
             host="0.0.0.0")
    s.keys = keys
    yield s
    s.stop()


@pytest.mark.parametrize("path", OPEN)
def test_open_without_a_key(keyed, path):
    assert keyed.ask(path)[0] == 200
    assert keyed.ask(path, headers={"Authorization": "Bearer wrong"})[0] == 200


@pytest.mark.parametrize("method, path", CLOSED)
def test_closed_without_a_key(keyed, method, path):
    body = COMPLETE if method in ("POST", "PATCH") else ""
    status, headers, text = keyed.ask(path, method, body)
    assert status == 401 and headers["www-authenticate"] == "Bearer", (status, text)
    error = json.loads(text)["error"]
    if path.startswith("/v1/messages"):  # in Anthropic's form
        assert json.loads(text)["type"] == "error" and error["type"] == "authentication_error" and "API key" in error["message"]
    elif path.startswith("/api/"):  # in Ollama's
        assert "API key" in error
    else:
        assert error["code"] == 401 and error["type"] == "AuthenticationError" and "API key" in error["message"]


@pytest.mark.parametrize("headers", [
    {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": KEY},
    {"Authorization": f"Basic {KEY}"}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Bearer {KEY[:-1]}"},
    {"Authorization": f"Bearer {KEY.upper()}"}, {"Authorization": f"Bearer {KEY} {KEY}"}, {"Authorization": f"Bearer {KEY},"},
    {"Authorization": f"Bearer \"{KEY}\""}, {"X-Api-Key": "wrong"}, {"X-Api-Key": f"Bearer {KEY}"}, {"Api-Key": KEY}, {"Cookie": f"key={KEY}"},
    {"Authorization": "Bearer " + "k" * 600}, {"Authorization": "Bearer wrong", "X-Api-Key": KEY},
    {"Authorization": "Bearer sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"},
    {"Authorization": "Bearer sk-not-used"}, {"X-Forwarded-For": "127.0.0.1"}, {"Host": "127.0.0.1"}, {"X-Original-URL": "/health"},
])
def test_wrong_keys(keyed, headers):
    status, _, text = keyed.ask("/v1/models", headers=headers)
    assert status == 401, (headers, text)
    assert KEY not in text.decode()


@pytest.mark.parametrize("headers", [GOOD, {"Authorization": f"bearer {KEY}"}, {"Authorization": f"Bearer  {KEY}"}, {"X-Api-Key": KEY},
                                     {"Authorization": "Bearer secret"}, {"Authorization": "Bearer sk-by-flag-1"},
                                     {"Authorization": "Bearer sk-by-flag-2"}])
def test_good_keys(keyed, headers):
    assert keyed.ask("/v1/models", headers=headers)[0] == 200
    assert keyed.ask("/v1/completions", "POST", COMPLETE, headers)[0] == 200
    assert keyed.ask("/nothing", headers=headers)[0] == 404
    assert keyed.ask("/drain", "POST", "{}", headers)[0] == 404  # a key does not open admin verbs


def test_the_client_sees_its_own_error(keyed):
    good = openai.OpenAI(base_url=f"http://127.0.0.1:{keyed.port}/v1", api_key=KEY, max_retries=0)
    assert good.completions.create(model="tiny", prompt="Hello", max_tokens=2).choices[0].text
    bad = openai.OpenAI(base_url=f"http://127.0.0.1:{keyed.port}/v1", api_key="nope", max_retries=0)
    for stream in (False, True):
        with pytest.raises(openai.AuthenticationError, match="API key"):
            bad.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 100000}], stream=stream)


def test_keys_are_nowhere_to_be_read(keyed):
    keyed.ask("/v1/completions", "POST", COMPLETE, GOOD)
    keyed.ask(f"/v1/{KEY}", headers={"Authorization": "Bearer sk-guess"})
    pid = keyed.process.pid
    seen = open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read() + keyed.log() + keyed.metrics()
    for key in (KEY, "sk-few", "sk-by-flag", "sk-not-used", "sk-guess", "secret"):
        assert key not in seen, key


def test_concurrency_of_one_key(keyed):
    few = {"Authorization": "Bearer sk-few"}
    long = json.dumps({"model": "tiny", "prompt": "Story", "max_tokens": 1200, "ignore_eos": True, "stream": True})
    begun = threading.Event()

    def hold():
        import http.client
        c = http.client.HTTPConnection("127.0.0.1", keyed.port, timeout=60)
        c.request("POST", "/v1/completions", long, {"Content-Type": "application/json", **few})
        r = c.getresponse()
        r.readline()
        begun.set()
        return c, r

    c, r = hold()
    assert begun.wait(60)
    status, headers, text = keyed.ask("/v1/completions", "POST", COMPLETE, few)
    assert status == 429 and int(headers["retry-after"]) >= 1 and b"its limit" in text
    assert keyed.ask("/v1/completions", "POST", COMPLETE, GOOD)[0] == 200  # others are not held up
    assert metric(keyed.metrics(), "evenkeel_key_refused_total", key="few", reason="concurrency") >= 1
    assert metric(keyed.metrics(), "evenkeel_key_active_requests", key="few") == 1
    r.close()
    c.close()
    wait_for("the place is free", lambda: keyed.ask("/v1/completions", "POST", COMPLETE, few)[0] == 200, 60)
    assert metric(keyed.metrics(), "evenkeel_key_active_requests", key="few") == 0


def test_priorities_are_bound_by_the_key(keyed):
    """Nobody goes ahead of others by asking, unless the line of the key says so."""
    for key, priority, status in [(KEY, None, 200), (KEY, 3, 200), (KEY, 0, 200), (KEY, -1, 400), ("sk-first", -5, 200), ("sk-first", -6, 400),
                                  ("sk-first", 11, 400), ("sk-first", None, 200)]:
        body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 1, "priority": priority})
        got, _, text = keyed.ask("/v1/completions", "POST", body, headers={"Authorization": f"Bearer {key}"})
        assert got == status, (key, priority, text)
        if status == 400:
            assert json.loads(text)["error"]["param"] == "priority" and b"with this key" in text


def test_reload(keyed):
    text = keyed.keys.read_text()
    before = keyed.log().count("read again")
    keyed.keys.write_text(text + "new sk-new\n")
    keyed.process.send_signal(signal.SIGHUP)
    wait_for("reloaded", lambda: keyed.log().count("read again") > before)
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer sk-new"})[0] == 200
    keyed.keys.write_text(text + "broken line here oops\n")
    keyed.process.send_signal(signal.SIGHUP)
    wait_for("refused", lambda: "nothing was changed" in keyed.log())
    assert metric(keyed.metrics(), "evenkeel_config_last_reload_successful") == 0
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer sk-new"})[0] == 200
    keyed.keys.write_text(text)
    keyed.process.send_signal(signal.SIGHUP)
    wait_for("taken away", lambda: keyed.ask("/v1/models", headers={"Authorization": "Bearer sk-new"})[0] == 401)
    page = keyed.metrics()
    assert metric(page, "evenkeel_config_last_reload_successful") == 1
    assert metric(page, "evenkeel_config_last_reload_success_timestamp_seconds") > metric(page, "process_start_time_seconds")
    assert keyed.ask("/v1/models", headers={"Authorization": "Bearer sk-by-flag-1"})[0] == 200


def test_many_at_once(keyed):
    """Right and wrong keys mixed on many connections: each gets its own answer."""
    def one(i):
        good = i % 3 != 0
        return keyed.ask("/v1/models", headers=GOOD if good else {"Authorization": f"Bearer wrong{i}"})[0] == (200 if good else 401)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


def test_protected_metrics_and_credentials(tmp_path):
    (tmp_path / "api-keys").write_text("prometheus sk-prom\n")
    s = Bare(tmp_path, "--protect-metrics", "--require-api-key", env={"CREDENTIALS_DIRECTORY": str(tmp_path)})
    try:
        assert s.ask("/metrics")[0] == 401 and s.ask("/health")[0] == 200
        status, _, text = s.ask("/metrics", headers={"Authorization": "Bearer sk-prom"})
        assert status == 200 and metric(text.decode(), "evenkeel_api_keys") == 1
        assert metric(text.decode(), "evenkeel_open_without_key") == 0
    finally:
        assert s.stop() == 0


def test_metrics_name_nobody_to_strangers(keyed):
    """Names of keys and ids of requests are for who has a key, and for the control socket."""
    assert keyed.ask("/v1/completions", "POST", COMPLETE, {**GOOD, "X-Request-Id": "id-of-another"})[0] == 200
    asks = {"Accept": "application/openmetrics-text"}
    status, headers, page = keyed.ask("/metrics", headers=asks)
    assert status == 200 and headers["content-type"].startswith("text/plain") and b"vllm:num_requests_running" in page
    assert b"id-of-another" not in page and b'key="' not in page
    assert metric(page.decode(), "evenkeel_api_keys") >= 1
    page = keyed.ask("/metrics", headers={**GOOD, **asks})[2]
    assert b'evenkeel_key_requests_total{key="main"}' in page and b"id-of-another" in page
    assert b'key="main"' in keyed.local("/metrics")[2]


def test_a_key_from_the_environment(tmp_path):
    others = {"HF_TOKEN": "hf_secret", "HUGGING_FACE_HUB_TOKEN": "hf_secret_too"}
    s = Bare(tmp_path, env={"VLLM_API_KEY": "sk-env", **others})
    try:
        assert s.ask("/v1/models")[0] == 401
        assert s.ask("/v1/models", headers={"Authorization": "Bearer sk-env"})[0] == 200
        environ = open(f"/proc/{s.process.pid}/environ", "rb").read()
        assert b"sk-env" not in environ and b"hf_secret" not in environ
    finally:
        s.stop()


def test_open_to_all_is_said(tmp_path):
    s = Bare(tmp_path, host="0.0.0.0")
    try:
        assert "Anybody who reaches" in s.log()
        assert metric(s.metrics(), "evenkeel_open_without_key") == 1
    finally:
        s.stop()
    s = Bare(tmp_path)  # on the loopback alone nobody else comes in
    try:
        assert "Anybody who reaches" not in s.log() and metric(s.metrics(), "evenkeel_open_without_key") == 0
    finally:
        s.stop()


def listening(port):
    """The local addresses that listen on a port, as the kernel prints them."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").read().splitlines()[1:]]
    return [r[1].split(":")[0] for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == port]


@pytest.mark.parametrize("flags, everywhere", [((), False), (("--api-key", KEY), True), (("--host", "0.0.0.0"), True),
                                               (("--host", "127.0.0.1", "--api-key", KEY), False)])
def test_without_a_key_only_this_machine_is_served(tmp_path, flags, everywhere):
    port = free_port(28000)
    s = Bare(tmp_path, "--port", port, *flags, port=False)
    try:
        found = listening(port)
        assert found and (set(found) != {"0100007F"}) is everywhere, found
        assert ("only this machine is served" in s.log()) is (not flags)
    finally:
        s.stop()


@pytest.mark.parametrize("flags, code, says", [
    (["--host", "0.0.0.0", "--require-api-key"], 78, "--api-key-file"),
    (["--api-key-file", "/nonexistent/keys"], 78, "/nonexistent/keys"),
    (["--api-key-file", "/dev/null"], 78, "no key"),
    (["--api-key", "a b"], 78, "visible ASCII"),
    (["--api-key", "same", "--api-key", "same"], 78, "there already"),
    (["--api-key-queue-share", "2"], 2, "api-key-queue-share"),
])
def test_wrong_settings(tmp_path, flags, code, says):
    s = Bare(tmp_path, *flags, ready=False)
    assert s.process.wait(60) == code and says in s.log(), s.log()


@pytest.mark.parametrize("host, shown", [("0.0.0.0", True), ("127.0.0.1", False)])
def test_the_page_shows_what_is_open_to_all(appliance, host, shown):
    """The socket is evenkeeld's, so the server looks at what it was handed."""
    a = appliance(host=host)
    wait_for("a sample", lambda: a.server()["signal_good"])
    assert a.server()["open_without_key"] is shown
    page = get(a.page, "/")[1].decode()
    assert ('<p class="open">' in page) is shown and ('<p class="open" hidden>' in page) is not shown


def test_evenkeeld_watches_a_server_with_keys(appliance):
    a = appliance(server_flags=["--api-key", KEY, "--protect-metrics"])
    wait_for("samples", lambda: a.server()["signal_good"] and a.server()["signals"], 60)
    assert a.ctl("limits", "set", "max_num_running_seqs=8").returncode == 0
    pid = a.server()["pid"]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{a.port}/v1", api_key=KEY, max_retries=0)
    assert client.completions.create(model="tiny", prompt="Hello", max_tokens=2).choices[0].text
    os.kill(pid, signal.SIGKILL)
    wait_for("restarted", lambda: a.server()["ready"] and a.server()["pid"] != pid, 60)
    assert client.completions.create(model="tiny", prompt="Hello", max_tokens=2).choices[0].text


def cached(server, key, prompt, salt=None):
    """How many prompt tokens came from the cache."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, **({"cache_salt": salt} if salt else {})}
    status, _, text = server.ask("/v1/completions", "POST", json.dumps(body), {"Authorization": f"Bearer {key}"})
    assert status == 200, text
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_each_key_has_a_cache_of_its_own(tmp_path):
    (tmp_path / "keys").write_text("victim k1\nother k2\nfriend k3 cache-group=g\nfriends k4 cache-group=g\n")
    s = Bare(tmp_path, "--api-key-file", tmp_path / "keys", "--enable-prompt-tokens-details", "--num-gpu-blocks-override", "256",
             "--block-size", "16", "--max-model-len", "1024", "--cached-share-per-salt", "0.3")
    try:
        long = "once upon a time there was a server that never slept " * 12
        assert cached(s, "k1", long) == 0
        assert cached(s, "k1", long) > 64
        assert cached(s, "k2", long) == 0  # what one key has cached tells another nothing
        assert cached(s, "k2", long, "salt") == 0 and cached(s, "k2", long, "salt") > 64
        assert cached(s, "k1", long, "salt") == 0
        assert cached(s, "k3", long) == 0 and cached(s, "k4", long) > 64
        for i in range(40):  # a flood, each with a salt of its own: all of them are one key's share
            cached(s, "k2", f"{i} " + long, f"salt{i}")
        assert cached(s, "k1", long) > 64
    finally:
        s.stop()


@pytest.mark.long
def test_one_keys_flood_does_not_hold_up_another(tmp_path):
    """Sixty requests of one key wait; a request with another key is next then, and weights are shown."""
    (tmp_path / "keys").write_text("flood k1\nother k2 weight=2\n")
    s = Bare(tmp_path, "--api-key-file", tmp_path / "keys", "--max-num-seqs", "2", "--max-num-queued-reqs", "200")
    try:
        ended = []

        def ask(key, i, tokens):
            body = json.dumps({"model": "tiny", "prompt": f"{i} Hello", "max_tokens": tokens, "ignore_eos": True})
            status = s.ask("/v1/completions", "POST", body, {"Authorization": f"Bearer {key}"}, 120)[0]
            ended.append((key, status))

        threads = [threading.Thread(target=ask, args=("k1", i, 300)) for i in range(60)]
        for t in threads:
            t.start()
        wait_for("the flood waits", lambda: metric(s.local("/metrics")[2].decode(), "evenkeel_key_waiting_requests", key="flood") > 40)
        before = len(ended)
        ask("k2", 0, 4)
        mine = ended.index(("k2", 200)) - before
        left = metric(s.local("/metrics")[2].decode(), "evenkeel_key_waiting_requests", key="flood")
        for t in threads:
            t.join()
        assert mine < 10 and left > 20, (mine, left)
        page = s.local("/metrics")[2].decode()
        assert all(status == 200 for _, status in ended) and len(ended) == 61
        assert metric(page, "evenkeel_key_tokens_total", key="flood", kind="answer") == 60 * 300
        assert metric(page, "evenkeel_key_tokens_total", key="other", kind="answer") == 4
        assert metric(page, "evenkeel_key_weight", key="other") == 2 and metric(page, "evenkeel_key_weight", key="flood") == 1
    finally:
        s.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can only be tried by root")
@pytest.mark.parametrize("opened", [False, True])
def test_another_user_has_no_control_socket(keyed, opened):
    """The mode of the socket keeps others out; where that is loosened, the kernel's word on who calls still does."""
    run = keyed.run
    folders = [(p, p.stat().st_mode) for p in (run, *run.parents) if p != p.parent]
    try:
        for p, mode in folders:
            p.chmod(mode | 0o011)
        os.chmod(keyed.control, 0o666 if opened else 0o600)
        script = ("import os, socket; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.settimeout(5)\n"
                  f"try:\n    s.connect({str(keyed.control)!r}); s.sendall(b'GET /v1/runtime_config HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'); print(s.recv(1000))\n"
                  "except OSError as e: print(type(e).__name__)")
        said = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=60).stdout.strip()
        assert said in (("b''", "ConnectionResetError", "BrokenPipeError") if opened else ("PermissionError",)), said
    finally:
        os.chmod(keyed.control, 0o600)
        for p, mode in folders:
            p.chmod(mode)
    assert keyed.local("/v1/runtime_config")[0] == 200
