"""Predicted against measured as Markdown: a row a figure of an arm. Knows no meanings."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.prediction import CLOSE, ArmPrediction
from bench.tables import ratio, table


def describe(found: Sequence[ArmPrediction]) -> str:
    """A row a figure, and how many are close; beside it, of repeats, how close the same arm comes to itself."""
    figures = [figure for arm in found for figure in arm.figures]
    repeated = [figure for figure in figures if figure.repeats]
    has_repeats = bool(repeated)
    rows = [
        [
            arm.arm,
            arm.load,
            figure.name,
            f"{figure.predicted:.0f}",
            f"{figure.bounds[0]:.0f}–{figure.bounds[1]:.0f}",
            f"{figure.measured:.0f}",
            *([" / ".join(f"{value:.0f}" for value in figure.repeats)] if has_repeats else []),
            ratio(figure.ratio),
        ]
        for arm in found
        for figure in arm.figures
    ]
    head = ["arm", "load", "figure", "predicted", "at the ends of the costs", "measured", "predicted ÷ measured"]
    said = f"Within {CLOSE:.0%}: {sum(figure.is_close for figure in figures)} of {len(figures)}."
    if has_repeats:
        head.insert(-1, "of each repeat")
        close = sum(figure.repeats_are_close for figure in repeated)
        said += f" Of the measurement's own repeats, held against one another: {close} of {len(repeated)}."
    return f"### predicted and measured, the same traces\n\n{table(head, rows)}\n\n{said}"
