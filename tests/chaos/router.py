"""A real HAProxy in front of the world's server and of a neighbour that nothing is done to, as two hosts have it.

Its server lines, its check and what it tries again are what `evenkeelctl endpoint-snippet haproxy` prints; the rest is packaging/deploy/haproxy.cfg.
Clients ask it, so that whatever the one server refuses must be answered by the other: only a stream that runs may be cut."""
import contextlib
import csv
import io
import os
import shutil
import signal
import socket
import subprocess
import time

from client import get
from demo import free_port
from texts import BUILD, ROOT

PATH = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
# check inter 1s, then two more of 200 ms each, each as long as a request takes; an agent is asked once a second.
SEEN_S = 2.2


def found():
    return shutil.which("haproxy", path=PATH)


class Router:
    def __init__(self, w, flags):
        """w: a world whose evenkeeld answers. flags: of the world's server, for the neighbour."""
        self.w, self.port, self.next = w, free_port(25600), free_port(27600)
        self.states, self.socket = [], w.run / "haproxy.sock"
        self.log = open(w.run / "haproxy.log", "wb")
        env = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
        shutil.copy2(BUILD / "evenkeel-server", w.run / "bin/neighbour")  # upgrades of the other leave its file alone
        self.neighbour = subprocess.Popen([w.run / "bin/neighbour", *flags, "--port", str(self.next), "--control-socket", w.run / "neighbour.sock"],
                                          stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=dict(env, EVENKEEL_STEP_MS="8"))
        self.process = None
        if not w.wait(lambda: get(self.next, "/health")[0] == 200, 30):
            raise RuntimeError("the neighbour did not start")
        self.process = subprocess.Popen([found(), "-db", "-f", self.configuration()], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)
        if not w.wait(lambda: self.look() == "UP", 20):
            raise RuntimeError("HAProxy has not both of them: " + (w.run / "haproxy.log").read_text()[-800:])

    def configuration(self):
        rc, snippet, err = self.w.ctl("endpoint-snippet", "haproxy", "--address", "127.0.0.1")
        if rc != 0:
            raise RuntimeError(f"endpoint-snippet: {err}")
        head = (ROOT / "packaging/deploy/haproxy.cfg").read_text().split("listen llm")[0].replace("/run/haproxy/admin.sock", str(self.socket))
        path = self.w.run / "haproxy.cfg"
        path.write_text(f"{head}listen llm\n    bind 127.0.0.1:{self.port}\n    balance leastconn\n{snippet}"
                        f"    server neighbour 127.0.0.1:{self.next} weight 100 check inter 1s fastinter 200ms\n")
        return path

    def look(self):
        """How HAProxy has the world's server now: UP, DOWN, DRAIN, ..."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(2)
            s.connect(str(self.socket))
            s.sendall(b"show stat\n")
            text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
        rows = {r["svname"]: r for r in csv.DictReader(io.StringIO(text.lstrip("# "))) if r["pxname"] == "llm"}
        mine = next(r["status"] for name, r in rows.items() if name.endswith("-s1"))
        self.states.append((time.monotonic(), mine.split(" ")[0], rows["neighbour"]["status"]))
        return self.states[-1][1]

    def end(self):
        for p in (self.process, self.neighbour):
            if p and p.poll() is None:
                p.send_signal(signal.SIGKILL)
                p.wait()
        self.log.close()
        with contextlib.suppress(OSError):
            (self.w.run / "bin/neighbour").unlink()


def drained(w):
    """Each time for which evenkeeld showed without a break that an operator's drain lasted: (begin, end)."""
    begin = last = None
    for at, state, *_ in [*w.watch.states, (1e18, "", 0, 0)]:
        goes_on = state in ("draining", "drained", "stopped") and w.in_window("drain", at, at)
        if begin is not None and (not goes_on or at - last > 1):
            yield begin, last
            begin = None
        if goes_on:
            begin, last = begin if begin is not None else at, at


def still_in(w):
    """What is drained for long enough to be seen gets no more requests."""
    for begin, end in drained(w):
        up = [at for at, state, _ in w.router.states if begin + SEEN_S * w.scale <= at <= end and state == "UP"]
        if up:
            yield f"HAProxy had the server UP {up[0] - begin:.1f} s after its drain began"
