"""Looks at what evenkeeld shows while faults happen: state, decisions, and every screen for a number that is none."""
import contextlib
import re
import threading
import time

from client import get

# A word that is no number, as a value: in JSON, in a table, in an exposition. `isNaN(` in the page's script is not one.
NAN = re.compile(r"(?<![\w.'\"])[-+]?nan(?![\w(])(?! *=>)|\binf\b(?!\")", re.IGNORECASE)
SCREENS = ("/api/v1/servers", "/api/v1/servers/s1/decisions?limit=256", "/metrics")


class Watch:
    def __init__(self, w):
        self.w, self.over = w, False
        self.states, self.decisions, self.explained, self.nan, self.figures = [], {}, set(), [], []
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        turn = 0
        while not self.over:
            with contextlib.suppress(OSError, RuntimeError, ValueError, LookupError):
                self.look(turn)
            turn += 1
            time.sleep(0.15)

    def look(self, turn):
        server = self.w.server()
        if self.w.router:
            self.w.router.look()
        self.states.append((time.monotonic(), server["state"], server["ready"], server["pid"]))
        self.take(self.w.api("/api/v1/servers/s1/decisions?limit=256")["decisions"])
        if turn % 6 == 0:
            self.screens()

    def take(self, decisions):
        with self.lock:
            for d in reversed(decisions):
                self.decisions.setdefault((d["at_s"], d["reason"], d["why"]), (time.monotonic(), d))

    def screens(self):
        """Everything that a person or a program reads."""
        w = self.w
        for path in (*SCREENS, "/"):
            self.judge(path, get(w.page, path, timeout=5 * w.scale)[1].decode(errors="replace"))
        with contextlib.suppress(OSError):
            self.judge("the server's /metrics", get(w.port, "/metrics", timeout=2 * w.scale)[1].decode(errors="replace"))
        for words in (("status",), ("limits",), ("explain", "-n", "256")):
            rc, out, err = w.ctl(*words)
            if rc == 0:
                self.judge("evenkeelctl " + " ".join(words), out + err)
                if words[0] == "explain":
                    self.explained.add(out)

    def judge(self, where, text):
        if where == "/":
            text = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        found = NAN.search(text)
        if found and len(self.nan) < 5:
            self.nan.append(f"{where}: ...{text[max(0, found.start() - 60):found.end() + 40]!r}")

    def ordered(self):
        """Decisions as they were first seen: the clock of evenkeeld may have been moved."""
        with self.lock:
            return [d for _, d in self.decisions.values()]

    def text(self):
        """All that was said of decisions, in one piece."""
        return "\n".join(f"{d['reason']} {d['why']}" for d in self.ordered()) + "\n".join(self.explained)

    def end(self):
        self.over = True
        self.thread.join(20)
