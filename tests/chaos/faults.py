"""What is done to the two programs: one function per fault, and what each must be called afterwards.

A fault runs in a thread of its own, for as long as it lasts; when its function returns it is lifted. It writes down

    w.hit(signal, PATTERN, e)   that a server's end is its doing, and what may rightly be said of that end
    w.plan(WHY)                 that a server ends by plan, so that nothing may be lost
    w.window(KIND)              when clients may rightly notice: `unavailable` (503), `busy` (429), `held` (the port is somebody else's)
    e.show(PATTERN)             what `evenkeelctl explain` must have said of it at the end

docs/faults.md has the list for people; `make chaos` refuses to run when a fault is missing there."""
import contextlib
import os
import pathlib
import re
import resource
import signal
import socket
import threading
import time
from dataclasses import dataclass, field

from streams import slow_reader, vanish
from world import figures

import ptrace
from pace import Patience

TABLE = {}
STUCK_MOST_S = 25
# Kept out of the draw until the named bug is mended: fault -> why. See docs/faults.md.
WITHHELD = {}


@dataclass
class Event:
    """One fault of a schedule. at: seconds from the begin; lasts: seconds until it is lifted."""
    at: float
    kind: str
    lasts: float
    args: dict = field(default_factory=dict)
    done: bool = False
    shows: list = field(default_factory=list)
    said: str = ""

    def show(self, pattern):
        self.shows.append(pattern)

    def json(self):
        return {"at": self.at, "kind": self.kind, "lasts": self.lasts, "args": self.args}


@dataclass
class Fault:
    name: str
    act: object
    weight: int
    lasts: tuple
    kills: int
    needs: str
    draw: object


def fault(weight=2, lasts=(0.0, 0.0), kills=0, needs="", draw=lambda rng: {}):
    """kills: how many unplanned ends of the server it makes; needs: `mounts`, `clock`, `memory`, `trace`, `engine`."""
    def keep(act):
        TABLE[act.__name__] = Fault(act.__name__, act, weight, lasts, kills, needs, draw)
        return act
    return keep


# A signal that ended it. Where nobody watched, which one is not known; another number is a lie.
def by_signal(number):
    return rf"SIGNAL\b(?!.*[Ss]ignal (?!{number}\b)\d)"


# The server

def stopped(w):
    """Then it takes no signal but SIGKILL and SIGCONT, and may be killed as hung before it goes on."""
    return w.in_window("paused", time.monotonic(), time.monotonic())


@fault(weight=4, kills=1)
def server_kill(w, e):
    if w.hit(signal.SIGKILL, by_signal(9), e):
        e.show(by_signal(9))


@fault(weight=3, kills=1)
def server_segv(w, e):
    if w.hit(signal.SIGSEGV, by_signal(11), e) and not stopped(w):
        e.show(by_signal(11))


@fault(weight=1, kills=1)
def server_abort(w, e):
    if w.hit(signal.SIGABRT, by_signal(6), e) and not stopped(w):
        e.show(by_signal(6))


@fault(weight=3, lasts=(0.3, 1.5))
def server_pause(w, e):
    """Shorter than hang_s: nothing follows."""
    stop(w, e, w.running(), e.lasts)


@fault(weight=2, lasts=(1.1, 1.3))
def server_halt(w, e):
    """For longer than hang_s, which lasts counts, and shorter than halt_s: shown as halted, and nothing is cut or restarted."""
    stop(w, e, w.running(), e.lasts * w.hang_s())


def stop(w, e, life, lasts):
    """What is stopped for good (server_stuck) is not continued."""
    if not life:
        return
    with w.window("paused"):
        try:
            signal.pidfd_send_signal(life.fd, signal.SIGSTOP)
            time.sleep(lasts)
            if not w.in_window("stuck", time.monotonic(), time.monotonic()):
                signal.pidfd_send_signal(life.fd, signal.SIGCONT)
        except ProcessLookupError:
            pass


HUNG = r"HANG_KILLED\b"


def hung(w, e, life):
    """Waits until it is ended for that. What else ended it is known to those who did; True when it was this."""
    mine = (HUNG, e)
    life.blamed.append(mine)
    began, patience = time.monotonic(), Patience(STUCK_MOST_S * w.scale)
    while life.alive() and patience.left():
        yield
        time.sleep(0.02)
    if life.alive():
        life.blamed.remove(mine)
        if not w.daemons[-1].alive() or w.daemons[-1].born > began:
            return  # nobody watched for all that time
        raise AssertionError(f"process {life.pid} hangs for {time.monotonic() - began:.0f} s, and evenkeeld has not ended it")
    if life.blamed == [mine] and not life.planned:
        e.show(HUNG)


@fault(weight=1, kills=1)
def server_stuck(w, e):
    """SIGSTOP and no SIGCONT: ended after halt_s."""
    life = w.running()
    if not life:
        return
    with contextlib.suppress(ProcessLookupError), w.window("paused"), w.window("stuck"):
        signal.pidfd_send_signal(life.fd, signal.SIGSTOP)
        for _ in hung(w, e, life):
            pass
        signal.pidfd_send_signal(life.fd, signal.SIGCONT)


@fault(weight=1, kills=1, needs="trace")
def engine_stuck(w, e):
    """Its engine computes nothing more while all else of it lives: ended when a step has lasted for too long."""
    life = w.running()
    if not life:
        return
    tid = ptrace.thread_of(life.pid, "engine")
    with w.window("stuck"), ptrace.held(tid) as held:
        for _ in hung(w, e, life) if held else ():
            ptrace.reap(tid)


def engine_process(life):
    """The pid of its engine's process, the launcher's child, or nothing."""
    with contextlib.suppress(OSError):
        for launcher in children(life.pid):
            for pid in children(launcher):
                return pid
    return None


def children(pid):
    return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def end_engine(w, sig):
    """Nothing is blamed: the server goes on, and no stream may notice."""
    life = w.running()
    pid = life and engine_process(life)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)


@fault(weight=6, needs="engine")
def engine_kill(w, e):
    end_engine(w, signal.SIGKILL)


@fault(weight=4, needs="engine")
def engine_segv(w, e):
    end_engine(w, signal.SIGSEGV)


@fault(weight=3, needs="engine")
def engine_halt(w, e):
    """SIGSTOP and no SIGCONT: ended after --step-deadline, or with the next request where it was idle."""
    end_engine(w, signal.SIGSTOP)


@fault(weight=4, needs="engine")
def engine_restart(w, e):
    w.ctl("engine", "restart")


# evenkeeld

def end_and_start(w, e, sig, before=lambda: None):
    with w.daemon_lock:
        w.end_daemon(sig, e.kind)
        before()
        time.sleep(e.lasts)
        w.start()
    if w.running():
        w.wait(lambda: w.server()["ready"], 20)


@fault(weight=4, lasts=(0.0, 1.5))
def daemon_kill(w, e):
    end_and_start(w, e, signal.SIGKILL)


@fault(weight=2, lasts=(0.0, 1.0))
def daemon_segv(w, e):
    end_and_start(w, e, signal.SIGSEGV)


@fault(weight=3, lasts=(0.2, 2.0))
def daemon_pause(w, e):
    with w.window("daemon_paused"), w.daemon_lock:
        if w.daemon_up():
            w.process.send_signal(signal.SIGSTOP)
            time.sleep(e.lasts)
            w.process.send_signal(signal.SIGCONT)


@fault(weight=3, lasts=(0.0, 0.5))
def daemon_upgrade(w, e):
    """As a package does it: a new file, then SIGUSR1, which leaves the server to the next."""
    end_and_start(w, e, signal.SIGUSR1, lambda: w.upgrade("evenkeeld"))


@fault(weight=1, lasts=(0.0, 1.0), kills=1)
def both_kill(w, e):
    with w.daemon_lock:
        w.end_daemon(signal.SIGKILL, e.kind)
        w.hit(signal.SIGKILL, by_signal(9), e)
        time.sleep(e.lasts)
        w.start()


@fault(weight=2, lasts=(0.0, 0.5))
def state_damaged(w, e):
    def damage():
        for f in (w.run / "state").glob("state.json"):
            try:
                f.write_bytes(e.args["text"].encode())
            except OSError:
                return
    end_and_start(w, e, signal.SIGKILL, damage)


state_damaged_texts = ('{"version": 999}', "", "{", "\0" * 64, '{"version": 2, "servers": 7}')
TABLE["state_damaged"].draw = lambda rng: {"text": rng.choice(state_damaged_texts)}


# The operator

@fault(weight=3)
def restart(w, e):
    planned(w, e, "restart")


@fault(weight=1)
def roll(w, e):
    planned(w, e, "roll")


@fault(weight=2)
def server_upgrade(w, e):
    w.upgrade("evenkeel-server")
    planned(w, e, "restart")


def planned(w, e, word):
    life = w.plan(e.kind)
    with w.window("restart"):  # it may be another process by the time it is done
        rc, out, err = w.ctl(word)
        e.said = (out + err).strip()
        if rc == 0:
            e.show(r"OPERATOR .*start")
        if rc == 0 and life:
            w.wait(lambda: not life.alive() and w.server()["ready"], w.drain_s() / w.scale + 20)


@fault(weight=3, lasts=(0.2, 4.0))
def drain(w, e):
    with w.window("unavailable"), w.window("drain"):
        rc, out, err = w.ctl("drain")
        e.said = (out + err).strip()
        if rc == 0:
            e.show(r"DRAIN_START")
        time.sleep(e.lasts)
        if rc == 0:
            w.ctl("resume")


@fault(weight=2)
def reload(w, e):
    rc, out, err = w.ctl("reload")
    e.said = (out + err).strip()


@fault(weight=2, draw=lambda rng: {"min": rng.choice((1, 2, 3))})
def reload_bounds(w, e):
    """A configuration that is changed: its bounds hold at once."""
    w.extra["limits"] = f"{{max_num_running_seqs: {{min: {e.args['min']}}}}}"
    w.write()
    w.ctl("reload")


@fault(weight=2, lasts=(0.2, 2.0), draw=lambda rng: {"text": rng.choice(("lissten: x\n", "servers: [\n", "\tx\n", "listen: 1\n", "a: &a [*a]\n"))})
def config_broken(w, e):
    """Refused with what is wrong, and what runs stays; then it is mended."""
    life = w.running()
    with w.window("broken"):  # an evenkeeld that starts meanwhile ends with 78
        w.write(e.args["text"])
        rc, out, err = w.ctl("reload")
        e.said = (out + err).strip()
        meant = e.args["text"] in (w.run / "evenkeeld.yaml").read_text()  # no other fault has written it since
        time.sleep(e.lasts)
        w.write()
    w.start()
    if rc == 0 and meant:
        raise AssertionError(f"a configuration with {e.args['text']!r} was taken: {out}{err}")
    if rc == 1 and "stays as it was" not in err:
        raise AssertionError(f"refused without a sentence: {err!r}")
    if life and not life.alive() and not life.blamed and not life.planned:
        raise AssertionError("the server was ended by a configuration that was refused")
    w.ctl("reload")


@fault(weight=2, lasts=(0.5, 2.5), draw=lambda rng: {"n": rng.choice((1, 2, 3))})
def pin(w, e):
    rc, out, err = w.ctl("limits", "pin", f"max_num_running_seqs={e.args['n']}")
    e.said = (out + err).strip()
    if rc == 0:
        e.show(r"OPERATOR")
    time.sleep(e.lasts)
    w.ctl("limits", "unpin", "max_num_running_seqs")
    w.ctl("limits", "set", f"max_num_running_seqs={w.options['seqs']}")


@fault(weight=2, lasts=(0.0, 1.0), draw=lambda rng: {"words": [f"{rng.choice(('max_num_running_seqs', 'max_num_batched_tokens', 'no_such_limit'))}="
                                                               f"{rng.choice(('0', '1', '-1', '4294967296', '18446744073709551616', 'nan', '1e9', '', '0x10', '99999999'))}"]})
def limits_absurd(w, e):
    """Taken within its bounds, or refused with a sentence; both programs live on."""
    rc, out, err = w.ctl("limits", "set", *e.args["words"])
    e.said = (out + err).strip()
    if rc not in (0, 3, 124) and not err.strip():
        raise AssertionError(f"{e.args['words']} refused without a sentence")
    time.sleep(e.lasts)
    w.ctl("limits", "set", f"max_num_running_seqs={w.options['seqs']}")
    w.ctl("limits", "set", "max_num_batched_tokens=2048")


# What stands around them

@fault(weight=2, lasts=(0.3, 2.5), kills=1)
def port_taken(w, e):
    """Both are killed and somebody else has the port; when it is free the server comes."""
    with w.daemon_lock, w.window("held"):
        began = time.monotonic()
        w.end_daemon(signal.SIGKILL, e.kind)
        life = w.running()
        w.hit(signal.SIGKILL, by_signal(9), e)
        if life and not w.wait(lambda: not life.alive(), 10):
            return
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", w.port))
            except OSError:
                w.start()
                return
            s.listen()
            w.start()
            # What an operator drained is not started, and with a broken configuration evenkeeld is not.
            if not any(w.in_window(kind, began, time.monotonic()) for kind in ("drain", "broken")):
                e.show(r"PORT\b")
            w.wait(lambda: w.server()["last_decision"], 20)
            time.sleep(e.lasts)
        w.wait(lambda: w.server()["ready"], 40)


@fault(weight=3, lasts=(0.5, 2.5), needs="mounts", draw=lambda rng: {"of": rng.choice(("state", "log", "both"))})
def disk_full(w, e):
    """Every byte of the small disk is taken; serving goes on."""
    taken = []
    try:
        for name in ("state", "log") if e.args["of"] == "both" else (e.args["of"],):
            try:
                taken.append(open(w.run / name / f"fill-{id(e)}", "wb", buffering=0))
                while True:
                    taken[-1].write(b"\0" * 4096)
            except OSError:
                pass
        time.sleep(e.lasts)
    finally:
        for f in taken:
            f.truncate(0)  # by its descriptor: another fault may have hidden the directory
            f.close()


@fault(weight=2, lasts=(0.5, 2.5), needs="mounts")
def disk_read_only(w, e):
    """The state directory is hidden by one that cannot be written to."""
    state = w.run / "state"
    if os.system(f"mount --bind {state} {state} && mount -o remount,bind,ro {state}") != 0:
        return
    try:
        time.sleep(e.lasts)
    finally:
        os.system(f"umount -l {state}")


@fault(weight=2, lasts=(1.0, 3.0), draw=lambda rng: {"reloads": rng.choice((0, 200))})
def stderr_blocked(w, e):
    """Nobody reads what evenkeeld logs; 200 reloads fill its pipe. It answers all the same."""
    w.pumping.clear()
    try:
        end = time.monotonic() + e.lasts * w.scale
        for _ in range(e.args["reloads"]):
            if w.daemon_up() and time.monotonic() < end and holds_signals(w.process.pid):
                w.process.send_signal(signal.SIGHUP)
                time.sleep(0.003)
        time.sleep(max(0.0, end - time.monotonic()))
        with w.daemon_lock:
            if w.daemon_up() and not any(
                    w.in_window(kind, time.monotonic() - 5, time.monotonic()) for kind in ("daemon_paused", "memory")) and w.ctl("status")[0] == 124:
                raise AssertionError("evenkeeld does not answer while nobody reads its log")
    finally:
        w.pumping.set()


def holds_signals(pid):
    """Whether its main() has begun: until then SIGHUP ends any process, and nobody can mend that."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return any(int(line.split()[1], 16) & 1 << (signal.SIGHUP - 1) for line in f if line.startswith("SigBlk:"))
    except OSError:
        return False


@fault(weight=2, lasts=(0.5, 2.0), kills=1, needs="memory", draw=lambda rng: {"left_mib": rng.choice((0, 1, 4))})
def memory_limit(w, e):
    """The cgroup of both may have little more than they have. The kernel may kill the server, or a start may not fit: both are told as memory."""
    group, limit, used = w.memory
    before = limit.read_text().strip()
    with w.window("memory"):
        try:
            limit.write_text(str(int(used.read_text()) + (e.args["left_mib"] << 20)))
            time.sleep(e.lasts)
        except OSError:
            pass
        finally:
            limit.write_text("-1" if before.isdigit() else before)
    w.start()


@fault(weight=2, lasts=(0.5, 2.5))
def daemon_descriptors(w, e):
    """evenkeeld may open nothing more."""
    with w.window("descriptors"):  # one that only starts may end: it cannot even take its lock
        limit(w.process.pid if w.daemon_up() else 0, w, e)
    w.start()


@fault(weight=2, lasts=(0.5, 2.5))
def server_descriptors(w, e):
    """The server may open nothing more while idle connections come."""
    life = w.running()
    with w.window("unavailable"), w.window("server_descriptors"):
        limit(life.pid if life else 0, w, e, idle=100)


def limit(pid, w, e, idle=0):
    held = []
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (figures(pid)[1] + 1, hard))
    except (OSError, ValueError):
        return
    try:
        for _ in range(idle):
            s = socket.socket()
            s.settimeout(0.2)
            held.append(s)
            try:
                s.connect(("127.0.0.1", w.port))
            except OSError:
                break
        time.sleep(e.lasts)
    finally:
        for s in held:
            s.close()
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(20000, hard), hard))
        except OSError:
            pass


@fault(weight=3, lasts=(0.0, 2.0), needs="clock", draw=lambda rng: {"wall": rng.choice((3600, -3600, 86400, -86400, 40 * 365 * 86400)), "boot": rng.choice((0, 0, 600))})
def clock_jumps(w, e):
    """The wall clock is off for both programs, and the time since boot as after a sleep; the wall clock comes back."""
    boot = w.options.setdefault("boot", 0) + e.args["boot"]
    w.options["boot"] = boot  # it never goes back
    w.put(w.run / "clock", f"{e.args['wall']} {boot}\n")
    time.sleep(e.lasts)
    w.put(w.run / "clock", f"0 {boot}\n")


# Clients

@fault(weight=2, lasts=(1.0, 4.0), draw=lambda rng: {"n": rng.choice((1, 4, 8))})
def slow_clients(w, e):
    threads = [threading.Thread(target=quietly(slow_reader), args=(w.front, e.lasts), daemon=True) for _ in range(e.args["n"])]
    for t in threads:
        t.start()
    for t in threads:
        t.join(e.lasts + 15)


@fault(weight=2, lasts=(0.1, 1.0), draw=lambda rng: {"n": rng.choice((4, 16, 40))})
def clients_vanish(w, e):
    threads = [threading.Thread(target=quietly(vanish), args=(w.front, e.lasts), daemon=True) for _ in range(e.args["n"])]
    for t in threads:
        t.start()
    for t in threads:
        t.join(e.lasts + 15)


@fault(weight=1, lasts=(0.5, 2.0))
def junk(w, e):
    """Bytes that are no request, and connections that say nothing."""
    held = []
    for text in (b"", b"\0" * 512, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n{", b"{" * 2000):
        try:
            s = socket.create_connection(("127.0.0.1", w.port), 5)
            s.sendall(text)
            held.append(s)
        except OSError:
            pass
    time.sleep(e.lasts)
    for s in held:
        s.close()


def quietly(act):
    def run(*args):
        try:
            act(*args)
        except OSError:
            pass
    return run


def fits(need, engine_process):
    """Whether a fault is one for a world whose engine has a process of its own, or for one where it has none."""
    return need not in (("memory", "trace") if engine_process else ("engine",))


def can(need, mounts, clock, memory):
    """Why a fault cannot be made here, or nothing."""
    if need == "trace" and not ptrace.allowed():
        return "no thread of another process may be stopped here"
    if need == "mounts" and not mounts:
        return "no mount namespace is allowed here"
    if need == "memory" and not memory:
        return "no memory cgroup can be made here"
    if need == "clock" and not clock:
        return "the clock of a sanitized program cannot be moved"
    return ""


def undocumented(page):
    return [name for name in TABLE if not re.search(rf"`{name}`", page)]
