"""A process of the client's own: sends its share of a run and tells what it saw. `python -m bench.load.worker IN OUT`.

IN and OUT are the inherited pipes from and to whoever started it. When one closes it gives up: it outlives nobody.
Nothing but the load runs on its loop; what is told is written by a thread, in small pieces.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.lag import LoopLag
from bench.load.messages import Go, Heard, Ready, Share
from bench.load.runner import OpenLoop
from bench.told_to_end import SIGNALS

TELL_S = 0.1
# Told at once: while a piece is made into bytes nothing is sent.
PIECE = 8
# How long a thread that has work to do waits for the interpreter; the default is 5 ms.
SWITCH_S = 0.0001
_clock = time.perf_counter


def main() -> int:
    # To be told to end is for whoever started this, who wants to hear what was seen; a service manager tells all.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    # Each open request is an open file; how many are usual is no limit of ours.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with (
            Connection(int(sys.argv[1]), writable=False) as orders,
            Connection(int(sys.argv[2]), readable=False) as tidings,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_work(orders, tidings))
    except (EOFError, ConnectionError):
        return 1
    return 0


async def _work(orders: Connection, tidings: Connection) -> None:
    share: Share = orders.recv()  # nothing else is to be done meanwhile
    flights = [Flight(request, planned_at=request.arrival.at_s) for request in share.requests]
    async with StreamingClient(share.base_url, share.path, _clock) as client:
        tidings.send(Ready(await client.warm(share.sockets)))
        go: Go = orders.recv()
        for flight in flights:
            flight.planned_at += go.started_at
        ended: deque[Flight] = deque()
        run = OpenLoop(flights, client.start, _clock, ended.append)
        client.after_reads(run.look)
        telling = Telling(tidings, run, ended)
        # A collection in mid run would hold up the loop, and what a request leaves has no cycles.
        gc.disable()
        telling.start()
        try:
            await _run(run, go, orders, telling.lags_s)
        finally:
            await client.close()
            telling.end(flights)


async def _run(run: OpenLoop, go: Go, orders: Connection, lags_s: list[float]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(LoopLag(_clock, lags_s).watch(), name="event loop lag")
        # Stop, or the end of whoever started this: nothing else comes.
        loop.add_reader(orders.fileno(), run.stop)
        try:
            await run.run(go.cut_at)
        finally:
            loop.remove_reader(orders.fileno())
            watcher.cancel()


class Telling(threading.Thread):
    """Tells what has ended, and in the end what has not. `ended` and `lags_s` are filled by the loop meanwhile."""

    def __init__(self, tidings: Connection, run: OpenLoop, ended: deque[Flight]) -> None:
        super().__init__(name="telling", daemon=True)
        self.lags_s: list[float] = []
        self._tidings = tidings
        self._run = run
        self._ended = ended
        self._lags_told = 0
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(TELL_S):
                self._tell()
        except ConnectionError:
            return  # nobody is left to be told

    def end(self, flights: Sequence[Flight]) -> None:
        """All that is left; called when the loop has nothing open any more."""
        self._over.set()
        self.join()
        self._tell()
        rest = [_seen(flight) for flight in flights if flight.ending is None]
        self._tidings.send(Heard(self._run.sent, rest, (), last=True))

    def _tell(self) -> None:
        left = len(self._ended)
        while left >= 0:
            piece = [_seen(self._ended.popleft()) for _ in range(min(PIECE, left))]
            left -= PIECE
            lags_s = self.lags_s[self._lags_told :]
            self._lags_told += len(lags_s)
            self._tidings.send(Heard(self._run.sent, piece, lags_s))


def _seen(flight: Flight) -> tuple[int, tuple[Any, ...]]:
    return flight.request.index, flight.seen()


if __name__ == "__main__":
    sys.exit(main())
