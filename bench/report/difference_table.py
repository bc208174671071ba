"""Paired differences as Markdown: only what a reader may conclude from, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.paired import Difference
from bench.tables import NOTHING, table

_NAMES = {
    "ttft_ms_p50": ("TTFT p50", "ms"),
    "ttft_ms_p95": ("TTFT p95", "ms"),
    "e2e_ms_p95": ("e2e p95", "ms"),
    "longest_stall_ms_p95": ("stall p95", "ms"),
    "accepted_share": ("accepted", "%"),
    "good_share": ("in time", "%"),
}
_HEAD = ("load", "mix", "class", "arm", "metric", "difference", "95 % interval", "noise", "traces", "clear")


def describe(found: Sequence[Difference], first: str) -> str:
    """Empty where there is nothing to compare."""
    if not found:
        return ""
    said = (
        f"Each is the mean over the traces of an arm minus {first} on the same arrivals; the interval is Student's "
        "over the traces. Noise is the largest difference of one trace between two runs of the same thing (--aa). "
        "Clear: the interval leaves out 0 and the difference is larger than the noise."
    )
    return f"### Differences to {first}, trace by trace\n\n{said}\n\n{table(_HEAD, [_row(each) for each in found])}"


def _row(each: Difference) -> list[str]:
    name, unit = _NAMES[each.metric]
    own = each.interval
    known = own.low is not None and own.high is not None
    return [
        each.load.label,
        each.load.mix,
        each.class_name,
        each.arm,
        name,
        f"{_number(own.mean, unit, signed=True)} {unit}",
        f"{_number(own.low, unit, signed=True)} to {_number(own.high, unit, signed=True)}" if known else NOTHING,
        NOTHING if each.noise is None else _number(each.noise, unit),
        str(own.traces),
        "yes" if each.clear else "no",
    ]


def _number(value: float | None, unit: str, *, signed: bool = False) -> str:
    if value is None:
        return NOTHING
    scaled = value * 100 if unit == "%" else value
    digits = 1 if unit == "%" or abs(scaled) < 10 else 0
    return f"{scaled:{'+' if signed else ''}.{digits}f}"
