"""A comparison as a picture: for each class, what share of the requests had its first token by when. Draws alone."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.analysis.quantiles import quantile
from bench.cell import CellResult
from bench.records.request import Phase

WIDTH_IN, HEIGHT_IN, DPI = 10.0, 4.5, 130


def png(results: Sequence[CellResult], class_names: Sequence[str], title: str) -> bytes:
    """Return the picture: a panel a class, a line an arm. A request without a first token keeps its line below 1."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    panels = figure.subplots(1, len(class_names), sharey=True, squeeze=False)[0]
    for axes, class_name in zip(panels, class_names, strict=True):
        _panel(axes, results, class_name)
    panels[0].set_ylabel("share of all offered")
    figure.suptitle(title)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI)
    return written.getvalue()


def _panel(axes: Axes, results: Sequence[CellResult], class_name: str) -> None:
    for arm in dict.fromkeys(result.plan.target.name for result in results):
        records = [
            record
            for result in results
            if result.plan.target.name == arm
            for record in result.records
            if record.phase is Phase.WINDOW and record.class_name == class_name
        ]
        times = sorted(time for record in records if (time := record.ttft_ms) is not None)
        if not times:
            continue
        p95 = quantile(times, 0.95)
        label = arm if p95 is None else f"{arm} (p95 {p95.value:.0f} ms)"
        shares = [(number + 1) / len(records) for number in range(len(times))]
        axes.step(times, shares, where="post", label=label)
    axes.set_title(f"{class_name} prompts")
    axes.set_xscale("log")
    axes.set_xlabel("time to first token, ms")
    axes.set_ylim(0, 1.02)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="lower right")
