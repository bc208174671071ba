"""Several arms on the same traces: pooled results of each, and ratios to the first. Pure.

A trace counts where every arm has a valid run of it; all others are left out for all arms, so that each figure of one
arm has its pair in the others. An arm all of whose runs under a load are INVALID takes no part in that load, as long as
two others are left: an engine that cannot be started so says nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.classes import ClassMeasure, Window
from bench.analysis.limits import Limits
from bench.analysis.measurements import ALL, Throughput, each_class, throughput
from bench.analysis.quantiles import quantile
from bench.records.request import Phase, RequestRecord

RATIO_METRICS = ("ttft_ms", "e2e_ms")
RATIO_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Load:
    """What was offered: a label for people, requests per second, and the mix by count."""

    label: str
    rate_per_s: float
    mix: str


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm's run of one trace of a load; `trace` names seed and repeat."""

    load: Load
    trace: str
    arm: str
    valid: bool
    window: Window
    records: Sequence[RequestRecord]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One arm over the first: of the pooled requests, and the lowest and highest of the single traces."""

    pooled: float
    low: float
    high: float
    traces: int

    def to_json(self) -> dict[str, Any]:
        return {
            key: round(value, 4) for key, value in (("pooled", self.pooled), ("low", self.low), ("high", self.high))
        }


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm under one load. `ratios` by (class, metric); both None-free: what cannot be formed is not in it."""

    arm: str
    classes: dict[str, ClassMeasure]
    throughput: Throughput | None
    ratios: dict[tuple[str, str], Ratio]
    tokens_ratio: Ratio | None

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "arm": self.arm,
            "classes": {name: each.to_json() for name, each in self.classes.items()},
            "p95_ratio_to_first": {f"{name}.{metric}": each.to_json() for (name, metric), each in self.ratios.items()},
        }
        if self.throughput is not None and self.throughput.total_tokens_per_s is not None:
            said["total_tokens_per_s"] = round(self.throughput.total_tokens_per_s, 2)
        if self.tokens_ratio is not None:
            said["tokens_ratio_to_first"] = self.tokens_ratio.to_json()
        return said


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All arms under one load, over the traces that count. arms_left_out: those of which no run is VALID."""

    load: Load
    traces: Sequence[str]
    left_out: Sequence[str]
    arms: Sequence[ArmResult]
    arms_left_out: Sequence[str] = ()


def compare(runs: Sequence[ArmRun], arms: Sequence[str], limits: Limits) -> list[LoadResult]:
    """`arms` in the order of the scenario; the first is the one that the others are compared with."""
    results: list[LoadResult] = []
    # Loads and traces in their own order, not in the random one in which they were run.
    for load in sorted({run.load for run in runs}, key=lambda load: (load.rate_per_s, load.mix)):
        own = [run for run in runs if run.load == load]
        traces = sorted({run.trace for run in own}, key=_in_order)
        counted = counted_traces(own, arms)
        out = _without_a_valid_run(own, arms)
        by_arm = {
            arm: [run for trace in counted for run in own if (run.trace, run.arm) == (trace, arm)]
            for arm in arms
            if arm not in out
        }
        first = by_arm.get(arms[0])
        results.append(
            LoadResult(
                load=load,
                traces=counted,
                left_out=[each for each in traces if each not in counted],
                arms=[_arm(arm, own, first, limits) for arm, own in by_arm.items()] if counted else [],
                arms_left_out=out,
            )
        )
    return results


def counted_traces(runs: Sequence[ArmRun], arms: Sequence[str]) -> list[str]:
    """Of one load's runs, the traces of which every arm that takes part has a valid one."""
    traces = sorted({run.trace for run in runs}, key=_in_order)
    part = set(arms) - set(_without_a_valid_run(runs, arms))
    return [each for each in traces if part and part <= {run.arm for run in runs if run.trace == each and run.valid}]


def _without_a_valid_run(runs: Sequence[ArmRun], arms: Sequence[str]) -> list[str]:
    """Of one load's runs: arms that were tried, and in vain. One that was not run yet is none of them."""
    valid = {run.arm for run in runs if run.valid}
    tried = {run.arm for run in runs}
    out = [arm for arm in arms if arm in tried - valid]
    return out if len(arms) - len(out) > 1 else []


def _in_order(trace: str) -> tuple[int, str]:
    return len(trace), trace


def _arm(arm: str, runs: Sequence[ArmRun], first: Sequence[ArmRun] | None, limits: Limits) -> ArmResult:
    """first: of the arm that the ratios are to; None: it takes no part, and there are none."""
    classes = _classes(runs, limits)
    ratios: dict[tuple[str, str], Ratio] = {}
    if first is None:
        return ArmResult(arm, classes, _pooled_throughput(runs), ratios, None)
    for name in classes:
        for metric in RATIO_METRICS:
            pooled = _over(_p95(runs, name, metric), _p95(first, name, metric))
            single = [
                _over(_p95([run], name, metric), _p95([base], name, metric))
                for run, base in zip(runs, first, strict=True)
            ]
            found = _ratio(pooled, single)
            if found is not None:
                ratios[name, metric] = found
    tokens = [_over(_tokens([run]), _tokens([base])) for run, base in zip(runs, first, strict=True)]
    return ArmResult(
        arm, classes, _pooled_throughput(runs), ratios, _ratio(_over(_tokens(runs), _tokens(first)), tokens)
    )


def _classes(runs: Sequence[ArmRun], limits: Limits) -> dict[str, ClassMeasure]:
    records = [record for run in runs for record in run.records if record.phase is Phase.WINDOW]
    answers = [record for run in runs for record in run.window.answers(run.records)]
    names = sorted({record.class_name for record in records}, reverse=True)
    window_s = sum(run.window.seconds for run in runs)
    return each_class(names, records, answers, window_s=window_s, limits=limits)


def _p95(runs: Sequence[ArmRun], class_name: str, metric: str) -> float | None:
    values = (
        getattr(record, metric)
        for run in runs
        for record in run.records
        if record.phase is Phase.WINDOW and class_name in (record.class_name, ALL)
    )
    found = quantile(sorted(value for value in values if value is not None), RATIO_QUANTILE)
    return None if found is None else found.value


def _pooled_throughput(runs: Sequence[ArmRun]) -> Throughput | None:
    """Work of all runs over the time of all runs, as one after another they were."""
    flows = [flow for run in runs if (flow := throughput(run.records)) is not None]
    seconds = sum(flow.seconds for flow in flows)
    if not flows or len(flows) < len(runs):
        return None
    return Throughput(
        seconds,
        sum(flow.completed_per_s * flow.seconds for flow in flows) / seconds,
        _pooled([(flow.output_tokens_per_s, flow.seconds) for flow in flows]),
        _pooled([(flow.total_tokens_per_s, flow.seconds) for flow in flows]),
    )


def _pooled(rates: Sequence[tuple[float | None, float]]) -> float | None:
    """Rates over so many seconds each, as one; None where one is not known."""
    known = [(rate, seconds) for rate, seconds in rates if rate is not None]
    if len(known) < len(rates):
        return None
    return sum(rate * seconds for rate, seconds in known) / sum(seconds for _, seconds in known)


def _tokens(runs: Sequence[ArmRun]) -> float | None:
    flow = _pooled_throughput(runs)
    return None if flow is None else flow.total_tokens_per_s


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _ratio(pooled: float | None, single: Sequence[float | None]) -> Ratio | None:
    known = [each for each in single if each is not None]
    if pooled is None or not known or len(known) < len(single):
        return None
    return Ratio(pooled, min(known), max(known), len(known))
