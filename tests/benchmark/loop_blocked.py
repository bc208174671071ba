"""How long a loop is kept from what is due: by what runs on it, and by who holds the interpreter lock.

Another process stamps a tick into a pipe each millisecond, and the loop says how old the stamp is when it comes to read
it. A timer of the loop's own would not do: asyncio and uvloop round it up to a whole millisecond. What the kernel let the
loop's thread wait for a core (`schedstat`) is the machine's doing and taken off.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

_TICKER = """
import os, struct, sys, time
while True:
    time.sleep(0.001)
    os.write(1, struct.pack("q", time.perf_counter_ns()))
"""
QUEUED_KEPT = 4096
STAMPS_READ = 512


class LoopClock:
    """Of the loop that it makes: `ticks` holds, for each tick, how late it was and how long it was blocked, in ms."""

    def __init__(self) -> None:
        self.ticks: list[tuple[float, float]] = []
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._queued: deque[tuple[int, int]] = deque(maxlen=QUEUED_KEPT)
        self.loop = asyncio.SelectorEventLoop(_Selector(self.note))

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """The ticks, from a process of their own."""
        with subprocess.Popen([sys.executable, "-c", _TICKER], stdout=subprocess.PIPE) as ticker:
            assert ticker.stdout is not None
            pipe = ticker.stdout.fileno()
            os.set_blocking(pipe, False)
            self.loop.add_reader(pipe, self._read, pipe)
            try:
                yield
            finally:
                self.loop.remove_reader(pipe)
                self.ticks.clear()
                ticker.kill()

    def note(self) -> tuple[int, int]:
        """Keep, and return, what time it is and how long the loop's thread has waited for a core since it began."""
        self._queued.appendleft((perf_counter_ns(), int(os.pread(self._schedstat, 64, 0).split()[1])))
        return self._queued[0]

    def _read(self, pipe: int) -> None:
        now_ns, queued_ns = self.note()
        for (stamp_ns,) in struct.iter_unpack("q", os.read(pipe, STAMPS_READ * struct.calcsize("q"))):
            before_ns = next((queued for at_ns, queued in self._queued if at_ns <= stamp_ns), queued_ns)
            late_ns = now_ns - stamp_ns
            self.ticks.append((late_ns / 1e6, max(0, late_ns - (queued_ns - before_ns)) / 1e6))


class _Selector(selectors.EpollSelector):
    def __init__(self, about_to_wait: Callable[[], object]) -> None:
        super().__init__()
        self._about_to_wait = about_to_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._about_to_wait()
        return super().select(timeout)
