"""A run at the instants at which its engine was read: where each request was then. Pure.

The engine says how many run and wait in it, the requests' own times how many had been sent and how many of those the
gateway still held. What is in neither is on its way: the network, the gateway's own work, the engine's API server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from bench.diagnosis.facts import EngineFacts
from bench.records.request import Outcome, RequestRecord
from bench.records.stored import StoredRun

LONG_TIMES = 4.0  # of two classes, the one whose prompts are so many times as long is the long one
KV_FULL = 0.9
TOKENS_ALIKE = 256  # prompts are told apart to so many tokens
KV_FREE = 0.8  # where the size of the cache is not known

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading. queued: held by the gateway, None where there is none. between: sent, and neither held nor at the
    engine. prefilling: let go to the engine without a first token yet, of these long_prefilling long prompts.
    kv_room: what is longest of those has room in the KV cache; None where the engine does not say.
    """

    at_ms: float
    running: float
    waiting: float
    kv: float | None
    kv_room: bool | None
    queued: int | None
    between: float
    prefilling: int
    long_prefilling: int
    gpu_busy: float | None

    @property
    def held_up(self) -> bool:
        """Somebody waits, wherever."""
        return bool(self.waiting or self.queued)


class Spans:
    """How many of many spans of time are open at an instant."""

    def __init__(self, spans: Iterable[Span]) -> None:
        whole = [span for span in spans if span[1] > span[0]]
        self._begins = sorted(begin for begin, _ in whole)
        self._ends = sorted(end for _, end in whole)

    def open_at(self, at_ms: float) -> int:
        return bisect_right(self._begins, at_ms) - bisect_right(self._ends, at_ms)


def long_classes(records: Sequence[RequestRecord]) -> frozenset[str]:
    """The classes whose prompts are far longer than the shortest ones'; none where all are of one length."""
    lengths: dict[str, list[int]] = {}
    for record in records:
        lengths.setdefault(record.class_name, []).append(record.prompt_tokens_planned)
    middles = {name: median(values) for name, values in lengths.items()}
    shortest = min(middles.values(), default=0)
    return frozenset(name for name, middle in middles.items() if middle >= LONG_TIMES * shortest)


def has_gateway(records: Sequence[RequestRecord]) -> bool:
    return any(record.gateway_queue_ms is not None for record in records)


def held_ms(record: RequestRecord) -> float | None:
    """How long the gateway held it; None where it does not say."""
    if record.gateway_queue_ms is not None:
        return float(record.gateway_queue_ms)
    if record.outcome is Outcome.EXPIRED and record.ended_ms is not None and record.dispatched_ms is not None:
        return record.ended_ms - record.dispatched_ms
    return None


def reached_ms(record: RequestRecord, *, gateway: bool) -> float | None:
    """When it was let go to the engine; None: it was not sent, or nobody knows how long the gateway held it."""
    held = held_ms(record) if gateway else 0.0
    return None if record.dispatched_ms is None or held is None else record.dispatched_ms + held


def moments(run: StoredRun, facts: EngineFacts) -> list[Moment]:
    """Of the measurement window alone."""
    return _Walk(run, facts).moments()


class _Walk:
    """The spans of one run's requests."""

    def __init__(self, run: StoredRun, facts: EngineFacts) -> None:
        self._run, self._facts = run, facts
        self._gateway = has_gateway(run.records)
        longs = long_classes(run.records)
        # One whose time in the gateway's queue nobody knows is left out: it may be in either place.
        self._placed = [
            (record, record.dispatched_ms, reached)
            for record in run.records
            if record.dispatched_ms is not None and (reached := reached_ms(record, gateway=self._gateway)) is not None
        ]
        self._sent = Spans((sent, _ended(record)) for record, sent, _ in self._placed)
        self._queued = Spans((sent, min(reached, _ended(record))) for record, sent, reached in self._placed)
        unanswered = [(record, (reached, _answered(record))) for record, _, reached in self._placed]
        self._prefilling = Spans(span for _, span in unanswered)
        self._long_prefilling = Spans(span for record, span in unanswered if record.class_name in longs)
        by_tokens: dict[int, list[Span]] = {}
        for record, span in unanswered:
            by_tokens.setdefault(-(-record.prompt_tokens_planned // TOKENS_ALIKE) * TOKENS_ALIKE, []).append(span)
        self._by_tokens = [(tokens, Spans(by_tokens[tokens])) for tokens in sorted(by_tokens, reverse=True)]

    def moments(self) -> list[Moment]:
        from_ms, to_ms = self._run.window.from_s * 1000, (self._run.window.from_s + self._run.window.seconds) * 1000
        return [
            self._moment(line)
            for line in self._run.engine
            if from_ms <= line["at_ms"] < to_ms and "running" in line and "waiting" in line
        ]

    def _moment(self, line: Mapping[str, float]) -> Moment:
        at_ms, running, waiting = line["at_ms"], line["running"], line["waiting"]
        queued, long_prefilling = self._queued.open_at(at_ms), self._long_prefilling.open_at(at_ms)
        # A gateway may hold a long prompt between two parts of it: not counted, so that between is at least this.
        apart = long_prefilling if self._gateway else 0
        at_engine = self._sent.open_at(at_ms) - queued - apart
        return Moment(
            at_ms=at_ms,
            running=running,
            waiting=waiting,
            kv=line.get("kv_usage_max"),
            kv_room=self._kv_room(at_ms, line.get("kv_usage_max")),
            queued=queued if self._gateway else None,
            between=max(0.0, at_engine - running - waiting),
            prefilling=self._prefilling.open_at(at_ms),
            long_prefilling=long_prefilling,
            gpu_busy=line.get("gpu_busy_share"),
        )

    def _kv_room(self, at_ms: float, kv: float | None) -> bool | None:
        if kv is None:
            return None
        if self._facts.kv_tokens is None:
            return kv < KV_FREE
        needed = next((tokens for tokens, spans in self._by_tokens if spans.open_at(at_ms)), 0)
        return kv < KV_FULL and (1 - kv) * self._facts.kv_tokens >= needed


def _ended(record: RequestRecord) -> float:
    return inf if record.ended_ms is None else record.ended_ms


def _answered(record: RequestRecord) -> float:
    return _ended(record) if record.first_token_ms is None else record.first_token_ms
