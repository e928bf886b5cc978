"""Protects: what routers learn of the prefix cache. Events read with pyzmq and decoded strictly as the structs that vLLM 0.32 publishes:
blocks that are stored, removed and cleared, numbers without a gap, replays from any number, and a server that no reader can slow down."""
import itertools
import json
import socket
import subprocess
import time
import urllib.request

import msgspec
import pytest
import zmq

from conftest import BUILD, MODEL, free_port, get, metric, wait_for
from client import stream

BLOCK, BLOCKS = 16, 64


class Event(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None


class BlockRemoved(Event, tag=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Reader:
    """What a router holds: the blocks of one server by medium, from a subscription or a replay."""

    def __init__(self, context, endpoint, topic):
        self.socket = context.socket(zmq.SUB)
        self.socket.connect(endpoint)
        self.socket.subscribe(topic)
        self.blocks, self.chains, self.next, self.kinds, self.payloads, self.records = {}, {}, None, set(), [], 0

    def take(self, number, payload):
        assert self.next is None or number == self.next, (number, self.next)
        self.next = number + 1
        self.payloads.append(payload)
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert abs(batch.ts - time.time()) < 600 and batch.data_parallel_rank == 0
        for event in batch.events:
            self.kinds.add(type(event))
            self.records += len(getattr(event, "block_hashes", "1"))
            if isinstance(event, BlockStored):
                assert event.block_size == BLOCK and len(event.token_ids) == BLOCK * len(event.block_hashes)
                before = self.chains.get(event.parent_block_hash, ())
                assert event.parent_block_hash is None or before, "a parent that nobody announced"
                for i, name in enumerate(event.block_hashes):
                    before = before + tuple(event.token_ids[i * BLOCK:(i + 1) * BLOCK])
                    self.chains[name] = before
                    assert (event.medium, name) not in self.blocks, "stored twice"
                    self.blocks[event.medium, name] = before
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[event.medium, name]
            else:
                self.blocks.clear()

    def hear(self):
        topic, number, payload = self.socket.recv_multipart()
        assert topic == b"kv@here@tiny" and len(number) == 8
        return int.from_bytes(number, "big"), payload

    def join(self, server):
        """Nobody tells a subscriber when it is one: requests are sent until one is heard of, and what came before is asked for."""
        wait_for("a first message", lambda: server.ask(prompt(next(server.knocks))) or self.socket.poll(200), 60)
        number, payload = self.hear()
        for missed in server.replay(0):
            if missed[0] < number:
                self.take(*missed)
        self.take(number, payload)
        return self.drain(server)

    def drain(self, server):
        """Takes what comes until it is all that the server says it has published."""
        def caught_up():
            while self.socket.poll(20):
                self.take(*self.hear())
            return self.records == server.metric("evenkeel_kv_events_total", result="published")
        wait_for("all that was published", caught_up, 60)
        return self


class Server:
    def __init__(self, run, more=()):
        self.port, self.events, self.replays = free_port(18300), free_port(25557), free_port(25657)
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}", "topic": "kv@here@tiny",
                  "replay_endpoint": f"tcp://*:{self.replays}", "buffer_steps": 5000}
        self.log = open(run / "server.log", "wb")
        self.process = subprocess.Popen(
            [BUILD / "evenkeel-server", "--model", MODEL, "--served-model-name", "tiny", "--port", str(self.port), "--host", "127.0.0.1", "--control-socket",
             run / "control.sock", "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS + 1), "--max-num-seqs", "4", "--max-model-len", "512",
             "--kv-events-config", json.dumps(config), *more], stdout=self.log, stderr=self.log)
        self.run, self.knocks = run, itertools.count(1000)
        wait_for("ready", lambda: get(self.port, "/health")[0] == 200, 60)

    def ask(self, prompt, n=4):
        list(stream(self.port, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True}))

    def metric(self, name, **labels):
        return metric(get(self.port, "/metrics")[1].decode(), name, **labels)

    def replay(self, start):
        """Number and payload of each batch from `start` on, as who comes late asks for them."""
        got = []
        with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
            asking.linger = 0
            asking.connect(f"tcp://127.0.0.1:{self.replays}")
            asking.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                assert asking.poll(20000)
                empty, topic, number, payload = asking.recv_multipart()
                assert empty == b""
                if int.from_bytes(number, "big", signed=True) < 0:
                    assert payload == b""
                    return got
                assert topic == b"kv@here@tiny"
                got.append((int.from_bytes(number, "big"), payload))

    def control(self, method, path):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(self.run / "control.sock"))
            s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            return int(s.makefile("rb").readline().split()[1])

    def tokens(self, prompt):
        body = json.dumps({"model": "tiny", "prompt": prompt}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return tuple(json.load(answer)["tokens"])

    def end(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def prompt(number):
    return f"Request number {number} of a test: " + " ".join(f"word{number}x{i}" for i in range(30))


def test_a_router_sees_the_cache(tmp_path, context):
    server = Server(tmp_path)
    reader = Reader(context, f"tcp://127.0.0.1:{server.events}", "kv@here@tiny").join(server)
    server.ask(prompt(0))
    want = server.tokens(prompt(0))

    def told():
        chains = sorted(reader.drain(server).blocks.values(), key=len)
        return any(len(want) - len(c) < BLOCK and c[:len(want)] == want[:len(c)] for c in chains)
    wait_for("the tokens are the prompt's", told)
    assert {m for m, _ in reader.blocks} == {"GPU"}
    held = len(reader.blocks)
    server.ask(prompt(0))
    assert len(reader.drain(server).blocks) == held, "a hit tells nothing"

    for i in range(1, 30):
        server.ask(prompt(i))
    wait_for("the reader knows exactly what is there", lambda: len(reader.drain(server).blocks) == server.metric("evenkeel_kv_blocks", state="cached"))
    assert BlockRemoved in reader.kinds, "the pool is small: something was evicted"
    assert server.control("POST", "/reset_prefix_cache") == 200
    wait_for("nothing is left", lambda: not reader.drain(server).blocks)
    assert AllBlocksCleared in reader.kinds
    server.ask(prompt(50))
    wait_for("the last one", lambda: reader.drain(server).blocks)

    # Who comes late asks for what it missed.
    late = Reader(context, f"tcp://127.0.0.1:{server.events}", "nothing")
    for batch in server.replay(0):
        late.take(*batch)
    assert late.blocks == reader.drain(server).blocks and late.payloads == reader.payloads
    numbers = [number for number, _ in server.replay(5)]
    assert numbers == list(range(5, numbers[-1] + 1))
    assert server.metric("evenkeel_kv_events_total", result="dropped") == 0
    server.end()


def test_blocks_in_host_memory_are_told(tmp_path, context):
    server = Server(tmp_path, ["--kv-offloading-size", "0.25"])
    reader = Reader(context, f"tcp://127.0.0.1:{server.events}", "kv@here@tiny").join(server)
    for i in range(30):
        server.ask(prompt(i))
    wait_for("what lies there is known", lambda: sum(m == "CPU" for m, _ in reader.drain(server).blocks) ==
             server.metric("evenkeel_host_kv_blocks", state="cached") > 0)
    server.end()


def test_bad_readers_change_nothing(tmp_path, context):
    """A subscriber that never reads, requests that make no sense: answers go on, and the next reader is served."""
    server = Server(tmp_path)
    deaf = context.socket(zmq.SUB)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.connect(f"tcp://127.0.0.1:{server.events}")
    deaf.subscribe(b"")
    for frames in ([b"x"], [b"", b"12345678", b"more"], [b"no", b"12345678"], [b"", b"short"], [b"", b"z" * 50]):
        odd = context.socket(zmq.DEALER)
        odd.connect(f"tcp://127.0.0.1:{server.replays}")
        odd.send_multipart(frames)
    with socket.create_connection(("127.0.0.1", server.replays)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(5000))
    for i in range(20):
        server.ask(prompt(i))
    asking = context.socket(zmq.REQ)
    asking.connect(f"tcp://127.0.0.1:{server.replays}")
    asking.send((0).to_bytes(8, "big"))
    assert asking.poll(5000)
    server.end()


@pytest.mark.parametrize("config, words", [
    ('{"enable_kv_cache_events": true, "endpoint": "nowhere://*:5557"}', "cannot use 'nowhere://*:5557': Protocol not supported"),
    ('{"enable_kv_cache_events": true, "publisher": "kafka"}', "zmq or null"),
    ("on", "no JSON object"),
])
def test_bad_configurations(tmp_path, config, words):
    done = subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, "--port", "0", "--kv-events-config", config], capture_output=True, text=True, timeout=60)
    assert done.returncode in (2, 78) and words in done.stderr, (done.returncode, done.stderr[-500:])
