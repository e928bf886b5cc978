"""Protects: an engine's process may end at any moment, and no client notices more than a pause: every text is the one of an undisturbed
server, whatever was asked for; the budget, a hang and a start that fails are told; the server's end takes the engine along."""
import concurrent.futures
import json
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest

from bare import Bare
from conftest import BUILD, MODEL, ROOT, metric, wait_for
from engine_faults import WHAT, EngineFaults
from engines import (ASKS, LOST, all_free, always, children, end_engine, engine, engine_state, make_tokens, order, replaced, restart, said_by, serve, text_of,
                     texts_alone, tokens)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a server of one process says to all of ASKS."""
    return texts_alone(tmp_path_factory.mktemp("one"), ASKS, "--max-num-seqs", 8, "--max-model-len", 1024)


@pytest.mark.parametrize("how, stream", [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGSEGV, True)])
def test_texts_go_on(tmp_path, undisturbed, how, stream):
    """Ended four times while all of it runs, again and again: every answer is that of an undisturbed server."""
    draw = random.Random(20261123)
    s = serve(tmp_path)
    try:
        first = engine(s)
        with always(s, undisturbed, stream=stream):
            for _ in range(4):
                end_engine(s, how, draw.randint(20, 250))
        page = s.metrics()
        assert replaced(s) == 4 == metric(page, "evenkeel_engine_restarts_total", cause="ended")
        assert metric(page, "evenkeel_engine_replayed_requests_total") >= 1 and metric(page, "evenkeel_engine_pause_seconds_sum") > 0
        assert metric(page, "evenkeel_engine_pause_seconds_count") == 4 and metric(page, "evenkeel_engine_recomputed_tokens_total") > 0
        assert metric(page, "evenkeel_recomputed_tokens_total") == 0
        assert metric(page, "vllm:num_preemptions_total") == 0 == metric(page, "evenkeel_engine_suspect_requests")
        assert engine(s) != first and f"signal {int(how)}" in s.log()
        assert (f"which process {os.getpid()} sent" in s.log()) == (how == signal.SIGSEGV)
    finally:
        assert s.stop() == 0


def test_frequencies_of_short_contexts(tmp_path):
    """longrope has other frequencies where less than the original length is served, also in the engine's process."""
    model, said = tmp_path / "longrope", []
    shutil.copytree(MODEL, model)
    config = json.loads((model / "config.json").read_text())
    half = config["head_dim"] // 2
    config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "longrope", "original_max_position_embeddings": 1024, "long_factor": [4.0] * half,
                                 "short_factor": [1.0] * half}
    (model / "config.json").write_text(json.dumps(config))
    for length, flags in (1024, ()), (1024, ("--engine-process",)), (2048, ("--engine-process",)):
        s = Bare(tmp_path, *flags, "--max-num-seqs", 8, "--max-model-len", length, model=model)
        try:
            said.append(text_of(s, ASKS[0]))
        finally:
            assert s.stop() == 0
    assert said[0] == said[1] != said[2]


def test_planned_restarts(tmp_path, undisturbed):
    """Asked for six times while all of it runs: every answer is that of an undisturbed server, and no request is suspected."""
    draw = random.Random(20261124)
    s = serve(tmp_path, "--engine-restarts", 1)  # they are not of its budget
    try:
        pids, busy = {engine(s)}, []
        with always(s, undisturbed, stream=True):
            for _ in range(6):
                make_tokens(s, draw.randint(20, 250))
                restart(s)
                pids.add(engine(s))
                busy.append(metric(s.metrics(), "evenkeel_device_busy_seconds_total"))
        assert busy == sorted(busy) and busy[-1] > 0, "a counter that goes down is another server to who reads it"
        page = s.metrics()
        assert len(pids) == 7 and replaced(s) == 0 == metric(page, "evenkeel_engine_suspect_requests")
        assert metric(page, "evenkeel_engine_restarts_total", cause="planned") == 6 and metric(page, "vllm:num_preemptions_total") == 0
        assert metric(page, "evenkeel_engine_state", state="running") == 1 and "as asked for" in s.log()
    finally:
        assert s.stop() == 0


def test_release_and_acquire(tmp_path, undisturbed):
    """Without its process requests wait, old and new ones; streams get their comments; then all go on with the same text."""
    s = serve(tmp_path, "--sse-keep-alive", "0.1")
    long = {**ASKS[1], "max_tokens": 700, "n": 12}
    body = json.dumps({"model": "tiny", **long, "stream": True}).encode()
    try:
        want = text_of(s, long)
        with concurrent.futures.ThreadPoolExecutor(len(ASKS)) as pool:
            stream = urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{s.port}/v1/completions", body,
                                                                   {"Content-Type": "application/json"}), timeout=120)
            said = stream.readline()
            jobs = [pool.submit(text_of, s, ask) for ask in ASKS[:3]]
            order(s, "release")
            wait_for("it is released", lambda: engine_state(s)["state"] == "released", 60)
            assert engine(s) is None and s.ask("/readyz")[0] == 503 and s.ask("/livez")[0] == 200
            assert metric(s.metrics(), "evenkeel_engine_state", state="released") == 1
            jobs += [pool.submit(text_of, s, {**ask, "stream": True}) for ask in ASKS[3:]]
            wait_for("they wait", lambda: engine_state(s)["waiting"] >= len(ASKS) - 3, 60)
            while b"still here" not in said[-200:]:
                line = stream.readline()
                assert line, said[-200:]
                said += line
            assert not any(job.done() for job in jobs[3:])
            order(s, "release")  # it is
            order(s, "acquire")
            assert [job.result() for job in jobs] == undisturbed
            said += stream.read()
        assert said_by(said.decode()) == want
        assert s.ask("/readyz")[0] == 200 and engine_state(s)["restarts"] == {"planned": 1, **dict.fromkeys(LOST, 0)}
    finally:
        assert s.stop() == 0


def test_waiting_is_bounded(tmp_path, undisturbed):
    """An answer gets 503 with Retry-After, a stream the error event, who comes later is refused; and then it serves again."""
    s = serve(tmp_path, "--engine-wait", "0.5")
    body = {"model": "tiny", **ASKS[0], "max_tokens": 1000, "n": 64}
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            streamed = pool.submit(s.ask, "/v1/completions", "POST", json.dumps({**body, "stream": True}), None, 60)
            wait_for("it runs", lambda: tokens(s) > 0, 60, 0.002)
            whole = pool.submit(s.ask, "/v1/completions", "POST", json.dumps(body), None, 60)
            order(s, "release")
            whole, streamed = whole.result(), streamed.result()
        assert whole[0] == 503 and "--engine-wait" in json.loads(whole[2])["error"]["message"], whole
        assert int(whole[1]["retry-after"]) > 0
        assert streamed[0] == 200 and b"--engine-wait" in streamed[2] and b"data: [DONE]" in streamed[2], streamed[2][-400:]
        wait_for("it says so", lambda: metric(s.metrics(), "evenkeel_engine_cut_requests_total") >= 2)
        late = s.ask("/v1/completions", "POST", json.dumps(body), None, 60)
        assert late[0] == 503 and int(late[1]["retry-after"]) > 0
        assert metric(s.metrics(), "evenkeel_refused_total", reason="engine") >= 1
        order(s, "acquire")
        wait_for("it serves", lambda: s.ask("/readyz")[0] == 200)
        assert text_of(s, ASKS[0]) == undisturbed[0]
    finally:
        assert s.stop() == 0


def test_ended_while_released(tmp_path):
    """SIGTERM does not wait for an engine that nobody acquires; a server without such a process refuses the verbs."""
    s = serve(tmp_path, "--shutdown-timeout", 1)
    one = Bare(tmp_path / "one") if (tmp_path / "one").mkdir() is None else None
    try:
        order(s, "release")
        wait_for("it is released", lambda: engine_state(s)["state"] == "released", 60)
        status, _, body = one.local("/v1/engine/restart", "POST", "{}")[:3]
        assert status == 409 and b"--engine-process" in body and not engine_state(one)["process"]
    finally:
        assert s.stop() == 0
        assert one.stop() == 0


def test_small_pool(tmp_path, undisturbed):
    """With preemptions and a host tier, whose content may go with the engine."""
    s = serve(tmp_path, "--num-gpu-blocks-override", 72, "--swap-space", "0.01")
    try:
        with always(s, undisturbed):
            for n in (150, 30):
                end_engine(s, signal.SIGKILL, n)
        all_free(s)
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("how, says", [("signal", "stopped by a signal"), ("step", "it made no progress in time")])
def test_a_hang(tmp_path, undisturbed, how, says):
    """It stands still: the step's deadline passes, and another one takes over."""
    faults = EngineFaults(tmp_path)
    s = serve(tmp_path, "--step-deadline", 10, env=faults.env)
    try:
        stopped = engine(s)
        if how == "signal":
            os.kill(stopped, signal.SIGSTOP)
        else:
            faults.once("hang", after=20)
        assert text_of(s, ASKS[0]) == undisturbed[0]
        assert engine(s) != stopped and not os.path.exists(f"/proc/{stopped}")
        assert says in s.log() and metric(s.metrics(), "evenkeel_engine_restarts_total", cause="hang") == 1
    finally:
        assert s.stop() == 0


def test_idle(tmp_path, undisturbed):
    """It ended while nobody asked for anything: another one comes, at once or with the next request."""
    s = serve(tmp_path)
    try:
        assert text_of(s, ASKS[0]) == undisturbed[0]
        os.kill(engine(s), signal.SIGKILL)
        assert text_of(s, ASKS[0]) == undisturbed[0]
        assert replaced(s) == 1
        os.kill(engine(s), signal.SIGKILL)
        wait_for("another engine", lambda: replaced(s) == 2)
    finally:
        assert s.stop() == 0


def test_budget(tmp_path):
    """The second time is one too many: it ends as a server without such a process does, and says why."""
    s = serve(tmp_path, "--engine-restarts", 1)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(s.ask, "/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[0], "max_tokens": 1000}), None, 60)
            end_engine(s, signal.SIGKILL, 20)
            make_tokens(s, 40)
            os.kill(engine(s), signal.SIGKILL)
            assert job.result()[0] in (0, 200, 500)  # it may have been quicker
        s.process.wait(60)
        assert s.process.returncode == 76 and json.loads((tmp_path / "exit.json").read_text())["code"] == 76
    finally:
        s.stop()


def test_ended_while_it_loads(tmp_path, undisturbed):
    """The engine ends, and so do the next three while they load: each counts, and every text goes on."""
    faults = EngineFaults(tmp_path)
    s = serve(tmp_path, env=faults.env)
    try:
        with always(s, undisturbed, stream=True):
            make_tokens(s, 50)
            faults.hold = 1
            gone = engine(s)
            for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGKILL):
                os.kill(gone, how)
                wait_for("another engine loads", lambda old=gone: engine(s) not in (None, old), 60, 0.002)
                gone = engine(s)
            faults.hold = 0
            wait_for("it is there", lambda: engine_state(s)["state"] == "running", 60)
        assert engine_state(s)["restarts"] == {"planned": 0, **dict.fromkeys(LOST, 0), "ended": 4}
        assert s.log().count("which is tried again: The engine could not be loaded: its process ended with signal") == 3, s.log()
    finally:
        faults.hold = 0
        assert s.stop() == 0


def test_a_machine_that_stands_still(tmp_path):
    """Server and engine are frozen for longer than a step may take, as by a freezer or a host that gives no processor: that is no hang."""
    s = serve(tmp_path, "--step-deadline", 4)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(text_of, s, {**ASKS[0], "max_tokens": 900})
            make_tokens(s, 20)
            launcher = children(s.process.pid)[0]
            frozen = [s.process.pid, launcher, *children(launcher)]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(5)
            for pid in reversed(frozen):
                os.kill(pid, signal.SIGCONT)
            assert job.result()[0][1] == "length"
        assert engine_state(s)["restarts"]["hang"] == 0, s.log()
    finally:
        assert s.stop() == 0


def test_without_its_launcher(tmp_path):
    """No other engine could be started: the server ends as one without such a process, and its supervisor starts it again."""
    s = serve(tmp_path)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(s.ask, "/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[0], "max_tokens": 1000}), None, 60)
            make_tokens(s, 20)
            os.kill(children(s.process.pid)[0], signal.SIGKILL)
            assert job.result()[0] in (0, 200, 500)  # it may have been quicker
        s.process.wait(60)
        assert s.process.returncode == 76
        assert "the process that starts engines has ended" in s.log()
    finally:
        s.stop()


def test_another_model_is_not_taken(tmp_path):
    """The files were replaced while it served: texts must not go on with other weights."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    s = Bare(tmp_path, "--engine-process", model=model)
    try:
        weights = next(model.glob("*.safetensors"))
        weights.rename(model / "old")
        shutil.copy(model / "old", weights)
        os.kill(engine(s), signal.SIGKILL)
        s.process.wait(60)
        assert s.process.returncode == 76 and "its files are not those that the server has read" in s.log(), s.log()
    finally:
        s.stop()


@pytest.mark.parametrize("what", ["replaced", "gone"])
def test_a_restart_is_refused(tmp_path, undisturbed, what):
    """After which there would be no engine: the one there is goes on, and who asked is told why; once the files are there again it is done."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    s = Bare(tmp_path, "--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, model=model)
    try:
        first, weights = engine(s), next(model.glob("*.safetensors"))
        with always(s, undisturbed, stream=True):
            weights.rename(tmp_path / "kept")
            if what == "replaced":
                shutil.copy(tmp_path / "kept", weights)
            for word in "another version's files", "still":
                status, _, body = s.local("/v1/engine/restart", "POST", "{}")[:3]
                assert status == 503 and b"this one goes on" in body and b"same weights" in body, (word, body)
            assert engine(s) == first and engine_state(s)["state"] == "running" and engine_state(s)["restarts"]["planned"] == 0
            (tmp_path / "kept").rename(weights)
            restart(s)
        assert engine(s) != first and s.log().count("there would be none afterwards") == 2, s.log()
    finally:
        assert s.stop() == 0


def group_of(pid):
    with open(f"/proc/{pid}/cgroup") as f:
        return next((line[3:].strip() for line in f if line.startswith("0::")), None)


def test_it_has_a_cgroup(tmp_path, undisturbed):
    """Below the server's, and the next one is in it again. The kernel, when it lacks memory, chooses the engine first."""
    s = serve(tmp_path)
    try:
        pid, launcher = s.process.pid, children(s.process.pid)[0]
        scores = []
        for p in (pid, engine(s)):
            with open(f"/proc/{p}/oom_score_adj") as f:
                scores.append(int(f.read()))
        assert scores[1] == min(1000, scores[0] + 200), scores
        if "shares the server's cgroup" in s.log():
            assert group_of(engine(s)) == group_of(pid)
            pytest.skip("no cgroup can be made here: " + s.log().split("shares the server's cgroup")[1].splitlines()[0])
        assert "has the cgroup " in s.log() and s.log().count("The engine's process has") == 1
        path = s.log().split("has the cgroup ")[1].split(",")[0]
        assert path.endswith(group_of(engine(s))) and group_of(engine(s)).endswith(f"/evenkeel-engine.{pid}")
        assert group_of(pid) != group_of(launcher) == group_of(engine(s))
        with always(s, undisturbed, stream=True):
            end_engine(s, signal.SIGKILL, 50)
        assert group_of(engine(s)).endswith(f"/evenkeel-engine.{pid}") and replaced(s) == 1
    finally:
        assert s.stop() == 0
    again = serve(tmp_path)
    again.stop()
    assert not os.path.exists(path), "the next server removes what one by hand left"


def plug_in(source, folder):
    """Puts a plug-in beside the server in the way of a package: another file takes the name."""
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-std=gnu17", "-D_GNU_SOURCE", f"-I{ROOT}", "-o", folder / "new.so", source], check=True)
    (folder / "new.so").rename(folder / "libevenkeel-cuda.so")
    return (folder / "libevenkeel-cuda.so").stat().st_ino


def loaded(pid):
    """The inodes of plug-ins in the process."""
    with open(f"/proc/{pid}/maps") as f:
        return {int(line.split()[4]) for line in f if "libevenkeel-cuda.so" in line}


def test_another_plug_in(tmp_path, undisturbed):
    """While all of it runs: one of another version is refused and the engine goes on; a newer one is what the next engine has. No stream is
    lost, every text is that of an undisturbed server. The plug-in is the CPU backend under CUDA's name (tests/sim/paced_backend.c)."""
    build, paced, other = tmp_path / "build", ROOT / "tests/sim/paced_backend.c", tmp_path / "other.c"
    build.mkdir()
    shutil.copy(BUILD / "evenkeel-server", build)
    other.write_text("const void *ek_backend_get(unsigned abi) { return abi ? 0 : \"\"; }\n")
    before = plug_in(paced, build)
    s = serve(tmp_path, "--device", "cuda", build=build)
    try:
        first = engine(s)
        assert loaded(first) == {before}
        with always(s, undisturbed, stream=True):
            plug_in(other, build)
            status, _, body = s.local("/v1/engine/restart", "POST", "{}")[:3]
            assert status == 503 and b"this one goes on" in body and b"of another version than this program" in body, body
            assert engine(s) == first and engine_state(s)["state"] == "running"
            newer = plug_in(paced, build)
            make_tokens(s, 50)
            restart(s)
        assert loaded(engine(s)) == {newer} != {before} and replaced(s) == 0
        assert metric(s.metrics(), "evenkeel_engine_replayed_requests_total") >= 1
    finally:
        assert s.stop() == 0


def test_no_shared_memory(tmp_path):
    """Memory that could not be touched later is said at the start, and is no signal then."""
    faults = EngineFaults(tmp_path)
    faults.no_memory = 1
    s = Bare(tmp_path, "--engine-process", ready=False, env=faults.env)
    s.process.wait(60)
    assert s.process.returncode == 79 and "MiB, cannot be had" in s.log(), (s.process.returncode, s.log())


def test_it_ends_with_its_server(tmp_path):
    s = serve(tmp_path)
    pids = [*children(s.process.pid), engine(s)]
    s.process.kill()
    s.process.wait()
    wait_for("all are gone", lambda: not any(os.path.exists(f"/proc/{p}") for p in pids))


def ids_of(server, text):
    return json.loads(server.ask("/tokenize", "POST", json.dumps({"model": "tiny", "prompt": text}))[2])["tokens"]


@pytest.mark.parametrize("what", ["abort", "segv", "device"])
def test_poison(tmp_path, what):
    """One of 51 makes the engine fail, in one of three ways: it gets its error at the second time, the others the texts they would have had."""
    faults = EngineFaults(tmp_path)
    s = Bare(tmp_path, "--engine-process", "--max-num-seqs", 64, "--max-model-len", 512, env=faults.env)
    others = [{"prompt": f"{('Once upon a time', 'The little bear', 'One day', 'A river', 'The house')[i % 5]} {i}", "max_tokens": 40 + i, "seed": i,
               "temperature": (0, 0.8)[i % 2], "ignore_eos": True, "stream": i % 3 == 0} for i in range(50)]
    bad = {"model": "tiny", "prompt": "Ω once", "max_tokens": 40, "temperature": 0}
    try:
        with concurrent.futures.ThreadPoolExecutor(51) as pool:
            want = list(pool.map(lambda a: text_of(s, a), others))
            used = {t for a, w in zip(others, want) for t in ids_of(s, a["prompt"] + w[0][0])}
            faults.poison_what = WHAT[what]
            faults.poison = next(t for t in ids_of(s, bad["prompt"]) if t not in used and t > 2)
            jobs = [pool.submit(text_of, s, a) for a in others]
            error = s.ask("/v1/completions", "POST", json.dumps(bad))
            assert [job.result() for job in jobs] == want
        assert error[0] == 500 and b"failed twice" in error[2], error
        page = s.metrics()
        assert faults.done == 2 == metric(page, "evenkeel_engine_restarts_total", cause={"device": "device"}.get(what, "fault")), s.log()
        assert metric(page, "evenkeel_engine_poison_requests_total") == 1 and metric(page, "evenkeel_engine_suspect_requests") == 0
        for n in 1, 2:
            assert metric(s.metrics(), "evenkeel_engine_poison_keys_total") == 0
            assert s.ask("/v1/completions", "POST", json.dumps(bad))[0] == 500
        wait_for("its third one is told", lambda: metric(s.metrics(), "evenkeel_engine_poison_keys_total") == 1)
    finally:
        assert s.stop() == 0


def test_who_waits_for_a_start_that_fails_is_told(tmp_path):
    """A 503, which a proxy sends elsewhere; a reset would not say whether the request was run."""
    library = tmp_path / "slow_load.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, ROOT / "tests/e2e/slow_load.c"], check=True)
    s = serve(tmp_path, ready=False, env={"LD_PRELOAD": str(library), "SLOW_LOAD_S": "4", "ASAN_OPTIONS": "verify_asan_link_order=0"})
    try:
        wait_for("it loads", lambda: b"loading" in s.ask("/health")[2], 60)
        launcher = wait_for("its launcher", lambda: [p for p in children(s.process.pid) if open(f"/proc/{p}/comm").read() == "evenkeel-launch\n"])[0]
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(s.ask, "/v1/completions", "POST", json.dumps({"model": "tiny", **ASKS[0]})) for _ in range(40)]
            wait_for("they wait", lambda: metric(s.metrics(), "evenkeel_http_connections", role="parked") == 40, 3)
            os.kill(launcher, signal.SIGKILL)
            answers = [a.result() for a in asked]
        assert {status for status, _, _ in answers} == {503}, s.log()
        assert s.process.wait(60) == 70 and "The process that starts engines has ended" in s.log()
    finally:
        s.stop()


def kv_bytes(server):
    return metric(server.metrics(), "evenkeel_device_bytes", item="kv")


def test_limits_move(tmp_path, undisturbed):
    """The pool is made smaller and larger, and the engine that comes has as many blocks."""
    s = serve(tmp_path)
    try:
        for blocks in (200, 400):
            old = kv_bytes(s)
            assert s.local("/v1/runtime_config", "PATCH", json.dumps({"num_kv_blocks": blocks}))[0] == 200
            wait_for("it has so many", lambda old=old: kv_bytes(s) != old)
            before, has = replaced(s), kv_bytes(s)
            os.kill(engine(s), signal.SIGKILL)
            assert text_of(s, ASKS[0]) == undisturbed[0]
            assert replaced(s) == before + 1
            wait_for("the next one has as many", lambda has=has: kv_bytes(s) == has)
    finally:
        assert s.stop() == 0
