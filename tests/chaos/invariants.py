"""What holds after any faults. Each function yields sentences; one sentence is one violation."""
import re
import time

from world import figures

# What evenkeeld decided is on disk, so that the next one tells it, too.
HISTORY_KEPT = True
RSS_MOST_MIB, RSS_GROWS_MIB, FDS_MOST = 48, 16, 64


def killed(w, x):
    """Whether a fault had ended this server."""
    starved = x.died - x.born < 2 * w.scale and w.in_window("server_descriptors", x.born, x.died)
    return bool(x.blamed) or starved or w.in_window("memory", x.died, x.died, w.scale)


def away(w, r, slack):
    """Whether evenkeeld showed that an operator's drain lasts, or what became of it, or an open breaker."""
    drained = ("draining", "drained", "stopped") if any(e.kind == "drain" for e in w.events) else ()
    return any(s in ("breaker_open", *drained) and r.began - slack <= at <= r.ended + slack for at, s, *_ in w.watch.states)


def texts(w, pool, ended):
    """Every letter that came is the right one, and a whole answer is whole."""
    for r in ended:
        known = pool[r.number]["text"]
        if r.how == "done" and r.text != known:
            at = next((i for i, (a, b) in enumerate(zip(r.text, known)) if a != b), min(len(r.text), len(known)))
            yield f"request {r.number} was answered with another text from letter {at} on: {r.text[at:at + 30]!r} instead of {known[at:at + 30]!r}"
        elif r.how != "done" and not known.startswith(r.text):
            yield f"request {r.number} was {r.how} after a text that is not the beginning of the known one"


def lost(w, pool, ended):
    """What was not killed is not lost; what was refused was refused for a reason that is known."""
    slack = 1.0 * w.scale
    unplanned = [x.died for x in w.lives if x.died and killed(w, x)]
    late = [x.died for x in w.lives if x.died and x.planned and x.died - x.planned[0][0] >= 0.8 * w.drain_s()]
    for r in ended:
        if r.how == "done":
            continue
        if w.router and (r.how == "refused" or (r.how == "status" and not r.said.startswith("502"))):
            yield f"HAProxy has two servers, and a request was refused: {r.short()}: {when(w, r.ended)}"
            continue
        near = [d for d in unplanned + late if r.began - slack <= d <= r.ended + slack]
        if r.how == "error" and w.options["short_drain"] and w.in_window("unavailable", r.began, r.ended, slack):
            continue  # the deadline of an operator's drain
        # What waited in evenkeeld's socket between two servers ends with an evenkeeld that is killed then.
        if w.router and r.how == "status" and not near and not w.in_window("held", r.began, r.ended, slack) and not w.nobody(r.ended, slack):
            yield f"HAProxy had no answer of a server that nothing had killed: {r.short()}: {when(w, r.ended)}"
        elif w.router and r.how == "status":
            continue
        elif r.how == "cut" and not r.text and w.in_window("held", r.began, r.ended, slack):
            continue  # somebody else had the port, took the connection and closed it
        elif r.how in ("cut", "error") and not near and (w.router or not w.nobody(r.ended, slack)):
            yield f"a stream was {r.short()}, and nothing had killed its server: {when(w, r.ended)}"
        elif r.how == "refused" and not w.nobody(r.ended, slack) and not w.in_window("held", r.began, r.ended, slack):
            yield f"a connection was refused while somebody held the port: {when(w, r.ended)}"
        elif r.how == "late":
            yield f"a request had no answer: {r.short()}: {when(w, r.ended)}"
        elif r.how == "status":
            yield from refused(w, r, slack)


def past_deadline(w, r, slack):
    """Whether it waited in a server when the deadline of that server's planned end cut it off: it was there before the deadline, and is told so."""
    return "its deadline has passed" in r.said and any(
        x.planned and x.died and x.died - x.planned[0][0] >= 0.8 * w.drain_s() and r.began < x.planned[0][0] + w.drain_s() + slack
        and x.planned[0][0] + 0.8 * w.drain_s() <= r.ended <= x.died + slack for x in w.lives)


def refused(w, r, slack):
    status = r.said.split(" ")[0]
    if status == "503" and past_deadline(w, r, slack):
        return
    told = w.in_window("unavailable", r.began, r.ended, 2 * slack) or w.in_window("held", r.began, r.ended, 2 * slack)
    if status in ("429", "503") and (told or away(w, r, slack)):
        return
    yield f"a request was refused: {r.short()}: {when(w, r.ended)}"


def when(w, at):
    """What was done shortly before, for the sentence."""
    return "; ".join(f"{e.kind} at {e.at} s" for e in w.events if e.done and e.at * w.scale <= at - w.began + 0.5)[-200:] + f" (it was {at - w.began:.2f} s)"


def classes(w):
    """Every end that evenkeeld tells is told as what it was, and every end that it could see is told."""
    by_pid, pid = {x.pid: x for x in w.lives}, None
    for d in w.watch.ordered():
        number = re.search(r"process (\d+)", d["why"])
        if d["reason"] in ("STARTED", "ADOPTED") and number:
            pid = int(number[1])
        if d["reason"] != "CRASH":
            continue
        life = by_pid.get(pid)
        causes = life.blamed if life else [b for x in w.lives for b in x.blamed]
        if re.search(r"PORT\b", d["why"]) and any(k == "held" for k, *_ in w.windows):
            continue
        if re.search(r"(HOST|STARTUP)_OOM\b", d["why"]) and any(k == "memory" for k, *_ in w.windows):
            continue
        if "too-many-open-files" in d["why"] and any(k == "server_descriptors" for k, *_ in w.windows):
            continue
        if re.search(r"(Too many|No .*descriptors)", d["why"]) and "CONFIG" not in d["why"] and any(k == "descriptors" for k, *_ in w.windows):
            continue
        if not any(re.search(pattern, d["why"]) for pattern, _ in causes):
            yield f"an untrue cause: {d['why']!r} of process {pid}, which {' or '.join(e.kind for _, e in causes if e) or 'nothing'} ended"
        after = re.search(r"after (\d+) s", d["why"])
        if after and int(after[1]) > (time.monotonic() - w.born) + 3 * w.scale + w.options.get("boot", 0):  # an age counts a sleep
            yield f"{d['why']!r}, but this world is {time.monotonic() - w.born:.0f} s old"


def explained(w):
    """Each fault that must be named is named."""
    text = w.watch.text()
    for e in w.events:
        if not HISTORY_KEPT and not watched(w, e):
            continue
        for pattern in e.shows:
            if e.done and not re.search(pattern, text):
                yield f"explain does not name {e.kind} at {e.at} s (nothing like {pattern!r})"


def watched(w, e):
    """Whether one evenkeeld lived from shortly before the fault until what it says had been read."""
    at = w.began + e.at * w.scale
    return any(x.born < at - 0.5 * w.scale and (x.died or 1e18) > at + 3 * w.scale for x in w.daemons)


def lives(w):
    """Neither program ends by itself."""
    for x in w.lives:
        planned = x.planned or w.expected_end or (x.died and w.in_window("restart", x.died, x.died))
        if x.died and not killed(w, x) and not planned:
            yield f"server process {x.pid} ended {x.died - w.began:.2f} s after the begin, and nobody had ended it: {when(w, x.died)}"
    for x in w.daemons:
        if x.died and not x.blamed and not w.in_window("broken", x.born, x.died, w.scale) and not (
                x.died - x.born < w.scale and w.in_window("descriptors", x.born, x.died)) and not last_in_group(w, x):
            yield f"evenkeeld ended by itself (status {w.statuses.get(x.pid, 'not known')}): {when(w, x.died)}; its last words: {w.log()[-400:]!r}"


def last_in_group(w, x):
    """Whether the kernel killed it for want of memory when no server was left that it must kill before."""
    served = any(s.born <= x.died - 0.2 and (s.died or 1e18) > x.died + 0.2 for s in w.lives)
    return w.statuses.get(x.pid, w.process.poll()) == -9 and w.in_window("memory", x.died, x.died, 0.5) and not served


def bounded(w, before):
    """evenkeeld's memory and descriptors are bounded."""
    if not w.daemon_up():
        return
    rss, fds = figures(w.process.pid)
    if rss > RSS_MOST_MIB or rss - before[0] > RSS_GROWS_MIB:
        yield f"evenkeeld has {rss:.1f} MiB, {before[0]:.1f} at the begin"
    if fds > FDS_MOST:
        yield f"evenkeeld has {fds} descriptors, {before[1]} at the begin"


def converge(w, seconds):
    """After the last fault all is as it was: ready within the bound, or within the wait that it tells; an open breaker is closed by an operator."""
    def ready():
        s = w.server()
        return s["ready"] and s["state"] == "ready" and s["signal_good"]
    begin = time.monotonic()
    if w.wait(ready, seconds):
        if w.router and not w.wait(lambda: w.router.look() == "UP", 10):
            yield f"ready, and HAProxy has it {w.router.look()} 10 s later"
        return
    try:
        s = w.server()
    except (OSError, RuntimeError, ValueError) as error:
        yield f"evenkeeld does not answer {time.monotonic() - begin:.0f} s after the last fault: {error!r}"
        return
    if s["state"] == "breaker_open" and (
            sum(bool(x.blamed) for x in w.lives) >= 3 or any(k in ("held", "memory") for k, *_ in w.windows)):
        w.ctl("restart")
        if w.wait(ready, seconds):
            return
    yield f"not ready {time.monotonic() - begin:.0f} s after the last fault: {s['state']}, ready {s['ready']}, last: {s['last_decision']}"
