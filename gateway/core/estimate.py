"""Quantiles of what was seen lately, and what a line's drain rate means for a caller who is refused. Plain numbers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

_VALUES_KEPT = 256
_VALUES_MIN = 20
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0


class Quantile:
    """Quantiles of the last 256 values; None while fewer than 20 were seen."""

    __slots__ = ("_sorted", "_values")

    def __init__(self) -> None:
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if len(self._values) == _VALUES_KEPT:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    def at(self, share: float) -> float | None:
        """Return the value that `share` of the kept values do not exceed."""
        if len(self._values) < _VALUES_MIN:
            return None
        return self._sorted[min(len(self._sorted) - 1, ceil(share * (len(self._sorted) + 1)) - 1)]


def retry_after_s(*, work_s: float, work_per_s: float | None, wait_s_max: float, jitter: float) -> float:
    """Return when the line is expected to have drained, 1 to 60 seconds.

    Without a measured rate the class's own wait limit stands in. jitter in [0, 1) spreads callers over +0 to +25 %.
    """
    expected = wait_s_max if work_per_s is None else work_s / work_per_s
    return min(RETRY_AFTER_S_MAX, max(RETRY_AFTER_S_MIN, expected * (1.0 + 0.25 * jitter)))
