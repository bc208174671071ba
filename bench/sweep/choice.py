"""The cell to choose: it meets every class's limits under every load, at the lowest cost of an accepted response. Pure.

Not the highest throughput. A cell that lacks a VALID run that was planned has not shown that it meets its limits in it.
Of cells that cost alike the baseline is chosen, or what is first in the plan: a change has to earn its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.analysis.comparison import Load
from bench.analysis.measurements import ALL
from bench.analysis.scores import RUN_REQUESTS_MIN, Scorecard, worth_no_change


@dataclass(frozen=True, slots=True)
class Choice:
    """cell: None where there is none. costs: of an accepted response, of the cells that meet all, mean over the loads.

    in_engine_seconds: no price is known, so that the engine's time is the cost. misses: of each other cell, why not.
    """

    cell: str | None
    costs: Mapping[str, float]
    in_engine_seconds: bool
    misses: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "costs_per_accepted_response": {
                cell: "inf" if math.isinf(value) else float(f"{value:.6g}") for cell, value in self.costs.items()
            },
            "cost_unit": "engine seconds" if self.in_engine_seconds else "as engine_cost_per_hour",
            "misses": dict(self.misses),
        }
        return said if self.cell is None else {"cell": self.cell, **said}

    def __str__(self) -> str:
        misses = [f"- {cell}: {why}" for cell, why in self.misses.items()]
        if self.cell is None:
            return "\n".join(["No choice: no cell meets every class's limits under every load.", *misses])
        unit = "engine seconds" if self.in_engine_seconds else "in the currency of engine_cost_per_hour"
        costs = ", ".join(f"{cell} {value:.4g}" for cell, value in self.costs.items())
        said = f"Choice: {self.cell}. It meets every class's limits under every load; what an accepted response costs"
        return "\n".join([f"{said} ({unit}, mean over the loads): {costs}.", *misses])


def choose(card: Scorecard, arms: Sequence[str], loads: Sequence[Load]) -> Choice:
    """arms: in the order of the plan, the baseline first. loads: all that were planned."""
    misses = {arm: why for arm in arms if arm not in card.again and (why := _miss(card, arm, loads))}
    meeting = [arm for arm in arms if arm not in misses and arm not in card.again]
    costs = {arm: fmean(card.price(load, arm) for load in loads) for arm in meeting}
    return Choice(next(iter(worth_no_change(costs)), None), costs, not card.has_prices, misses)


def _miss(card: Scorecard, arm: str, loads: Sequence[Load]) -> str:
    """Why a cell is no choice, in words; empty where it is one."""
    for load in loads:
        own = card.of(load, arm)
        if not own:
            return f"no VALID run under {load.label}, {load.mix}: INVALID, not passed"
        free = [name for name, score in own.items() if name != ALL and score.in_time is None]
        if free:
            return f"nothing limits {', '.join(free)}: give goodput"
        few = [name for name, score in own.items() if name != ALL and score.too_few]
        if few:
            return f"too few of {', '.join(few)} to show it under {load.label}, {load.mix}: {RUN_REQUESTS_MIN} at least"
        missed = [name for name, score in own.items() if name != ALL and not score.meets(card.good_share)]
        if missed:
            return f"misses the limits of {', '.join(missed)} under {load.label}, {load.mix}"
        if lacking := card.lacking(load, arm):
            said = f"{card.repeats - lacking} of {card.repeats} planned runs are VALID under {load.label}, {load.mix}"
            return f"{said}: what is not is not passed"
    return ""
