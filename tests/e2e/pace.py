"""How fast this machine is at the moment: bounds on time are for a machine of its own, and grow while others compute on it."""
import time

SPIN = 60_000  # a few milliseconds of a core
MOST = 20.0    # beyond it something is broken

FRESH_S = 1.0  # so long a measurement holds: each is some 25 ms of a core
REST_S = 3.0   # the longest between two of one wait

_least = None  # what the spin took of a core at best
_last = (-FRESH_S, 1.0)  # when slower() was measured, and what it was


def slower():
    """How many times as long as at best something takes now, 1 to MOST: it waits for a core, or the core is slower."""
    global _last
    if time.monotonic() - _last[0] > FRESH_S:
        rate = _measured()
        _last = (time.monotonic(), rate)
    return _last[1]


def _measured():
    global _least
    began, cpu = time.monotonic(), time.thread_time()
    for _ in range(5):
        total = 0
        for i in range(SPIN):
            total += i
    took, cpu = time.monotonic() - began, time.thread_time() - cpu
    _least = cpu if _least is None else min(_least, cpu)
    return min(max(took / max(_least, 1e-6), 1.0), MOST)


def paced(seconds):
    """What a program is told for a deadline of so many seconds on a machine of its own: as many whole ones as it needs now."""
    return max(seconds, round(seconds * slower()))


class Patience:
    """Seconds that pass as fast as this machine is. left(): whether there are any."""

    def __init__(self, seconds):
        self.seconds, self.spent, self.rate, self.rest = seconds, 0.0, 1.0, FRESH_S
        self.seen = self.measured = time.monotonic()

    def left(self):
        now = time.monotonic()
        self.spent += (now - self.seen) / self.rate
        self.seen = now
        if now - self.measured > self.rest:
            self.rate, self.rest = slower(), min(2 * self.rest, REST_S)
            self.measured = time.monotonic()
        return self.spent < self.seconds
