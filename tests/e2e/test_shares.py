"""Protects: an operator sees which API key waits for its share, by name where names may be seen, and by number where anybody may look."""
import http.client
import json
import socket
import threading

import pytest

from conftest import Appliance, get, wait_for

LONG = json.dumps({"model": "tiny", "prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True})  # long, so that the server and not a client is what is waited for


def by_socket(path, where):
    c = http.client.HTTPConnection("localhost", timeout=20)
    c.sock = socket.socket(socket.AF_UNIX)
    c.sock.connect(str(path))
    c.request("GET", where)
    r = c.getresponse()
    return r.status, r.read().decode()


class Clients:
    """Of each key as many requests at once as asked for, one after the other, until the end."""

    def __init__(self, port):
        self.port, self.stop, self.threads = port, threading.Event(), []

    def send(self, key):
        while not self.stop.is_set():
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            c.request("POST", "/v1/completions", LONG, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
            assert c.getresponse().read()

    def add(self, key, count):
        self.threads += [threading.Thread(target=self.send, args=(key,), daemon=True) for _ in range(count)]
        for t in self.threads[-count:]:
            t.start()

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(60)


@pytest.fixture
def keyed(tmp_path):
    made = []

    def make(lines):
        keys = tmp_path / "keys"
        keys.write_text(lines)
        keys.chmod(0o600)
        a = Appliance(tmp_path, server_flags=["--api-key-file", keys, "--max-num-seqs", 2], mode="observe", poll_s=0.2)
        made.append((a.start().ready(), Clients(a.port)))
        return made[-1]

    yield make
    for a, clients in made:
        clients.end()
        a.destroy()


@pytest.mark.long
def test_a_flood_waits_for_its_share(keyed):
    a, clients = keyed("chat sk-chat weight=3\nbatch-jobs sk-batch weight=1\nidle sk-idle\n")
    clients.add("sk-batch", 6)
    wait_for("its share is known", lambda: (k := a.server()["keys"]) and k[0]["number"] == 2 and k[0]["share"] == 1 and k[0]["tokens_per_s"] > 0, 60)
    assert a.server()["keys_why"] is None  # nobody else has work
    clients.add("sk-chat", 4)
    said = wait_for("explain says it", lambda: (t := a.ctl("explain").stdout) and "waits for its share" in t and t, 60)
    said = " ".join(said.split())
    assert "key batch-jobs waits for its share: it had " in said and " % of the tokens of the last " in said and "with a weight of 1 of 4" in said

    one = wait_for("the page says it", lambda: (s := a.server())["keys_why"] and s, 60)
    assert one["keys_why"].startswith("key 2 waits for its share: it had ")
    chat, batch = sorted(one["keys"], key=lambda k: k["number"])
    assert batch["held"] and batch["ahead_tokens"] > 0 and batch["waiting"] > 0 and batch["weight"] == 1 and batch["due"] == 0.25
    assert not chat["held"] and chat["due"] == 0.75 and abs(batch["share"] + chat["share"] - 1) < 0.001
    wait_for("both get tokens by their weights", lambda: (k := {k["number"]: k for k in a.server()["keys"]}) and k[1]["share"] > 0.5 > k[2]["share"], 120)

    # Names are for the Unix socket alone.
    status, body = by_socket(a.run / "evenkeeld.sock", "/api/v1/servers/s1/keys")
    assert status == 200 and {k["name"] for k in json.loads(body)["keys"]} == {"batch-jobs", "chat"}
    for path in ("/", "/api/v1/servers", "/api/v1/servers/s1", "/api/v1/servers/s1/decisions", "/metrics"):
        text = get(a.page, path)[1].decode()
        assert "batch-jobs" not in text and "sk-" not in text, path
    assert get(a.page, "/api/v1/servers/s1/keys")[0] == 404
    page = get(a.page, "/")[1].decode()
    assert '<div class="keys"><h3>' in page and "<b>key 2</b>" in page and "<b>key 3</b>" not in page


def test_one_key_alone_has_no_table(keyed):
    a, clients = keyed("main sk-main\n")
    clients.add("sk-main", 4)
    wait_for("it works", lambda: a.server()["signals"]["generation_tokens_per_s"] and a.server()["signals"]["generation_tokens_per_s"] > 0, 60)
    assert a.server()["keys"] == [] and a.server()["keys_why"] is None
    assert '<div class="keys" hidden>' in get(a.page, "/")[1].decode() and "waits for its share" not in a.ctl("explain").stdout
