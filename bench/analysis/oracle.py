"""The step oracle: how soon a short prompt could have had its first token, whatever the policy. Pure.

An engine's step, once launched, is never cut. So a prompt that arrives waits for the rest of the step under way, of
which nobody knows where in it the arrival fell, and then takes a step of its own:

    request_s + u · step + base_s + d · per_token_s + its own tokens,    u uniform between 0 and 1

The step under way is of what the engine had at that moment, as the records say: d requests that decode, and of each in
prefill at most so many tokens as the engine takes at once. Ratios are of quantiles: of what was measured and of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.analysis.quantiles import quantile
from bench.records.request import Outcome, Phase, RequestRecord

_DRAWS = 20
QUANTILES = (0.5, 0.95)


class StepTimes(Protocol):
    """What a step costs."""

    @property
    def base_s(self) -> float: ...

    @property
    def per_token_s(self) -> float: ...

    def chunk_s(self, tokens: int, context: int) -> float:
        """What one request's tokens add to a step."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """step_tokens: of a step; chunk_tokens: of one prompt in it, which a threshold may keep below."""

    times: StepTimes
    request_s: float
    step_tokens: int
    chunk_tokens: int


@dataclass(frozen=True, slots=True)
class OverOracle:
    """Quantiles of QUANTILES: what the oracle has, and what was measured over it; requests: how many had a token."""

    oracle_ms: tuple[float, ...]
    ratios: tuple[float, ...]
    requests: int


@dataclass(frozen=True, slots=True)
class _Work:
    """One request at the engine: from `start` to `first` in prefill, then decoding to `end`. Milliseconds."""

    record: RequestRecord
    start: float
    first: float
    end: float


def over_oracle(runs: Sequence[Sequence[RequestRecord]], class_name: str, engine: EngineSteps) -> OverOracle | None:
    """Of one class over the windows of one arm's runs; None where none had a token, or a prompt takes several steps."""
    oracle_ms: list[float] = []
    measured_ms: list[float] = []
    for records in runs:
        works = _works(records)
        for record in records:
            if (record.class_name, record.phase) != (class_name, Phase.WINDOW) or record.ttft_ms is None:
                continue
            if record.prompt_tokens_planned > engine.chunk_tokens:
                return None
            measured_ms.append(record.ttft_ms)
            oracle_ms += _oracle_ms(record, works, engine)
    if not measured_ms:
        return None
    found, measured = _quantiles(oracle_ms), _quantiles(measured_ms)
    return OverOracle(found, tuple(own / best for own, best in zip(measured, found, strict=True)), len(measured_ms))


def _quantiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(own.value for q in QUANTILES if (own := quantile(ordered, q)) is not None)


def _works(records: Sequence[RequestRecord]) -> list[_Work]:
    works = []
    for record in records:
        if record.dispatched_ms is None or record.outcome in (Outcome.REFUSED, Outcome.EXPIRED):
            continue
        start = record.dispatched_ms + (record.gateway_queue_ms or 0)
        end = float("inf") if record.ended_ms is None else record.ended_ms
        works.append(_Work(record, start, end if record.first_token_ms is None else record.first_token_ms, end))
    return sorted(works, key=lambda work: work.start)


def _oracle_ms(record: RequestRecord, works: Sequence[_Work], engine: EngineSteps) -> list[float]:
    at, times = record.planned_ms, engine.times
    others = [work for work in works if work.record is not record and work.start <= at < work.end]
    decoding = sum(work.first <= at for work in others)
    left = engine.step_tokens - decoding
    step_s = decoding * times.per_token_s
    for work in others:
        if work.first <= at or left <= 0:
            continue
        done = (at - work.start) / (work.first - work.start) if work.first > work.start else 0.0
        computed = int(work.record.prompt_tokens_planned * done)
        chunk = min(work.record.prompt_tokens_planned - computed, engine.chunk_tokens, left)
        step_s += times.chunk_s(chunk, computed)
        left -= chunk
    if step_s:
        step_s += times.base_s
    own_s = times.base_s + decoding * times.per_token_s + times.chunk_s(record.prompt_tokens_planned, 0)
    return [(engine.request_s + (draw + 0.5) / _DRAWS * step_s + own_s) * 1000 for draw in range(_DRAWS)]
