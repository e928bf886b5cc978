#!/usr/bin/env python3
"""make chaos: faults drawn at random from a seed, injected into the real programs under streams whose texts are known; then invariants.

SEED=n (default: of the day) and TIME=seconds (default 60) say what is drawn and for how long; JOBS=n worlds run beside each other. A failure
prints its seed and schedule, is shrunk, and lies in build/chaos/; SCHEDULE=FILE runs such a file again. ONLY="a b" draws these faults alone.
AGAIN=n runs what failed n times more, and what then always holds is told and kept, but is no failure (faults meet other moments each time).
Writes build/reports/chaos.json. docs/faults.md says what each fault is and what is held."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

import report
import router
import schedule as schedules
import texts
from faults import TABLE, WITHHELD, can, undocumented
from shrink import shrink
from world import memory_group

HERE, ROOT = pathlib.Path(__file__).resolve().parent, texts.ROOT
OUT = ROOT / "build/chaos"
# What the reference texts take on two idle cores of a small machine, in seconds.
USUAL_S, SCALE_MOST = 2.5, 8.0
RUN_MOST_S, SHRINK_MOST_S, FAILURES_MOST = 400, 180, 3
NAMESPACE = ["unshare", "--mount", "--propagation", "private"]


def mounts_allowed():
    script = "mount -t tmpfs -o size=64k chaos /mnt && mount --bind /mnt /mnt && mount -o remount,bind,ro /mnt"
    return os.geteuid() == 0 and subprocess.run([*NAMESPACE, "sh", "-c", script], capture_output=True).returncode == 0


def memory_allowed():
    made = memory_group(f"evenkeel-chaos-{os.getpid()}")
    if made:
        made[0].rmdir()
    return bool(made)


class Chaos:
    def __init__(self):
        self.mounts, self.slots = mounts_allowed(), set()
        self.clock = (texts.BUILD / "tests/chaos/fake_clock.so").exists()
        only = os.environ.get("ONLY", "").split()
        unknown = [n for n in only if n not in TABLE]
        if unknown:
            raise SystemExit(f"There is no fault {unknown[0]}; docs/faults.md lists them.")
        self.no_router = "" if router.found() else "HAProxy is not installed (tools/deps.sh test)"
        self.skipped = {n: why for n, f in TABLE.items() if (why := can(f.needs, self.mounts, self.clock, memory_allowed()))}
        self.usable = [n for n in TABLE if n not in self.skipped and (not only or n in only)]
        for n in only:
            WITHHELD.pop(n, None)
        self.pool, took = texts.known()
        self.scale = round(min(SCALE_MOST, max(1.0, took / USUAL_S)), 2)
        print(f"{len(self.pool)} texts are known after {took:.1f} s: deadlines times {self.scale}", flush=True)

    def run(self, schedule):
        """One schedule in a process of its own."""
        OUT.mkdir(parents=True, exist_ok=True)
        stem = OUT / f"run-{os.getpid()}-{time.monotonic_ns()}"
        given, result = stem.with_suffix(".given"), stem.with_suffix(".result")
        if self.no_router:
            schedule = dict(schedule, options=dict(schedule["options"], haproxy=""))
        given.write_text(json.dumps(dict(schedule, pool=self.pool, scale=self.scale, mounts=self.mounts)))
        slot = next(i for i in range(64) if i not in self.slots)  # worlds beside each other keep out of each other's ports
        self.slots.add(slot)
        env = dict(os.environ, PORT_SHIFT=str(int(os.environ.get("PORT_SHIFT", "0")) + 40 * slot))
        words = [*(NAMESPACE if self.mounts else []), sys.executable, str(HERE / "run.py"), str(given), str(result)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_MOST_S * self.scale, env=env)
            return json.loads(result.read_text()) if result.exists() else broken(f"run.py ended with {done.returncode}: {done.stderr[-1500:]}")
        except subprocess.TimeoutExpired:
            return broken("run.py did not come to its end")
        finally:
            self.slots.discard(slot)
            given.unlink(missing_ok=True)
            result.unlink(missing_ok=True)

    def fails(self, invariant):
        """A function for shrink: whether a schedule violates the same invariant, at one of two tries."""
        def once(schedule):
            return any(any(v["invariant"] == invariant for v in self.run(schedule)["violations"]) for _ in range(2))
        return once

    @staticmethod
    def shrinks():
        return os.environ.get("SHRINK") != "0"

    def failed(self, schedule, result):
        """Says it, shrinks it, keeps it."""
        print(f"\nFAILED with SEED={schedule['seed']}")
        print(schedules.told(schedule))
        for v in result["violations"]:
            print(f"  {v['invariant']}: {v['said']}")
        small = schedule
        if len(schedule["events"]) > 1 and self.shrinks():
            small, runs = shrink(schedule, self.fails(result["violations"][0]["invariant"]), float(os.environ.get("SHRINK") or SHRINK_MOST_S), print)
            print(f"Shrunk in {runs} runs to:\n{schedules.told(small)}")
        self.keep(schedule, small, result)

    def holds(self, schedule, result, times):
        """Whether what failed once does not fail in so many more runs; that is said."""
        if times == 0 or any(self.run(schedule)["violations"] for _ in range(times)):
            return False
        print(f"\nSEED={schedule['seed']} failed once and not in {times} more runs:")
        for v in result["violations"]:
            print(f"  {v['invariant']}: {v['said']}")
        self.keep(schedule, schedule, result)
        return True

    @staticmethod
    def keep(schedule, small, result):
        OUT.mkdir(parents=True, exist_ok=True)
        path = OUT / f"seed-{schedule['seed']}.json"
        path.write_text(json.dumps(dict(small, violations=result["violations"], whole=schedule["events"], decisions=result["decisions"], log=result["log"]), indent=1) + "\n")
        print(f"Run it again with: make chaos SCHEDULE={path.relative_to(ROOT)}", flush=True)


def broken(said):
    return {"violations": [{"invariant": "harness", "said": said}], "took_s": 0, "requests": {}, "events": [], "deaths": 0, "planned": 0, "decisions": [], "log": ""}


def drawn(chaos, seed, seconds, jobs):
    """Runs schedules until the time is over; yields each with its result."""
    end, number, running = time.monotonic() + seconds, 0, {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        while running or number == 0 or time.monotonic() < end:
            while len(running) < jobs and (time.monotonic() < end - 8 * chaos.scale or number == 0):
                schedule = schedules.draw(f"{seed}.{number}" if number else str(seed), chaos.usable)
                running[pool.submit(chaos.run, schedule)] = schedule
                number += 1
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for f in done:
                yield running.pop(f), f.result()


def main():
    missing = undocumented((ROOT / "docs/faults.md").read_text())
    if missing:
        raise SystemExit(f"docs/faults.md does not say what {', '.join(missing)} is")
    given, chaos = os.environ.get("SCHEDULE"), Chaos()
    if given:
        schedule = json.loads((ROOT / given).read_text())
        result = chaos.run({k: schedule[k] for k in ("seed", "options", "events")})
        print(schedules.told(schedule))
        for v in result["violations"]:
            print(f"  {v['invariant']}: {v['said']}")
        print(f"{result['requests']}, {'FAILED' if result['violations'] else 'passed'}")
        return bool(result["violations"])
    seed = os.environ.get("SEED") or time.strftime("%Y%m%d")
    seconds, jobs = float(os.environ.get("TIME") or 60), int(os.environ.get("JOBS") or 1)
    print(f"SEED={seed} TIME={seconds:.0f}", flush=True)
    counts, begin = report.Counts(), time.monotonic()
    failures = []
    for schedule, result in drawn(chaos, seed, seconds, jobs):
        counts.add(schedule, result)
        counts.progress(time.monotonic() - begin, seconds)
        if result["violations"]:
            failures.append((schedule, result))
            print(f"SEED={schedule['seed']} failed: {result['violations'][0]['said'][:160]}", flush=True)
            if len(failures) >= FAILURES_MOST and chaos.shrinks():
                break  # enough to shrink
    again = int(os.environ.get("AGAIN") or 0)
    failures = [(schedule, result) for schedule, result in failures if not chaos.holds(schedule, result, again)]
    for schedule, result in failures:
        chaos.failed(schedule, result)
    counts.table(chaos.skipped, WITHHELD, chaos.no_router)
    counts.write(ROOT, seed, chaos.scale, time.monotonic() - begin)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
