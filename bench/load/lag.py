"""How late the event loop is: whether the client itself could keep time. Owns no verdict."""

from __future__ import annotations

import asyncio

from bench.load.pacing import Clock

PERIOD_S = 0.01


class LoopLag:
    """Sleeps PERIOD_S again and again and keeps by how much it was woken late, in seconds.

    A busy loop reads tokens late and stamps them late; no other figure of the client shows that.
    """

    def __init__(self, clock: Clock, lags_s: list[float]) -> None:
        self._clock = clock
        self.lags_s = lags_s

    async def watch(self) -> None:
        """Run until cancelled."""
        while True:
            slept_at = self._clock()
            await asyncio.sleep(PERIOD_S)
            self.lags_s.append(max(0.0, self._clock() - slept_at - PERIOD_S))
