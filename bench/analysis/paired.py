"""Differences between arms, trace by trace, with an interval over the traces. Pure.

Both arms of a pair had the same arrivals back to back, so what the trace and the hour do to both cancels. The interval
is Student's over the traces' differences: it takes two traces at least, and says nothing that single requests could.
An arm that is the first one over again shows what differs where nothing does: the noise floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from bench.analysis.classes import ClassMeasure
from bench.analysis.comparison import ArmRun, Load, counted_traces
from bench.analysis.limits import Limits
from bench.analysis.measurements import by_class

# Student's 97.5 % quantile by degrees of freedom; beyond them the expansion is right to a thousandth.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z = 1.959964


def _latency(metric: str, quantile: str) -> Callable[[ClassMeasure], float | None]:
    return lambda measured: measured.samples[metric].value(quantile)


METRICS: Mapping[str, Callable[[ClassMeasure], float | None]] = {
    "ttft_ms_p50": _latency("ttft_ms", "p50"),
    "ttft_ms_p95": _latency("ttft_ms", "p95"),
    "e2e_ms_p95": _latency("e2e_ms", "p95"),
    "longest_stall_ms_p95": _latency("longest_stall_ms", "p95"),
    "accepted_share": lambda measured: measured.accepted / measured.offered if measured.offered else None,
    "good_share": lambda measured: (
        None if measured.good is None or not measured.offered else measured.good / measured.offered
    ),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `traces` values; low and high are None where one value alone gives no interval."""

    mean: float
    low: float | None
    high: float | None
    traces: int

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"mean": round(self.mean, 4), "traces": self.traces}
        if self.low is None or self.high is None:
            return said
        return {**said, "low": round(self.low, 4), "high": round(self.high, 4)}


@dataclass(frozen=True, slots=True)
class Difference:
    """An arm minus the first one. noise: the largest difference of one trace where nothing differs; None: not known.

    clear: the interval leaves out 0, and the mean is larger than the noise where that is known.
    """

    load: Load
    arm: str
    class_name: str
    metric: str
    by_trace: tuple[float, ...]
    interval: Interval
    noise: float | None

    @property
    def clear(self) -> bool:
        low, high = self.interval.low, self.interval.high
        if low is None or high is None or low <= 0 <= high:
            return False
        return self.noise is None or abs(self.interval.mean) > self.noise

    def to_json(self) -> dict[str, Any]:
        said = {
            "load": self.load.label,
            "mix": self.load.mix,
            "arm": self.arm,
            "class": self.class_name,
            "metric": self.metric,
            "by_trace": [round(value, 4) for value in self.by_trace],
            **self.interval.to_json(),
            "clear": self.clear,
        }
        return said if self.noise is None else {**said, "noise": round(self.noise, 4)}


def differences(
    runs: Sequence[ArmRun], arms: Sequence[str], limits: Limits, *, again: Sequence[str] = ()
) -> list[Difference]:
    """Of every arm to the first, over the traces of which all arms have a valid run. again: arms that are the first."""
    found: list[Difference] = []
    for load in sorted({run.load for run in runs}, key=lambda each: (each.rate_per_s, each.mix)):
        own = [run for run in runs if run.load == load]
        traces = counted_traces(own, arms)
        ours = {run.arm for run in own if run.valid and run.trace in traces}
        if arms[0] not in ours:
            continue
        measured = {
            (run.trace, run.arm): by_class(run.records, window=run.window, limits=limits)
            for run in own
            if run.trace in traces and run.arm in ours
        }
        names = sorted({name for classes in measured.values() for name in classes if name != "all"}, reverse=True)
        for name in names:
            for metric, value_of in METRICS.items():
                by_arm = {
                    arm: _pairs([(measured[trace, arms[0]], measured[trace, arm]) for trace in traces], name, value_of)
                    for arm in arms[1:]
                    if arm in ours
                }
                floor = [abs(value) for arm in again for value in by_arm.get(arm, ())]
                noise = max(floor, default=None)
                found += [
                    Difference(load, arm, name, metric, values, interval(values), None if arm in again else noise)
                    for arm, values in by_arm.items()
                    if values
                ]
    return found


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of one value at least, 95 %."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    return _T[freedom - 1] if freedom <= len(_T) else _Z + (_Z**3 + _Z) / (4 * freedom)


def _pairs(
    pairs: Sequence[tuple[Mapping[str, ClassMeasure], Mapping[str, ClassMeasure]]],
    name: str,
    value_of: Callable[[ClassMeasure], float | None],
) -> tuple[float, ...]:
    """One difference a trace; none at all where a trace has no value: what is left would be a choice."""
    values: list[float] = []
    for first, other in pairs:
        if name not in first or name not in other:
            return ()
        base, value = value_of(first[name]), value_of(other[name])
        if base is None or value is None or not math.isfinite(value - base):
            return ()
        values.append(value - base)
    return tuple(values)
