"""How fast a line drains, and what that means for a caller who is refused.

Owns the measured drain rates. A rate counts only the time in which something waited: an idle line proves nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

_WINDOW_S = 20.0
_MEASURED_S_MIN = 0.5
_VALUES_KEPT = 256
_VALUES_MIN = 20
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0


class DrainRate:
    """Predicted engine seconds of work leaving one line for an engine, per second of backlog.

    The last window counts as long as it is short; then it becomes the past, which is kept until the next is over.
    """

    __slots__ = ("_at", "_past_s", "_past_work_s", "_s", "_work_s")

    def __init__(self) -> None:
        self._at = 0.0
        self._s = self._past_s = 0.0
        self._work_s = self._past_work_s = 0.0

    def advance(self, now: float, *, backlogged: bool) -> None:
        """Account the time since the last call; `backlogged`: something waited all that time."""
        if backlogged:
            self._s += now - self._at
            if self._s > _WINDOW_S:
                self._past_s, self._past_work_s = self._s, self._work_s
                self._s = self._work_s = 0.0
        self._at = now

    def served(self, work_s: float) -> None:
        """Account a request that left the backlogged line for an engine."""
        self._work_s += work_s

    def work_per_s(self) -> float | None:
        """Return the rate, or None while less than half a second of backlog was seen."""
        seconds = self._s + self._past_s
        work_s = self._work_s + self._past_work_s
        return work_s / seconds if seconds >= _MEASURED_S_MIN and work_s > 0.0 else None


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
