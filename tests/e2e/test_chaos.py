"""Protects: that make chaos draws the same for the same seed, shrinks to what fails, and would see what it looks for. The suite itself is a part
of make check of its own."""
import json
import sys
import time
import types

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/chaos"))
import invariants  # noqa: E402
import schedule  # noqa: E402
from faults import TABLE, WITHHELD, fits, undocumented  # noqa: E402
from shrink import shrink  # noqa: E402
from streams import Ended  # noqa: E402
from watch import NAN  # noqa: E402


def test_a_seed_draws_one_schedule():
    usable = list(TABLE)
    drawn = [schedule.draw(seed, usable) for seed in range(200)]
    assert drawn == [schedule.draw(seed, usable) for seed in range(200)] == json.loads(json.dumps(drawn))
    kinds = {e["kind"] for s in drawn for e in s["events"]}
    assert kinds == set(TABLE) - set(WITHHELD), "each fault is drawn"
    worlds = [bool(s["options"].get("engine_process")) for s in drawn]
    assert all(fits(TABLE[e["kind"]].needs, apart) for s, apart in zip(drawn, worlds) for e in s["events"]) and 60 < sum(worlds) < 140
    assert schedule.draw(1, ["engine_kill"])["options"]["engine_process"] and "engine_process" not in schedule.draw(1, ["memory_limit"])["options"]
    assert all(sum(TABLE[e["kind"]].kills for e in s["events"]) <= schedule.MOST_KILLS for s in drawn), "or the breaker would rightly open"


def test_each_fault_is_documented():
    assert not undocumented((ROOT / "docs/faults.md").read_text())


def test_shrinks_to_the_two_that_fail_together():
    events = [{"kind": str(i)} for i in range(8)]

    def fails(s):
        return {"2", "7"} <= {e["kind"] for e in s["events"]}
    small, runs = shrink({"events": events}, fails, 60)
    assert [e["kind"] for e in small["events"]] == ["2", "7"] and runs < 40
    assert shrink({"events": events}, fails, 0) == ({"events": events}, 0), "bounded"


class World:
    """What the invariants ask of one, with nothing done to it."""

    def __init__(self, lives=()):
        self.scale, self.born, self.began, self.events, self.lives, self.daemons = 1.0, time.monotonic(), time.monotonic(), [], list(lives), []
        self.options, self.router = {"short_drain": False}, None
        self.windows, self.expected_end, self.watch = [], False, types.SimpleNamespace(states=[], ordered=lambda: [])

    def nobody(self, at, slack):
        return False

    def in_window(self, *about):
        return False

    def drain_s(self):
        return 60

    def log(self):
        return ""


def ended(how, text):
    r = Ended(0)
    r.text = text
    return r.end(how)


def life(**more):
    return types.SimpleNamespace(**{"pid": 7, "blamed": [], "planned": [], "born": time.monotonic(), "died": time.monotonic(), **more})


def test_the_invariants_see_what_they_look_for():
    pool, w = [{"text": "an even keel"}], World()
    assert not list(invariants.texts(w, pool, [ended("done", "an even keel"), ended("cut", "an ev")]))
    for bad in (ended("done", "an even"), ended("done", "an even eel"), ended("cut", "an odd")):
        assert list(invariants.texts(w, pool, [bad]))
    for how in ("cut", "error", "refused", "late"):
        assert list(invariants.lost(w, pool, [ended(how, "an")])), how
    killed = World([life(blamed=[(r"SIGNAL: Signal 9\b", None)])])
    assert not list(invariants.lost(killed, pool, [ended("cut", "an")])) and list(invariants.lost(killed, pool, [ended("refused", "")]))
    assert list(invariants.lives(World([life()]))) and not list(invariants.lives(killed))
    for why, true in (("SIGNAL: Signal 9 (SIGKILL) ended it", True), ("SIGNAL: Signal 11 (SIGSEGV) ended it", False), ("CONFIG: it refused", False),
                      ("SIGNAL: Signal 9 (SIGKILL) ended it after 4116 s", False)):
        killed.watch.ordered = lambda why=why: [{"reason": "STARTED", "why": "Started process 7"}, {"reason": "CRASH", "why": why}]
        assert bool(list(invariants.classes(killed))) != true, why
    for text, is_one in (("process nan GiB", True), ('"usage": NaN', True), ("evenkeel_x NaN", True), ("-nan", True), ("isNaN(x)", False), ("inference", False)):
        assert bool(NAN.search(text)) == is_one, text
