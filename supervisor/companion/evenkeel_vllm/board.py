"""Numbers that processes share: one small mapped file per process, written by its owner alone.

A number is eight aligned bytes, which a processor writes as one, so a reader sees the old value or the new one and needs no lock. Numbers
of one board may be of different moments; nothing here needs more. A board is found by its kind and read while its process lives.
"""
from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

LIMITS = ("running_seqs", "batched_tokens", "watermark", "prefill_chunk", "queued_reqs", "queued_tokens", "deadline_s", "drain", "trim",
          "engines")
SERVING, REFUSING, HOLDING = 0, 1, 2  # of `drain`
ENGINE = ("ceiling_seqs", "ceiling_tokens", "has_watermark", "start_watermark", "start_chunk", "running", "waiting", "waiting_preempted",
          "waiting_tokens", "oldest_arrival", "oldest_new_arrival", "steps", "step_since", "preemptions", "recomputed_tokens",
          "blocks", "blocks_used", "blocks_cached", "held_limit", "errors")
FRONT = ("open", "streams", "gap_s", "refused_queue_full", "refused_tokens", "refused_deadline", "refused_draining", "finished_rate",
         "listening", "beat")
WORKER = ("rank", "device", "has_pool", "reserved", "used", "used_high", "floor", "spare", "trims")
KINDS = {"limits": LIMITS, "engine": ENGINE, "front": FRONT, "worker": WORKER}


class Board:
    """Named numbers. Reading and writing an attribute costs about a tenth of a microsecond."""

    def __init__(self, path: str, kind: str, write: bool) -> None:
        names = KINDS[kind]
        size = 8 * len(names)
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if write:
                os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self._cells = memoryview(self._map).cast("d")
        self._at = {name: i for i, name in enumerate(names)}
        self.path = path

    def get(self, name: str) -> float:
        return float(self._cells[self._at[name]])

    def set(self, name: str, value: float) -> None:
        self._cells[self._at[name]] = value

    def add(self, name: str, value: float = 1.0) -> None:
        self._cells[self._at[name]] += value

    def close(self) -> None:
        self._cells.release()
        self._map.close()


def path_of(directory: str, kind: str, pid: int) -> str:
    return os.path.join(directory, "boards", f"{kind}-{pid}")


def make(directory: str, kind: str) -> Board:
    """This process's own board of a kind."""
    os.makedirs(os.path.join(directory, "boards"), 0o700, exist_ok=True)
    return Board(path_of(directory, kind, os.getpid()), kind, write=True)


def clear(directory: str) -> None:
    """Removes what processes that ended have left; before any of the new ones begins."""
    where = os.path.join(directory, "boards")
    for name in os.listdir(where) if os.path.isdir(where) else []:
        os.unlink(os.path.join(where, name))


class Reader:
    """The boards of one kind, as they come and go."""

    def __init__(self, directory: str, kind: str) -> None:
        self._where, self._kind = os.path.join(directory, "boards"), kind
        self._open: dict[int, Board] = {}

    def boards(self) -> dict[int, Board]:
        """By process id; those whose process has ended are left out."""
        pids = {pid for pid in self._pids() if os.path.exists(f"/proc/{pid}")}
        for pid in set(self._open) - pids:
            del self._open[pid]  # a reader elsewhere may still hold it; the map goes with the last one
        for pid in pids - set(self._open):
            try:
                self._open[pid] = Board(os.path.join(self._where, f"{self._kind}-{pid}"), self._kind, write=False)
            except (OSError, ValueError):
                continue  # not whole yet
        return dict(sorted(self._open.items()))

    def _pids(self) -> Iterator[int]:
        try:
            names = os.listdir(self._where)
        except OSError:
            return
        for name in names:
            kind, _, pid = name.rpartition("-")
            if kind == self._kind and pid.isdigit():
                yield int(pid)


def total(boards: dict[int, Board], name: str) -> float:
    return sum(board.get(name) for board in boards.values())
