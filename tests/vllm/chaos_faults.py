"""What test_chaos.py does to evenkeeld and a real vLLM, and what each must be called afterwards.

A fault that ends vLLM opens a window in which its answers may be cut, until its first process is gone; one that an operator means may have
windows for 503 or 429. In no window may a connection be refused."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field

from conftest import BUILD, wait_for
from test_companion import FLAGS, Companion
from test_supervised import KEY, START_S, Stream, gone

HANG_S, HALT_S = 12, 16  # hang_s is longer than a pause, and than a step takes on a busy machine
MORE = f"    mode: advise\n    halt_s: {HALT_S}\n    limits: {{{{max_num_running_seqs: {{{{max: {{most}}}}}}}}}}\n"
FAULTS = {}


@dataclass
class Fault:
    act: object
    ends: str  # what evenkeeld must say of the end of vLLM, a pattern; "" = it does not end by it


def fault(ends=""):
    def keep(act):
        FAULTS[act.__name__] = Fault(act, ends)
        return act
    return keep


@dataclass
class Asked:
    """One request."""
    begin: float
    end: float = 0.0
    how: str = ""  # done, refused (no connection), busy (429, 503), cut
    what: str = ""


@dataclass
class Window:
    kind: str  # cut, busy
    begin: float
    end: float = float("inf")


@dataclass
class Client(threading.Thread):
    """Asks one thing after the other, each on a connection of its own, until it is told to end."""
    port: int
    streams: bool
    said: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.start()

    __hash__ = threading.Thread.__hash__

    def run(self):
        while not self.over.is_set():
            r = Asked(time.monotonic())
            try:
                r.how, r.what = self.stream() if self.streams else self.ask()
            except ConnectionRefusedError:
                r.how = "refused"
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                r.how, r.what = "cut", repr(error)
            r.end = time.monotonic()
            self.said.append(r)
            time.sleep(0.2)

    def ask(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            c.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 4, "ignore_eos": True}),
                      {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
            answer = c.getresponse()
            body = json.loads(answer.read())
        finally:
            c.close()
        if answer.status == 200:
            end = body["choices"][0]["finish_reason"]
            return ("done" if end == "length" else "cut"), end
        return how_of(answer.status), f"{answer.status} {body}"[:200]

    def stream(self):
        s = Stream(self.port, 200, patience_s=START_S)  # a start may take minutes
        s.join(START_S)
        if isinstance(s.error, ConnectionRefusedError):
            return "refused", ""
        if s.status == 200 and s.finish == "length" and not s.error:
            return "done", ""
        return ("cut" if s.status in (0, 200) else how_of(s.status)), f"{s.status} {s.finish} {s.error!r} after {s.pieces}"


def how_of(status):
    return "busy" if status in (429, 503) else "cut"


class World(Companion):
    """evenkeeld with one vLLM, its clients, and what may rightly happen to them."""

    def __init__(self, run):
        super().__init__(run, args=FLAGS)
        self.most = 8
        self.windows, self.askers, self.wrong, self.seen = [], [], [], set()
        self.write()
        self.start()

    def write(self):
        self.more = MORE.format(most=getattr(self, "most", 8))
        super().write()
        config = self.run / "c.yaml"
        config.write_text(config.read_text().replace("hang_s: 6\n", f"hang_s: {HANG_S}\n"))

    # Clients

    def clients(self, connecting, streaming):
        self.askers = [Client(self.port, i < streaming) for i in range(connecting + streaming)]

    def asked(self):
        """Tells the clients to end; all that was ever asked."""
        for c in self.askers:
            c.over.set()
        for c in self.askers:
            c.join(START_S)
            if c.is_alive():
                self.wrong.append("a request has no end")
        return [r for c in self.askers for r in list(c.said)]

    def of(self, how):
        return [r for c in self.askers for r in list(c.said) if r.how == how]

    def done(self):
        return len(self.of("done"))

    def line(self):
        return ", ".join(f"{len(self.of(how))} {how}" for how in ("done", "refused", "cut", "busy"))

    @contextlib.contextmanager
    def window(self, kind):
        w = Window(kind, time.monotonic())
        self.windows.append(w)
        try:
            yield
        finally:
            w.end = time.monotonic()

    def unexplained(self):
        """What was cut or turned away while nothing was done that may do so."""
        return [(r, round(r.end - r.begin, 1)) for r in self.of("cut") + self.of("busy")
                if not any(w.kind == r.how and w.begin <= r.end and r.begin <= w.end for w in self.windows)]

    # Faults

    def do(self, name, rng):
        try:
            f = FAULTS[name]
            if f.ends:
                self.force(name, f, rng)
            else:
                f.act(self, rng)
        except Exception as error:  # the others are tried as well
            self.wrong.append(f"{name}: {error!r}")

    def force(self, name, f, rng):
        """Something that ends vLLM: what evenkeeld says of it, and that another one serves."""
        self.ready()
        time.sleep(rng.uniform(0, 2))
        pids, begin = self.pids(), time.time()
        self.seen |= set(pids.values())
        with self.window("cut"):
            f.act(self, pids)
            wait_for(f"{name}: vLLM is gone", lambda: gone(pids["api"]), START_S)
        end = wait_for(f"{name}: evenkeeld tells its end", lambda: [d for d in self.decisions("CRASH") if d["at_s"] >= begin] or None, 60)[0]
        if not re.search(f.ends, end["why"], re.S):
            self.wrong.append(f"{name}: {end['why']}")
        wait_for(f"{name}: nothing is left of it", lambda: all(gone(p) for p in pids.values()), 30)

    def holds_socket(self, pid):
        """A process has the listening socket."""
        rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
        inodes = {f"socket:[{r[9]}]" for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == self.port}
        with contextlib.suppress(OSError):
            return any(os.readlink(f"/proc/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{pid}/fd"))
        return False

    def replace_daemon(self, number, status, away_s):
        """While one of both lives somebody must have the socket, so vLLM has it before evenkeeld leaves, and the next one before it is over."""
        before = self.server()["pid"]
        self.process.send_signal(number)
        assert self.process.wait(START_S) == status, self.process.returncode
        time.sleep(away_s)
        self.start()
        wait_for("the next evenkeeld has the socket", lambda: self.holds_socket(self.process.pid), 30)
        assert before in (0, self.server()["pid"]), "vLLM was not adopted"  # 0: it was started before evenkeeld left


# Those that end vLLM

@fault(ends=r"SIGNAL: Signal 9 \(SIGKILL\)")
def api_kill(w, pids):
    os.kill(pids["api"], signal.SIGKILL)


@fault(ends=r"SIGNAL: .*engine process ended without a word")
def engine_kill(w, pids):
    os.kill(pids["VLLM::EngineCore"], signal.SIGKILL)


@fault(ends=r"SIGNAL: .*worker")
def worker_kill(w, pids):
    os.kill(pids["VLLM::Worker"], signal.SIGKILL)


@fault(ends=r"HANG_KILLED")
def engine_stop(w, pids):
    os.kill(pids["VLLM::EngineCore"], signal.SIGSTOP)


@fault(ends=r"HANG_KILLED")
def worker_stop(w, pids):
    os.kill(pids["VLLM::Worker"], signal.SIGSTOP)


@fault(ends=r"HANG_KILLED")
def api_stop(w, pids):
    os.kill(pids["api"], signal.SIGSTOP)


# Those that it outlives

def pause(w, rng, which):
    """Shorter than hang_s: nothing follows."""
    before = w.ready().server()["pid"]
    pid = w.pids()[which]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, HANG_S / 2))
    os.kill(pid, signal.SIGCONT)
    time.sleep(1)
    assert w.ready().server()["pid"] == before, "it was ended"


@fault()
def api_pause(w, rng):
    pause(w, rng, "api")


@fault()
def engine_pause(w, rng):
    pause(w, rng, "VLLM::EngineCore")


@fault()
def worker_pause(w, rng):
    pause(w, rng, "VLLM::Worker")


@fault()
def daemon_kill(w, rng):
    """Whose vLLM has the socket, which without a store for descriptors is all that keeps it."""
    wait_for("vLLM has the socket", lambda: w.holds_socket(w.server()["pid"]), START_S)
    w.replace_daemon(signal.SIGKILL, -signal.SIGKILL, rng.uniform(0, 3))


@fault()
def daemon_upgrade(w, rng):
    """At any moment: it leaves when vLLM has the socket."""
    w.replace_daemon(signal.SIGUSR1, 77, rng.uniform(0, 1))


@fault()
def upgrade_in_start(w, rng):
    """Just after the next vLLM began, which has no listening socket for as long as Python reads it."""
    before = w.ready().server()["pid"]
    w.seen |= set(w.pids().values())
    w.ctl("restart")
    wait_for("the next one starts", lambda: w.server()["pid"] not in (0, before), START_S)
    time.sleep(rng.uniform(0, 1))
    w.replace_daemon(signal.SIGUSR1, 77, rng.uniform(0, 1))


@fault()
def reload(w, rng):
    """Another bound, a file that is wrong, and back."""
    for most in (6, 8):
        w.most = most
        w.write()
        w.ctl("reload")
    good = (w.run / "c.yaml").read_text()
    (w.run / "c.yaml").write_text(good.replace("poll_s: 0.5", rng.choice(("poll_s: soon", "poles: 2", "poll_s: [", "\tpoll_s: 1"))))
    said = subprocess.run([BUILD / "evenkeelctl", "--socket", w.run / "r/evenkeeld.sock", "reload"], capture_output=True, text=True, timeout=30)
    (w.run / "c.yaml").write_text(good)
    assert said.returncode != 0 and re.search(r"c\.yaml|line|poll", said.stderr), said
    w.ctl("reload")


def control_answers(w):
    return w.control("GET", "/livez")[0] == 200


@fault()
def socket_removed(w, rng):
    """It is there again, and evenkeeld has not taken vLLM for dead meanwhile."""
    wait_for("a control socket", lambda: control_answers(w), START_S)
    before = w.server()["pid"]
    os.unlink(w.run / "r/main/control.sock")
    wait_for("the control socket is back", lambda: control_answers(w), 30)
    assert w.server()["pid"] == before


BODIES = [({"max_num_running_seqs": n}, {200}) for n in (1, 3, 8)] + [
    ({"queue_deadline_s": 300}, {200}), ({"watermark": 0.1}, {200}), ({"max_num_batched_tokens": 64}, {200, 400}),
    ({"max_num_running_seqs": 9}, {400}), ({"max_num_running_seqs": 0}, {400}), ({"max_num_running_seqs": "many"}, {400}),
    ({"max_num_running_seqs": 10 ** 30}, {400}), ({"max_num_running_seqs": 4, "generation": 10 ** 6}, {409}), ({"frobs": 1}, {400}),
    ({}, {400}), ([1], {400}), (None, {400}), ({"max_num_running_seqs": 4, "expires_in_s": 0.5}, {200}), ({"watermark": -1}, {400})]
BACK = {"max_num_running_seqs": 8, "max_num_batched_tokens": 2048, "queue_deadline_s": 0, "watermark": 0}


def spam(w, rng, until, wrong):
    while time.monotonic() < until:
        body, codes = rng.choice(BODIES)
        try:
            status, said = w.control("PATCH", "/v1/runtime_config", body)
            if status not in codes | {503}:
                wrong.append((body, status, said))
        except (OSError, http.client.HTTPException):
            pass  # it starts or ends just now


@fault()
def limits_spammed(w, rng):
    """Four at once, with values that are none among them."""
    until, wrong = time.monotonic() + rng.uniform(2, 4), []
    threads = [threading.Thread(target=spam, args=(w, rng, until, wrong)) for _ in range(4)]
    with w.window("busy"):  # a deadline for the queue is set now and then
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        wait_for("limits as before", lambda: w.control("PATCH", "/v1/runtime_config", BACK)[0] == 200, START_S)
    assert not wrong, wrong[:3]
    wait_for("what ran out is over", lambda: w.control("GET", "/v1/runtime_config")[1]["max_num_running_seqs"] == 8, 5)


@fault()
def trim(w, rng):
    w.ready()
    assert w.control("POST", "/trim")[0] == 200


@fault()
def drain(w, rng):
    """An operator's: what runs ends well, new requests get 503, and it serves again."""
    before = w.ready().server()["pid"]
    with w.window("busy"):
        w.ctl("drain")
        time.sleep(rng.uniform(0.5, 4))
        w.ctl("resume")
        w.ready()
    assert w.server()["pid"] == before


@fault()
def restart(w, rng):
    """By plan: nobody is refused or cut."""
    before = w.ready().server()["pid"]
    w.seen |= set(w.pids().values())
    w.ctl("restart")
    w.ready(before)


def junk(port):
    with socket.create_connection(("127.0.0.1", port), 20) as s:
        s.sendall(b"\x16\x03\x01 no request\r\n\r\n")
        s.settimeout(5)
        with contextlib.suppress(OSError):
            s.recv(100)


@fault()
def clients_vanish(w, rng):
    """Bytes that are no request, and readers that leave in the middle: others do not notice."""
    w.ready()
    junk(w.port)
    for _ in range(4):
        s = socket.create_connection(("127.0.0.1", w.port), 20)
        body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": True, "ignore_eos": True})
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        s.settimeout(START_S)
        s.recv(200)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
