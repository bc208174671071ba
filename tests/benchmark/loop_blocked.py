"""How long a loop is kept from what is due: by what runs on it, and by who holds the interpreter lock.

Another process stamps a tick into a pipe each millisecond, and the loop says how old the stamp is when it comes to read
it. A timer of the loop's own would not do: asyncio and uvloop round it up to a whole millisecond.

Most of that is the machine's doing: what the kernel let the loop's thread wait for a core (`schedstat`), and what a
neighbour took of the core itself, which nobody says. But whoever blocks the loop runs meanwhile, the loop's own thread
or one that holds the interpreter lock: so no tick was blocked for longer than this process's threads ran between its
stamp and its reading. That bound counts too what threads ran beside the loop without the lock; how much it is, a load
of threads that need no lock shows.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
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
NOTES_KEPT = 4096
STAMPS_READ = 512


class LoopClock:
    """Of the loop that it makes: `ticks` holds, for each tick, how late it was and how long it was blocked at most, in ms."""

    def __init__(self) -> None:
        self.ticks: list[tuple[float, float]] = []
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._notes: deque[tuple[int, int, int]] = deque(maxlen=NOTES_KEPT)
        self._clocks: list[int] = []
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

    def note(self) -> tuple[int, int, int]:
        """Keep, and return, the time, how long the loop's thread has waited for a core, and how long all threads ran."""
        queued_ns = int(os.pread(self._schedstat, 64, 0).split()[1])
        self._notes.appendleft((perf_counter_ns(), queued_ns, self._ran_ns()))
        return self._notes[0]

    def _read(self, pipe: int) -> None:
        now_ns, queued_ns, ran_ns = note = self.note()
        for (stamp_ns,) in struct.iter_unpack("q", os.read(pipe, STAMPS_READ * struct.calcsize("q"))):
            _, queued_before_ns, ran_before_ns = next((kept for kept in self._notes if kept[0] <= stamp_ns), note)
            late_ns = now_ns - stamp_ns
            blocked_ns = min(late_ns - (queued_ns - queued_before_ns), ran_ns - ran_before_ns)
            self.ticks.append((late_ns / 1e6, max(0, blocked_ns) / 1e6))

    def _ran_ns(self) -> int:
        """Each thread's own clock: the process's lags behind for a thread that runs now."""
        if len(self._clocks) != threading.active_count():
            self._clocks = [
                time.pthread_getcpuclockid(thread.ident) for thread in threading.enumerate() if thread.ident
            ]
        return sum(map(time.clock_gettime_ns, self._clocks))


class _Selector(selectors.EpollSelector):
    def __init__(self, about_to_wait: Callable[[], object]) -> None:
        super().__init__()
        self._about_to_wait = about_to_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._about_to_wait()
        return super().select(timeout)
