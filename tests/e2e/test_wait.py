"""Protects: drain, resume and restart with --wait end when they are done, with an exit code and a sentence for each end."""
import http.client
import json
import re
import shutil
import subprocess

from conftest import BUILD, MODEL, wait_for


def ctl(a, *words):
    return subprocess.run([BUILD / "evenkeelctl", "--socket", a.run / "evenkeeld.sock", *words], capture_output=True, text=True, timeout=60)


def test_waits_until_it_is_done(appliance):
    a = appliance()
    pid = a.server()["pid"]
    drained = ctl(a, "drain", "--wait", "--timeout", "30")
    assert drained.returncode == 0 and drained.stdout.startswith("Drained after "), drained
    assert a.server()["state"] == "drained"
    resumed = ctl(a, "resume", "-w")
    assert resumed.returncode == 0 and resumed.stdout.startswith("Ready after "), resumed
    restarted = ctl(a, "restart", "--wait", "--json")
    assert restarted.returncode == 0 and restarted.stderr == ""
    now = json.loads(restarted.stdout)
    assert now["state"] == "ready" and now["pid"] not in (0, pid)
    turn = ctl(a, "rolling-restart", "--wait")
    assert turn.returncode == 0 and a.server()["pid"] != now["pid"], turn


def test_says_what_is_not_done_in_time(appliance):
    a = appliance(server_flags=["--max-num-seqs", "2"])
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1900, "ignore_eos": True, "stream": True})
    waiting = [http.client.HTTPConnection("127.0.0.1", a.port) for _ in range(40)]  # much more than a second's work
    for c in waiting:
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    wait_for("two that run", lambda: a.server()["signals"]["running"] == 2)
    late = ctl(a, "drain", "--timeout", "1")
    assert late.returncode == 4 and late.stdout == "", late
    assert re.search(r"Not drained within 1 s \(s1: draining, 2 run, \d+ wait, 1 s\); it goes on\.", late.stderr), late
    said = ctl(a, "resume", "--wait")
    assert said.returncode == 0, said
    for c in waiting:
        c.close()
    gone = ctl(a, "-s", "s2", "drain", "--wait")
    assert gone.returncode == 1 and "no server 's2'" in gone.stderr


def test_the_engines_process(appliance):
    """Ended and started through evenkeeld: the server stays, and is not ready while its engine is released."""
    a = appliance(server_flags=["--engine-process"])
    pid = a.server()["pid"]
    again = ctl(a, "engine", "restart", "--wait")
    assert again.returncode == 0 and again.stdout.startswith("Ready after "), again
    released = ctl(a, "engine", "release", "--wait")
    assert released.returncode == 0 and released.stdout.startswith("Released after "), released
    wait_for("it is not ready", lambda: not a.server()["ready"])
    there = ctl(a, "engine", "acquire", "--wait")
    assert there.returncode == 0 and there.stdout.startswith("Ready after "), there
    wait_for("it is ready", lambda: a.server()["ready"])
    now = a.server()
    assert now["pid"] == pid and now["engine_process"]["planned"] == 2, now
    assert "release of the engine's process, no drain" in ctl(a, "explain").stdout


def test_another_evenkeeld_acquires(appliance):
    """What one released the next one can acquire, though it has never seen the server ready."""
    a = appliance(server_flags=["--engine-process"])
    pid = a.server()["pid"]
    assert ctl(a, "engine", "release", "--wait").returncode == 0
    a.process.kill()
    a.process.wait()
    a.start()
    wait_for("it is adopted, and acquired", lambda: a.server()["pid"] == pid and ctl(a, "engine", "acquire").returncode == 0)
    wait_for("it is ready", lambda: a.server()["ready"])
    assert a.server()["pid"] == pid


def test_a_restart_that_the_server_refuses(appliance, tmp_path):
    """Its sentence is evenkeelctl's, with an exit code; nothing is restarted. With the files there again it is done."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    a = appliance(server_flags=["--engine-process"], model=model)
    pid, weights = a.server()["pid"], next(model.glob("*.safetensors"))
    weights.rename(tmp_path / "kept")
    for words in [], ["--wait"]:
        refused = ctl(a, "engine", "restart", *words)
        assert refused.returncode == 1 and refused.stdout == "", refused
        assert "There would be no engine after a restart, so this one goes on: " in refused.stderr and "weights" in refused.stderr, refused
    wait_for("it is told, too", lambda: "There would be no engine" in ctl(a, "explain").stdout)
    (tmp_path / "kept").rename(weights)
    done = ctl(a, "engine", "restart", "--wait")
    assert done.returncode == 0 and a.server()["pid"] == pid and a.server()["engine_process"]["planned"] == 1, done


def test_without_an_engines_process(appliance):
    a = appliance()
    refused = ctl(a, "engine", "restart")
    assert refused.returncode == 1 and "--engine-process" in refused.stderr, refused
    assert "restart, release or acquire" in ctl(a, "engine").stderr
