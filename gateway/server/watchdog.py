"""The one timer of a request to an engine: from its sending to the end of its answer.

Owns when the time is up. Who is waiting, for what and what becomes of it is said by whoever sets it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class TimeIsUp(Exception):  # noqa: N818 - a signal between two modules, never an answer
    """What was waited for has not come in time."""


class Watchdog:
    """Says when the time is up; one timer, moved only when it fires too early.

    at: when the time is up, by the loop's clock; never: infinity. time_is_up: who is told.
    """

    __slots__ = ("_loop", "_timer", "at", "time_is_up")

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.at = self._loop.time() + limit_s
        self.time_is_up: Callable[[], object] = _nobody_waits

    def until(self, at: float) -> None:
        self.at = at
        if at != math.inf and (self._timer is None or self._timer.when() > at):
            self.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self.at:
            self.until(self.at)
        else:
            # A wrong chunk header leaves aiohttp's parser silent for ever; this wakes its reader all the same.
            self.time_is_up()


def _nobody_waits() -> None:
    pass
