"""Streaming calls to one path of one server. Sends once, never retries, limits no connections, follows no redirect.

Every way in which HTTP can fail is an ending of the flight, not an exception. No proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.load.exchange import Ended, Exchange
from bench.load.flight import Flight
from bench.load.outcomes import Ending
from bench.load.pacing import Clock
from bench.load.sockets import Sockets, address
from bench.records.request import Outcome


class StreamingClient:
    """An async context: what is open at its end is given up, and such flights have no ending."""

    def __init__(self, base_url: str, path: str, clock: Clock) -> None:
        where = address(base_url)
        self._clock = clock
        self._sockets = Sockets(where, clock)
        self._start = (
            f"POST {where.path}{path} HTTP/1.1\r\nHost: {where.authority}\r\nUser-Agent: gateway-bench\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        ).encode()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._sockets.close()

    async def warm(self, number: int) -> int:
        """Open up to so many connections before the first request pays for one; returns how many there are."""
        return await self._sockets.warm(number)

    def after_reads(self, look: Callable[[float], None]) -> None:
        """Have `look` called with the time after each network read: what is due need not wait for a burst of them."""
        self._sockets.after_read = look

    def start(self, flight: Flight, ended: Ended) -> None:
        """Send the flight's request now; `ended` is told when its answer has ended in any way."""
        self._begin(flight, ended)

    async def send(self, flight: Flight) -> None:
        """Send it and return when its answer has ended. Cancelled, it closes the connection and gives no ending."""
        done = asyncio.get_running_loop().create_future()
        exchange = self._begin(flight, lambda _: done.set_result(None))
        try:
            await done
        except asyncio.CancelledError:
            if exchange.open:  # else what carried it may carry another one by now
                exchange.end(None, self._clock())
                exchange.leave()
            raise

    def _begin(self, flight: Flight, ended: Ended) -> Exchange:
        flight.dispatched_at = self._clock()
        exchange = Exchange(flight, ended)
        request = flight.request
        self._sockets.send(exchange, [self._start + request.head_lines, request.body])
        leave_after_s = request.arrival.cancel_after_s
        if leave_after_s is not None:
            exchange.timer = asyncio.get_running_loop().call_later(leave_after_s, self._leave, exchange)
        return exchange

    def _leave(self, exchange: Exchange) -> None:
        exchange.end(Ending(Outcome.CANCELLED, "by_trace"), self._clock())
        exchange.leave()
