"""What was measured of one class: every offered request accounted for, then latencies, then goodput. Pure.

Offered is the denominator throughout: a refused, failed or unfinished request stays in it, and counts as never
answered in `ttft_ms_over_offered`, so that a server that refuses does not look fast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.limits import Limits, is_good
from bench.analysis.quantiles import Quantile, quantile
from bench.records.request import Outcome, RequestRecord

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Attributes of RequestRecord; a request without the value is not in the sample.
LATENCIES = (
    "ttft_ms",
    "ttft_from_dispatch_ms",
    "e2e_ms",
    "e2e_from_dispatch_ms",
    "tpot_ms",
    "longest_stall_ms",
    "gateway_queue_ms",
)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is measured: seconds from the run's start, and how many."""

    from_s: float
    seconds: float

    def answers(self, records: Iterable[RequestRecord]) -> list[RequestRecord]:
        """The completed ones that ended in it, whenever they were planned.

        What the drain completes is no rate that a target keeps up: under overload all of it would look served in time.
        """
        until_ms = (self.from_s + self.seconds) * 1000
        return [
            each
            for each in records
            if each.outcome is Outcome.COMPLETED
            and each.ended_ms is not None
            and self.from_s * 1000 <= each.ended_ms < until_ms
        ]


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one metric: how many there are, and their quantiles by name."""

    count: int
    quantiles: dict[str, Quantile]

    def value(self, name: str) -> float | None:
        found = self.quantiles.get(name)
        return None if found is None else found.value

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, **{name: each.to_json() for name, each in self.quantiles.items()}}


@dataclass(frozen=True, slots=True)
class ClassMeasure:
    """One class over one window. good, goodput_per_s, in_time_per_s: None where the class has no limits.

    Offered, outcomes, good and goodput_per_s are of the requests that were planned in the window; completed_per_s and,
    of those within their limits, in_time_per_s are of the answers that ended in it.
    """

    offered: int
    accepted: int
    outcomes: dict[Outcome, int]
    reasons: dict[str, int]
    good: int | None
    goodput_per_s: float | None
    completed_per_s: float
    in_time_per_s: float | None
    samples: dict[str, Sample]

    def to_json(self) -> dict[str, Any]:
        """Absent keys are what was not measured."""
        said: dict[str, Any] = {
            "offered": self.offered,
            "accepted": self.accepted,
            "outcomes": {str(outcome): number for outcome, number in self.outcomes.items()},
            "reasons": self.reasons,
            "completed_per_s": round(self.completed_per_s, 4),
        }
        if self.offered:
            said["accepted_share"] = round(self.accepted / self.offered, 4)
        if self.good is not None and self.goodput_per_s is not None:
            said["completed_in_time"] = self.good
            said["late"] = self.outcomes[Outcome.COMPLETED] - self.good
            said["goodput_per_s"] = round(self.goodput_per_s, 4)
            if self.offered:
                said["good_share"] = round(self.good / self.offered, 4)
        return said | {name: sample.to_json() for name, sample in self.samples.items() if sample.count}


def measure(
    records: Sequence[RequestRecord], answers: Sequence[RequestRecord], *, window_s: float, limits: Limits
) -> ClassMeasure:
    """`records`: the requests of one class, or of all, whose planned arrival lies in a window of `window_s` seconds.

    answers: of the same class, what `Window.answers` says.
    """
    outcomes = Counter(record.outcome for record in records)
    reasons = Counter(f"{record.outcome}: {record.reason}" for record in records if record.reason is not None)
    good = _good(records, limits) if records else None
    in_time = None if good is None else _good(answers, limits)
    return ClassMeasure(
        offered=len(records),
        accepted=sum(record.accepted for record in records),
        outcomes={outcome: outcomes[outcome] for outcome in Outcome},
        reasons=dict(sorted(reasons.items())),
        good=good,
        goodput_per_s=None if good is None else good / window_s,
        completed_per_s=len(answers) / window_s,
        in_time_per_s=None if in_time is None else in_time / window_s,
        samples=_samples(records),
    )


def _good(records: Sequence[RequestRecord], limits: Limits) -> int | None:
    """None where a class without limits is among them."""
    judged = [is_good(record, limits) for record in records]
    return None if None in judged else sum(bool(each) for each in judged)


def sample(values: Iterable[float], *, independent: bool = True) -> Sample:
    ordered = sorted(values)
    found = {name: quantile(ordered, q, independent=independent) for name, q in QUANTILES.items()}
    return Sample(len(ordered), {name: each for name, each in found.items() if each is not None})


def _samples(records: Sequence[RequestRecord]) -> dict[str, Sample]:
    samples = {
        name: sample(value for record in records if (value := getattr(record, name)) is not None) for name in LATENCIES
    }
    over_offered = (math.inf if record.ttft_ms is None else record.ttft_ms for record in records)
    samples["ttft_ms_over_offered"] = sample(over_offered)
    samples["chunk_gap_ms"] = sample((gap for record in records for gap in record.chunk_gaps_ms), independent=False)
    return samples
