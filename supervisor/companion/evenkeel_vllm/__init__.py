"""A companion for an unpatched vLLM: live limits, true signals, refusals before a stream begins, a listening socket that outlives it.

Where it runs, all by vLLM's own hooks:

    process          by                         what
    first            entry point `plugin`       control.py: the control socket, its contract that of evenkeel-server
    API servers      --middleware               front.py: refuses with 429, serves evenkeeld's socket, drains
    engine cores     --scheduler-cls            scheduler.py: obeys limits, counts
    workers          --worker-extension-cls     worker.py: figures of the device's allocator, trim

They share files of numbers in one directory (board.py): the owner of a file writes it, all others only read. Nothing here may end a
request: each hook catches its own errors, says so once, and leaves the part switched off.
"""
from __future__ import annotations

import os
import sys
import threading

__version__ = VERSION = "0.1.0"
DIRECTORY = "EVENKEEL_COMPANION_DIR"
SUPERVISED = "EVENKEEL_COMPANION_SUPERVISED"  # evenkeeld starts it again without us when we say that we cannot

OWN = "EVENKEEL_COMPANION_OWN"  # set by the first process: the word by which requests through the control socket are known
OWN_HEADER = "X-Evenkeel-Own"

_said: set[str] = set()
_lock = threading.Lock()


def directory() -> str:
    """Where the control socket and the boards are; "" where the companion is not asked for."""
    return os.environ.get(DIRECTORY, "")


def say(text: str) -> None:
    """One line of vLLM's output, once per process."""
    with _lock:
        if text in _said:
            return
        _said.add(text)
    print(f"evenkeel_vllm: {text}", file=sys.stderr, flush=True)


def off(part: str, why: object) -> None:
    """A part that does not work here; the rest goes on."""
    text = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    say(f"{part} is off: {text}")
