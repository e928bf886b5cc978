#!/usr/bin/env python3
"""One schedule in one world: python3 run.py SCHEDULE.json RESULT.json. Started by chaos.py, in a mount namespace where that is allowed."""
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import traceback

import invariants
import router
import schedule as schedules
from faults import TABLE, can
from streams import Clients
from texts import ROOT  # noqa: F401
from watch import Watch
from world import World, figures

CONVERGE_S, STREAM_S = 20, 40


class Run:
    def __init__(self, given, folder):
        self.given, self.violations = given, []
        self.w = World(pathlib.Path(folder), dict(given["options"]), given["scale"], given["mounts"], any(e["kind"] == "memory_limit" for e in given["events"]))
        self.w.events = schedules.events_of(given)

    def violated(self, invariant, said):
        self.violations.append({"invariant": invariant, "said": said})

    def check(self, invariant, sentences):
        for said in list(sentences)[:5]:
            self.violated(invariant, said)

    def act(self, e):
        w, fault = self.w, TABLE[e.kind]
        time.sleep(max(0.0, w.began + e.at * w.scale - time.monotonic()))
        why = can(fault.needs, w.mounts, w.clock.exists(), w.memory)
        if why:
            e.said = f"skipped: {why}"
            return
        try:
            e.done = True
            fault.act(w, e)
        except AssertionError as error:
            self.violated("answers", f"{e.kind} at {e.at} s: {error}")
        except (OSError, RuntimeError, ValueError, LookupError) as error:
            self.violated("harness", f"{e.kind} at {e.at} s: {error!r} {traceback.format_exc()[-600:]}")

    def mend(self):
        """Whatever is still there of the faults is taken away, as an operator would."""
        w = self.w
        w.pumping.set()
        w.extra.clear()
        w.write()
        w.put(w.run / "clock", f"0 {w.options.get('boot', 0)}\n")
        w.start()
        w.wait(lambda: w.server()["name"], 20)
        if w.wait(lambda: w.server()["state"] in ("drained", "draining", "stopped"), 0.3):
            w.ctl("resume")

    def whole(self):
        """From the first start to the last process."""
        w = self.w
        w.start()
        if not w.wait(lambda: w.server()["ready"], 30):
            self.violated("start", f"not ready at the begin: {w.log()[-500:]}")
            return
        if w.options.get("haproxy"):
            w.route()
        before = figures(w.process.pid)
        w.watch = Watch(w)
        clients = Clients(w.front, w.options["clients"], self.given["pool"], self.given["seed"], STREAM_S * w.scale)
        w.began = time.monotonic()
        threads = [threading.Thread(target=self.act, args=(e,), daemon=True) for e in w.events]
        for t in threads:
            t.start()
        for e, t in zip(w.events, threads):
            t.join(120 * w.scale)
            if t.is_alive():
                self.violated("harness", f"{e.kind} did not come to its end")
        self.mend()
        self.check("converges", invariants.converge(w, CONVERGE_S))
        if not clients.end(STREAM_S * w.scale + 5):
            self.violated("lost", "a request has no end")
        self.judge(clients, before)

    def judge(self, clients, before):
        w = self.w
        try:
            w.watch.look(0)
        except (OSError, RuntimeError, ValueError) as error:
            self.violated("answers", f"the last look at evenkeeld: {error!r}")
        w.watch.end()
        self.ended = clients.ended
        self.check("texts", invariants.texts(w, self.given["pool"], clients.ended))
        self.check("lost", invariants.lost(w, self.given["pool"], clients.ended))
        self.check("classes", invariants.classes(w))
        self.check("explained", invariants.explained(w))
        self.check("lives", invariants.lives(w))
        self.check("taken out", router.still_in(w) if w.router else ())
        self.check("bounded", invariants.bounded(w, before))
        self.check("no nan", w.watch.nan)
        w.expected_end = True
        w.end_daemon(15, "the end of the run", seconds=w.drain_s() / w.scale + 20)
        w.wait(lambda: not w.strays(), 5)
        self.check("orphans", [f"process {pid} is left: {words}" for pid, words in w.strays()])

    def result(self, took):
        hows = {}
        for r in getattr(self, "ended", []):
            hows[r.how] = hows.get(r.how, 0) + 1
        return {"violations": self.violations, "took_s": round(took, 2), "requests": hows, "haproxy": bool(self.w.router), "events": [dict(e.json(), done=e.done, said=e.said[:200]) for e in self.w.events],
                "deaths": sum(bool(x.died and invariants.killed(self.w, x)) for x in self.w.lives), "planned": sum(bool(x.died and x.planned) for x in self.w.lives),
                "decisions": [[d["reason"], d["why"]] for d in self.w.watch.ordered()] if hasattr(self.w, "watch") else [], "log": self.w.log()[-6000:]}


def main():
    given, begin = json.loads(pathlib.Path(sys.argv[1]).read_text()), time.monotonic()
    folder = tempfile.mkdtemp(prefix="ek-", dir="/var/tmp")
    run = Run(given, folder)
    try:
        run.whole()
    except Exception:  # noqa: BLE001  # the harness's own failure is a result, too
        run.violated("harness", traceback.format_exc()[-1500:])
    finally:
        run.w.end()
    pathlib.Path(sys.argv[2]).write_text(json.dumps(run.result(time.monotonic() - begin)))
    for name in ("state", "log"):
        if given["mounts"]:
            os.system(f"umount -l {folder}/{name} 2>/dev/null")
    os.system(f"rm -rf {folder}")


if __name__ == "__main__":
    main()
