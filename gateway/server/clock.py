"""The gateway's one clock: monotonic time, told in seconds since the epoch; and the wall clock beside it.

Monotonic, so that no deadline moves when the wall clock is set; anchored once at the wall clock, so that deadlines
of several gateways in front of one engine compare. Only what is dated by others goes by the wall clock: keys, tokens.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


class LoopClock:
    """Time, and timers of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoch_s = self.wall() - time.monotonic()

    def now(self) -> float:
        """Return seconds since the epoch, never going back."""
        return time.monotonic() + self._epoch_s

    def wall(self) -> float:
        """Return seconds since the epoch as the machine has them now: it may have slept, or been set."""
        return time.time()  # noqa: TID251 - the one place that reads the wall clock

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back at `when` (seconds since the epoch), or at once where that has passed.

        Rounded up to a millisecond, uvloop's grain: a timer that fires early would find nothing to do.
        """
        delay_ms = math.ceil(max(0.0, when - self.now()) * 1000)
        return self._loop.call_later(delay_ms / 1000, callback)
