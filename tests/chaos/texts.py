"""Texts that are known: a fixed pool of requests and what an undisturbed server answers, each asked alone.

An answer must be the same under any load and after any fault, to the last letter, so that a stream is compared as a whole and, where it was
cut, as far as it came."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools")]
from client import get, stream  # noqa: E402
from demo import free_port  # noqa: E402

BUILD = ROOT / os.environ.get("B", "build/release")
MODEL = ROOT / "models/evenkeel-tiny"
POOL = 16
WORDS = "the ship keeps an even keel while wind and sea change and its crew writes each of them into a book".split()


def bodies():
    """The requests: short and long prompts, some with a shared beginning; greedy, or with a seed of their own."""
    rng = random.Random(20)
    shared = " ".join(rng.choice(WORDS) for _ in range(160))
    made = []
    for i in range(POOL):
        begin = shared if i % 4 == 3 else " ".join(rng.choice(WORDS) for _ in range((4, 20, 120)[i % 3]))
        body = {"model": "tiny", "prompt": f"{begin} {i}", "max_tokens": rng.choice((30, 60, 120, 240)), "ignore_eos": True}
        body.update({"temperature": 0} if i % 2 else {"temperature": 0.8, "seed": 1000 + i})
        made.append(body)
    return made


def known():
    """The pool with its texts, and how long all that took: the measure of how fast this machine is now."""
    port, begin = free_port(18900), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ek-texts-", dir="/var/tmp") as run:
        log = open(pathlib.Path(run) / "log", "wb")
        server = subprocess.Popen([BUILD / "evenkeel-server", "--model", MODEL, "--served-model-name", "tiny", "--port", str(port), "--control-socket",
                                   f"{run}/c.sock"], stdout=log, stderr=log)
        try:
            while True:
                try:
                    if get(port, "/health")[0] == 200:
                        break
                except OSError:
                    pass
                if server.poll() is not None or time.monotonic() - begin > 120:
                    raise SystemExit("the undisturbed server did not start:\n" + (pathlib.Path(run) / "log").read_text()[-2000:])
                time.sleep(0.02)
            pool = []
            for body in bodies():
                pieces = [p for _, p in stream(port, "/v1/completions", body, timeout=300)]
                pool.append({"body": body, "text": "".join(p for p in pieces if isinstance(p, str))})
            return pool, time.monotonic() - begin
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            log.close()
