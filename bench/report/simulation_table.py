"""A simulated scenario as Markdown: for each load a table by arm and class, one of throughput. Means over the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.analysis.over_seeds import ArmOverSeeds, ClassOverSeeds, LoadOverSeeds, Spread
from bench.records.request import Outcome
from bench.tables import NOTHING, milliseconds, rate, share, table

GATEWAYS_SHOWN_MAX = 8
_LATENCIES = ("ttft_ms.p50", "ttft_ms.p95", "ttft_ms.p99", "e2e_ms.p50", "e2e_ms.p95")


def describe(results: Sequence[LoadOverSeeds]) -> str:
    return "\n\n".join(_load(result) for result in results)


def _load(result: LoadOverSeeds) -> str:
    load = result.load
    title = f"### simulated, {load.label}: {load.rate_per_s:.4g} requests/s, {load.mix} short/long by count"
    said = f"Means over {result.seeds} seeds, in brackets where the mean over all seeds lies (95 %)."
    if result.seeds == 1:
        said = "One seed: no interval."
    head = (
        "arm", "class", "offered", "completed", "other ends", "in time",
        "TTFT p50 ms", "p95", "p99", "e2e p50 ms", "p95", "goodput/s",
    )  # fmt: skip
    rows = [row for arm in result.arms for row in _rows(arm)]
    flows = [
        (
            arm.arm,
            *(_rate(arm.flow.get(name)) for name in ("completed_per_s", "output_tokens_per_s", "total_tokens_per_s")),
        )
        for arm in result.arms
    ]
    flow_head = ("arm", "completed/s", "output tokens/s", "tokens/s in all")
    return "\n\n".join([title, said, table(head, rows), table(flow_head, flows)])


def _rows(arm: ArmOverSeeds) -> list[list[str]]:
    """All gateways together, then each, where they are few enough to be read."""
    parts = {arm.arm: arm.classes}
    if len(arm.gateways) <= GATEWAYS_SHOWN_MAX:
        parts |= {f"{arm.arm}, gateway {number}": each for number, each in enumerate(arm.gateways, 1)}
    return [_row(name, part, each) for name, one in parts.items() for part, each in one.items() if part != "all"]


def _row(arm: str, name: str, measured: ClassOverSeeds) -> list[str]:
    others = [
        f"{count} {outcome}"
        for outcome, count in measured.outcomes.items()
        if count and outcome is not Outcome.COMPLETED
    ]
    return [
        arm,
        name,
        str(measured.offered),
        str(measured.outcomes.get(Outcome.COMPLETED, 0)),
        ", ".join(others) or NOTHING,
        share(measured.good, measured.offered),
        *(_ms(measured.figures.get(figure)) for figure in _LATENCIES),
        _rate(measured.figures.get("goodput_per_s")),
    ]


def _ms(found: Spread | None) -> str:
    return NOTHING if found is None else _within(found, milliseconds)


def _rate(found: Spread | None) -> str:
    return NOTHING if found is None else _within(found, rate)


def _within(found: Spread, said: Callable[[float | None], str]) -> str:
    if found.low is None or found.high is None or math.isinf(found.mean):
        return said(found.mean)
    return f"{said(found.mean)} ({said(max(0.0, found.low))}–{said(found.high)})"
