"""The world of one run: evenkeeld with one server in a directory of its own, what is known of their lives, and what was done to them.

Lives are seen with pidfds, not asked of evenkeeld, so that what it says of them can be compared. Everything started carries a word in its
environment by which it is found again. Where mounts are allowed (main re-executes itself in a mount namespace) the state and the logs lie on
small disks of their own."""
import contextlib
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

from texts import BUILD, MODEL, ROOT

sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from client import get  # noqa: E402
from demo import free_port  # noqa: E402
from pace import Patience, slower  # noqa: E402
from router import Router  # noqa: E402

DISK = "1m"
MARK = "EVENKEEL_CHAOS"
PIPE_BYTES = 4096


class Life:
    """One process from when it was seen first. blamed: what may rightly be said of its end, with who did it."""

    def __init__(self, pid, name):
        self.pid, self.name, self.fd = pid, name, os.pidfd_open(pid)
        self.born, self.died, self.blamed, self.planned = time.monotonic(), None, [], []

    def alive(self):
        return self.died is None


def memory_group(name):
    """A new memory cgroup (files of its limit and its use), or nothing where none can be made: v1, or v2 where the controller is handed down."""
    for root, limit, used in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.max", "memory.current")):
        path = pathlib.Path(root) / name
        with contextlib.suppress(OSError):
            path.mkdir()
            if os.access(path / limit, os.W_OK):
                return path, path / limit, path / used
        with contextlib.suppress(OSError):
            path.rmdir()
    return None


class World:
    def __init__(self, run, options, scale, mounts, memory=False):
        self.run, self.options, self.scale, self.mounts = run, options, scale, mounts
        self.born = time.monotonic()
        self.port, self.page = free_port(18100), free_port(19564)
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.lock, self.daemon_lock = threading.RLock(), threading.RLock()
        self.lives, self.daemons, self.windows = [], [], []
        self.router, self.front = None, self.port  # front: where clients ask
        self.edge = free_port(29600) if options.get("haproxy") == "agent" else 0
        self.memory = memory_group(f"evenkeel-chaos-{self.mark}") if memory else None
        self.process, self.pump, self.pumping = None, None, threading.Event()
        self.statuses = {}  # of evenkeelds that have ended
        self.over, self.extra, self.expected_end = False, {}, False
        self.pumping.set()
        self.make_folder()
        self.write()
        self.census = threading.Thread(target=self.look, daemon=True)
        self.census.start()

    # What lies in its directory

    def make_folder(self):
        for name in ("bin", "state", "log"):
            (self.run / name).mkdir()
            if self.mounts and name != "bin":
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", self.run / name], check=True)
        for name in ("evenkeeld", "evenkeel-server"):
            shutil.copy2(BUILD / name, self.run / "bin" / name)
        if self.options["paced"]:
            shutil.copy2(BUILD / "tests/tools/paced.so", self.run / "bin/libevenkeel-cuda.so")
        (self.run / "model").symlink_to(MODEL)
        self.clock = BUILD / "tests/chaos/fake_clock.so"

    def upgrade(self, name):
        """A new file under the same name, as a package manager leaves it."""
        shutil.copy2(BUILD / name, self.run / "bin" / f"{name}.new")
        (self.run / "bin" / f"{name}.new").rename(self.run / "bin" / name)

    def flags(self):
        o = self.options
        return ["--model", f"{self.run}/model", "--served-model-name", "tiny", "--max-num-seqs", str(o["seqs"]), "--threads", "1",
                *([] if os.geteuid() == 0 else ["--dumpable"]),  # a fault holds its engine by ptrace
                *(["--engine-process", "--engine-restarts", "64", "--step-deadline", "2"] if o.get("engine_process") else []),
                *(["--device", "cuda"] if o["paced"] else []), *(["--num-gpu-blocks-override", str(o["blocks"])] if o["blocks"] else [])]

    def text(self):
        run = self.run
        lines = {"engine": "evenkeel", "host": "127.0.0.1", "port": self.port, "poll_s": 0.25, "hang_s": self.hang_s(), "halt_s": round(1.5 * self.hang_s(), 1), "log_file": f"{run}/log/server.log",
                 "log_max_bytes": 200000, "drain_deadline_s": self.drain_s(), **({"edge": f"127.0.0.1:{self.edge}"} if self.edge else {}), **self.extra}
        return (f"listen: 127.0.0.1:{self.page}\nsocket: {run}/e.sock\nrun_dir: {run}\nstate_dir: {run}/state\nkernel_log: off\nmemory_every_s: 2\n"
                f"servers:\n  s1:\n    command: {json.dumps([f'{run}/bin/evenkeel-server', *self.flags()])}\n"
                + "".join(f"    {k}: {v if isinstance(v, str) else json.dumps(v)}\n" for k, v in lines.items()))

    def write(self, more=""):
        self.put(self.run / "evenkeeld.yaml", self.text() + more)

    @staticmethod
    def put(path, text):
        path.with_name(path.name + ".new").write_text(text)
        path.with_name(path.name + ".new").rename(path)

    def hang_s(self):
        return round(3 * self.scale, 1)

    def drain_s(self):
        return round((1.0 if self.options["short_drain"] else 60.0) * self.scale, 1)

    # evenkeeld

    def environment(self):
        env = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "LISTEN_FDS", "JOURNAL_STREAM")}
        env.update({MARK: self.mark, "EVENKEEL_STEP_MS": "8"})
        if self.clock.exists():
            env.update(LD_PRELOAD=str(self.clock), FAKE_CLOCK=f"{self.run}/clock")
        return env

    def start(self):
        """Starts evenkeeld with its standard error in a pipe that is read, unless a fault says otherwise."""
        with self.daemon_lock:
            if self.over or (self.process and self.process.poll() is None):
                return
            if self.process:
                self.statuses[self.process.pid] = self.process.returncode
            end, out = os.pipe()
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self.expected_end = False
            self.process = subprocess.Popen([self.run / "bin/evenkeeld", "--config", self.run / "evenkeeld.yaml"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            env=self.environment(), preexec_fn=self.enter)
            os.close(out)
            with self.lock:
                self.daemons.append(Life(self.process.pid, "evenkeeld"))
            threading.Thread(target=self.read, args=(end,), daemon=True).start()

    def enter(self):
        if self.memory:
            (self.memory[0] / "cgroup.procs").write_text("0")
            with contextlib.suppress(OSError):
                pathlib.Path("/proc/self/oom_score_adj").write_text("-1000")  # as its unit does; else it may be killed where no server is left

    def read(self, end):
        with open(self.run / "evenkeeld.log", "ab", buffering=0) as log, open(end, "rb", buffering=0) as pipe:
            while True:
                self.pumping.wait()
                data = pipe.read(65536)
                if not data:
                    return
                log.write(data)

    def log(self):
        with contextlib.suppress(OSError):
            return (self.run / "evenkeeld.log").read_text(errors="replace")
        return ""

    def end_daemon(self, sig, why, seconds=20):
        """Sends it a signal that ends it, and waits for that."""
        with self.daemon_lock:
            if not self.process or self.process.poll() is not None:
                return None
            self.daemons[-1].blamed.append((why, None))
            self.process.send_signal(sig)
            try:
                return self.process.wait(seconds * self.scale * slower())
            except subprocess.TimeoutExpired:
                return None

    def daemon_up(self):
        return self.process is not None and self.process.poll() is None

    # What they say

    def ctl(self, *words, seconds=20):
        try:
            done = subprocess.run([BUILD / "evenkeelctl", "--socket", self.run / "e.sock", *words], capture_output=True, text=True, timeout=seconds * self.scale * slower())
        except subprocess.TimeoutExpired:
            return 124, "", "no answer"
        return done.returncode, done.stdout, done.stderr

    def api(self, path):
        status, body = get(self.page, path, timeout=5 * self.scale * slower())
        if status != 200:
            raise RuntimeError(f"{path}: {status}")
        return json.loads(body)

    def server(self):
        return self.api("/api/v1/servers")["servers"][0]

    def wait(self, condition, seconds, step=0.05):
        """Polls until it is true; False when the time, which goes by the pace of this machine, is over."""
        patience = Patience(seconds * self.scale)
        while patience.left():
            with contextlib.suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):
                if condition():
                    return True
            time.sleep(step)
        return False

    def route(self):
        """Puts HAProxy in front."""
        self.router = Router(self, self.flags())
        self.front = self.router.port

    # Lives

    def look(self):
        """Finds servers as children of evenkeeld, and sees each process die."""
        poller, by_fd = select.poll(), {}
        while not self.over:
            with self.lock:
                for life in self.daemons + self.lives:
                    if life.fd not in by_fd and life.died is None:
                        by_fd[life.fd] = life
                        poller.register(life.fd, select.POLLIN)
            for fd, _ in poller.poll(30):
                by_fd.pop(fd).died = time.monotonic()
                poller.unregister(fd)
            self.find_children()
            time.sleep(0.01)

    def find_children(self):
        known = {life.pid for life in self.lives if life.alive()}
        with contextlib.suppress(OSError, ValueError):
            pid = self.process.pid if self.process else 0
            for child in map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
                if b"--dry-run" in words or b"--check-config" in words:
                    continue  # only asked whether it would start
                if os.getsid(child) != child:
                    continue  # a process of a server that has just ended, for the moment until it ends as well: evenkeeld's own lead a session
                if child not in known and words and "evenkeel-server" in os.readlink(f"/proc/{child}/exe"):
                    with self.lock:
                        self.lives.append(Life(child, "evenkeel-server"))

    def running(self):
        """The server that runs now, or None."""
        with self.lock:
            alive = [life for life in self.lives if life.alive()]
        return alive[-1] if alive else None

    def hit(self, sig, pattern, event):
        """Sends the server a signal that ends it and writes down what may rightly be said of that. False when there is none."""
        life = self.running()
        if not life:
            return False
        life.blamed.append((pattern, event))
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(life.fd, sig)
        return True

    def plan(self, why):
        """The server that runs now is going to be ended in peace: nothing may be lost before the deadline of its drain."""
        life = self.running()
        if life:
            life.planned.append((time.monotonic(), why))
        return life

    @contextlib.contextmanager
    def window(self, kind):
        """While something is so that clients may rightly notice."""
        w = [kind, time.monotonic(), None]
        with self.lock:
            self.windows.append(w)
        try:
            yield
        finally:
            w[2] = time.monotonic()

    def in_window(self, kind, begin, end, slack=0.0):
        with self.lock:
            return any(k == kind and b - slack <= end and (e is None or e + slack >= begin) for k, b, e in self.windows)

    def nobody(self, at, slack):
        """Whether neither program lived at some moment around `at`, so that nobody held the port."""
        with self.lock:
            lives = [(x.born, x.died or 1e18) for x in self.lives]
            # An evenkeeld that has just begun does not have the socket yet.
            lives += [(x.born + (self.scale if i else 0), x.died or 1e18) for i, x in enumerate(self.daemons)]
        moments = [at - slack, at, at + slack] + [d for _, d in lives if at - slack <= d <= at + slack]
        return any(not any(b <= m < d for b, d in lives) for m in moments)

    # The end

    def strays(self):
        """Processes that carry our word."""
        word, found = f"{MARK}={self.mark}".encode(), []
        for p in pathlib.Path("/proc").iterdir():
            if p.name.isdigit():
                with contextlib.suppress(OSError):
                    if word in (p / "environ").read_bytes().split(b"\0"):
                        found.append((int(p.name), (p / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]))
        return found

    def end(self):
        """Ends whatever is left, by its word; says what that was."""
        self.pumping.set()
        left = self.strays()
        self.over = True
        if self.router:
            self.router.end()
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait(30)
        self.census.join(5)
        if self.memory:
            self.wait(lambda: not self.memory[0].rmdir() and True, 5)
        for life in self.lives + self.daemons:
            with contextlib.suppress(OSError):
                os.close(life.fd)
        return left


def figures(pid):
    """Resident MiB and open descriptors of a process."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd"))
