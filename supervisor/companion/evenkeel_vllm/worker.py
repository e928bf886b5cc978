"""In each worker: figures of its device's allocator once a second, and the trim between steps.

`--worker-extension-cls` adds the class to vLLM's worker; its method runs by collective_rpc, so between two steps. A worker without a CUDA
device has no such allocator: then the figures are not written.
"""
from __future__ import annotations

import os
import threading
import time
from typing import Any

from . import board, directory, off

EVERY_S = 1.0
_board: board.Board | None = None


class Worker:
    """Mixed into vLLM's worker."""

    def evenkeel_trim(self) -> bool:
        """Gives unused segments of the allocator back to the device; True when there is such an allocator."""
        from .front import trim_heap
        trim_heap()
        had = empty_cache()
        if _board is not None:
            _board.add("trims")
        return had


def empty_cache() -> bool:
    import torch
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    torch.cuda.empty_cache()
    return True


def figures(to: board.Board, torch: Any) -> None:
    """reserved: segments taken from the device; used: what live tensors have of them; used_high: the most of that. Each is of the memory
    outside weights and KV cache, as in evenkeel-server, from the moment at which these are known: the floor is the least that live tensors
    have had since the engine of this worker was built, which is after its cache was. Until then, or where it is no parent, it is 0.
    What was reserved then and had never been used (the pools of CUDA graphs, which replays use uncounted) is spare, and left out."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    each = [torch.cuda.memory_stats(i) for i in range(torch.cuda.device_count())]  # a thread has no current device: the used one has bytes
    now = {name: sum(stats.get(stat, 0) for stats in each) for name, stat in (
        ("reserved", "reserved_bytes.all.current"), ("used", "allocated_bytes.all.current"), ("used_high", "allocated_bytes.all.peak"))}
    if engine_is_built():
        if not to.get("floor"):
            to.set("spare", max(0, now["reserved"] - now["used_high"]))
        to.set("floor", min(now["used"], to.get("floor") or now["used"]))
    for name, value in now.items():
        to.set(name, value - to.get("floor") - (to.get("spare") if name == "reserved" else 0))
    to.set("device", max(range(len(each)), key=lambda i: each[i].get("reserved_bytes.all.current", 0)))
    to.set("has_pool", 1)


def engine_is_built() -> bool:
    """The engine is this process, or the one that began it."""
    return bool(directory()) and any(os.path.exists(board.path_of(directory(), "engine", pid)) for pid in (os.getpid(), os.getppid()))


def _watch(to: board.Board) -> None:
    import torch
    try:
        while True:
            figures(to, torch)
            time.sleep(EVERY_S)
    except Exception as error:
        to.set("has_pool", 0)
        off("the worker's figures", error)


def _begin() -> None:
    global _board
    if not directory() or _board is not None:
        return
    try:
        _board = board.make(directory(), "worker")
        threading.Thread(target=_watch, args=(_board,), name="evenkeel", daemon=True).start()
    except Exception as error:
        off("the worker's figures", error)


_begin()  # vLLM imports this module in its workers alone
