"""Live limits, as evenkeel-server has them (server/engine/limits.h): ceilings fixed at the start, values that move below them. A change
carries the generation that it was based on, is all or nothing, and may run out. Pure: the time is a parameter."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST = 1e12


@dataclass(frozen=True)
class Limit:
    name: str  # as in the JSON
    cell: str  # as on the board
    whole: bool
    flag: str  # that sets the ceiling; "" = it has none
    engine: bool  # obeyed by the scheduler


TABLE = (
    Limit("max_num_running_seqs", "running_seqs", True, "max-num-seqs", True),
    Limit("max_num_batched_tokens", "batched_tokens", True, "max-num-batched-tokens", True),
    Limit("watermark", "watermark", False, "", True),
    Limit("long_prefill_token_threshold", "prefill_chunk", True, "", True),
    Limit("max_num_queued_reqs", "queued_reqs", True, "", False),
    Limit("max_num_queued_tokens", "queued_tokens", True, "", False),
    Limit("queue_deadline_s", "deadline_s", False, "", False),
)
BY_NAME = {limit.name: limit for limit in TABLE}


class Refused(Exception):
    """A change that cannot be made: an HTTP status, the field, and a sentence with bound and remedy."""

    def __init__(self, status: int, param: str, text: str) -> None:
        super().__init__(text)
        self.status, self.param = status, param


@dataclass
class Row:
    value: float
    start: float
    ceiling: float  # 0 = none
    floor: float
    changed: float = 0.0
    expires: float = 0.0


@dataclass
class Limits:
    rows: dict[str, Row]
    generation: int = 0
    origin: str = ""
    reason: str = ""
    extra: dict[str, object] = field(default_factory=dict)

    def apply(self, body: object, now: float) -> None:
        """Refused, and then nothing has changed."""
        if not isinstance(body, dict):
            raise Refused(400, "", "The body must be a JSON object.")
        change = {name: self._read(name, value) for name, value in body.items()
                  if name not in ("origin", "reason", "generation", "expires_in_s")}
        if not change:
            raise Refused(400, "", 'The body names no limit, for example {"max_num_running_seqs": 8}.')
        origin, reason = _text(body, "origin", 32), _text(body, "reason", 96)
        generation, expires_in = _number(body, "generation"), _number(body, "expires_in_s")
        if generation and int(generation) != self.generation:
            raise Refused(409, "generation",
                          f"generation is {int(generation)}, but the limits are at {self.generation}: read them again")
        self._check_together(change)
        for name, value in change.items():
            row = self.rows[name]
            row.value, row.changed, row.expires = value, now, now + expires_in if expires_in else 0.0
        self.generation += 1
        self.origin, self.reason = origin, reason

    def expire(self, now: float) -> bool:
        """What has run out goes back to its start value; true when something did."""
        over = [row for row in self.rows.values() if row.expires and now >= row.expires]
        for row in over:
            row.value, row.expires, row.changed = row.start, 0.0, now
        if over:
            seqs, tokens = self.rows.get("max_num_running_seqs"), self.rows.get("max_num_batched_tokens")
            if seqs and tokens:
                seqs.value = min(seqs.value, tokens.value)
            self.generation += 1
            self.origin, self.reason = "expired", "a change ran out"
        return bool(over)

    def begin(self, text: str) -> list[str]:
        """Limits that hold from the first request on, "max_num_running_seqs=4,...": a value out of bounds becomes the nearest one. Returns
        what could not be understood."""
        wrong = []
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            row = self.rows.get(name)
            try:
                number = float(value)
                if row is None or not 0 <= number <= MOST:
                    raise ValueError(part)
            except ValueError:
                wrong.append(part)
                continue
            row.value = max(row.floor, min(number, row.ceiling or number))
        return wrong

    def widen(self, name: str, ceiling: float) -> None:
        """A higher ceiling; a limit that was at the old one goes along."""
        row = self.rows[name]
        row.value = ceiling if row.value == row.ceiling else row.value
        row.start = ceiling if row.start == row.ceiling else row.start
        row.ceiling = ceiling

    def as_json(self, now: float) -> dict[str, object]:
        rows = self.rows
        soonest = min((row.expires for row in rows.values() if row.expires), default=0.0)
        out: dict[str, object] = {name: _plain(row.value) for name, row in rows.items()}
        out |= {"generation": self.generation, "origin": self.origin, "reason": self.reason,
                "expires_in_s": round(max(0.0, soonest - now), 3) if soonest else None,
                "ceiling": {name: _plain(row.ceiling) for name, row in rows.items()},
                "floor": {name: _plain(row.floor) for name, row in rows.items()},
                "start": {name: _plain(row.start) for name, row in rows.items()},
                "changed_s_ago": {name: round(now - row.changed, 3) if row.changed else None for name, row in rows.items()},
                "expiring_in_s": {name: round(max(0.0, row.expires - now), 3) if row.expires else None for name, row in rows.items()}}
        return out | self.extra

    def _read(self, name: str, value: object) -> float:
        if name not in self.rows:
            known = name in BY_NAME
            raise Refused(400, name[:40], f"This vLLM cannot change `{name}` while it runs." if known else
                          f"There is no limit `{name[:40]}`; GET /v1/runtime_config shows them all.")
        limit, row = BY_NAME[name], self.rows[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
        if not isinstance(value, (int, float)) or not number or (limit.whole and value != int(value)):
            raise Refused(400, name, f"`{name}` must be a {'whole number' if limit.whole else 'number'} from 0 to {MOST:.0f}.")
        if value < row.floor:
            raise Refused(400, name, f"{name} is {value:.15g}, below its least value {row.floor:.15g}: raise it")
        if row.ceiling and value > row.ceiling:
            more = f", or restart the server with a larger --{limit.flag}" if limit.flag else ""
            raise Refused(400, name, f"{name} is {value:.15g}, above its ceiling {row.ceiling:.15g}: lower it{more}")
        return float(value)

    def _check_together(self, change: Mapping[str, float]) -> None:
        def then(name: str) -> float:
            return change[name] if name in change else self.rows[name].value if name in self.rows else 0.0

        seqs, tokens = then("max_num_running_seqs"), then("max_num_batched_tokens")
        if seqs and tokens and tokens < seqs:
            raise Refused(400, "max_num_batched_tokens",
                          f"max_num_batched_tokens is {tokens:.0f}, below max_num_running_seqs {seqs:.0f}: each running sequence needs one "
                          f"token a step; raise it, or lower max_num_running_seqs to {tokens:.0f} in the same change")


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _text(body: Mapping[str, object], name: str, size: int) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value.encode()) >= size:
        raise Refused(400, name, f"`{name}` must be a string shorter than {size} bytes.")
    return value


def _number(body: Mapping[str, object], name: str) -> float:
    value = body.get(name)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
        raise Refused(400, name, f"`{name}` must be a number from 0 to {MOST:.0f}.")
    return float(value)
