"""Protects: what a server did before it was killed is known afterwards, also when no evenkeeld looked on; no text and no key is in it."""
import glob
import json
import os
import re
import signal
import subprocess
import tarfile
import threading
import time

import pytest

from conftest import BUILD, stream, wait_for
from test_supervisor import Fakes

KEY = "key-of-nobody-4711"
SECRET = "The cormorant keeps its secret under the third flagstone"
ASK = {"model": "tiny", "prompt": SECRET, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}


class Stream(threading.Thread):
    def __init__(self, port, body=ASK):
        super().__init__(daemon=True)
        self.port, self.body, self.text = port, body, ""
        self.start()

    def run(self):
        try:
            for _, piece in stream(self.port, "/v1/completions", self.body, headers={"Authorization": f"Bearer {KEY}"}):
                self.text += piece if isinstance(piece, str) else ""
        except Exception:  # noqa: BLE001  # the server is killed under it
            pass


def ends(a, end=1):
    return a.api(f"/api/v1/servers/s1/postmortem?end={end}")


def wait_ends(a, count):
    return wait_for(f"{count} ends are kept", lambda: len(ends(a)["ends"]) == count and ends(a))


def streams(a, count=4):
    made = [Stream(a.port) for _ in range(count)]
    wait_for("they flow", lambda: all(len(s.text) > 200 for s in made))
    return made


def kill(a, how=signal.SIGKILL):
    """Ends the server; when that was."""
    pid = a.server()["pid"]
    at = time.time()
    os.kill(pid, how)
    wait_for("another process serves", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"])
    return pid, at


def files(a):
    """All that is kept or left: of names, bytes."""
    return {f: open(f, "rb").read() for pattern in ("*/*.ring", "*.ring", "state/ends/*") for f in glob.glob(f"{a.run}/{pattern}")}


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGSEGV))
def test_a_kill_under_streams(appliance, how):
    a = appliance(server_flags=("--max-num-seqs", "16"))
    a.ctl("limits", "pin", "max_num_running_seqs=8")
    made = streams(a)
    pid, at = kill(a, how)
    got = wait_ends(a, 1)["end"]
    assert got["pid"] == pid and got["server"] == "s1" and got["engine"] == "evenkeel"
    failure = a.api("/api/v1/servers/s1/failures")["failures"][0]
    assert got["class"] == failure["class"] and got["why"] == failure["why"], "the verdict is that of the incident log"
    assert abs(got["at_s"] - at) < 5 and -0.5 < at - got["last_record_s"] < 2, "the record goes on to the end"
    assert not got["starting"] and got["samples"]["columns"][0] == "at_s"

    requests = got["requests"]
    assert requests["alive"] == len(made) and {r["most_tokens"] for r in requests["list"]} == {1500}
    last = got["seconds"][-1]
    assert last["running"] == len(made) and last["waiting"] == 0 and last["limit_seqs"] == 8 and last["blocks_used"] > 0
    assert last["resident_mib"] > 10 and last["step_p50_us"] <= last["step_max_us"]
    made_tokens = sum(s["generated"] for s in got["seconds"])
    assert sum(s["decode_rows"] for s in got["seconds"]) + len(made) >= made_tokens > 100, "a prompt has one, too"
    prompts = sum(s["prefill_tokens"] for s in got["seconds"])
    assert prompts >= requests["list"][0]["prompt_tokens"] > 5, "they share a prefix"
    assert {s["seqs"] for s in got["last_steps"][-10:]} == {len(made)} and len(got["in_flight"]) <= 3
    assert any("4 requests had not ended" in line for line in got["summary"]), got["summary"]

    text = a.ctl("postmortem").stdout
    assert "s1 ended at" in text and failure["class"] in text and "4 requests had not ended" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("- ")) <= 80, text
    assert json.loads(a.ctl("postmortem", "s1", "--json").stdout) == ends(a)
    print(text)


def test_the_load_again(appliance):
    """The scheduler meets the recorded load as it was met, and with another limit what that one makes of it."""
    a = appliance()
    first = Stream(a.port, {**ASK, "max_tokens": 2000})
    wait_for("steps of one row were made", lambda: len(first.text) > 20)
    streams(a, 3)  # and of four
    kill(a)
    wait_ends(a, 1)
    said = a.ctl("postmortem", "--replay", "--max-num-seqs", "1").stdout
    rows = {m[1].strip(): [int(v) for v in m[2].split()] for m in re.finditer(r"(?m)^(\D{28})((?: +\d+){3})$", said)}
    recorded, same, changed = rows["tokens of answers"]
    assert recorded > 100 and same > 100 and changed > 0, said
    assert rows["requests waiting, at most"][2] == 3 and rows["preemptions"][1] == 0, said
    assert "4 requests in" in said and "4 of them had not ended" in said and SECRET not in said


def test_nothing_of_what_was_said(appliance, tmp_path):
    (tmp_path / "keys").write_text(KEY + "\n")
    os.chmod(tmp_path / "keys", 0o600)
    a = appliance(server_flags=("--api-key-file", tmp_path / "keys"), extra=f"    api_key_file: {tmp_path}/keys\n")
    made = streams(a)
    ring = next(f for f in files(a) if f.endswith("control.sock.ring"))
    assert os.stat(ring).st_mode & 0o777 == 0o600
    said = [s.text for s in made]
    kill(a)
    wait_ends(a, 1)
    kept = files(a)
    assert any("/ends/" in f for f in kept) and any(f.endswith(".before.ring") for f in kept)
    words = [SECRET, *SECRET.split(), KEY] + [t[i:i + 12] for t in said for i in range(0, len(t) - 12, 12)][:200]
    for name, data in kept.items():
        assert not [w for w in words if len(w) > 4 and w.encode() in data], name
        assert os.stat(name).st_mode & 0o777 == 0o600, name


def test_evenkeeld_was_killed_meanwhile(appliance):
    a = appliance()
    pid = a.server()["pid"]
    streams(a, 2)
    a.process.kill()
    a.process.wait()
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    a.start().ready()
    got = wait_ends(a, 1)["end"]
    assert got["pid"] == pid and got["requests"]["alive"] == 2 and got["seconds"][-1]["running"] == 2
    assert got["why"] == a.api("/api/v1/servers/s1/failures")["failures"][0]["why"]


def test_which_ends_are_kept(appliance):
    a = appliance()
    assert ends(a) == {"ends": [], "end": None}
    assert "No end of s1 is kept" in a.ctl("postmortem").stdout
    pids = [kill(a)[0]]
    wait_ends(a, 1)
    for n in range(2):
        pid = a.server()["pid"]
        a.ctl("restart")
        wait_for("another process serves", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 60)
    got = wait_ends(a, 2)
    assert [e["class"] for e in got["ends"]][0] == "CLEAN_EXIT" and got["end"]["class"] == "CLEAN_EXIT", got["ends"]
    assert any("idle" in line or "no step" in line for line in got["end"]["summary"]), got["end"]["summary"]
    assert ends(a, 2)["end"]["pid"] == pids[0], "a restart pushes no failure out"
    pids += [kill(a)[0] for _ in range(3)]
    wait_for("the newest is there", lambda: ends(a)["end"]["pid"] == pids[-1])
    assert len(ends(a)["ends"]) == 4 and {ends(a, n)["end"]["pid"] for n in range(1, 5)} >= set(pids[1:])
    assert "Kept ends" in a.ctl("postmortem", "s1", "--end", "2").stdout
    done = a.ctl("postmortem", "s1", "--end", "9", check=False)
    assert done.returncode == 1 and "There is no end 9 of s1" in done.stdout
    assert a.ctl("postmortem", "nobody", check=False).returncode == 1

    # the archive for others has them
    a.ctl("support-bundle", "--no-journal", "--config-dir", str(a.run), str(a.run / "b.tar.gz"))
    with tarfile.open(a.run / "b.tar.gz") as t:
        names = [n for n in t.getnames() if "postmortem" in n]
        assert len(names) == 4, t.getnames()
        first = json.load(t.extractfile(next(n for n in names if n.endswith("postmortem-1.json"))))
    assert first["end"]["pid"] == pids[-1]


def test_a_recording_that_is_none(appliance):
    a = appliance()
    ring = next(f for f in files(a) if f.endswith("control.sock.ring"))
    os.unlink(ring)
    os.mkfifo(ring)  # nobody waits for it
    kill(a)
    got = wait_ends(a, 1)["end"]
    assert "seconds" not in got and "There is no flight recording" in got["summary"][0]
    with open(ring, "r+b") as f:  # that of the next process
        f.seek(8)
        f.write(b"\xff\xff")
    kill(a)
    got = wait_ends(a, 2)["end"]
    assert "version 65535, this program reads 1" in got["summary"][0], got["summary"]
    assert "ended at" in a.ctl("postmortem").stdout


def test_without_a_recorder(appliance):
    a = appliance(server_flags=("--no-flight-recorder",))
    assert not [f for f in files(a) if f.endswith(".ring")]
    time.sleep(2.5)
    kill(a)
    got = wait_ends(a, 1)["end"]
    assert "it left no file" in got["summary"][0] and len(got["samples"]["rows"]) >= 1
    assert "99 % s" in a.ctl("postmortem").stdout, "what evenkeeld saw"
    replay = a.ctl("postmortem", "--replay", check=False)
    assert replay.returncode == 1 and "of an engine with a flight recorder" in replay.stderr


def test_many_at_once(tmp_path):
    """More than evenkeeld reads at a time."""
    names = [f"r{i}" for i in range(7)]
    f = Fakes(tmp_path, {n: (["--load", "2"], "") for n in names})
    try:
        f.start().ready()
        for s in f.all().values():
            os.kill(s["pid"], signal.SIGKILL)
        for n in names:
            got = wait_for(f"that of {n} is kept", lambda: f.ask("GET", f"/api/v1/servers/{n}/postmortem")[1]["end"])
            assert got["server"] == n and got["class"] == "SIGNAL"
    finally:
        f.end()


def test_another_engine(tmp_path):
    f = Fakes(tmp_path, {"v1": (["serve", "--port", "{port}", "--load", "20"], "    engine: vllm\n")}).start()
    try:
        f.ready()
        time.sleep(2.5)
        pid = f.all()["v1"]["pid"]
        os.kill(pid, signal.SIGKILL)
        got = wait_for("it is kept", lambda: f.ask("GET", "/api/v1/servers/v1/postmortem")[1]["end"])
        assert got["engine"] == "vllm" and got["summary"] == ["There is no flight recording: this engine has none."]
        columns, rows = got["samples"]["columns"], got["samples"]["rows"]
        assert len(rows) >= 2 and any(r[columns.index("running")] for r in rows)
        done = subprocess.run([BUILD / "evenkeelctl", "--socket", f"{f.run}/r/evenkeeld.sock", "postmortem", "v1"], capture_output=True, text=True)
        assert done.returncode == 0 and "SIGNAL" in done.stdout and "99 % s" in done.stdout
        print(done.stdout)
    finally:
        f.end()
