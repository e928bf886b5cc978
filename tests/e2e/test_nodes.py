"""Protects: nodes give token for token what one process with as many ranks gives, with drawn tokens, grammars, scores, swaps and a pool that shrinks and grows; a node that is killed, hangs, does not fit or does not come ends the others in time with code 73 or 78 and a sentence that names it; a drain of any node ends all of them well."""
import json
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from bare import Bare
from conftest import BUILD, MODEL, Appliance, free_port, get, metric, wait_for

PROMPTS = ["Hello there", "The bear went into the forest and", "One day Dora", "A blue book was"]


def group(tmp_path, nodes, ranks, *flags, ready=True, each=()):
    """Node 0 first. `each` has more flags, one list a node."""
    port = free_port(29600)
    made = []
    for n in range(nodes):
        run = tmp_path / f"node{n}"
        run.mkdir()
        more = each[n] if each else []
        made.append(Bare(run, "--device", "cpu", "--tensor-parallel-size", ranks, "--nnodes", nodes, "--node-rank", n, "--master-port", port,
                         *flags, *more, ready=False))
        # It has its port before the next one looks for a free one.
        wait_for("a node that answers", lambda b=made[-1]: b.process.poll() is not None or get(b.port, "/livez")[0] == 200, 30)
    try:
        for b in made if ready else []:
            wait_for("node ready", lambda b=b: b.process.poll() is not None or b.local("/readyz")[0] == 200, 30)
            assert b.process.poll() is None, b.log()
    except BaseException:
        end(made)
        raise
    return made


def end(made):
    for b in made:
        b.process.kill()
        b.process.wait()


def left(b, seconds=20):
    """The exit code and what exit.json says."""
    code = b.process.wait(seconds)
    note = b.run / "exit.json"
    return code, json.loads(note.read_text())["why"] if note.exists() else ""


def ask(b, **body):
    status, _, text = b.ask("/v1/completions", "POST", json.dumps({"model": "tiny", **body}))
    assert status == 200, text
    choice = json.loads(text)["choices"][0]
    return choice["text"], choice.get("logprobs"), choice.get("prompt_logprobs")


def answers(b):
    """What goes through every kind of call: greedy, drawn, masked, with scores."""
    out = [ask(b, prompt=PROMPTS[0], max_tokens=40, temperature=0, ignore_eos=True)]
    out += [ask(b, prompt=p, max_tokens=16, temperature=1, seed=7, repetition_penalty=1.2, logprobs=3, ignore_eos=True) for p in PROMPTS]
    out.append(ask(b, prompt=PROMPTS[0], max_tokens=12, temperature=1, seed=3, structured_outputs={"regex": "[a-d]{10}"}))
    out.append(ask(b, prompt=PROMPTS[1], max_tokens=4, temperature=0, prompt_logprobs=2))
    out.append(ask(b, prompt=PROMPTS[1] * 40, max_tokens=8, temperature=0))
    return out


def stream(b, tokens=1500):
    """A request that runs on; the socket has to be kept."""
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True})
    s = socket.create_connection(("127.0.0.1", b.port), timeout=20)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while b"data:" not in s.recv(4096):
        pass
    return s


# A stage on each node, two of two ranks each, more stages than nodes, stages over two nodes each.
@pytest.mark.parametrize("nodes, ranks, stages", [(2, 4, 1), (4, 4, 1), (2, 1, 2), (2, 2, 2), (3, 1, 3), (2, 1, 4), (4, 2, 2)])
def test_as_one_process(tmp_path, nodes, ranks, stages):
    run = tmp_path / "one"
    run.mkdir()
    flags = ["--pipeline-parallel-size", stages]
    one = Bare(run, "--device", "cpu", "--tensor-parallel-size", ranks, *flags)
    try:
        want = answers(one)
    finally:
        one.stop()
    made = group(tmp_path, nodes, ranks, *flags)
    try:
        assert answers(made[0]) == want
        made[0].process.send_signal(signal.SIGTERM)
        assert [left(b)[0] for b in made] == [0] * nodes
        assert left(made[-1])[1] == "node 0 ended the group"
    finally:
        end(made)


@pytest.mark.parametrize("ranks, stages", [(2, 1), (1, 2)])
def test_pool_and_host_tier(tmp_path, ranks, stages):
    """Blocks that travel to the host tier and back, and a pool that changes, are the same on all nodes."""
    flags = ["--pipeline-parallel-size", stages, "--num-gpu-blocks-override", 80, "--max-model-len", 640, "--kv-offloading-size", 0.05]
    run = tmp_path / "one"
    run.mkdir()
    long = [f"Story {n}. " + "The bear lost a blue book near the forest. " * 22 for n in range(6)]

    def resize(b, blocks):
        status, _, text = b.local("/v1/runtime_config", "PATCH", json.dumps({"num_kv_blocks": blocks}))
        assert status == 200, text

    def work(b):
        told = [ask(b, prompt=p, max_tokens=4, temperature=0) for p in long]
        resize(b, 45)
        told += [ask(b, prompt=p, max_tokens=4, temperature=0) for p in long[:3]]
        resize(b, 79)
        return told + [ask(b, prompt=p, max_tokens=4, temperature=0) for p in long[:4]]

    one = Bare(run, "--device", "cpu", "--tensor-parallel-size", ranks, *flags)
    try:
        want = work(one)
    finally:
        one.stop()
    made = group(tmp_path, 2, ranks, *flags)
    try:
        assert work(made[0]) == want
        page = made[0].metrics()
        print([line for line in page.splitlines() if "offload" in line and line[0] != "#"])
        assert metric(page, "evenkeel_offload_hit_tokens_total"), "nothing came from the host tier: the test tests nothing"
    finally:
        end(made)


@pytest.mark.parametrize("how, who, busy", [(signal.SIGKILL, 1, True), (signal.SIGKILL, 0, False), (signal.SIGSTOP, 1, True), (signal.SIGSTOP, 1, False)])
def test_node_dies(tmp_path, how, who, busy):
    made = group(tmp_path, 2, 2, "--step-deadline", 3)
    try:
        s = stream(made[0]) if busy else None
        begin = time.monotonic()
        made[who].process.send_signal(how)
        code, why = left(made[1 - who], 15)
        assert code == 73 and f"node {who} (" in why.lower(), (code, why)
        assert time.monotonic() - begin < (9 if how == signal.SIGSTOP else 4)
        assert ("did not answer" if how == signal.SIGSTOP else "ended without a word") in why
        if how == signal.SIGSTOP:
            made[who].process.send_signal(signal.SIGCONT)
            assert left(made[who])[0] == 73
        if s:
            s.close()
    finally:
        end(made)


@pytest.mark.parametrize("how, who", [(signal.SIGKILL, 0), (signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGSTOP, 1)])
def test_stage_dies(tmp_path, how, who):
    """Of three stages under load, each on a node: all others end with the name of the one that did, not of one that waited for it."""
    made = group(tmp_path, 3, 1, "--pipeline-parallel-size", 3, "--step-deadline", 3)
    try:
        s = stream(made[0])
        begin = time.monotonic()
        made[who].process.send_signal(how)
        for n in {0, 1, 2} - {who}:
            code, why = left(made[n], 15)
            assert code == 73 and f"node {who} (" in why.lower(), (n, code, why)
            assert ("did not answer" if how == signal.SIGSTOP else "ended without a word") in why
        assert time.monotonic() - begin < (9 if how == signal.SIGSTOP else 4)
        s.close()
    finally:
        end(made)


def test_other_stages(tmp_path):
    made = group(tmp_path, 2, 1, each=[["--pipeline-parallel-size", 4], ["--pipeline-parallel-size", 2]], ready=False)
    try:
        code, why = left(made[1], 30)
        assert code == 78 and "has --pipeline-parallel-size 2, node 0 (" in why and "give all nodes the same" in why
        assert made[0].process.poll() is None
    finally:
        end(made)


def test_does_not_fit(tmp_path):
    """A node with other settings is told so and ends; node 0 waits, and takes one that is right."""
    made = group(tmp_path, 2, 2, each=[[], ["--dtype", "float32"]], ready=False)
    right = None
    try:
        code, why = left(made[1], 30)
        assert code == 78 and "Node 1 (" in why and "node 0 (" in why and "--dtype" in why
        assert made[0].process.poll() is None and "Refused" in made[0].log()
        flags = made[1].args
        run = tmp_path / "right"
        run.mkdir()
        right = Bare(run, *flags[flags.index("--device"):-2])
        wait_for("node 0 ready", lambda: made[0].local("/readyz")[0] == 200, 30)
        assert ask(made[0], prompt=PROMPTS[0], max_tokens=8, temperature=0)[0]
        assert right.ask("/health")[0] == 200
        status, _, text = right.ask("/v1/completions", "POST", json.dumps({"model": "tiny", "prompt": "x"}))
        assert status == 503 and "node 1 of 2" in text.decode()
        status, _, text = right.local("/drain", "POST", "{}")
        assert status == 409 and "follows node 0" in text.decode()
    finally:
        end([b for b in (made[0], right) if b])


def test_key(tmp_path):
    """Who has no key, or another one, is told so and ends; of three with the same, the two that follow ask each other for it too."""
    for name, text in (("right", "0123456789abcdef0123\n"), ("wrong", "abcdef0123456789abcd\n"), ("short", "abc\n")):
        (tmp_path / name).write_text(text)

    def key(name):
        return ["--master-key-file", tmp_path / name]

    for more, say in ([], "has no --master-key-file"), (key("wrong"), "does not have the key in --master-key-file of this node"):
        run = tmp_path / say.replace(" ", "")
        run.mkdir()
        made = group(run, 2, 2, each=[key("right"), more], ready=False)
        try:
            code, why = left(made[1], 30)
            assert code == 78 and say in why, (code, why)
            assert made[0].process.poll() is None
        finally:
            end(made)
    made = group(tmp_path, 3, 1, "--pipeline-parallel-size", 3, *key("right"))
    try:
        assert ask(made[0], prompt=PROMPTS[0], max_tokens=8, temperature=0)[0]
    finally:
        end(made)
    b = Bare(tmp_path, "--device", "cpu", "--tensor-parallel-size", 2, "--nnodes", 2, *key("short"), ready=False)
    assert b.process.wait(20) == 78 and "has 3 bytes, and a secret of all nodes needs 16" in b.log()


def test_a_caller_that_trickles_holds_up_nobody(tmp_path):
    """A stranger that sends a byte now and then has five seconds in all; then the nodes meet."""
    port, made = free_port(29600), []

    def start(n):
        run = tmp_path / f"node{n}"
        run.mkdir()
        made.append(Bare(run, "--device", "cpu", "--tensor-parallel-size", 2, "--nnodes", 2, "--node-rank", n, "--master-port", port, ready=False))

    def knock():
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1)
        except OSError:
            return None
    try:
        start(0)
        stranger = wait_for("the port of node 0", knock, 20)
        stopped = threading.Event()

        def trickle():
            try:
                while not stopped.wait(1):
                    stranger.sendall(b"E")
            except OSError:
                pass
        threading.Thread(target=trickle, daemon=True).start()
        time.sleep(1)
        start(1)
        begun = time.monotonic()
        try:
            wait_for("the group", lambda: made[0].local("/readyz")[0] == 200, 40)
        finally:
            stopped.set()
            stranger.close()
        assert time.monotonic() - begun < 20
    finally:
        end(made)


def test_does_not_come(tmp_path):
    made = group(tmp_path, 2, 2, "--distributed-timeout-seconds", 1, each=[[], ["--master-addr", "127.0.0.9"]], ready=False)
    try:
        code, why = left(made[0])
        assert code == 73 and "Node 1 of 2 did not come to 127.0.0.1:" in why
        code, why = left(made[1])
        assert code == 73 and "Node 0 was not to be had at 127.0.0.9:" in why
    finally:
        end(made)


def test_follower_is_stopped(tmp_path):
    """The first SIGTERM on a node that follows lets all requests finish."""
    made = group(tmp_path, 2, 2)
    try:
        s = stream(made[0], 300)
        made[1].process.send_signal(signal.SIGTERM)
        assert [left(b)[0] for b in made] == [77, 0]
        text = b""
        while part := s.recv(65536):
            text += part
        assert b"[DONE]" in text and b'"finish_reason":"length"' in text
    finally:
        end(made)


def test_under_evenkeeld(tmp_path):
    """Each machine's evenkeeld takes its node for ready when it follows, and after a crash of one, or a restart of node 0, all meet again by themselves."""
    port, made = free_port(29700), []
    try:
        for n in range(2):
            run = tmp_path / f"machine{n}"
            run.mkdir()
            made.append(Appliance(run, ["--device", "cpu", "--threads", 1, "--tensor-parallel-size", 2, "--nnodes", 2, "--node-rank", n,
                                        "--master-port", port]).start())
            wait_for("a server that answers", lambda a=made[-1]: get(a.port, "/livez")[0] == 200, 20)
        for a in made:
            a.ready()
        os.kill(made[1].server()["pid"], signal.SIGKILL)
        for a in made:
            wait_for("again", lambda a=a: a.server()["restarts"] == 1 and a.server()["ready"], 30)
        status, text = get(made[1].port, "/health")
        assert status == 200 and json.loads(text)["status"] == "following"
        assert metric(get(made[1].port, "/metrics")[1].decode(), "evenkeel_rank_bytes", rank="1", item="weights") > 0
        # What an operator asks of node 0 is no failure of the other one: it is there again, and nothing is held against it.
        made[0].ctl("restart")
        for a in made:
            wait_for("after a restart", lambda a=a: a.server()["restarts"] == 2 and a.server()["ready"], 30)
        page = made[1].metrics(made[1].page)
        assert metric(page, "evenkeel_supervisor_exits_total", **{"class": "CLEAN_EXIT"}) == 1
        assert metric(page, "evenkeel_supervisor_restarts_total", cause="planned") == 1
    finally:
        for a in made:
            a.destroy()


def test_dry_run():
    """The plan names what each rank takes, and where it is; where it does not fit, too."""
    flags = ["--device", "cpu", "--nnodes", 2, "--pipeline-parallel-size", 2, "--tensor-parallel-size", 2, "--dry-run"]

    def dry(*more):
        return subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, *map(str, flags), *more], capture_output=True, text=True, timeout=30)

    plan = json.loads(dry("--json").stdout)
    ranks = plan["per_rank"]
    assert [(r["node"], r["stage"], r["first_layer"], r["layers"]) for r in ranks] == [(0, 0, 0, 3), (0, 0, 0, 3), (1, 1, 3, 3), (1, 1, 3, 3)]
    for name in ("weights", "activations", "kv_pool"):  # of the node that takes the most of it
        assert plan["bytes"][name] == max(sum(r[name] for r in ranks[n : n + 2]) for n in (0, 2)), name
    assert ranks[2]["activations"] > ranks[0]["activations"]  # logits
    assert "     2     1     1  3 to 5" in dry().stdout
    small = dry("--dry-run-memory", "0.02")
    assert small.returncode == 75 and "too much" in small.stderr and "     2     1     1  3 to 5" in small.stderr


@pytest.mark.parametrize("flags, say", [
    (["--tensor-parallel-size", 3, "--nnodes", 2], "must be a multiple of it, for example 4"),
    (["--tensor-parallel-size", 2, "--nnodes", 2, "--node-rank", 2], "it is 0 to 1"),
    (["--pipeline-parallel-size", 3, "--nnodes", 2], "must be a multiple of it, for example with --pipeline-parallel-size 4"),
    (["--tensor-parallel-size", 2, "--pipeline-parallel-size", 3, "--nnodes", 2], "a stage of --tensor-parallel-size 2 would have parts of nodes"),
    (["--headless"], "--headless is for nodes that follow"),
    (["--tensor-parallel-size", 2, "--nnodes", 2, "--master-addr", "192.0.2.1"], "node 0 cannot listen there"),
])
def test_refused(tmp_path, flags, say):
    b = Bare(tmp_path, "--device", "cpu", *flags, ready=False)
    assert b.process.wait(20) in (2, 78)
    assert say in b.log()
