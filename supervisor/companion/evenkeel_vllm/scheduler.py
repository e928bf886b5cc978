"""In the engine core: vLLM's own scheduler, which reads live limits before each step and counts what happens in it.

`--scheduler-cls evenkeel_vllm.scheduler.build` names a function, not a class: it is called as the class would be, makes a subclass of the
scheduler that vLLM would have taken (the asynchronous one or the plain one), and gives vLLM's own back when something that it needs is
missing. What it writes, and vLLM reads at each schedule():

    max_num_active_reqs            running sequences (before 0.32 max_num_running_reqs, which may not fall below what runs)
    max_num_scheduled_tokens       tokens of a step
    kv_cache_manager.watermark_blocks    blocks that an admission leaves free
    scheduler_config.long_prefill_token_threshold    longest chunk of a prefill; 0 is none

A lower limit preempts and cuts no request: what runs ends by itself.
"""
from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from typing import Any

from . import board, directory, off, say

LOOK, LOOK_S = 64, 0.1  # so many waiting requests are looked at, so often; of more, the mean is taken


def build(*args: Any, **kwargs: Any) -> Any:
    """What vLLM calls for a scheduler."""
    config = kwargs.get("vllm_config") or args[0]
    base = default_class(config)
    try:
        missing = lacks(base)
        if not directory() or missing:
            off("the scheduler's part", f"this vLLM has no {missing}" if missing else "no directory was given")
            return base(*args, **kwargs)
        kept = type("EvenkeelScheduler", (Kept, base), {})
    except Exception as error:  # vLLM serves on
        off("the scheduler's part", error)
        return base(*args, **kwargs)
    return kept(*args, **kwargs)


def default_class(config: Any) -> Any:
    """The class that vLLM takes without us."""
    from vllm.v1.core.sched.scheduler import Scheduler
    if not getattr(config.scheduler_config, "async_scheduling", False):
        return Scheduler
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    return AsyncScheduler


def lacks(base: Any) -> str:
    """The first thing without which nothing works; "" when all is there."""
    return next((name for name in ("schedule", "update_from_output", "finish_requests") if not hasattr(base, name)), "")


def share(seqs: int, engines: int, index: int) -> int:
    """Of a server's sequences, for one engine of several: all shares make the whole, but none is without any, for requests wait at one."""
    if engines <= 1 or seqs <= 0:
        return seqs
    return max(1, seqs // engines + (index % engines < seqs % engines))


class Kept:
    """Mixed into vLLM's scheduler; owned by the engine core's thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keel: Keel | None = None
        try:
            self._keel = Keel(self)
        except Exception as error:
            off("the scheduler's part", error)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        keel = self._keel
        if keel:
            keel.guard(keel.obey)
        out = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if keel:
            keel.guard(keel.scheduled, out)
        return out

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        out = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        if self._keel:
            self._keel.guard(self._keel.stepped, scheduler_output)
        return out

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        out = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        if self._keel:
            self._keel.guard(self._keel.publish)
        return out

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        keel = self._keel
        if keel:
            keel.guard(keel.preempts, request)
        return super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]


class Keel:
    """What is kept beside one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        s = self.scheduler = scheduler
        self.active = hasattr(s, "max_num_active_reqs")
        self.cap = "max_num_active_reqs" if self.active else "max_num_running_reqs"
        self.manager = getattr(s, "kv_cache_manager", None)
        self.pool = getattr(self.manager, "block_pool", None)
        self.has_watermark = hasattr(self.manager, "watermark_blocks")
        for name in (self.cap, "max_num_scheduled_tokens", "running", "waiting"):
            getattr(s, name)  # an AttributeError names what is missing
        self.where = directory()
        self.board = board.make(self.where, "engine")
        self.limits = board.Reader(self.where, "limits")
        self.read: board.Board | None = None
        self.look_again = 0.0
        self.in_flight: deque[float] = deque()
        self.lost: dict[str, int] = {}  # tokens that preempted requests had computed
        self.failed = False
        self.told, self.told_at = False, 0.0
        self.looked = 0.0
        self.blocks = int(getattr(self.pool, "num_gpu_blocks", 1)) - 1  # one is the null block
        self._begin()

    def _begin(self) -> None:
        s, b = self.scheduler, self.board
        parallel = getattr(getattr(s, "vllm_config", None), "parallel_config", None)
        self.index = int(getattr(parallel, "data_parallel_index", None) or getattr(parallel, "data_parallel_rank", 0) or 0)
        self.ceiling_seqs = int(getattr(s, self.cap))
        self.ceiling_tokens = int(s.max_num_scheduled_tokens)
        b.set("ceiling_seqs", self.ceiling_seqs)
        b.set("has_watermark", float(self.has_watermark))
        if self.has_watermark and self.blocks > 0:
            b.set("start_watermark", round(self.manager.watermark_blocks / self.blocks, 6))  # type: ignore[union-attr]
        b.set("start_chunk", float(getattr(s.scheduler_config, "long_prefill_token_threshold", 0) or 0))
        b.set("blocks", self.blocks)
        b.set("ceiling_tokens", self.ceiling_tokens)  # the last one: who reads it finds all
        if not self.has_watermark:
            say("the watermark is off: this vLLM's kv_cache_manager has no watermark_blocks")
        if not hasattr(s, "_preempt_request"):
            say("the count of preemptions is off: this vLLM's scheduler has no _preempt_request")

    def guard(self, what: Any, *args: Any) -> None:
        """An error of ours ends nothing: the limits go back to what they were, and this is off from then on."""
        if self.failed:
            return
        try:
            what(*args)
        except Exception as error:
            self.failed = True
            self.board.add("errors")
            off("the scheduler's part", error)
            setattr(self.scheduler, self.cap, self.ceiling_seqs)
            self.scheduler.max_num_scheduled_tokens = self.ceiling_tokens

    def limit_board(self) -> board.Board | None:
        """Looked for once a second until it is there; its process outlives this one."""
        if self.read is None:
            now = time.monotonic()
            if now >= self.look_again:
                self.look_again = now + 1.0
                self.read = next(iter(self.limits.boards().values()), None)
        return self.read

    def obey(self) -> None:
        b = self.limit_board()
        if b is None:
            return
        s = self.scheduler
        seqs, tokens = share(int(b.get("running_seqs")), int(b.get("engines")), self.index), int(b.get("batched_tokens"))
        if seqs > 0:
            # Before 0.32 vLLM asserts that no more run than it may.
            setattr(s, self.cap, min(self.ceiling_seqs, seqs if self.active else max(seqs, len(s.running))))
        if tokens > 0:
            s.max_num_scheduled_tokens = min(self.ceiling_tokens, tokens)
        if self.has_watermark and seqs > 0:
            self.manager.watermark_blocks = math.ceil(b.get("watermark") * self.blocks)  # type: ignore[union-attr]
        if seqs > 0:
            s.scheduler_config.long_prefill_token_threshold = int(b.get("prefill_chunk"))

    def preempts(self, request: Any) -> None:
        self.board.add("preemptions")
        self.lost[request.request_id] = max(self.lost.get(request.request_id, 0), int(request.num_computed_tokens))

    def scheduled(self, out: Any) -> None:
        """After schedule(): vLLM has already added what it scheduled to each request's computed tokens."""
        if out.total_num_scheduled_tokens > 0:
            self.board.add("steps")
            self.in_flight.append(time.monotonic())
        if self.lost:
            for name in [n for n in self.lost if n in out.num_scheduled_tokens or n not in self.scheduler.requests]:
                lost, request = self.lost.pop(name), self.scheduler.requests.get(name)
                if request is not None and name in out.num_scheduled_tokens:
                    kept = int(request.num_computed_tokens) - int(out.num_scheduled_tokens[name])  # found in the prefix cache
                    self.board.add("recomputed_tokens", max(0, lost - max(0, kept)))
        self.publish_running()

    def stepped(self, scheduler_output: Any) -> None:
        if scheduler_output.total_num_scheduled_tokens > 0 and self.in_flight:
            self.in_flight.popleft()
        self.publish()

    def publish_running(self) -> int:
        """What must be known when a step begins that may never end; the rest follows after it."""
        running = len(self.scheduler.running)
        self.board.set("step_since", self.in_flight[0] if self.in_flight else 0.0)
        self.board.set("running", running)
        return running

    def publish(self) -> None:
        s, b = self.scheduler, self.board
        running = self.publish_running()
        waiting = self._waiting()
        if self.pool is not None:
            free = int(self.pool.get_num_free_blocks())
            used = self.blocks - free
            b.set("blocks_used", used)
            b.set("blocks_cached", self._cached(used, free))
        self.tell_overdue(waiting)
        limit = int(getattr(s, self.cap))
        b.set("held_limit", waiting if running >= limit else 0)

    def _waiting(self) -> int:
        """Writes who waits: the oldest of all, and the oldest that has never run, which alone a deadline is for."""
        s, b = self.scheduler, self.board
        queues = [s.waiting, *(getattr(s, name) for name in ("kv_holding_waiting", "skipped_waiting") if hasattr(s, name))]
        count = sum(len(q) for q in queues)
        b.set("waiting", count)
        now = time.monotonic()
        if count and now - self.looked < LOOK_S:
            return count
        self.looked = now if count else 0.0  # the first one that waits is seen at once
        if not count:
            for name in ("waiting_preempted", "waiting_tokens", "oldest_arrival", "oldest_new_arrival"):
                b.set(name, 0.0)
            return 0
        oldest = new = math.inf
        preempted = tokens = seen = 0
        for request in itertools.islice(itertools.chain.from_iterable(queues), LOOK):
            seen += 1
            oldest = min(oldest, request.arrival_time)
            if request.num_preemptions:
                preempted += 1
            else:
                new = min(new, request.arrival_time)
                tokens += int(request.num_prompt_tokens)
        b.set("waiting_preempted", preempted)
        b.set("waiting_tokens", tokens * count / seen)
        b.set("oldest_arrival", oldest)
        b.set("oldest_new_arrival", new if new < math.inf else 0.0)
        return count

    def tell_overdue(self, waiting: int) -> None:
        """Which requests have waited for longer than the deadline and never ran: five times a second at most, only while there are such."""
        deadline = self.read.get("deadline_s") if self.read else 0.0
        now = time.time()
        if now - self.told_at < 0.2 or not (self.told or (deadline and waiting)):
            return
        self.told_at = now
        late = [r.request_id for r in self.scheduler.waiting
                if not r.num_preemptions and now - r.arrival_time >= deadline] if deadline and waiting else []
        if not late and not self.told:
            return
        self.told = bool(late)
        path = f"{self.where}/boards/overdue-{os.getpid()}"
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(late))
        os.replace(path + ".new", path)

    def _cached(self, used: int, free: int) -> int:
        """Free blocks that hold prefixes, nearly: vLLM counts blocks with a hash, used and free ones together."""
        try:
            hashed = len(self.pool.cached_block_hash_to_block)  # type: ignore[union-attr]
        except (AttributeError, TypeError):
            return 0
        return max(0, min(free, hashed - max(0, used - len(self.scheduler.running))))
