"""Protects: cached prefixes outlive a planned restart, of the server and of its engine alone: what was found in the cache before is found after it,
and texts stay what they were; what is wrong with the file is a miss that is told in one line; keys keep theirs apart."""
import json
import os
import random
import signal
import subprocess

import pytest

from bare import Bare
from conftest import ROOT, Appliance, metric, small_disk, wait_for
from engine_faults import EngineFaults
from engines import another_engine, engine, engine_state, order, restart

BEGINNINGS = [" ".join(f"{word} {k}" for k in range(60)) for word in ("The river said", "A small bear counted", "One day", "In the house", "They went")]


def ask(server, n, **headers):
    """A text with a long beginning, and how many tokens of its prompt were cached."""
    body = {"model": "tiny", "prompt": BEGINNINGS[n], "max_tokens": 12, "temperature": 0}
    status, _, answer = server.ask("/v1/completions", "POST", json.dumps(body), headers)
    assert status == 200, answer
    answer = json.loads(answer)
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve(tmp_path, *flags, **more):
    return Bare(tmp_path, "--max-num-seqs", 8, "--max-model-len", 512, "--enable-prompt-tokens-details", "--prefix-file", tmp_path / "kept/prefixes", *flags,
                **more)


def ask_all(server):
    return [ask(server, n) for n in range(len(BEGINNINGS))]


def taken(server, what="restored"):
    return metric(server.metrics(), "evenkeel_prefix_file_blocks_total", what=what)


@pytest.fixture
def left(tmp_path):
    """What a server says, cold and warm, that then ended and left its file."""
    s = serve(tmp_path)
    cold = ask_all(s)
    warm = ask_all(s)
    assert s.stop() == 0
    assert [c for _, c in cold] == [0] * len(cold) and all(c > 100 for _, c in warm) and [t for t, _ in cold] == [t for t, _ in warm]
    assert "Left " in s.log()
    return warm


@pytest.mark.parametrize("flags", [(), ("--kv-cache-dtype", "int8_per_token_head"), ("--tensor-parallel-size", 2), ("--engine-process",)])
def test_next_start_is_warm(tmp_path, flags):
    s = serve(tmp_path, *flags)
    try:
        ask_all(s)
        warm = ask_all(s)
    finally:
        assert s.stop() == 0
    file = tmp_path / "kept/prefixes"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    s = serve(tmp_path, *flags)
    try:
        assert taken(s) > 0 and not file.exists()
        assert ask_all(s) == warm
    finally:
        assert s.stop() == 0
    assert file.exists() and [f for f in file.parent.iterdir() if not f.name.startswith("cpu-forms.")] == [file]


HYBRID = ROOT / "tests/fixtures/models/served-qwen3.5"  # as save_pretrained wrote it: gated delta rule beside attention


def follow(server, n):
    """What follows a beginning of its own, and how many of its tokens were cached."""
    body = {"model": "tiny", "prompt": [1 + (7 * k * k + 31 * n + k) % 250 for k in range(170)], "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}
    status, _, answer = server.ask("/v1/completions", "POST", json.dumps(body))
    assert status == 200, answer
    answer = json.loads(answer)
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve_hybrid(tmp_path, *flags):
    return Bare(tmp_path, "--max-num-seqs", 8, "--enable-prompt-tokens-details", "--prefix-file", tmp_path / "kept/prefixes", *flags, model=HYBRID)


@pytest.mark.parametrize("flags", [(), ("--engine-process",)])
def test_hybrid_is_warm(tmp_path, flags):
    """Snapshots of recurrent state come back with their blocks: without them a hit has nothing to go on from."""
    s = serve_hybrid(tmp_path, *flags)
    try:
        cold, warm = ([follow(s, n) for n in range(5)] for _ in range(2))
        assert [c for _, c in cold] == [0] * 5 and [c for _, c in warm] == [160] * 5 and [t for t, _ in cold] == [t for t, _ in warm]
    finally:
        assert s.stop() == 0
    s = serve_hybrid(tmp_path, *flags)
    try:
        assert taken(s) >= 50 and metric(s.metrics(), "evenkeel_state_snapshots") >= 5
        assert [follow(s, n) for n in range(5)] == warm
        if "--engine-process" in flags:
            restart(s)
            assert [follow(s, n) for n in range(5)] == warm
    finally:
        assert s.stop() == 0


def test_fewer_snapshots_than_were_kept(tmp_path):
    """The rest of the prefixes is computed; another count of snapshots is no other model."""
    s = serve_hybrid(tmp_path)
    warm = [follow(s, n) for _ in range(2) for n in range(5)][5:]
    assert s.stop() == 0
    s = serve_hybrid(tmp_path, "--state-snapshots", 2)
    again = [follow(s, n) for n in (4, 0)]
    assert s.stop() == 0
    assert again == [warm[4], (warm[0][0], 0)]


def test_host_tier_is_kept(tmp_path):
    """A pool that holds two of them, the rest is in the host tier."""
    flags = ("--num-gpu-blocks-override", 40, "--kv-offloading-size", 0.05, "--max-num-batched-tokens", 512)
    s = serve(tmp_path, *flags)
    ask_all(s)
    warm = ask_all(s)
    host = metric(s.metrics(), "evenkeel_host_kv_blocks", state="cached")
    assert s.stop() == 0 and host > 30
    s = serve(tmp_path, *flags)
    again = ask_all(s)
    assert s.stop() == 0
    assert [t for t, _ in again] == [t for t, _ in warm] and sum(c for _, c in again) >= 0.95 * sum(c for _, c in warm)


def test_engine_alone_is_warm(tmp_path):
    """Restarted by plan, and released and acquired."""
    s = serve(tmp_path, "--engine-process")
    try:
        ask_all(s)
        warm = ask_all(s)
        restart(s)
        assert ask_all(s) == warm
        order(s, "release")
        wait_for("no engine", lambda: engine_state(s)["state"] == "released")
        order(s, "acquire")
        assert ask_all(s) == warm
        assert taken(s) > 0
    finally:
        assert s.stop() == 0


def host_cached(server):
    return metric(server.metrics(), "evenkeel_host_kv_blocks", state="cached")


def shared_bytes(server):
    """That server and engine share, as far as pages were touched."""
    folder = f"/proc/{server.process.pid}/fd"
    return max(os.stat(f"{folder}/{fd}").st_blocks * 512 for fd in os.listdir(folder) if "memfd:evenkeel-engine" in os.readlink(f"{folder}/{fd}"))


def test_host_tier_outlives_the_engine(tmp_path):
    """Without a file: it is found again after a restart and a signal from outside; after a fault, an end that may be for memory and a release it is
    empty; texts are the same."""
    faults = EngineFaults(tmp_path)
    s = Bare(tmp_path, "--max-num-seqs", 8, "--max-model-len", 512, "--enable-prompt-tokens-details", "--engine-process", "--num-gpu-blocks-override", 40,
             "--dumpable", "--kv-offloading-size", 0.05, "--max-num-batched-tokens", 512, env=faults.env)

    def lose(how):
        with another_engine(s):
            if how == "fault":
                faults.once("segv")
                assert ask(s, 0)[0] == texts[0]
            elif isinstance(how, str):
                order(s, how)
                if how == "release":
                    wait_for("no engine", lambda: engine_state(s)["state"] == "released")
                    order(s, "acquire")
            else:
                os.kill(engine(s), how)

    try:
        texts = [t for t, _ in ask_all(s)]
        ask_all(s)
        for how in ("restart", signal.SIGABRT, signal.SIGSEGV, "restart"):
            had = host_cached(s)
            lose(how)
            assert host_cached(s) == had > 30, how
            again = ask_all(s)
            assert [t for t, _ in again] == texts and sum(c for _, c in again) > 300, (how, again)
        for how in ("fault", signal.SIGKILL, "release"):
            had = shared_bytes(s)
            assert host_cached(s) > 30
            lose(how)
            assert host_cached(s) == 0 and shared_bytes(s) < had - (1 << 20), (how, had)
            assert [t for t, _ in ask_all(s)] == texts
            ask_all(s)
    finally:
        assert s.stop() == 0


@pytest.mark.long
def test_damage_is_a_miss(tmp_path, left):
    """Changed or cut at offsets that a seed chose: the texts are right, and one line tells."""
    file = tmp_path / "kept/prefixes"
    whole, draw = file.read_bytes(), random.Random(20261123)
    for at in (0, 20, 210, *(draw.randrange(len(whole)) for _ in range(3))):
        cut = draw.random() < 0.3
        file.write_bytes(whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        s = serve(tmp_path)
        again = ask_all(s)
        assert s.stop() == 0
        assert [t for t, _ in again] == [t for t, _ in left], at
        assert sum("are not used" in line or "damaged" in line for line in s.log().splitlines()) == 1, (at, s.log())


@pytest.mark.long
def test_another_model_is_a_miss(tmp_path, left):
    """Also one whose block size alone is another."""
    file = tmp_path / "kept/prefixes"
    copy = file.read_bytes()
    for flags, why in ((("--block-size", 32), "its blocks are of 16 tokens"), (("--dtype", "float32"), "it is of another model")):
        s = serve(tmp_path, *flags)
        assert [c for _, c in ask_all(s)] == [0] * len(left)
        assert s.stop() == 0 and why in s.log()
        file.write_bytes(copy)


def test_full_disk_keeps_none(tmp_path):
    (tmp_path / "kept").mkdir()
    with small_disk(tmp_path / "kept", "64k"):
        (tmp_path / "kept/other").write_bytes(b"x" * 40000)
        s = serve(tmp_path)
        ask_all(s)
        assert s.stop() == 0
        assert sum("not kept" in line and "No space left" in line for line in s.log().splitlines()) == 1, s.log()
        assert [p.name for p in (tmp_path / "kept").iterdir() if not p.name.startswith("cpu-forms.")] == ["other"]


def test_a_disk_that_fills_while_it_writes(tmp_path):
    """There seemed to be room, and others took it: nothing is kept, nothing half is left, and the next start is cold."""
    library = tmp_path / "roomy_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/roomy_disk.c"], check=True)
    (tmp_path / "kept").mkdir()
    with small_disk(tmp_path / "kept", "128k"):
        s = serve(tmp_path, env={"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"})
        ask_all(s)
        assert s.stop() == 0
        assert sum("not kept" in line and "No space left" in line for line in s.log().splitlines()) == 1, s.log()
        assert [p.name for p in (tmp_path / "kept").iterdir() if not p.name.startswith("cpu-forms.")] == []
        s = serve(tmp_path)
        assert [c for _, c in ask_all(s)][0] == 0
        assert s.stop() == 0


def test_a_folder_that_is_not_there_is_said_at_start(tmp_path):
    s = serve(tmp_path, "--prefix-file", tmp_path / "no/such/folder/cache")
    assert "will not be kept over restarts" in s.log() and "StateDirectory=" in s.log()
    assert s.stop() == 0


def test_keys_keep_theirs_apart(tmp_path):
    """Without --prefix-file-keys nothing is kept, and what lay there is gone; with it each key finds its own."""
    keys = tmp_path / "keys"
    keys.write_text("a alpha-key-0123456789\nb beta-key-0123456789\n")
    keys.chmod(0o600)
    alpha, beta = ({"Authorization": f"Bearer {k}-key-0123456789"} for k in ("alpha", "beta"))
    file = tmp_path / "kept/prefixes"
    s = serve(tmp_path)
    ask_all(s)
    assert s.stop() == 0 and file.exists()
    s = serve(tmp_path, "--api-key-file", keys)
    assert ask(s, 0, **alpha)[1] == 0 and s.stop() == 0 and not file.exists() and "--prefix-file-keys" in s.log()
    s = serve(tmp_path, "--api-key-file", keys, "--prefix-file-keys")
    ask(s, 0, **alpha)
    warm = ask(s, 0, **alpha)
    assert s.stop() == 0
    for n in range(2):
        s = serve(tmp_path, "--api-key-file", keys, "--prefix-file-keys")
        assert ask(s, n, **beta)[1] == 0 and ask(s, 0, **alpha) == warm
        assert s.stop() == 0


@pytest.mark.long
def test_appliance_restarts_warm(tmp_path):
    """evenkeelctl restart; warm_restart: false keeps none."""
    for on in (True, False):
        run = tmp_path / str(on)
        run.mkdir()
        a = Appliance(run, ["--enable-prompt-tokens-details", "--threads", 1], extra="" if on else "    warm_restart: false\n").start().ready()
        try:
            client = Asker(a.port)
            ask_all(client)
            warm = ask_all(client)
            pid = a.server()["pid"]
            a.ctl("restart")
            wait_for("another server", lambda: a.server()["ready"] and a.server()["pid"] != pid)
            again = ask_all(client)
            assert [t for t, _ in again] == [t for t, _ in warm]
            assert [c for _, c in again] == ([c for _, c in warm] if on else [0] * len(warm))
            assert (run / "state/s1.prefixes").exists() == on
        finally:
            a.destroy()


class Asker:
    def __init__(self, port):
        self.port = port

    ask, exchange = Bare.ask, staticmethod(Bare.exchange)
