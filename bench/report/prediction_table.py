"""Predicted against measured as Markdown: a row a figure of an arm. Knows no meanings."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.prediction import ArmPrediction
from bench.report.tables import ratio, table


def describe(found: Sequence[ArmPrediction]) -> str:
    rows = [
        [
            arm.arm,
            arm.load,
            figure.name,
            f"{figure.predicted:.0f}",
            f"{figure.bounds[0]:.0f}–{figure.bounds[1]:.0f}",
            f"{figure.measured:.0f}",
            ratio(figure.ratio),
        ]
        for arm in found
        for figure in arm.figures
    ]
    head = ("arm", "load", "figure", "predicted", "at the ends of the costs", "measured", "predicted ÷ measured")
    return f"### predicted and measured, the same traces\n\n{table(head, rows)}"
