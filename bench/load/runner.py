"""The open loop: each request is sent at its planned time, whatever became of those before it.

Owns when a run's requests are sent and when the run is over: at the drain deadline at the latest.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from bench.load.alarm import Alarm
from bench.load.exchange import Ended
from bench.load.flight import Flight
from bench.load.pacing import Clock, wait_s

Start = Callable[[Flight, Ended], None]


class OpenLoop:
    """Of one run. `start` sends a flight and tells when it has ended; both return at once."""

    def __init__(self, flights: Sequence[Flight], start: Start, clock: Clock, ended: Ended) -> None:
        self._flights = flights
        self._start = start
        self._clock = clock
        self._tell = ended
        self._next = 0
        self._next_at = flights[0].planned_at if flights else math.inf
        self._open = 0

    async def run(self, cut_at: float) -> None:
        """Return when all have ended, or at `cut_at`; what is open then is the caller's to give up."""
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._alarm = Alarm(self._due)
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._fault)
        try:
            self._due()
            async with asyncio.timeout(wait_s(planned_at=cut_at, now=self._clock())):
                await self._over
        except TimeoutError:
            # The flights tell which ones were open; there is nothing to add.
            return
        finally:
            self._next_at = math.inf
            loop.set_exception_handler(before)
            self._alarm.close()

    @property
    def sent(self) -> int:
        """How many of the flights, the first ones."""
        return self._next

    def stop(self) -> None:
        """Have `run` return as if it had come to its end."""
        if not self._over.done():
            self._over.set_result(None)

    def look(self, now: float) -> None:
        """Send what is due: between the reads of a burst, which would hold up the alarm."""
        if now >= self._next_at:
            self._due()

    def _due(self) -> None:
        flights, end = self._flights, len(self._flights)
        while self._next < end and flights[self._next].planned_at <= self._clock():
            self._next += 1
            self._open += 1
            self._start(flights[self._next - 1], self._ended)
        if self._next < end:
            self._next_at = flights[self._next].planned_at
            self._alarm.set(self._next_at)
            return
        self._next_at = math.inf
        self._end_if_over()

    def _ended(self, flight: Flight) -> None:
        self._open -= 1
        self._tell(flight)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._open == 0 and self._next == len(self._flights):
            self.stop()

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of the client's own code ends the run: it is no property of the server."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError) and not self._over.done():
            self._over.set_exception(error)
        else:
            loop.default_exception_handler(context)
