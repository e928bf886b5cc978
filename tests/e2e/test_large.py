"""Protects: a prompt that takes seconds to tokenise costs nobody else's answer, and nothing is lost when its client leaves or the server
ends meanwhile."""
import gzip
import http.client
import json
import random
import threading
import time

import pytest

from conftest import Appliance, get, wait_for
from test_bad_input import post


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("large"), ["--http-threads", "1"]).start().ready()
    yield a
    a.destroy()


def word(size=1_500_000):
    return "".join(random.Random(1).choices("abcdefghijklmnop", k=size))


def begin(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    return c


def test_small_requests_overtake(single):
    body = json.dumps({"prompt": word(), "max_tokens": 1, "truncate_prompt_tokens": 8})
    c = begin(single.port, body)
    done = threading.Event()
    answer = {}

    def read():
        r = c.getresponse()
        answer["status"], answer["text"] = r.status, r.read()
        done.set()
    threading.Thread(target=read).start()
    small = 0
    while not done.is_set():
        assert post(single.port, "/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200
        small += 1
    assert answer["status"] == 200 and json.loads(answer["text"])["usage"]["prompt_tokens"] == 8
    assert small > 5  # all on the one thread that also serves the large one


def test_errors_and_streams_of_large_bodies(single):
    status, text = post(single.port, "/v1/completions", {"prompt": word(400_000), "max_tokens": 1})
    assert status == 400 and "maximum context length is" in text
    status, text = post(single.port, "/v1/completions", json.dumps({"prompt": "x " * 100_000, "max_tokens": 3, "stream": True,
                                                                    "truncate_prompt_tokens": 4}))
    assert status == 200 and text.endswith("data: [DONE]\n\n")
    status, text = post(single.port, "/tokenize", {"prompt": "x " * 900})
    assert status == 200
    assert post(single.port, "/v1/completions", b" " * 100_000 + b"{")[0] == 400


def test_packed_bodies_have_the_time_of_unpacked_ones(single):
    """What reading may take grows with the bytes that are read, not with those that were sent."""
    body = json.dumps({"prompt": "x " * 1_950_000, "max_tokens": 1, "truncate_prompt_tokens": 8}).encode()
    packed = gzip.compress(body)
    assert len(packed) < len(body) / 50
    c = http.client.HTTPConnection("127.0.0.1", single.port, timeout=60)
    for data, headers in ((body, {}), (packed, {"Content-Encoding": "gzip"})):
        c.request("POST", "/v1/completions", data, {"Content-Type": "application/json", **headers})
        answer = c.getresponse()
        text = answer.read()
        assert answer.status == 200, text
    c.close()


def test_a_client_that_leaves_meanwhile(single):
    for _ in range(3):
        begin(single.port, json.dumps({"prompt": word(800_000), "max_tokens": 1})).close()
    assert post(single.port, "/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200
    wait_for("nothing is open", lambda: json.loads(get(single.port, "/load")[1])["server_load"] == 0, 60)


def test_an_end_meanwhile(tmp_path):
    a = Appliance(tmp_path, ["--shutdown-timeout", "1"]).start().ready()
    try:
        open_ones = [begin(a.port, json.dumps({"prompt": word(), "max_tokens": 1})) for _ in range(3)]
        time.sleep(0.2)
        a.stop(40)
        for c in open_ones:
            c.close()
    finally:
        a.destroy()
