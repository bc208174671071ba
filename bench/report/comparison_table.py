"""A comparison as Markdown: for each load one table by arm and class, one of throughput by arm."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.classes import ClassMeasure
from bench.analysis.comparison import ArmResult, LoadResult, Ratio
from bench.records.request import Outcome
from bench.tables import NOTHING, milliseconds, rate, ratio, share, table


def describe(results: Sequence[LoadResult]) -> str:
    return "\n\n".join(_load(result) for result in results)


def _load(result: LoadResult) -> str:
    load = result.load
    mix = f"{load.mix} short/long by count" if "/" in load.mix else load.mix
    title = f"### {load.label}: {load.rate_per_s:.3g} requests/s, {mix}"
    said = [f"Traces: {', '.join(result.traces) or 'none'}."]
    if result.left_out:
        said.append(
            f"Left out for all arms, because a run of theirs is missing or INVALID: {', '.join(result.left_out)}."
        )
    if result.arms_left_out:
        said.append(f"Take no part, because none of their runs is VALID: {', '.join(result.arms_left_out)}.")
    if not result.arms:
        return f"{title}\n\n{' '.join(said)}"
    first = result.arms[0].arm
    head = (
        "arm", "class", "offered", "completed", "other ends", "in time", "TTFT p50 ms", "p95", "p99", f"p95 ÷ {first}",
        "e2e p50 ms", "p95", "p99", f"p95 ÷ {first}", "stall p95 ms", "goodput/s",
    )  # fmt: skip
    rows = [_row(arm, name, each) for arm in result.arms for name, each in arm.classes.items() if name != "all"]
    flows = table(
        ("arm", "completed/s", "output tokens/s", "tokens/s in all", f"÷ {first}"), [_flow(arm) for arm in result.arms]
    )
    return "\n\n".join([title, " ".join(said), table(head, rows), flows])


def _row(arm: ArmResult, name: str, measured: ClassMeasure) -> list[str]:
    def latency(metric: str) -> list[str]:
        sample = measured.samples[metric]
        quantiles = [milliseconds(sample.value(q)) for q in ("p50", "p95", "p99")]
        return [*quantiles, _ratio(arm.ratios.get((name, metric)))]

    others = [
        f"{number} {outcome}"
        for outcome, number in measured.outcomes.items()
        if number and outcome is not Outcome.COMPLETED
    ]
    return [
        arm.arm,
        name,
        str(measured.offered),
        str(measured.outcomes[Outcome.COMPLETED]),
        ", ".join(others) or NOTHING,
        share(measured.good, measured.offered),
        *latency("ttft_ms"),
        *latency("e2e_ms"),
        milliseconds(measured.samples["longest_stall_ms"].value("p95")),
        rate(measured.goodput_per_s),
    ]


def _flow(arm: ArmResult) -> list[str]:
    flow = arm.throughput
    if flow is None:
        return [arm.arm, NOTHING, NOTHING, NOTHING, NOTHING]
    return [
        arm.arm,
        rate(flow.completed_per_s),
        rate(flow.output_tokens_per_s),
        rate(flow.total_tokens_per_s),
        _ratio(arm.tokens_ratio),
    ]


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return NOTHING
    if found.traces < 2:
        return ratio(found.pooled)
    return f"{ratio(found.pooled)} ({ratio(found.low)}–{ratio(found.high)})"
