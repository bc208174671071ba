"""The open loop: each request is sent at its planned time, whatever became of those before it.

Owns the life of all tasks of a run: none outlives it, and it always ends at the drain deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bench.load.client import Clock
from bench.load.flight import Flight
from bench.load.pacing import wait_s

Send = Callable[[Flight], Awaitable[None]]


async def open_loop(flights: Sequence[Flight], send: Send, *, cut_at: float, clock: Clock) -> None:
    """Send every flight at its `planned_at`; return when all have ended, or at `cut_at` at the latest.

    Flights that are still open at `cut_at` are cancelled and keep no ending. Times are the clock's, in seconds.
    """
    try:
        async with asyncio.timeout(wait_s(planned_at=cut_at, now=clock())), asyncio.TaskGroup() as group:
            for flight in flights:
                await sleep_until(flight.planned_at, clock)
                group.create_task(_sent(send, flight), name=f"request {flight.request.index}")
    except TimeoutError:
        # The flights tell which ones were open; there is nothing to add.
        return


async def sleep_until(planned_at: float, clock: Clock) -> None:
    # A loop's timer may fire a little early, by its own resolution: look again, there is no event to wait for.
    while (left_s := wait_s(planned_at=planned_at, now=clock())) > 0:  # noqa: ASYNC110
        await asyncio.sleep(left_s)


async def _sent(send: Send, flight: Flight) -> None:
    await send(flight)
