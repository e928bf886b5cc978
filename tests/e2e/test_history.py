"""Protects: what evenkeeld did and what befell its servers is known after kill -9, an upgrade, a damaged or a full disk; who asked is named."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from conftest import BUILD, gone, metric, small_disk, wait_for


def kill(appliance):
    appliance.process.kill()
    appliance.process.wait()


def crash(appliance):
    """The server is killed and is back."""
    pid = appliance.server()["pid"]
    os.kill(pid, signal.SIGKILL)
    return wait_for("another process serves", lambda: appliance.server()["pid"] not in (0, pid) and appliance.server()["ready"] and appliance.server())


def whys(appliance, reason):
    return [d["why"] for d in appliance.decisions() if d["reason"] == reason]


def test_everything_is_known_after_kill(appliance):
    a = appliance()
    a.ctl("limits", "pin", "max_num_running_seqs=4", "--reason", "a rehearsal")
    a.ctl("drain")
    wait_for("drained", lambda: a.server()["state"] == "drained")
    a.ctl("resume")
    wait_for("resumed", lambda: a.server()["ready"])
    crash(a)
    crash(a)
    wait_for("charts have rows", lambda: len(a.api("/api/v1/servers/s1/history")["rows"]) >= 2)
    before, rows = a.decisions(), a.api("/api/v1/servers/s1/history")["rows"]
    failures = a.api("/api/v1/servers/s1/failures")["failures"]
    assert a.server()["restarts"] == 2 and len(failures) == 2

    kill(a)
    a.start().ready()
    after = a.decisions()
    assert after[-len(before):] == before, "the decisions, word by word"
    assert after[-len(before) - 1]["reason"] == "UNWATCHED" and "ended without a word" in after[-len(before) - 1]["why"]
    assert a.server()["restarts"] == 2
    assert a.api("/api/v1/servers/s1/failures")["failures"] == failures
    again = a.api("/api/v1/servers/s1/history")["rows"]
    assert again[:len(rows)] == rows, "the charts begin where they began"
    assert metric(a.metrics(a.page), "evenkeel_supervisor_restarts_total", cause="crash") == 0, "counters are those of this process, as Prometheus expects"

    told = a.ctl("explain", "--since", "1h", "-n", "100").stdout
    for words in (r"Operator \(root.*\): max_num_running_seqs 4 pinned: a rehearsal", r"Draining for the operator \(root.*\)", r"Operator \(root.*\): resumed",
                  "SIGKILL", "UNWATCHED"):
        assert os.geteuid() != 0 and "root" in words or re.search(words, told.replace("\n    ", " ")), (words, told)


def test_a_death_that_nobody_watched(appliance):
    a = appliance()
    pid = a.server()["pid"]
    kill(a)
    os.kill(pid, signal.SIGKILL)
    wait_for("it is gone", lambda: gone(pid))
    a.start().ready()
    said = [w for w in whys(a, "CRASH") if "Ended while no evenkeeld watched" in w]
    assert len(said) == 1 and "SIGNAL: " in said[0], a.decisions()
    word = [w for w in whys(a, "UNWATCHED") if "ended without a word" in w]
    assert len(word) == 1 and "nobody watched for" in word[0]
    assert a.server()["restarts"] == 1 and a.server()["pid"] != pid
    assert metric(a.metrics(a.page), "evenkeel_supervisor_exits_total", **{"class": "SIGNAL"}) == 1
    assert a.api("/api/v1/servers/s1/failures")["failures"][0]["class"] == "SIGNAL"
    kill(a)
    a.start().ready()
    assert sum("Ended while no evenkeeld watched" in w for w in whys(a, "CRASH")) == 1, "it is said once"


def test_one_that_was_asked_to_end_meanwhile(appliance):
    a = appliance()
    pid = a.server()["pid"]
    kill(a)
    os.kill(pid, signal.SIGTERM)
    wait_for("it left its word", lambda: (a.run / "s1/exit.json").exists())
    wait_for("it is gone", lambda: gone(pid))
    a.start().ready()
    told = [d["why"] for d in a.decisions() if "Ended while no evenkeeld watched" in d["why"]]
    assert len(told) == 1 and "left no word" not in told[0], a.decisions()


def listens(path):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    return True


def test_somebody_else_started_another(appliance):
    a = appliance()
    before = a.server()["pid"]
    kill(a)
    words = open(f"/proc/{before}/cmdline").read().split("\0")[:-1]
    env = dict(v.split("=", 1) for v in open(f"/proc/{before}/environ").read().split("\0")[:-1])
    os.kill(before, signal.SIGKILL)
    wait_for("it is gone", lambda: gone(before))
    other = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("its control socket", lambda: listens(a.run / "s1/control.sock"))  # the file is there from before
        a.start()
        wait_for("it is adopted", lambda: a.server()["pid"] == other.pid, 60)
        assert any(f"Process {before} ended" in w and "somebody else had started another" in w for w in whys(a, "UNWATCHED")), a.decisions()
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("says", ["nothing", "OK"])
def test_who_answers_is_not_who_was_started(appliance, says):
    """Another process of the same user took the control socket's place while no evenkeeld watched."""
    a = appliance()
    before, path = a.server()["pid"], a.run / "s1/control.sock"
    kill(a)
    path.unlink()
    other = subprocess.Popen([sys.executable, "-c", IMPOSTOR, str(path), says], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert other.stdout.readline() == b"listens\n"
        a.start()
        wait_for("the noted one is adopted", lambda: a.server()["pid"] == before and a.server()["state"] not in ("adopting", "waiting"), 60)
        wait_for("it is told", lambda: f"process {other.pid} of user {os.geteuid()} answers on {path} and is not believed" in (a.run / "evenkeeld.log").read_text())
        assert other.poll() is None, "nobody ended it"
        assert not gone(before)
    finally:
        other.kill()
        other.wait()


IMPOSTOR = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print("listens", flush=True)
held = []
while True:
    held.append(s.accept()[0])
    if sys.argv[2] != "nothing":
        try:
            with open("/dev/null") as file:
                socket.send_fds(held[-1], [sys.argv[2].encode() + b"\\n"], [file.fileno()])
        except OSError:
            pass
"""


def test_an_upgrade_is_no_gap(appliance):
    a = appliance()
    crash(a)
    pid = a.server()["pid"]
    log = a.run / "state/incidents.log"
    for _ in range(3):
        a.process.send_signal(signal.SIGUSR1)
        assert a.process.wait(60) == 77
        a.start().ready()
    assert a.server()["pid"] == pid and a.server()["restarts"] == 1
    assert not any("no evenkeeld watched" in w for w in whys(a, "CRASH"))
    assert len([w for w in whys(a, "UNWATCHED") if "replaced by another" in w]) == 3, a.decisions()
    # An older version wrote the last word.
    a.process.send_signal(signal.SIGUSR1)
    assert a.process.wait(60) == 77
    with open(log, "a") as file:
        file.write(record("watch", {"pid": 1, "version": "0.0.9", "at_s": time.time(), "what": "hand over"}))
        file.write(record("of-the-future", {"server": "s1"}))
        file.write(record("decision", {"server": "s1", "at_s": time.time(), "action": "note", "reason": "OF_THE_FUTURE", "why": "x"}))
    a.start().ready()
    assert any(re.search(r"evenkeeld .* goes on for 0\.0\.9", w) for w in whys(a, "UNWATCHED"))
    assert any(d["reason"] == "OF_THE_FUTURE" for d in json.loads(a.ctl("explain", "--since", "today", "--json", "-n", "500").stdout)["decisions"]) is False, \
        "it is among those that this evenkeeld holds, and it does not know it"


def record(kind, body):
    text = f"{kind} {json.dumps(body, separators=(',', ':'))}"
    total = 14695981039346656037
    for byte in text.encode():
        total = (total ^ byte) * 1099511628211 % 2**64
    return f"{total:016x} {text}\n"


def test_damage_is_skipped_and_said(appliance):
    a = appliance()
    crash(a)
    known = len(a.decisions())
    kill(a)
    log = a.run / "state/incidents.log"
    lines = log.read_bytes().splitlines(keepends=True)
    spoilt = next(i for i, line in enumerate(lines) if b'"reason":"BACKOFF"' in line)
    lines[spoilt] = lines[spoilt].replace(b"starting", b"starding")
    log.write_bytes(b"".join(lines) + b"0123456789abcdef decision {\"server\":\"s1\",\"at_s\":17")  # the write that kill -9 cut
    with open(a.run / "state/charts-s1.bin", "r+b") as charts:
        charts.seek(1024)
        body = bytearray(charts.read())
        at = next(i for i, byte in enumerate(body) if byte)
        charts.seek(1024 + at)
        charts.write(bytes([body[at] ^ 255]))
    a.start().ready()
    assert len(a.decisions()) >= known - 1
    assert not whys(a, "BACKOFF") and whys(a, "CRASH")
    wait_for("it is said", lambda: "2 damaged records of the incident log" in (a.run / "evenkeeld.log").read_text())
    wait_for("and of its charts", lambda: "1 damaged seconds of its charts" in (a.run / "evenkeeld.log").read_text())
    kill(a)
    a.start().ready()
    assert whys(a, "UNWATCHED"), "what is written behind the damage is read"


def test_more_than_evenkeeld_holds_comes_from_the_disk(appliance):
    a = appliance()
    kill(a)
    begun = time.time() - 3 * 86400
    with open(a.run / "state/incidents.log", "a") as log:
        for n in range(2000):
            log.write(record("decision", {"server": "s1", "at_s": round(begun + n * 60, 6), "action": "note", "reason": "OPERATOR", "measured": 0,
                                          "limit": 0, "harm": 0, "held_s": 0, "why": f"step {n} of before"}))
    a.start().ready()
    assert len(a.decisions(256)) == 256
    told = json.loads(a.ctl("explain", "--since", "4d", "--json").stdout)["decisions"]
    steps = [int(d["why"].split()[1]) for d in told if d["why"].startswith("step")]
    assert steps == list(range(1999, -1, -1)), "all of them, newest first, none twice"
    assert "step 0 of before" in a.ctl("explain", "--since", "4d").stdout
    half = json.loads(a.ctl("explain", "--since", f"@{int(begun) + 60 * 1000}", "--json").stdout)["decisions"]
    assert [d["why"] for d in half if d["why"].startswith("step")][-1] in ("step 1000 of before", "step 1001 of before")
    assert len(json.loads(a.ctl("explain", "--since", "4d", "-n", "300", "--json").stdout)["decisions"]) == 300
    events = a.ctl("events", "--since", "4d", "--limit", "4096").stdout
    assert "step 0 of before" in events and "step 1999 of before" in events
    for bad in ("soon", "5x", ""):
        done = a.ctl("explain", "--since", bad, check=False)
        assert done.returncode == 2 and "--since takes" in done.stderr, (bad, done.stderr)
        assert "--since takes" in a.ctl("events", "--since", bad, check=False).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk is for root")
def test_a_full_disk_loses_records_and_nothing_else(appliance, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    with small_disk(state, "256k"):
        a = appliance()
        filler = state / "filler"
        file = os.open(filler, os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError):
            while os.write(file, b"x" * 4096):
                pass
        os.close(file)
        wait_for("records are lost", lambda: crash(a) and metric(a.metrics(a.page), "evenkeel_supervisor_history_lost_total") > 0, 60)
        assert "the history in" in (a.run / "evenkeeld.log").read_text()
        filler.unlink()
        crash(a)
        wait_for("it is written again", lambda: "is written again" in (a.run / "evenkeeld.log").read_text())
        kill(a)
        a.start().ready()
        assert whys(a, "CRASH")
        a.stop()


def test_a_server_that_stops_with_evenkeeld_is_no_death(appliance):
    a = appliance()
    assert a.stop() == 0
    a.start().ready()
    assert not whys(a, "CRASH") and any("stopped and started again" in w for w in whys(a, "UNWATCHED")), a.decisions()
    assert BUILD.exists()
