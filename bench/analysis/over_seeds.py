"""Several runs that differ by their seed alone: the mean of a figure over them, and where the true mean lies. Pure.

The interval is Student's, 95 %: runs of different seeds are independent of one another, whatever one run is within.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from bench.analysis.classes import ClassMeasure
from bench.analysis.comparison import Load
from bench.analysis.measurements import Throughput
from bench.analysis.quantiles import CONFIDENCE, number
from bench.records.request import Outcome

LATENCIES = ("ttft_ms", "ttft_ms_over_offered", "e2e_ms", "tpot_ms", "gateway_queue_ms")
QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Spread:
    """low, high: None where a single seed, or an infinite value, tells nothing of them."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"mean": number(self.mean), "seeds": self.seeds}
        if self.low is not None and self.high is not None:
            said |= {"low": number(self.low), "high": number(self.high)}
        return said


def spread(values: Sequence[float | None]) -> Spread | None:
    """None where it is not known of each run."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean = fmean(known)
    if len(known) < 2 or math.isinf(mean):
        return Spread(mean, None, None, len(known))
    half = student(len(known) - 1) * stdev(known) / math.sqrt(len(known))
    return Spread(mean, mean - half, mean + half, len(known))


def student(freedom: int) -> float:
    """Return the two-sided quantile of Student's distribution: exact for 1 and 2 degrees, within 0.3 % above."""
    p = (1 + CONFIDENCE) / 2
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2))
    # Cornish-Fisher: the normal quantile and its corrections in powers of 1/freedom.
    z: float = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms)))


@dataclass(frozen=True, slots=True)
class ClassOverSeeds:
    """One class of one arm. Counts are sums over the seeds; figures, by name, are spread over them."""

    offered: int
    good: int | None
    outcomes: dict[Outcome, int]
    reasons: dict[str, int]
    figures: dict[str, Spread]

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "offered": self.offered,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items() if count},
            "reasons": self.reasons,
            "over_seeds": {name: each.to_json() for name, each in self.figures.items()},
        }
        return said if self.good is None else {**said, "completed_in_time": self.good}


def class_over_seeds(runs: Sequence[ClassMeasure]) -> ClassOverSeeds:
    figures = {
        f"{metric}.{name}": spread([run.samples[metric].value(name) for run in runs])
        for metric in LATENCIES
        for name in QUANTILES
    }
    figures["goodput_per_s"] = spread([run.goodput_per_s for run in runs])
    figures["completed_per_s"] = spread([run.completed_per_s for run in runs])
    good = [run.good for run in runs]
    outcomes: Counter[Outcome] = Counter()
    reasons: Counter[str] = Counter()
    for run in runs:
        outcomes.update(run.outcomes)
        reasons.update(run.reasons)
    return ClassOverSeeds(
        offered=sum(run.offered for run in runs),
        good=None if None in good else sum(each for each in good if each is not None),
        outcomes=dict(outcomes),
        reasons=dict(sorted(reasons.items())),
        figures={name: each for name, each in figures.items() if each is not None},
    )


def flow_over_seeds(runs: Sequence[Throughput | None]) -> Mapping[str, Spread]:
    """Throughput; a run of which nothing completed leaves it unknown."""
    figures = {
        name: spread([None if run is None else getattr(run, name) for run in runs])
        for name in ("completed_per_s", "output_tokens_per_s", "total_tokens_per_s")
    }
    return {name: each for name, each in figures.items() if each is not None}


@dataclass(frozen=True, slots=True)
class ArmOverSeeds:
    """gateways: the classes of each, where there are several."""

    arm: str
    classes: Mapping[str, ClassOverSeeds]
    flow: Mapping[str, Spread]
    gateways: Sequence[Mapping[str, ClassOverSeeds]] = ()

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "arm": self.arm,
            "classes": {name: each.to_json() for name, each in self.classes.items()},
            "throughput": {name: each.to_json() for name, each in self.flow.items()},
        }
        if self.gateways:
            said["gateways"] = [{name: each.to_json() for name, each in one.items()} for one in self.gateways]
        return said


@dataclass(frozen=True, slots=True)
class LoadOverSeeds:
    load: Load
    seeds: int
    arms: Sequence[ArmOverSeeds]

    def to_json(self) -> dict[str, Any]:
        arms = [arm.to_json() for arm in self.arms]
        load = self.load
        return {"label": load.label, "rate_per_s": load.rate_per_s, "mix": load.mix, "seeds": self.seeds, "arms": arms}
