"""The client's own processes, from where they are started: each has one share of a run, and all tell what they saw.

Owns their start and end, and how a run is shared. A process that is lost takes with it what it had not told.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

from bench.load.flight import Flight
from bench.load.messages import Go, Heard, Ready, Share, Stop
from bench.load.sockets import WARM_SOCKETS_MAX
from bench.load.tally import Tally

# What one process sends and reads on half a core, with room for bursts.
REQUESTS_PER_S_MAX = 2000
READS_PER_S_MAX = 10_000
TELL_S_MAX = 10.0


def processes_for(flights: Sequence[Flight], span_s: float, cpus: int) -> int:
    """How many processes a run needs; one core is left to whatever else runs here."""
    reads = sum(flight.request.arrival.output_tokens for flight in flights)
    needed = max(len(flights) / REQUESTS_PER_S_MAX, reads / READS_PER_S_MAX) / span_s
    return max(1, min(int(needed) + 1, cpus - 1, len(flights)))


@dataclass(slots=True)
class _Process:
    """flights: its share. sent: how many of them it has sent. told: it has said its last."""

    popen: subprocess.Popen[bytes]
    orders: Connection
    tidings: Connection
    flights: Sequence[Flight]
    sent: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)


class ClientProcesses:
    """A context: what runs at its end is stopped, told of for so long as TELL_S_MAX, and ended.

    lags_s: of the processes' event loops. faults: which processes did not do what they were to, and why.
    """

    def __init__(self, flights: Sequence[Flight], number: int, base_url: str, path: str, tally: Tally) -> None:
        self.lags_s: list[float] = []
        self.faults: list[str] = []
        self._flights = flights
        self._by_index = {flight.request.index: flight for flight in flights}
        # In turn, so that each has its part of a burst.
        self._shares = [flights[first::number] for first in range(number)]
        self._base_url = base_url
        self._path = path
        self._tally = tally
        self._processes: list[_Process] = []

    async def __aenter__(self) -> Self:
        self._processes = [_started(share) for share in self._shares]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            asyncio.get_running_loop().remove_reader(process.tidings.fileno())
            process.orders.close()
            process.tidings.close()
            _end(process.popen)

    @property
    def numbers(self) -> list[int]:
        """The processes' own, in the order of their shares."""
        return [process.popen.pid for process in self._processes]

    async def warm(self) -> int:
        """Give each its share and have it open its sockets; returns how many there are in all."""
        sockets = -(-min(len(self._flights), WARM_SOCKETS_MAX) // len(self._processes))
        for process in self._processes:
            requests = [flight.request for flight in process.flights]
            _order(process, Share(self._base_url, self._path, requests, sockets))
        opened = 0
        for process in self._processes:
            await _readable(process.tidings)
            with suppress(EOFError, OSError):  # it is lost, as `run` finds too
                ready: Ready = process.tidings.recv()
                opened += ready.sockets
        return opened

    async def run(self, started_at: float, cut_at: float) -> None:
        """Return when all have told their last, or are lost. Cancelled, it stops them and hears them out.

        Planned times count from `started_at`; what is open at `cut_at` is given up.
        """
        loop = asyncio.get_running_loop()
        for process in self._processes:
            _order(process, Go(started_at, cut_at))
            loop.add_reader(process.tidings.fileno(), self._hear, process)
        try:
            await self._all_told()
        except asyncio.CancelledError:
            for process in self._processes:
                _order(process, Stop())
            await self._hear_out()
            raise
        for process in self._processes:
            code = await asyncio.to_thread(process.popen.wait)
            if code:
                self.faults.append(f"a process of the client ended with {code}")

    async def _hear_out(self) -> None:
        try:
            async with asyncio.timeout(TELL_S_MAX):
                await self._all_told()
        except TimeoutError:
            self.faults.append("a process of the client did not tell what it saw")

    async def _all_told(self) -> None:
        for process in self._processes:
            await process.told.wait()

    def _hear(self, process: _Process) -> None:
        try:
            heard: Heard = process.tidings.recv()
        except (EOFError, OSError):  # at its end, or in the middle of what it said
            self._lost(process)
            return
        for flight in process.flights[process.sent : heard.sent]:
            self._tally.sent(flight)
        process.sent = heard.sent
        self.lags_s.extend(heard.lags_s)
        for index, seen in heard.seen:
            flight = self._by_index[index]
            flight.take(seen)
            if flight.ending is not None:
                self._tally.ended(flight)
        if heard.last:
            asyncio.get_running_loop().remove_reader(process.tidings.fileno())
            process.told.set()

    def _lost(self, process: _Process) -> None:
        asyncio.get_running_loop().remove_reader(process.tidings.fileno())
        process.told.set()


def _started(share: Sequence[Flight]) -> _Process:
    """A process without its share yet: it comes up while other things are done."""
    # A pipe each way: on a socket what is told last is lost with an order that nobody reads any more.
    their_orders, orders = Pipe(duplex=False)
    tidings, their_tidings = Pipe(duplex=False)
    with their_orders, their_tidings:
        numbers = [their_orders.fileno(), their_tidings.fileno()]
        # Its session is its own: the terminal's Ctrl-C reaches this process alone, which stops the others.
        popen = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "bench.load.worker", *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
            start_new_session=True,
        )
    return _Process(popen, orders, tidings, share)


def _order(process: _Process, message: Share | Go | Stop) -> None:
    """One that is lost hears nothing; that its tidings end tells of it."""
    with suppress(ConnectionError):
        process.orders.send(message)


def _end(popen: subprocess.Popen[bytes]) -> None:
    try:
        popen.wait(TELL_S_MAX)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()


async def _readable(tidings: Connection) -> None:
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    loop.add_reader(tidings.fileno(), there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(tidings.fileno())
