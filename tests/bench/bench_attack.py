#!/usr/bin/env python3
"""make bench-attack: what bystanders feel while one key attacks. One client asks for a short stream again and again; its time to the first
token is measured alone and while the attacks of tests/e2e/test_attack.py run from another key, in turns. All on this machine's loopback; the
attackers are a process of their own that gives way to others (nice), since theirs is another machine. `text` and `prompts` are no attacks:
`text` is as many sequences as `masks` without a form, which shows what so many cost by themselves, `prompts` are long ones, each another.

`fair` is what equal shares alone make of it: one more tenant of the same weight that always has work takes every second step of what is
scarce, so that a first token takes up to twice its time alone, unless its own work is the smaller part of a step. Beyond that is a fault.

SECONDS=n of each attack (6), TURNS=n of with and without (3), ONLY="masks objects". Writes build/reports/attack.json."""
import collections
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from bare import Bare  # noqa: E402
from test_attack import EVIL, GOOD, attack_bodies, chat, post, rules  # noqa: E402

SECONDS = float(os.environ.get("SECONDS") or 6)
TURNS = int(os.environ.get("TURNS", "3"))
AT_ONCE = 8  # attackers
PROMPT = 1900  # tokens
FAIR = {"text": 2.0, "prompts": 2.0, "blocks": 2.0, "masks": 2.0}  # those that compute tokens or read prompts; others are paid for beside the engine
LARGE = 50_000  # bytes
ONLY = os.environ.get("ONLY", "").split()


def first_token_s(server):
    begun = time.monotonic()
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("POST", "/v1/chat/completions", chat(stream=True), {"Content-Type": "application/json", **GOOD})
    r = c.getresponse()
    assert r.status == 200, r.status
    while b'"content":"' not in (line := r.readline()) and line:
        pass
    took = time.monotonic() - begun
    r.read()
    c.close()
    return took


def samples(server, seconds):
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        times.append(first_token_s(server))
        time.sleep(0.01)
    return times


def figures(times):
    """Median and p99 in ms, and of how many."""
    times = sorted(times)
    return times[len(times) // 2] * 1e3, times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3, len(times)


def attack(port, name):
    """The attackers' process: AT_ONCE threads until its input ends, then how many answers they had. Large bodies are made once, since making
    them takes longer than to send them."""
    make, path = bodies()[name]
    server, numbers, over, sent = types.SimpleNamespace(port=port, exchange=Bare.exchange), itertools.count(), threading.Event(), []
    first = make(next(numbers))

    def run():
        while not over.is_set():
            try:
                sent.append(post(server, EVIL, first if len(first) > LARGE else make(next(numbers)), path)[0])
            except OSError:
                pass  # its own time is over: it comes again
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # whatever priority the measurement has
    os.nice(10)
    threads = [threading.Thread(target=run) for _ in range(AT_ONCE)]
    for t in threads:
        t.start()
    sys.stdin.read()
    over.set()
    for t in threads:
        t.join()
    print(json.dumps(collections.Counter(sent)))


@contextlib.contextmanager
def attacked(server, name, sent):
    """The attack runs meanwhile; `sent` counts the answers by status. At its end all have been answered."""
    p = subprocess.Popen([sys.executable, __file__, "--attack", str(server.port), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        yield
    finally:
        sent.update(json.loads(p.communicate(timeout=120)[0]))


def long_prompt(i):
    ids = random.Random(i)
    return json.dumps({"model": "tiny", "prompt": [ids.randrange(3, 400) for _ in range(PROMPT)], "max_tokens": 1})


def bodies():
    chats = "/v1/chat/completions"
    text = (lambda i: chat(max_tokens=40, temperature=1.0), chats)
    masks = (lambda i: chat(structured_outputs={"grammar": rules(i)}, max_tokens=40, temperature=1.0), chats)
    return {"text": text, "prompts": (long_prompt, "/v1/completions"), **attack_bodies(), "masks": masks}


def in_turns(server, name):
    """The bystander's times alone and attacked, a while each and again: what else the machine does is in both."""
    alone, under, sent = [], [], collections.Counter()
    for _ in range(TURNS):
        alone += samples(server, SECONDS / TURNS)
        with attacked(server, name, sent):
            under += samples(server, SECONDS / TURNS)
    return figures(alone), figures(under), sent


def main():
    rows = []
    with tempfile.TemporaryDirectory() as run:
        run = pathlib.Path(run)
        (run / "keys").write_text("evil sk-evil\ngood sk-good\n")
        (run / "keys").chmod(0o600)
        # places for all, so that what is measured is work and not who has a place
        server = Bare(run, "--api-key-file", run / "keys", "--max-num-seqs", "256")
        try:
            samples(server, 1)
            for name in (ONLY or list(bodies())):
                (quiet, alone, _), (median, p99, count), sent = in_turns(server, name)
                met = p99 <= 1.5 * alone
                rows.append({"cell": f"{name}.ttft_p99", "value": round(p99, 3), "unit": "ms", "peer": "alone", "peer_value": round(alone, 3),
                             "ratio": round(p99 / alone, 3), "fair": FAIR.get(name), "goal": 1.5, "met": met})
                print(f"  {name:<12} median {median:8.2f} ms (alone {quiet:.2f}), p99 {p99:8.2f} ms of {count} (alone {alone:.2f}): "
                      f"{p99 / alone:6.2f} times (goal 1.5, fair {FAIR.get(name, '-')}) {'met' if met else 'MISSED'}; answers {dict(sent)}", flush=True)
            begun = time.monotonic()
            server.stop()
            ended = time.monotonic() - begun
            rows.append({"cell": "sigterm", "value": round(ended, 3), "unit": "s", "goal": 10, "met": ended <= 10})
        finally:
            server.stop()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    report = {"target": "attack", "commit": commit, "machine": {"cores": os.cpu_count()}, "rows": rows}
    (ROOT / "build/reports").mkdir(parents=True, exist_ok=True)
    (ROOT / "build/reports/attack.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__" and sys.argv[1:2] == ["--attack"]:
    attack(int(sys.argv[2]), sys.argv[3])
elif __name__ == "__main__":
    main()
