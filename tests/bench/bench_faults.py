#!/usr/bin/env python3
"""make faults: what goes wrong with a server or with evenkeeld is injected into real processes, and the time to recover is printed.

Each row is a fault of docs/faults.md: what is done, what must follow, and how long it may take; REPEAT=n (default 3), the worst counts. All
run on the embedded model with 4 streams. Writes build/reports/faults.json."""
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
from conftest import Appliance, wait_for  # noqa: E402

BODY = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1})


def served(port):
    """A new connection is answered with a token, however long it waits in the kept socket."""
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        s.settimeout(20)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
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


def f6(a):
    """Stopped by a debugger or a freezer: no progress for a moment is no hang."""
    pid = a.server()["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    again(a)
    assert a.server()["pid"] == pid, "a process that was only stopped is left alone"


def f17(a):
    """A port that somebody else has is named; when it is free the server comes."""
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
        try:
            again(b)
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


FAULTS = [("F1", "kill -SEGV the server", f1, 5), ("F2", "kill -KILL the server", f2, 5), ("F3", "kill -KILL evenkeeld", f3, 3),
          ("F6", "the server stopped for 1 s: no restart", f6, 5), ("F17", "its port is taken, then free", f17, 10),
          ("F36", "a reload that is wrong", f36, 3), ("F37", "SIGTERM during the start", f37, 5), ("F42", "a state file of a newer version", f42, 3)]


def main():
    repeat, rows, bad = int(os.environ.get("REPEAT", "3")), [], 0
    print(f"{'fault':5} {'what is done':42} {'median s':>9} {'worst s':>8} {'at most':>8}")
    for name, what, inject, most in FAULTS:
        took = []
        for _ in range(repeat):
            with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
                a = Appliance(pathlib.Path(d)).start().ready()
                clients = Clients(a.port, 4)
                try:
                    time.sleep(0.5)
                    begin = time.monotonic()
                    inject(a)
                    took.append(time.monotonic() - begin)
                finally:
                    clients.end()
                    a.destroy()
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
