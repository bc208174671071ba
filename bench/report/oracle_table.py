"""First tokens over the step oracle as Markdown. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.comparison import Load
from bench.analysis.oracle import OverOracle
from bench.tables import milliseconds, ratio, table

_HEAD = ("load", "mix", "class", "arm", "requests", "oracle p50 ms", "p95", "measured ÷ oracle p50", "p95")
_SAID = (
    "What a short prompt has to wait on this engine whatever the policy: the rest of the step under way at its "
    "arrival, which nobody can cut, and a step of its own; by the calibration's step times. The steps under way are "
    "the arm's own, so an arm with smaller steps has a smaller oracle."
)


def describe(found: Sequence[tuple[Load, str, str, OverOracle]]) -> str:
    """found: load, class, arm and what came out; empty where there is nothing."""
    if not found:
        return ""
    rows = [
        [
            load.label,
            load.mix,
            name,
            arm,
            str(each.requests),
            *map(milliseconds, each.oracle_ms),
            *map(ratio, each.ratios),
        ]
        for load, name, arm, each in found
    ]
    return f"### First token over the step oracle\n\n{_SAID}\n\n{table(_HEAD, rows)}"
