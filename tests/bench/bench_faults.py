#!/usr/bin/env python3
"""make faults: what goes wrong with a server or with evenkeeld is injected into real processes, and the time to recover is printed.

Each row is a fault of docs/faults.md: what is done, what must follow, and how long it may take; REPEAT=n (default 3), the worst counts. The
first run on the embedded model with 4 streams; the others, which no healthy server does on demand, on tests/e2e/fake_engine.py. ONLY="F13 F15"
takes some. Writes build/reports/faults.json."""
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools"), str(ROOT / "tests/bench")]
from bench_appliance import Clients  # noqa: E402
from _pytest.outcomes import Skipped  # noqa: E402
from conftest import Appliance, free_port, metric, wait_for  # noqa: E402
from engines import children  # noqa: E402
from mpi import HERE, MPI  # noqa: E402
from test_cuda import FAKE, environment  # noqa: E402
from test_engine_ranks import ranks  # noqa: E402
from test_memory import WORN  # noqa: E402
from test_prestart import GIB  # noqa: E402
from test_stuck import another, frozen  # noqa: E402
from test_supervisor import Fakes  # noqa: E402

BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1})


def served(port):
    """A new connection is answered with a token, however long it waits in the kept socket."""
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        s.settimeout(20)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
                  .encode())
        return s.recv(65536).startswith(b"HTTP/1.1 200")


def again(a, seconds=30):
    wait_for("served again", lambda: served(a.port), seconds, 0.02)


def kill(a, sig):
    pid = a.server()["pid"]
    os.kill(pid, sig)
    wait_for("it is gone", lambda: not pathlib.Path(f"/proc/{pid}").exists() or a.server()["pid"] != pid, 20, 0.002)
    again(a)
    wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 20, 0.02)


def f1(a):
    kill(a, signal.SIGSEGV)


def f2(a):
    kill(a, signal.SIGKILL)


def f3(a):
    pid = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    a.start()
    wait_for("adopted", lambda: a.server()["adopted"] and a.server()["ready"], 20, 0.01)
    assert a.server()["pid"] == pid and served(a.port)


def engine_of(pid):
    """The pid of its engine's process, the launcher's child, once it is there."""
    return wait_for("an engine", lambda: next((e for p in children(pid) for e in children(p)), None), 20, 0.002)


def end_rank(pid):
    """One of two ranks crashes, which ends both."""
    assert ctypes.CDLL(None).tgkill(pid, ranks(pid)[1], int(signal.SIGSEGV)) == 0


def end_node(sig):
    """One of two nodes; the engine's process is mpirun then, whose children they are."""
    def end(mpirun):
        os.kill(children(mpirun)[1], sig)
    return end


def engine_ends(how):
    """Its process ends (by a signal, a function, or on purpose) or stands still while the streams run: another one computes them again, by the same server."""
    def inject(a):
        pid = a.server()["pid"]
        gone = engine_of(pid)
        begin = time.monotonic()
        a.ctl("engine", "restart") if how is None else how(gone) if callable(how) else os.kill(gone, how)
        wait_for("another engine", lambda: engine_of(pid) != gone, 20, 0.002)
        again(a)
        assert a.server()["pid"] == pid, "the server goes on"
        return begin
    return inject


def engine_loads(a):
    """The next one is killed as soon as it is seen, three times: each is tried again."""
    pid, gone = a.server()["pid"], None
    begin = time.monotonic()
    for _ in range(4):
        gone = wait_for("another engine", lambda old=gone: (e := engine_of(pid)) != old and e, 20, 0.002)
        os.kill(gone, signal.SIGKILL)
    again(a)
    assert a.server()["pid"] == pid, "the server goes on"
    return begin


def f6(a):
    """Stopped by a debugger or a freezer: no progress for a moment is no hang."""
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    again(a)
    assert a.server()["pid"] == pid, "a process that was only stopped is left alone"


def f17(a):
    """A port that somebody else has is named; when it is free the server comes, however long that took: a breaker that counts failed starts
    would be open by then."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            b = Appliance(pathlib.Path(d))
            b.config.write_text(b.config.read_text().replace(f"port: {b.port}", f"port: {port}"))
            b.port = port
            b.start()
            wait_for("it is said", lambda: any(x["why"].startswith("PORT") for x in b.decisions()), 20)
            time.sleep(8)
            last = b.server()["last_decision"]
            assert b.server()["state"] in ("backoff", "adopting") and f"process {os.getpid()} (" in last["why"], last
        free = time.monotonic()
        try:
            again(b)
            return free
        finally:
            b.destroy()


def f36(a):
    good = a.config.read_text()
    pid = a.server()["pid"]
    a.config.write_text(good + "lissten: x\n")
    done = a.ctl("reload", check=False)
    a.config.write_text(good)
    assert done.returncode != 0 and "listen" in done.stderr + done.stdout and a.server()["pid"] == pid and served(a.port)


def f37(a):
    """SIGTERM while it starts: it ends at once, with everything."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        b = Appliance(pathlib.Path(d)).start()
        wait_for("a process", lambda: b.server()["pid"], 10, 0.005)
        pid = b.server()["pid"]
        code = b.stop(20)
        assert code == 0 and not pathlib.Path(f"/proc/{pid}").exists(), code


def f42(a):
    """A state file that cannot be read is put aside, and the server is taken over all the same."""
    pid = a.server()["pid"]
    a.process.kill()
    a.process.wait()
    (a.run / "state/state.json").write_text('{"version": 999}')
    a.start()
    wait_for("adopted", lambda: a.server()["adopted"] and a.server()["ready"], 20, 0.01)
    assert a.server()["pid"] == pid and (a.run / "state/state.json.bad").exists() and served(a.port)


def f38(a):
    """A restart while streams flow, which have 2 s to end: the next process serves."""
    pid = a.server()["pid"]
    a.ctl("restart")
    wait_for("another process", lambda: a.server()["pid"] not in (0, pid) and a.server()["ready"], 30, 0.02)
    again(a)


# On fakes: when it is injected is when the clock begins to run.

def hang(f, begin):
    pid = f.all()["a"]["pid"]
    begin()
    os.kill(pid, signal.SIGUSR1)
    another(f, "a", pid)


def runs_out(f, begin):
    wait_for("it ran out", lambda: f.decisions("a", "CRASH"), 30, 0.01)
    begin()
    wait_for("up again", lambda: f.reasons("a").count("STARTED") > 1 and f.all()["a"]["ready"], 60, 0.02)


def starts_at_last(f, begin):
    begin()
    wait_for("up at last", lambda: f.all()["a"]["ready"], 60, 0.02)
    assert "CRASH" in f.reasons("a")


def worn_out(f, begin):
    pid = f.all()["a"]["pid"]
    wait_for("it is due", lambda: "DRAIN_START" in f.reasons("a"), 60, 0.01)
    begin()
    another(f, "a", pid)


def rank(sig):
    def inject(f, begin):
        pid = f.all()["a"]["pid"]
        last = children(pid)[-1]
        begin()
        os.kill(last, sig)
        another(f, "a", pid)
        assert f.decisions("a", "CRASH")[0]["why"].startswith("COMM")
    return inject


def loop(f, begin):
    begin()
    wait_for("given up", lambda: f.all()["a"]["state"] == "breaker_open", 60, 0.02)
    assert f.reasons("a").count("STARTED") <= 3


def unkillable(f, begin):
    pid = f.all()["a"]["pid"]
    with frozen(pid) as thaw:
        begin()
        wait_for("it is said", lambda: "STUCK_UNKILLABLE" in f.reasons("a"), 60, 0.02)
        assert f.reasons("a").count("STARTED") == 1
        thaw()
        another(f, "a", pid)


def ignores_term(f, begin):
    pid = f.all()["a"]["pid"]
    begin()
    f.ask("POST", "/api/v1/servers/a/restart")
    another(f, "a", pid)


def junk(f, begin):
    word = pathlib.Path(f.run) / "junk"
    for kind in ("500", "html", "half", "nan", "missing"):
        word.write_text(kind)
        wait_for("it holds", lambda: f.all()["a"]["policy_state"] == "degraded", 30)
        word.unlink()
        begin()
        wait_for("trusted again", lambda: f.all()["a"]["signal_good"] and f.all()["a"]["policy_state"] != "degraded", 20, 0.01)
    assert "CRASH" not in f.reasons("a")


def sleeps(f, begin):
    """Both stand still for longer than hang_s, as when a machine is suspended."""
    pid = f.all()["a"]["pid"]
    for p in (f.process.pid, pid):
        os.kill(p, signal.SIGSTOP)
    time.sleep(4)
    for p in (pid, f.process.pid):
        os.kill(p, signal.SIGCONT)
    begin()

    def polls():
        return metric(f.metrics(), "evenkeel_supervisor_scrapes_total", server="a", result="ok")
    before = polls()
    wait_for("it reads again", lambda: polls() > before + 2 and f.all()["a"]["signal_good"], 20, 0.01)
    assert f.all()["a"]["pid"] == pid


def end_of(f, cls):
    why = f.decisions("a", "CRASH")[0]["why"]
    assert why.startswith(cls), why


def kernel_kills(f, begin):
    begin()
    wait_for("up with less swap", lambda: f.all()["a"]["ready"] and f.reasons("a").count("STARTED") > 2, 60, 0.02)
    end_of(f, "HOST_OOM")


def capped(f, begin):
    pid = f.all()["a"]["pid"]
    begin()
    wait_for("the cap", lambda: "PREFIX_CAP" in f.reasons("a"), 30, 0.01)
    assert f.all()["a"]["pid"] == pid


def falls_off_the_bus(f, begin):
    """Xid 79: it needs a person, so that the server is not started again."""
    with open(f.run / "kmsg", "wb", buffering=0) as kernel:
        kernel.write(b"4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, some words\n")
        wait_for("it is counted", lambda: metric(f.metrics(), "evenkeel_supervisor_device_xid_total") == 1)
    begin()
    os.kill(f.all()["a"]["pid"], signal.SIGABRT)
    wait_for("given up", lambda: f.all()["a"]["state"] == "breaker_open", 30, 0.02)
    end_of(f, "DEVICE")


def memory_comes_back(f, begin):
    wait_for("it waits", lambda: "GPU_WAIT" in f.reasons("a"), 20, 0.01)
    (f.run / "nvml").write_text(f"{80 * GIB} {2 * GIB} 0 0\n")
    begin()
    wait_for("it starts", lambda: f.all()["a"]["ready"], 30, 0.02)


def no_room_on_the_disk(f, begin):
    """No restart by plan that could not be counted; it comes when the state can be written again."""
    pid, state = f.all()["a"]["pid"], f.run / "s"
    state.rename(f.run / "away")
    state.write_text("no directory")
    wait_for("it waits", lambda: any("without the state file" in d["why"] for d in f.decisions("a", "RESTART_BUDGET")), 60, 0.02)
    assert f.all()["a"]["pid"] == pid and f.all()["a"]["ready"]
    state.unlink()
    (f.run / "away").rename(state)
    begin()
    another(f, "a", pid)


def floods(f, begin):
    begin()
    wait_for("rotation", lambda: (f.run / "a.log.1").exists() and (f.run / "a.log.1").stat().st_size > 0, 30, 0.02)
    assert f.all()["a"]["pid"] and (f.run / "a.log").stat().st_size < 4 << 20


def words_of_a_client(f, begin):
    loop(f, begin)
    end_of(f, "UNKNOWN")


def shell(text):
    """Lines of a server that is no engine."""
    return f"    command: {json.dumps(['sh', '-c', text])}\n    port: {free_port(28900)}\n"


LOADED = ["--load", "4"]
ECHO = "echo 'Received request: prompt: CUDA out of memory. Tried to allocate 2.00 GiB'; sleep 0.1; exit 1"
FLOOD = "while :; do printf '%01000d\\n' 0; sleep 0.0005; done"
FAULTS = [("F1", "kill -SEGV the server", f1, 5), ("F2", "kill -KILL the server", f2, 5), ("F3", "kill -KILL evenkeeld", f3, 3),
          ("F6", "the server stopped for 1 s: no restart", f6, 5), ("F17", "its port is taken, then free", f17, 10),
          ("F36", "a reload that is wrong", f36, 3), ("F37", "SIGTERM during the start", f37, 5), ("F38", "a restart with 4 streams, 2 s to drain", f38, 8),
          ("F42", "a state file of a newer version", f42, 3)]
# The same with these flags.
APART = ["--engine-process", "--step-deadline", "2"]
ENGINE = [("F50", "the engine's process is killed", engine_ends(signal.SIGKILL), 3), ("F51", "the engine's process crashes", engine_ends(signal.SIGSEGV), 3),
          ("F52", "it stands still, --step-deadline 2", engine_ends(signal.SIGSTOP), 6), ("F53", "it is started again on purpose", engine_ends(None), 3),
          ("F54", "it is killed four times, also as it loads", engine_loads, 8)]
# Two ranks in that process; and with cards that tests/cuda simulates, slow as they are.
RANKS = ["--engine-process", "--tensor-parallel-size", "2", "--threads", "2"]
CARD = ["--engine-process", "--device", "cuda", "--max-num-seqs", "8", "--max-model-len", "256", "--max-num-batched-tokens", "64",
        "--kv-cache-memory-bytes", str(16 << 20)]
DIVIDED = [("F55", "one of two ranks crashes", engine_ends(end_rank), 3, RANKS, {}),
           ("F56", "simulated card: its engine is killed", engine_ends(signal.SIGKILL), 15, CARD, {}),
           ("F57", "two simulated cards: their engine crashes", engine_ends(signal.SIGSEGV), 15, [*CARD, *RANKS[1:]], {"FAKE_CUDA_CARDS": "8,8"})]
# An engine of two nodes, which mpirun starts on this machine.
NODES = [*RANKS[:3], "--threads", "1", "--nnodes", "2", "--engine-command", "mpirun -n 2"]
OVER = [("F58", "two nodes: one is killed", engine_ends(end_node(signal.SIGKILL)), 5, NODES, MPI),
        ("F59", "one of them stands still, --step-deadline 2", engine_ends(end_node(signal.SIGSTOP)), 9, [*NODES, "--step-deadline", "2"], MPI)]
# name, what is done, the fake's flags, lines of its configuration, whether it becomes ready first, how, at most
FAKED = [("F4", "no step for hang_s 2, HTTP answers", LOADED, "    hang_s: 2\n", True, hang, 9),
         ("F8", "out of device memory at the start", ["--oom-start", "1200", "--max-num-batched-tokens", "2048", "--max-num-seqs", "16"], "", False, starts_at_last, 30),
         ("F9", "out of device memory while it serves", ["--oom-burst", "1600", "--max-num-batched-tokens", "2048", "--max-num-seqs", "20"], "", True, runs_out, 10),
         ("F10", "memory is in pieces: drain and restart", ["--frag"], WORN, True, worn_out, 10),
         ("F13", "a rank is killed", ["--ranks", "{run}/device"], "", True, rank(signal.SIGKILL), 10),
         ("F13b", "a rank stops, the collective stalls", ["--ranks", "{run}/device"], "", True, rank(signal.SIGSTOP), 10),
         ("F14", "it ends at once, again and again", ["--exit-code", "1"], "", False, loop, 30),
         ("F15", "SIGKILL does not end it, then it does", LOADED, "    hang_s: 1\n    kill_wait_s: 1\n", True, unkillable, 15),
         ("F15b", "it ignores SIGTERM (15 s)", ["--ignore-term"], "    drain_deadline_s: 0\n", True, ignores_term, 25),
         ("F31", "both stand still for 4 s", LOADED, "    hang_s: 2\n", True, sleeps, 5),
         ("F32", "junk instead of metrics, then a page", ["--junk", "{run}/junk"], "", True, junk, 5),
         ("F7", "the kernel kills it for memory, twice", ["--oom-host", "--swap-space", "4"], "", False, kernel_kills, 30),
         ("F11", "a prefix cache that is never hit", ["--prefixes"], WORN, True, capped, 20),
         ("F12", "Xid 79, then it aborts: no start", [], "", True, falls_off_the_bus, 5),
         ("F16", "device memory is not given back, then it is", [], "    devices: 0\n", False, memory_comes_back, 10),
         ("F24", "the state cannot be written, then it can", ["--leak"], WORN, True, no_room_on_the_disk, 30),
         ("F34", "a flood of output is rotated", None, shell(FLOOD) + "    log_max_bytes: 65536\n", False, floods, 10),
         ("F35", "out-of-memory words of a client", None, shell(ECHO), False, words_of_a_client, 30)]
# Lines of evenkeeld's own configuration.
TOP = {falls_off_the_bus: "kernel_log: {run}/kmsg\n"}


@contextlib.contextmanager
def surroundings(more):
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def on_appliance(inject, flags=(), more=None):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d, surroundings(more or {}):
        a = Appliance(pathlib.Path(d), flags, extra="    drain_deadline_s: 2\n").start().ready()
        clients = Clients(a.port, 4)
        try:
            time.sleep(0.5)
            begin = time.monotonic()
            begin = inject(a) or begin
            return time.monotonic() - begin
        finally:
            clients.end()
            a.destroy()


@contextlib.contextmanager
def a_card_in_use(d):
    """The NVIDIA library is a fake that says of card 0 what the file `nvml` says."""
    (d / "nvml").write_text(f"{80 * GIB} {30 * GIB} 4242 {29 * GIB}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", d / "libnvidia-ml.so.1", ROOT / "tests/e2e/fake_nvml.c"], check=True)
    with surroundings({"LD_LIBRARY_PATH": str(d), "FAKE_NVML": str(d / "nvml")}):
        yield


def on_fake(flags, lines, ready, inject):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d, contextlib.ExitStack() as held:
        d = pathlib.Path(d)
        os.mkfifo(d / "kmsg")
        held.callback(os.close, os.open(d / "kmsg", os.O_RDWR))
        if inject is memory_comes_back:
            held.enter_context(a_card_in_use(d))
        f = Fakes(d, {"a": (flags and [x.replace("{run}", str(d)) for x in flags], lines)})
        f.write(TOP.get(inject, "").replace("{run}", str(d)))
        f.start()
        begun = []
        try:
            if ready:
                f.ready()
            inject(f, lambda: begun.append(time.monotonic()))
            return time.monotonic() - begun[-1]
        finally:
            f.end()


def main():
    repeat, rows, bad, only = int(os.environ.get("REPEAT") or "3"), [], 0, os.environ.get("ONLY", "").split()
    print(f"{'fault':5} {'what is done':42} {'median s':>9} {'worst s':>8} {'at most':>8}")
    runs = [(name, what, most, lambda i=inject: on_appliance(i)) for name, what, inject, most in FAULTS]
    runs += [(name, what, most, lambda i=inject: on_appliance(i, APART)) for name, what, inject, most in ENGINE]
    runs += [(name, what, most, lambda i=inject, f=flags, m=more: on_appliance(i, f, environment(**m) if "--device" in f else m))
             for name, what, inject, most, flags, more in [*DIVIDED, *(OVER if HERE else [])] if "--device" not in flags or FAKE.exists()]
    runs += [(name, what, most, lambda h=how: on_fake(*h)) for name, what, *how, most in FAKED]
    if not FAKE.exists():
        print("skipped: what needs a simulated card (no C++ compiler to run kernels on the host)")
    if not HERE:
        print("skipped: what needs several nodes (no mpirun, or built without libopenmpi-dev)")
    for name, what, most, once in runs:
        if only and name not in only:
            continue
        try:
            took = [once() for _ in range(repeat)]
        except Skipped as why:
            print(f"{name:5} {what:42} skipped: {why}", flush=True)
            continue
        took.sort()
        met = took[-1] <= most
        bad += not met
        print(f"{name:5} {what:42} {took[len(took) // 2]:9.2f} {took[-1]:8.2f} {most:8.1f}{'' if met else '  TOO LONG'}", flush=True)
        rows.append({"cell": f"faults.{name}", "value": round(took[-1], 3), "unit": "s", "spread": round(took[-1] - took[0], 3), "goal": most, "met": met})
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    report = ROOT / "build/reports/faults.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"target": "faults", "commit": commit, "machine": {"cores": os.cpu_count()}, "rows": rows}, indent=1) + "\n")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
