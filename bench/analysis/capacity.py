"""How many requests a second a saturated target finished. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.records.request import Outcome, RequestRecord


@dataclass(frozen=True, slots=True)
class Capacity:
    """requests_per_s: completed requests, each credited by the share of its own time that lies inside the window.

    Counting ends alone would make one long request more or less at the edge a difference of several per cent.
    """

    requests_per_s: float
    window_s: float
    by_class: dict[str, float]
    ends: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "load": "closed loop, saturation",
            "requests_per_s": round(self.requests_per_s, 4),
            "window_seconds": self.window_s,
            "requests_credited": {name: round(value, 2) for name, value in self.by_class.items()},
            "ends": self.ends,
        }


def estimate(records: Sequence[RequestRecord], *, from_ms: float, to_ms: float) -> Capacity:
    """The window lies where the target is saturated: after the ramp, before the last requests thin out."""
    by_class: dict[str, float] = {}
    ends: dict[str, int] = {}
    for record in records:
        ends[str(record.outcome)] = ends.get(str(record.outcome), 0) + 1
        if record.outcome is not Outcome.COMPLETED or record.dispatched_ms is None or record.ended_ms is None:
            continue
        inside_ms = min(record.ended_ms, to_ms) - max(record.dispatched_ms, from_ms)
        whole_ms = record.ended_ms - record.dispatched_ms
        if inside_ms > 0 and whole_ms > 0:
            by_class[record.class_name] = by_class.get(record.class_name, 0.0) + inside_ms / whole_ms
    window_s = (to_ms - from_ms) / 1000
    return Capacity(sum(by_class.values()) / window_s, window_s, dict(sorted(by_class.items())), ends)
