"""Markdown tables, padded so that they read well in a terminal too. Knows cells, not meanings."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ("-" * (width + 2) if column == 0 else "-" * (width + 1) + ":" for column, width in enumerate(widths))
    return "\n".join([line(head), f"|{'|'.join(rule)}|", *(line(row) for row in rows)])


def milliseconds(value: float | None) -> str:
    """Whole milliseconds from 10 on; `inf` where a quantile falls among the unanswered."""
    if value is None:
        return NOTHING
    if math.isinf(value):
        return "inf"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def rate(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def share(part: int | None, whole: int) -> str:
    return NOTHING if part is None or whole == 0 else f"{part}/{whole}"
