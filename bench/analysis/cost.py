"""What an answer costs, from what the engines cost an hour. Pure.

All of the window is paid for, idle or not, and refused, failed and late work too: only answers that ended in it divide
it. What the drain completes took time that nobody counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.analysis.classes import ClassMeasure


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of `per_hour`. accepted: completed answers; in time: those within their class's limits."""

    per_hour: float
    per_accepted_response: float | None
    per_response_in_time: float | None

    def to_json(self) -> dict[str, Any]:
        said = {
            "engine_per_hour": self.per_hour,
            "per_accepted_response": self.per_accepted_response,
            "per_response_in_time": self.per_response_in_time,
        }
        return {name: float(f"{value:.6g}") for name, value in said.items() if value is not None}


def cost(everything: ClassMeasure, per_hour: float) -> Cost:
    """`everything`: all classes together, because they share the engine."""
    per_second = per_hour / 3600
    in_time_per_s = everything.in_time_per_s
    return Cost(
        per_hour,
        per_second / everything.completed_per_s if everything.completed_per_s else None,
        per_second / in_time_per_s if in_time_per_s else None,
    )
