"""Protects: evenkeeld judges the end of an engine's process by the classes and ladders of a server's end, the server goes on with what it
says, and when nobody answers it goes on by itself within a second; no text changes by any of it."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from bare import Bare
from conftest import BUILD, Appliance, get, metric, wait_for
from engine_faults import WHAT, EngineFaults
from engines import ASKS, children, text_of, texts_of
from test_engine_process import undisturbed  # noqa: F401

FLAGS = ("--engine-process", "--max-num-seqs", 8, "--max-model-len", 1024, "--max-num-batched-tokens", 512)
PATIENT = ("--engine-verdict-wait", 60)  # an answer comes, however slow the machine is


def engine_of(pid):
    """The launcher's child, once it is there."""
    return wait_for("an engine", lambda: next((p for c in children(pid) for p in children(c)), None))


def limits_of(a):
    return a.server()["limits"]


def lost(a):
    """What evenkeeld said of engines, the oldest first."""
    return [d["why"] for d in a.decisions() if d["reason"] == "ENGINE_LOST"][::-1]


def log_of(a):
    return (a.run / "server.log").read_text(errors="replace")


def listens(a):
    """evenkeeld has given the server its end before it asked for the limits."""
    return wait_for("the limits are known", lambda: "max_num_batched_tokens" in limits_of(a) and a)


def end_engine(a, how, n=1):
    """Ends it while a text is made, and gives the text and the class that was told for it."""
    server = a.server()["pid"]
    before = metric(a.metrics(), "vllm:generation_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(text_of, a, ASKS[1])
        wait_for("tokens are made", lambda: metric(a.metrics(), "vllm:generation_tokens_total") > before + 20, 60, 0.002)
        os.kill(engine_of(server), how)
        said = job.result()
    wait_for("it is told", lambda: len(lost(a)) == n)
    assert a.server()["pid"] == server
    return said, lost(a)[-1]


@pytest.fixture
def judged(appliance):
    return listens(appliance(server_flags=(*FLAGS, *PATIENT)))


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_changes_no_limit(judged, undisturbed, how):  # noqa: F811
    """It is no lack of memory, and evenkeeld knows: its cgroup shows none."""
    a = judged
    said, why = end_engine(a, how)
    assert said == undisturbed[1] and why.startswith(f"Its engine's process: SIGNAL: Signal {int(how)}") and "the same limits" in why, why
    wait_for("the server has heard it", lambda: metric(a.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld") == 1)
    page, own = a.metrics(), a.metrics(a.page)
    assert metric(page, "evenkeel_engine_verdicts_total", by="none") == 0
    assert metric(own, "evenkeel_supervisor_engine_exits_total", **{"class": "SIGNAL"}) == 1
    assert metric(own, "evenkeel_supervisor_exits_total", **{"class": "SIGNAL"}) == 0
    assert "evenkeeld judged the engine's end: SIGNAL: it goes on with the same limits" in log_of(a)
    process = wait_for("its figures", lambda: (p := a.server()["engine_process"])["lost"] == 1 and p)
    assert process["state"] == "running" and process["planned"] == 0 and process["pause_s"] > 0, process
    assert "Engine process: running; lost and replaced 1 times" in str(get(a.page, "/"))
    assert "Its engine's process: SIGNAL" in a.ctl("explain").stdout
    assert limits_of(a)["max_num_batched_tokens"]["value"] == 512


def test_a_silent_evenkeeld_delays_nothing(appliance, undisturbed):  # noqa: F811
    """Stopped by a signal: the server waits for a second at most, says so once, and halves the token budget, since memory may have been short."""
    a = listens(appliance(server_flags=FLAGS))
    server = a.server()["pid"]
    a.process.send_signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(text_of, a, ASKS[1])
            wait_for("tokens are made", lambda: metric(a.metrics(), "vllm:generation_tokens_total") > 20, 60, 0.002)
            os.kill(engine_of(server), signal.SIGKILL)
            assert job.result() == undisturbed[1]
        wait_for("it went on", lambda: metric(a.metrics(), "evenkeel_engine_verdicts_total", by="none") == 1)
        assert metric(a.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld") == 0
        assert log_of(a).count("did not judge the engine's end within 1 s") == 1 and "max_num_batched_tokens 256 instead of 512" in log_of(a)
    finally:
        a.process.send_signal(signal.SIGCONT)
    wait_for("evenkeeld hears of it late", lambda: len(lost(a)) == 1)
    assert "the answer was too late" in lost(a)[0], lost(a)


def test_evenkeeld_is_killed_and_comes_back(judged, undisturbed):  # noqa: F811
    """Without it the server goes on at once by itself; the next evenkeeld judges again."""
    a = judged
    server = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    os.kill(engine_of(server), signal.SIGSEGV)
    assert text_of(a, ASKS[1]) == undisturbed[1]
    wait_for("it went on", lambda: metric(a.metrics(), "evenkeel_engine_verdicts_total", by="none") == 1)
    assert "the engine's end: it goes on with the same limits" in log_of(a) or "within 60 s: it goes on with the same limits" in log_of(a)
    a.start()
    wait_for("adopted", lambda: a.server()["ready"] and a.server()["pid"] == server)
    listens(a)
    said, why = end_engine(a, signal.SIGSEGV)
    assert said == undisturbed[1] and "Signal 11" in why
    wait_for("the server has heard it", lambda: metric(a.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld") == 1)


def test_nobody_judges(tmp_path, undisturbed):  # noqa: F811
    """A server without evenkeeld waits for nobody: a fault changes nothing, a SIGKILL halves the budget for a while, down to its floor."""
    s = Bare(tmp_path, *FLAGS)
    try:
        def limit():
            return json.loads(s.local("/v1/runtime_config")[2])

        def end(how, n):
            os.kill(engine_of(s.process.pid), how)
            wait_for("it went on", lambda: metric(s.metrics(), "evenkeel_engine_verdicts_total", by="none") == n)
            assert text_of(s, ASKS[1]) == undisturbed[1]
            return limit()
        assert end(signal.SIGSEGV, 1)["max_num_batched_tokens"] == 512
        for n, want in ((2, 256), (3, 128), (4, 64), (5, 64)):
            now = end(signal.SIGKILL, n)
            assert now["max_num_batched_tokens"] == want and 0 < now["expiring_in_s"]["max_num_batched_tokens"] <= 600
        assert "Nobody judges the engine's end: it goes on with the same limits" in s.log()
    finally:
        assert s.stop() == 0


class Judge:
    """The other end, by hand."""

    def __init__(self, server):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(server.control))
            socket.send_fds(s, [b"EVENKEEL-FD put losses\n"], [theirs.fileno()])
            assert s.recv(200) == b"OK\n"
        theirs.close()
        ours.settimeout(60)
        self.socket = ours

    def hear(self):
        return json.loads(self.socket.recv(65536))

    def say(self, **words):
        self.socket.send(json.dumps(words).encode())


def test_what_a_judge_may_say(tmp_path, undisturbed):  # noqa: F811
    """Limits are lowered, never raised, and never below their floors; what is no answer, or one to another loss, is none."""
    s = Bare(tmp_path, *FLAGS, *PATIENT, "--swap-space", "0.01", "--num-gpu-blocks-override", 72)
    try:
        def limits():
            now = json.loads(s.local("/v1/runtime_config")[2])
            return now["max_num_batched_tokens"], now["max_num_running_seqs"], metric(s.metrics(), "evenkeel_host_kv_blocks", state="total")

        def lose(judge, *words):
            before = metric(s.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld") + metric(s.metrics(), "evenkeel_engine_verdicts_total", by="none")
            os.kill(engine_of(s.process.pid), signal.SIGSEGV)
            record = judge.hear()
            for w in words:
                judge.say(**{"loss": record["loss"], **w})
            wait_for("it went on", lambda: metric(s.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld")
                     + metric(s.metrics(), "evenkeel_engine_verdicts_total", by="none") == before + 1)
            assert text_of(s, ASKS[1]) == undisturbed[1]
            return record

        blocks = limits()[2]
        old, judge = Judge(s), Judge(s)  # the newest one is asked
        record = lose(judge, {"class": "BURST_OOM", "max_num_batched_tokens": 384, "max_num_running_seqs": 6})
        assert record["signal"] == 11 and record["ended"] and "signal 11" in record["why"] and record["max_num_batched_tokens"] == 512
        assert record["max_num_running_seqs"] == 8 and record["swap_bytes"] > 0 and record["served_s"] > 0
        assert limits() == (384, 6, blocks)
        assert lose(judge, {"class": "X", "max_num_batched_tokens": 4096, "max_num_running_seqs": 100})["loss"] == record["loss"] + 1
        assert limits() == (384, 6, blocks)
        lose(judge, {"class": "X", "loss": 1, "max_num_running_seqs": 1}, {"class": "X", "max_num_running_seqs": 5})
        assert limits() == (384, 5, blocks)
        lose(judge, {"class": "HOST_OOM", "swap_bytes": record["swap_bytes"] // 2})
        assert limits()[:2] == (384, 5) and limits()[2] < blocks
        judge.socket.setblocking(True)
        lose(judge, {"nothing": 1})  # no answer: at once by itself
        assert limits()[:2] == (384, 5) and metric(s.metrics(), "evenkeel_engine_verdicts_total", by="none") == 1
        old.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            assert old.socket.recv(100) == b""  # closed, or nothing came
            raise BlockingIOError
        assert texts_of(s, ASKS) == undisturbed  # preempted, and with less room for it
    finally:
        assert s.stop() == 0


HOG = """
import sys
group = sys.argv[1]
kills = lambda: int(open(group + "/memory.oom_control").read().split("oom_kill ")[1].split()[0])
before, kept = kills(), []
open(group + "/cgroup.procs", "w").write("0")
while kills() == before and len(kept) < 1 << 16:  # in small pieces: it is big, and the next one that the kernel would choose
    kept.append(bytearray(b"x" * (1 << 14)))
"""


@pytest.fixture
def memory_group():
    """A cgroup with a limit of memory that counts what the kernel kills, version 1, where there is one and it may be made."""
    group = f"/sys/fs/cgroup/memory/evenkeel-test-{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    yield group
    for _ in range(100):
        try:
            os.rmdir(group)
            return
        except OSError:
            time.sleep(0.1)


def exhaust(group, server):
    """Lets the kernel kill the server's engine for lack of memory, and gives the group room before another one is begun: the launcher, who
    would begin it, is stopped meanwhile."""
    launcher, pid = children(server)[0], engine_of(server)
    os.kill(launcher, signal.SIGSTOP)
    with open(f"/proc/{pid}/oom_score_adj", "w") as f:
        f.write("1000")
    with open(f"{group}/memory.usage_in_bytes") as f:
        room = int(f.read()) + (64 << 20)
    with open(f"{group}/memory.limit_in_bytes", "w") as f:
        f.write(str(room))
    subprocess.run([sys.executable, "-c", HOG, group], timeout=120, check=True)
    with open(f"{group}/memory.limit_in_bytes", "w") as f:
        f.write("-1")
    os.kill(launcher, signal.SIGCONT)


def test_the_server_sees_it_itself(tmp_path, memory_group, undisturbed):  # noqa: F811
    """For an evenkeeld that cannot look into its cgroup; SIGKILL by hand is not taken for it."""
    class InGroup(Bare):
        def command(self, args):
            return ["/bin/sh", "-c", f"echo $$ > {memory_group}/cgroup.procs; exec \"$@\"", "sh", *args]

    s = InGroup(tmp_path, *FLAGS, *PATIENT)
    try:
        judge = Judge(s)
        for n, (end, kills) in enumerate(((lambda p: exhaust(memory_group, p), 1), (lambda p: os.kill(engine_of(p), signal.SIGKILL), 0)), 1):
            end(s.process.pid)
            record = judge.hear()
            assert (record["signal"], record["oom_kills"]) == (9, kills), record
            judge.say(**{"loss": record["loss"], "class": "X"})
            wait_for("it went on", lambda: metric(s.metrics(), "evenkeel_engine_verdicts_total", by="evenkeeld") == n)
            assert text_of(s, ASKS[1]) == undisturbed[1]
    finally:
        assert s.stop() == 0


def test_the_kernel_kills_it_for_memory(tmp_path, memory_group, undisturbed):  # noqa: F811
    """By a real limit and the kernel's killer: HOST_OOM, whose ladder has the swap space first, and the token budget after it."""
    a = Appliance(tmp_path, server_flags=(*FLAGS, *PATIENT, "--swap-space", "0.01"))
    a.process = subprocess.Popen(["/bin/sh", "-c", f"echo $$ > {memory_group}/cgroup.procs; exec \"$@\"", "sh", BUILD / "evenkeeld",
                                  "--config", a.config], stdout=open(tmp_path / "evenkeeld.log", "ab"), stderr=subprocess.STDOUT)
    try:
        listens(a.ready())
        server, n = a.server()["pid"], 0
        for n, want in enumerate(("--swap-space 0.00497 instead of 0.00993", "--swap-space 0 instead of 0.00", "--max-num-batched-tokens 256 instead of 512"), 1):
            exhaust(memory_group, server)
            wait_for("it is told", lambda: len(lost(a)) == n)
            assert "HOST_OOM: The kernel's OOM killer ended 1 process" in lost(a)[-1] and want in lost(a)[-1], lost(a)
            assert text_of(a, ASKS[1]) == undisturbed[1] and a.server()["pid"] == server
        wait_for("it is read back", lambda: limits_of(a)["max_num_batched_tokens"]["value"] == 256)
        assert limits_of(a)["max_num_batched_tokens"]["max"] == 256
        own = a.metrics(a.page)
        assert metric(own, "evenkeel_supervisor_engine_exits_total", **{"class": "HOST_OOM"}) == n == 3
        assert metric(own, "evenkeel_supervisor_remedies_total", remedy="no_swap", **{"class": "HOST_OOM"}) == 1
        assert "256 instead of 512" in a.ctl("remedies").stdout
        status = a.server()
        os.kill(status["pid"], signal.SIGKILL)  # the server's own end is another matter
        wait_for("another server", lambda: a.server()["pid"] not in (0, server) and a.server()["ready"])
        assert any("SIGNAL" in d["why"] for d in a.decisions() if d["reason"] == "CRASH")
        end = json.loads(wait_for("it is kept", lambda: a.ctl("postmortem", "--json").stdout))["end"]
        assert [loss["class"] for loss in end["engine_losses"]] == ["HOST_OOM"] * 3 and "had ended 3 times" in end["summary"][0]
        words = open(f"/proc/{a.server()['pid']}/cmdline").read().split("\0")
        assert words[len(words) - 1 - words[::-1].index("--max-num-batched-tokens") + 1] == "256"
        a.ctl("remedies", "forget")
        assert get(a.port, "/readyz")[0] == 200
    finally:
        a.destroy()


def test_a_pin_outlives_a_remedy(tmp_path, memory_group):
    """What the kernel taught holds below an operator's pin, which is kept, and written again once the remedy is forgotten."""
    a = Appliance(tmp_path, server_flags=(*FLAGS, *PATIENT))
    a.process = subprocess.Popen(["/bin/sh", "-c", f"echo $$ > {memory_group}/cgroup.procs; exec \"$@\"", "sh", BUILD / "evenkeeld",
                                  "--config", a.config], stdout=open(tmp_path / "evenkeeld.log", "ab"), stderr=subprocess.STDOUT)
    tokens = lambda: limits_of(a)["max_num_batched_tokens"]["value"]
    try:
        listens(a.ready())
        wait_for("its limits are known", lambda: tokens() == 512)
        a.ctl("limits", "pin", "max_num_batched_tokens=400")
        wait_for("it is pinned", lambda: tokens() == 400)
        exhaust(memory_group, a.server()["pid"])
        wait_for("it is told", lambda: any("200 instead of 400" in why for why in lost(a)))
        assert any("max_num_batched_tokens is pinned to 400" in why for why in lost(a)), lost(a)
        wait_for("it is read back", lambda: tokens() == 200)
        a.ctl("limits", "set", "max_num_running_seqs=3")  # writes down what holds
        a.ctl("remedies", "forget")
        wait_for("the pin holds again", lambda: tokens() == 400)
    finally:
        a.destroy()


def test_a_key_that_brings_poison(tmp_path, undisturbed):  # noqa: F811
    """Each of its three requests ends two engines and gets an error, another key's texts go on; then `explain`, the page's list and the metric of
    the alert name the key, and never its secret."""
    faults, keys = EngineFaults(tmp_path), tmp_path / "keys"
    keys.write_text("chat sk-chat\nbatch-jobs sk-batch\n")
    keys.chmod(0o600)
    env = "    env: {" + ", ".join(f"{k}: '{v}'" for k, v in faults.env.items()) + "}\n"
    a = Appliance(tmp_path, server_flags=(*FLAGS, *PATIENT, "--api-key-file", keys), extra=env, poll_s=0.2)

    def ask(key, body, path="/v1/completions"):
        with socket.create_connection(("127.0.0.1", a.port), timeout=120) as s:
            status, _, text = Bare.exchange(s, path, "POST", json.dumps({"model": "tiny", **body}), {"Authorization": f"Bearer {key}"})
        return status, text.decode()

    try:
        listens(a.start().ready())
        bad = {"prompt": "\u03a9 once", "max_tokens": 20, "temperature": 0}
        ids = json.loads(ask("sk-chat", {"prompt": bad["prompt"]}, "/tokenize")[1])["tokens"]
        faults.poison_what, faults.poison = WHAT["segv"], ids[1]
        for n in (1, 2, 3):
            assert "POISON_KEY" not in [d["reason"] for d in a.decisions()]
            status, said = ask("sk-batch", bad)
            assert status == 500 and "failed twice" in said, (n, status, said)
            status, said = ask("sk-chat", ASKS[0])
            assert status == 200 and json.loads(said)["choices"][0]["text"] == undisturbed[0][0][0], (n, status, said)
        why = wait_for("it is told", lambda: [d["why"] for d in a.decisions() if d["reason"] == "POISON_KEY"], 60)
        assert len(why) == 1 and why[0].startswith("Key 2 has brought 3 requests"), why
        told = wait_for("explain names it", lambda: (text := a.ctl("explain").stdout) and "batch-jobs" in text and text, 60)
        assert "key batch-jobs has brought 3 requests with which the engine ends" in told and "sk-batch" not in told, told
        assert faults.done == 6 and a.server()["engine_process"]["lost"] == 6
    finally:
        a.destroy()
