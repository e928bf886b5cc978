"""The evenkeel_* series of a vLLM, with the names and the meaning that they have of evenkeel-server (server/http/metric_names.c)."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from .board import HOLDING, REFUSING, Board, total
from .limits import Limits

Boards = dict[int, Board]
Sample = tuple[str, float]  # labels, value
NAMES = {
    "evenkeel_limit": ("gauge", "Live limits, as they are now."),
    "evenkeel_limit_ceiling": ("gauge", "Ceilings of live limits; 0 is none."),
    "evenkeel_limit_generation": ("gauge", "Changes of limits so far."),
    "evenkeel_kv_blocks": ("gauge", "KV blocks of the device."),
    "evenkeel_queued_tokens": ("gauge", "Prompt tokens that wait."),
    "evenkeel_queue_oldest_seconds": ("gauge", "Age of the oldest waiting request."),
    "evenkeel_requests_preempted": ("gauge", "Waiting requests that were preempted."),
    "evenkeel_engine_steps_total": ("counter", "Steps of the engine."),
    "evenkeel_engine_step_age_seconds": ("gauge", "Age of the oldest step in flight, 0 when none is."),
    "evenkeel_recomputed_tokens_total": ("counter", "Tokens computed again after a preemption."),
    "evenkeel_preemptions_total": ("counter", "Preemptions, by what becomes of the cache."),
    "evenkeel_admission_held": ("gauge", "Waiting requests, at what keeps the first of them out."),
    "evenkeel_refused_total": ("counter", "Requests refused, by cause."),
    "evenkeel_max_gap_seconds": ("gauge", "Largest time between tokens of the last 10 s."),
    "evenkeel_drain_state": ("gauge", "1 for the state that holds."),
    "evenkeel_http_active_requests": ("gauge", "Requests being answered."),
    "evenkeel_devpool_reserved_bytes": ("gauge", "Memory outside the KV pool: reserved."),
    "evenkeel_devpool_used_bytes": ("gauge", "Memory outside the KV pool: used."),
    "evenkeel_devpool_used_high_bytes": ("gauge", "The most that was ever used."),
    "evenkeel_rank_bytes": ("gauge", "Memory that the backend has allocated for one of several ranks."),
    "evenkeel_trims_total": ("counter", "Trims that workers of a vLLM with the companion did, by rank."),
    "evenkeel_process_resident_bytes": ("gauge", "Resident memory of each process of a vLLM with the companion."),
    "evenkeel_companion_info": ("gauge", "1, with the versions of the companion and of vLLM."),
}


def page(limits: Limits | None, engines: Boards, fronts: Boards, workers: Boards, about: str, drain: int) -> str:
    now, wall = time.monotonic(), time.time()
    rows: dict[str, Iterable[Sample]] = {"evenkeel_companion_info": [(about, 1)]}
    if limits:
        rows["evenkeel_limit"] = [(f'limit="{name}"', row.value) for name, row in limits.rows.items()]
        rows["evenkeel_limit_ceiling"] = [(f'limit="{name}"', row.ceiling) for name, row in limits.rows.items()]
        rows["evenkeel_limit_generation"] = [("", limits.generation)]
    if engines:
        rows |= _engine(engines, now, wall)
    open_ = total(fronts, "open")
    state = "serving" if drain not in (REFUSING, HOLDING) else "draining" if open_ else "drained"
    rows |= {
        "evenkeel_refused_total": [(f'reason="{name}"', total(fronts, "refused_" + name))
                                   for name in ("queue_full", "tokens", "deadline", "draining")],
        "evenkeel_max_gap_seconds": [("", max((b.get("gap_s") for b in fronts.values()), default=0.0))],
        "evenkeel_drain_state": [(f'state="{name}"', float(name == state)) for name in ("serving", "draining", "drained")],
        "evenkeel_http_active_requests": [("", open_)],
        "evenkeel_process_resident_bytes": _resident({"api": fronts, "engine": engines, "worker": workers}),
    }
    if workers:
        rows["evenkeel_trims_total"] = [(f'rank="{rank}"', b.get("trims")) for rank, b in enumerate(workers.values())]
    pools = {pid: b for pid, b in workers.items() if b.get("has_pool")}
    if pools:
        rows |= _pools(pools)
    return "".join(_family(name, samples) for name, samples in rows.items())


def _engine(engines: Boards, now: float, wall: float) -> dict[str, Iterable[Sample]]:
    used, cached, blocks = (total(engines, name) for name in ("blocks_used", "blocks_cached", "blocks"))
    return {
        "evenkeel_kv_blocks": [('state="total"', blocks), ('state="used"', used), ('state="cached"', cached),
                               ('state="free"', max(0.0, blocks - used - cached))],
        "evenkeel_queued_tokens": [("", total(engines, "waiting_tokens"))],
        "evenkeel_queue_oldest_seconds": [("", _age(engines, "oldest_arrival", wall))],
        "evenkeel_requests_preempted": [("", total(engines, "waiting_preempted"))],
        "evenkeel_engine_steps_total": [("", total(engines, "steps"))],
        "evenkeel_engine_step_age_seconds": [("", _age(engines, "step_since", now))],
        "evenkeel_recomputed_tokens_total": [("", total(engines, "recomputed_tokens"))],
        "evenkeel_preemptions_total": [('reason="recompute"', total(engines, "preemptions"))],
        "evenkeel_admission_held": [('reason="limit"', total(engines, "held_limit"))],
    }


def _pools(workers: Boards) -> dict[str, Iterable[Sample]]:
    ranks = [(f'rank="{rank}",device="{b.get("device"):.0f}"', b) for rank, b in enumerate(workers.values())]
    return {
        "evenkeel_devpool_reserved_bytes": [("", max(0.0, total(workers, "reserved")))],
        "evenkeel_devpool_used_bytes": [("", total(workers, "used"))],
        "evenkeel_devpool_used_high_bytes": [("", total(workers, "used_high"))],
        "evenkeel_rank_bytes": [(f'{labels},item="{item}"', _whole(b, item)) for labels, b in ranks
                                for item in ("reserved", "used", "used_high")],
    }


def _whole(worker: Board, item: str) -> float:
    """With weights, KV cache and spare segments, which the others are without."""
    return worker.get(item) + worker.get("floor") + (worker.get("spare") if item == "reserved" else 0.0)


def _resident(kinds: dict[str, Boards]) -> list[Sample]:
    pids: dict[int, str] = {os.getpid(): "first"}
    for kind, boards in kinds.items():
        pids |= dict.fromkeys(boards, kind)
    return [(f'process="{kind}",pid="{pid}"', rss) for pid, kind in sorted(pids.items()) if (rss := resident(pid))]


def resident(pid: int) -> int:
    """Bytes; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _age(boards: Boards, name: str, now: float) -> float:
    since = [b.get(name) for b in boards.values() if b.get(name) > 0]
    return max(0.0, now - min(since)) if since else 0.0


def _family(name: str, samples: Iterable[Sample]) -> str:
    kind, text = NAMES[name]
    number: Callable[[float], str] = lambda v: f"{v:.12g}"  # noqa: E731
    lines = "".join(f"{name}{{{labels}}} {number(value)}\n" if labels else f"{name} {number(value)}\n" for labels, value in samples)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{lines}"
