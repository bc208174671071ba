"""The threads that count, beside the event loop.

Owns how many counts run and wait, and how many bytes they hold. Two lanes, so that a long prompt never makes a short
one wait for its turn. Counts nothing itself, and never waits for room: a full house is said at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.counting.counter import CountingOverloaded

T = TypeVar("T")

QUICK_THREADS = 2
SLOW_THREADS = 2
QUICK_BYTES_MAX = 64 * 1024
JOBS_MAX = 1024
JOB_BYTES_MAX = 256 * 1024 * 1024
COUNT_S_MAX = 10.0


class CountingThreads:
    """Runs counts off the loop: an admission point of its own, before the lines.

    `jobs` and `job_bytes` are what runs or waits now, `refused` how many found no room or were not done in time.
    """

    def __init__(
        self,
        *,
        quick_threads: int = QUICK_THREADS,
        slow_threads: int = SLOW_THREADS,
        quick_bytes_max: int = QUICK_BYTES_MAX,
        jobs_max: int = JOBS_MAX,
        job_bytes_max: int = JOB_BYTES_MAX,
        count_s_max: float = COUNT_S_MAX,
    ) -> None:
        self._quick = ThreadPoolExecutor(quick_threads, thread_name_prefix="count-quick")
        self._slow = ThreadPoolExecutor(slow_threads, thread_name_prefix="count-slow")
        self._quick_bytes_max = quick_bytes_max
        self._jobs_max = jobs_max
        self._job_bytes_max = job_bytes_max
        self._count_s_max = count_s_max
        self._lock = threading.Lock()
        self.refused = 0
        self.jobs = 0
        self.job_bytes = 0

    async def run(self, job: Callable[[], T], size_bytes: int) -> T:
        """The job's result, from a thread. CountingOverloaded where there is no room for it, or not in time.

        A caller that is cancelled takes its job along where it has not begun; one that has begun keeps its room until
        it is done.
        """
        with self._lock:
            if self.jobs >= self._jobs_max or self.job_bytes + size_bytes > self._job_bytes_max:
                self.refused += 1
                raise CountingOverloaded
            self.jobs += 1
            self.job_bytes += size_bytes
        lane = self._quick if size_bytes <= self._quick_bytes_max else self._slow
        future = lane.submit(job)
        future.add_done_callback(lambda _: self._leave(size_bytes))
        limit = asyncio.timeout(self._count_s_max)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not limit.expired():
                raise
            self.refused += 1
            raise CountingOverloaded from None

    def close(self) -> None:
        """Take no more; what waits is cancelled, what runs ends by itself."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)

    def _leave(self, size_bytes: int) -> None:
        # Called from a counting thread, or from the loop where a waiting job is cancelled.
        with self._lock:
            self.jobs -= 1
            self.job_bytes -= size_bytes
