"""How service ends, for good or for a while (CONTRACT "Ending").

Owns the order: not ready at once, new requests refused after `settle_s`, what is left cut at `deadline_s`. Both count
from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gateway.server.ending import Stage
from gateway.server.front import Front
from gateway.server.rooms import Rooms
from gateway.server.tasks import spawn
from gateway.settings import Drain

CUT_S_MAX = 10.0


class Draining:
    """A drain, of which there is one at a time. settings: those in force."""

    def __init__(self, rooms: Rooms, settings: Callable[[], Drain]) -> None:
        self._rooms = rooms
        self._settings = settings
        self._running: asyncio.Task[bool] | None = None
        self._deadline_at = 0.0
        self._is_for_good = False

    @property
    def left_s(self) -> float:
        """Seconds to the last drain's deadline; 0 where that has passed, or where there was no drain."""
        return max(0.0, self._deadline_at - asyncio.get_running_loop().time())

    def begin(self, front: Front) -> None:
        """Drain and go on living; nothing where that is under way or done."""
        if self._rooms.ending.is_serving:
            self._rooms.ending.stage = Stage.SETTLING
            self._running = spawn(self.end(front, asyncio.Event()), name="drain")

    def undo(self) -> None:
        """Serve again. What was refused or cut stays so, and an end of the process is not taken back."""
        if self._is_for_good:
            return
        self.stop()
        if not self._rooms.ending.is_serving:
            self._rooms.ending.stage = Stage.SERVING
            for gate in self._rooms.gates.values():
                gate.undrain()
            structlog.get_logger().info("serving_again")

    def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def end_for_good(self, front: Front, cut_now: asyncio.Event) -> bool:
        """Drain before the process ends."""
        self.stop()
        self._is_for_good = True
        return await self.end(front, cut_now)

    async def end(self, front: Front, cut_now: asyncio.Event) -> bool:
        """Drain; True where every request ended by itself. `cut_now` ends the wait."""
        rooms, drain = self._rooms, self._settings()
        loop = asyncio.get_running_loop()
        deadline_at = self._deadline_at = loop.time() + drain.deadline_s
        structlog.get_logger().info(
            "draining", open_requests=len(rooms.ending), settle_s=drain.settle_s, deadline_s=drain.deadline_s
        )
        if not rooms.ending.refuses:
            rooms.ending.stage = Stage.SETTLING
            front.close_idle()
            await _first_of(cut_now, seconds=min(drain.settle_s, drain.deadline_s))
        rooms.ending.stage = Stage.DRAINING
        for gate in rooms.gates.values():
            gate.drain(max(0.0, deadline_at - loop.time()))
        await _first_of(cut_now, rooms.ending.idle, seconds=max(0.0, deadline_at - loop.time()))
        for gate in rooms.gates.values():
            gate.drain(0.0)
        cut = rooms.ending.cut_all()
        if cut:
            await _first_of(rooms.ending.idle, seconds=CUT_S_MAX)
        structlog.get_logger().info("ended", cut=cut)
        return cut == 0


async def _first_of(*events: asyncio.Event, seconds: float) -> None:
    """Return at the first event, or after `seconds`."""
    waits = [spawn(event.wait(), name="wait for the end") for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
