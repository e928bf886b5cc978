"""Protects: nodes started by mpirun give token for token what one process with as many ranks gives, with drawn tokens, grammars, scores, swaps and a pool that shrinks and grows; a node that is killed, hangs or does not fit ends all in time, with a code and a sentence; a drain asked of any of them ends all well; they keep off public networks and idle cores."""
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from bare import Bare
from conftest import BUILD, MODEL, Appliance, cpu_seconds, metric, slower, wait_for
from mpi import MPI, nodes_of, without

PROMPTS = ["Hello there", "The bear went into the forest and", "One day Dora", "A blue book was"]
CODES = (73, 137)  # who was first to see that a node is gone: a node, or mpirun


class Group(Bare):
    """mpirun, and below it a process for each node. `each` has more flags, one list a node; `before` is what runs node 1,
    `inside` what runs mpirun."""

    def __init__(self, run, nodes, *flags, each=(), before=(), inside=(), env=None, **more):
        self.nodes, self.each, self.before, self.inside = nodes, each, before, inside
        super().__init__(run, "--device", "cpu", *flags, env={**MPI, **(env or {})}, **more)

    def command(self, args):
        out = [*self.inside, "mpirun"]
        for n in range(self.nodes):
            out += [":"] * (n > 0) + ["-n", "1", *(self.before if n == 1 else []), *args, *map(str, self.each[n] if self.each else [])]
        return out

    def pids(self):
        """Of the nodes, by their place."""
        pids = nodes_of(self.control)
        assert len(pids) == self.nodes, pids
        return pids

    def gone(self, seconds=20):
        """The exit code of mpirun; nobody is left."""
        code = self.process.wait(seconds)
        wait_for("all processes are gone", lambda: not subprocess.run(["pgrep", "-f", str(self.control)], capture_output=True).stdout, 60)
        return code

    def why(self):
        note = self.run / "exit.json"
        return json.loads(note.read_text())["why"] if note.exists() else ""

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.gone()


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
    s = socket.create_connection(("127.0.0.1", b.port), timeout=60)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while b"data:" not in (part := s.recv(4096)):
        assert part, "the server closed the connection before the first event"
    return s


# A stage on each node, two of two ranks each, more stages than nodes, stages over two nodes each.
@pytest.mark.long
@without
@pytest.mark.parametrize("nodes, ranks, stages", [(2, 4, 1), (4, 4, 1), (2, 1, 2), (2, 2, 2), (3, 1, 3), (2, 1, 4), (4, 2, 2)])
def test_as_one_process(tmp_path, nodes, ranks, stages):
    run = tmp_path / "one"
    run.mkdir()
    flags = ["--tensor-parallel-size", ranks, "--pipeline-parallel-size", stages]
    one = Bare(run, "--device", "cpu", *flags)
    try:
        want = answers(one)
    finally:
        one.stop()
    made = Group(tmp_path, nodes, *flags)
    try:
        assert answers(made) == want
        os.kill(made.pids()[0], signal.SIGTERM)
        assert made.gone() == 0
        assert made.why() == "asked to stop; all requests done"
    finally:
        made.end()


@without
@pytest.mark.parametrize("ranks, stages", [(2, 1), (1, 2)])
def test_pool_and_host_tier(tmp_path, ranks, stages):
    """Blocks that travel to the host tier and back, and a pool that changes, are the same on all nodes."""
    flags = ["--tensor-parallel-size", ranks, "--pipeline-parallel-size", stages, "--num-gpu-blocks-override", 80, "--max-model-len", 640,
             "--kv-offloading-size", 0.05]
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

    one = Bare(run, "--device", "cpu", *flags)
    try:
        want = work(one)
    finally:
        one.stop()
    made = Group(tmp_path, 2, *flags)
    try:
        assert work(made) == want
        assert metric(made.metrics(), "evenkeel_offload_hit_tokens_total"), "nothing came from the host tier: the test tests nothing"
    finally:
        made.end()


@without
@pytest.mark.parametrize("nodes, stages, how, who, busy", [
    (2, 1, signal.SIGKILL, 1, True), (2, 1, signal.SIGKILL, 0, False), (3, 3, signal.SIGKILL, 1, True), (3, 3, signal.SIGKILL, 2, True),
    (2, 1, signal.SIGSTOP, 1, True), (3, 3, signal.SIGSTOP, 1, True)])
def test_node_dies(tmp_path, nodes, stages, how, who, busy):
    """Also under load, of nodes that share layers and of stages: all others are gone in seconds, and one that hangs is named."""
    made = Group(tmp_path, nodes, "--tensor-parallel-size", nodes // stages, "--pipeline-parallel-size", stages, "--step-deadline", 3)
    try:
        s = stream(made) if busy else None
        pids, begin = made.pids(), time.monotonic()
        os.kill(pids[who], how)
        code = made.process.wait(60)
        spent = time.monotonic() - begin
        if how == signal.SIGSTOP:
            assert code == 73 and re.search(rf"node {who}( \([^)]*\))? did not answer", made.log()), (code, made.log())
            assert spent < 10 * slower()
        else:
            assert code in CODES and spent < 6 * slower(), (code, spent)
        made.gone()
        if s:
            s.close()
    finally:
        made.end()


@without
@pytest.mark.parametrize("more, say", [
    (["--dtype", "float32"], "--dtype, --quantization and --kv-cache-dtype"),
    (["--pipeline-parallel-size", 4], "has --pipeline-parallel-size 4, node 0 ("),
    (["--allow-unencrypted-network", "--model", "/nonexistent"], "/nonexistent"),
])
def test_does_not_fit(tmp_path, more, say):
    """One with other settings says what differs and ends all: nothing is served before they are the same."""
    made = Group(tmp_path, 2, "--pipeline-parallel-size", 2, each=[[], more], ready=False)
    try:
        assert made.gone(30) == 78
        assert say in made.log()
    finally:
        made.end()


ROOM = ["unshare", "--net", "sh", "-c", 'ip link set lo up; ip link add br0 type bridge; ip addr add $0/24 dev br0; ip link set br0 up; exec "$@"']
OTHER = ["unshare", "--uts", "sh", "-c", 'hostname other; exec "$@"', "sh"]


@without
@pytest.mark.parametrize("address, flags, refused", [
    ("198.51.100.7", [], True), ("198.51.100.7", ["--allow-unencrypted-network"], False), ("10.9.0.7", [], False)])
def test_public_network(tmp_path, address, flags, refused):
    """Node 1 believes to be another machine: what they say would leave this one, by whatever address MPI may use."""
    for probe in ([*ROOM, address, "ip", "link", "show", "up", "dev", "br0"], [*OTHER, "true"]):
        done = subprocess.run(probe, capture_output=True)
        if done.returncode != 0 or done.stderr:
            pytest.skip("no right to make a network and a host name (unshare --net --uts)")
    made = Group(tmp_path, 2, "--tensor-parallel-size", 2, *flags, ready=False, port=False, inside=[*ROOM, address], before=OTHER,
                 env={"OMPI_MCA_btl_tcp_if_include": "lo,br0"})
    try:
        if refused:
            assert made.gone(30) == 78, made.log()
            assert f"interface br0 with {address}, which is no private network" in made.log()
        else:
            wait_for("ready", lambda: made.process.poll() is not None or made.local("/readyz")[0] == 200, 60)
            assert made.process.poll() is None, made.log()
    finally:
        made.end()


@without
def test_follower_is_stopped(tmp_path):
    """SIGTERM on a node that follows lets all requests finish; the group ends for a restart."""
    made = Group(tmp_path, 2, "--tensor-parallel-size", 2)
    try:
        # Their forms of products are each its own, also in one folder.
        assert sorted(p.suffix for p in tmp_path.glob("cpu-forms.*")) == [".node0", ".node1"]
        s = stream(made, 300)
        os.kill(made.pids()[1], signal.SIGTERM)
        text = b""
        while part := s.recv(65536):
            text += part
        assert made.gone() == 77
        assert b"[DONE]" in text and b'"finish_reason":"length"' in text
    finally:
        made.end()


@without
def test_idle(tmp_path):
    """Nodes that wait for work leave the cores alone, and answer at once."""
    made = Group(tmp_path, 2, "--tensor-parallel-size", 2)

    def used():
        return [cpu_seconds(p) for p in made.pids()]

    try:
        ask(made, prompt=PROMPTS[0], max_tokens=8, temperature=0)
        before = used()
        time.sleep(5)
        spent = [b - a for a, b in zip(before, used())]
        assert max(spent) < 0.25, f"seconds of a core in 5 s without work: {spent}"
    finally:
        made.end()


@without
def test_under_evenkeeld(tmp_path):
    """mpirun is what evenkeeld runs: after a crash of a node it is started again, a restart is one, and an end that a node asked for is no failure."""
    os.environ.update(MPI)
    made = Appliance(tmp_path, ["--device", "cpu", "--threads", 1, "--tensor-parallel-size", 2], before=["mpirun", "-n", "2"])
    try:
        made.start().ready()
        mpirun = made.server()["pid"]
        nodes = list(map(int, subprocess.run(["pgrep", "-P", str(mpirun)], capture_output=True, text=True).stdout.split()))
        assert len(nodes) == 2
        os.kill(nodes[1], signal.SIGKILL)
        wait_for("again", lambda: made.server()["restarts"] == 1 and made.server()["ready"], 60)
        assert metric(made.metrics(made.page), "evenkeel_supervisor_exits_total", **{"class": "COMM"}) == 1
        made.ctl("restart")
        wait_for("after a restart", lambda: made.server()["restarts"] == 2 and made.server()["ready"], 60)
    finally:
        for name in MPI:
            del os.environ[name]
        made.destroy()


def test_dry_run():
    """The plan names what each rank takes, and where it is; where it does not fit, too."""
    flags = ["--device", "cpu", "--nnodes", 2, "--pipeline-parallel-size", 2, "--tensor-parallel-size", 2, "--dry-run"]

    def dry(*more):
        return subprocess.run([BUILD / "evenkeel-server", "--model", MODEL, *map(str, flags), *more], capture_output=True, text=True, timeout=60)

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
    (["--tensor-parallel-size", 2, "--nnodes", 2], "start one process on each machine with mpirun -n 2"),
    (["--tensor-parallel-size", 2, "--nnodes", 2, "--node-rank", 1], "--node-rank is gone: mpirun or srun starts the processes"),
    (["--nnodes", 2, "--master-addr", "10.9.0.1"], "--master-addr is gone"),
    (["--nnodes", 2, "--master-key-file", "/etc/key"], "--master-key-file is gone"),
    (["--node-rank", 1], "--node-rank is gone"),
    (["--dry-run", "--tensor-parallel-size", 3, "--nnodes", 2], "must be a multiple of it, for example 4"),
    (["--dry-run", "--pipeline-parallel-size", 3, "--nnodes", 2], "must be a multiple of it, for example with --pipeline-parallel-size 4"),
    (["--dry-run", "--tensor-parallel-size", 2, "--pipeline-parallel-size", 3, "--nnodes", 2], "a stage of --tensor-parallel-size 2 would have parts of nodes"),
])
def test_refused(tmp_path, flags, say):
    b = Bare(tmp_path, "--device", "cpu", *flags, ready=False)
    assert b.process.wait(60) == 2
    assert say in b.log()


def test_started_twice(tmp_path):
    """What the environment says and what the flags say have to be the same."""
    b = Bare(tmp_path, "--device", "cpu", "--tensor-parallel-size", 6, "--nnodes", 3, ready=False, env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    assert b.process.wait(60) == 2 and "--nnodes 3, but 2 processes were started" in b.log()
