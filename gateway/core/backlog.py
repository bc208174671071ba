"""What waits of one tenant in one length class, and of all tenants of its service class: in sums, and how fast it goes.

Owns these measures; `Waiting` alone changes them, and a ticket keeps the two that it counts in. A drain rate counts
only the time in which something waited: an idle line proves nothing. Knows no ticket, no bound.
"""

from __future__ import annotations

from math import inf

from gateway.core.estimate import Quantile

_WINDOW_S = 20.0
_MEASURED_S_MIN = 0.5


class Backlog:
    """work_s: predicted engine seconds of all that waits. last_deadline: the latest that joined since it was empty.

    moved_s: work that ever left for an engine, or with its client. What expired or was refused is not in it: whoever
    stood behind that did not wait for it to be done.

    The drain rate is of the last window; one that is over becomes the past, which counts until the next is over. The
    backlogged time of a window is never added up: `_began_at` is when it would have begun, had something waited since.
    """

    __slots__ = (
        "_backlogged_s",
        "_began_at",
        "_drained_s",
        "_past_backlogged_s",
        "_past_drained_s",
        "last_deadline",
        "moved_s",
        "requests",
        "work_s",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.work_s = 0.0
        self.moved_s = 0.0
        self.last_deadline = -inf
        self._began_at = 0.0
        self._backlogged_s = self._past_backlogged_s = 0.0
        self._drained_s = self._past_drained_s = 0.0

    def join(self, cost_s: float, deadline: float, now: float) -> None:
        if not self.requests:
            self._began_at = now - self._backlogged_s
            self.last_deadline = deadline
        elif deadline > self.last_deadline:
            self.last_deadline = deadline
        self.requests += 1
        self.work_s += cost_s

    def leave(self, cost_s: float, now: float, *, drained: bool, moved: bool) -> None:
        """Take out what it joined with.

        drained: it waited, and goes to an engine now. moved: it goes to an engine, or its client left.
        """
        if drained:
            if now - self._began_at > _WINDOW_S:
                self._turn_window(now)
            self._drained_s += cost_s
        if moved:
            self.moved_s += cost_s
        self.requests -= 1
        if self.requests:
            self.work_s -= cost_s
        else:
            # Sums of seconds drift by rounding; an empty line is exactly nothing.
            self.work_s = 0.0
            self._backlogged_s = now - self._began_at

    def work_per_s(self, now: float) -> float | None:
        """Return how much work leaves for engines per second of backlog; None: less than half a second was seen."""
        if self.requests:
            if now - self._began_at > _WINDOW_S:
                self._turn_window(now)
            self._backlogged_s = now - self._began_at
        backlogged_s = self._backlogged_s + self._past_backlogged_s
        drained_s = self._drained_s + self._past_drained_s
        return drained_s / backlogged_s if backlogged_s >= _MEASURED_S_MIN and drained_s > 0.0 else None

    def _turn_window(self, now: float) -> None:
        self._past_backlogged_s, self._past_drained_s = now - self._began_at, self._drained_s
        self._began_at, self._drained_s = now, 0.0


class ClassBacklog(Backlog):
    """All tenants of one class and length. ratios: of the time that work took to go, to the time that it was given."""

    __slots__ = ("body_bytes", "prompt_tokens", "ratios")

    def __init__(self) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.body_bytes = 0
        self.ratios = Quantile()
