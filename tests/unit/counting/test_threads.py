from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from gateway.counting.counter import CountingOverloaded
from gateway.counting.threads import CountingThreads
from gateway.server.tasks import spawn


@pytest.fixture
def gate():
    """A job that waits until it is let go; `begun` tells that it runs."""
    gate = Gate()
    yield gate
    gate.open.set()


class Gate:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def job(self) -> str:
        self.begun.set()
        self.open.wait(10)
        return "done"


async def _begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.wait, 10)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  a thread changes it, and tells nobody
            await asyncio.sleep(0)


async def test_a_job_runs_off_the_loop_and_gives_its_result_and_its_room_back() -> None:
    threads = CountingThreads()
    assert await threads.run(threading.get_ident, 5) != threading.get_ident()
    await _until(lambda: threads.jobs == 0)
    assert threads.job_bytes == 0
    threads.close()


async def test_what_a_job_raises_comes_to_its_caller_and_frees_its_room() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    threads = CountingThreads()
    with pytest.raises(ZeroDivisionError):
        await threads.run(fail, 5)
    await _until(lambda: (threads.jobs, threads.job_bytes) == (0, 0))
    threads.close()


async def test_beyond_its_jobs_it_says_at_once_that_it_is_full(gate: Gate) -> None:
    threads = CountingThreads(quick_threads=1, jobs_max=2)
    running = spawn(threads.run(gate.job, 1), name="job")
    waiting = spawn(threads.run(gate.job, 1), name="job")
    await _begun(gate)
    with pytest.raises(CountingOverloaded):
        await threads.run(lambda: None, 1)
    gate.open.set()
    assert await asyncio.gather(running, waiting) == ["done", "done"]
    threads.close()


async def test_beyond_its_bytes_it_says_at_once_that_it_is_full(gate: Gate) -> None:
    threads = CountingThreads(job_bytes_max=100)
    running = spawn(threads.run(gate.job, 60), name="job")
    await _begun(gate)
    with pytest.raises(CountingOverloaded):
        await threads.run(lambda: None, 41)
    assert await threads.run(lambda: 7, 40) == 7
    gate.open.set()
    assert await running == "done"
    threads.close()


async def test_a_large_job_does_not_hold_up_a_small_one(gate: Gate) -> None:
    threads = CountingThreads(quick_threads=1, slow_threads=1, quick_bytes_max=10)
    large = spawn(threads.run(gate.job, 11), name="job")
    await _begun(gate)
    assert await threads.run(lambda: "small", 10) == "small"
    gate.open.set()
    assert await large == "done"
    threads.close()


async def test_a_caller_that_leaves_takes_its_waiting_job_along(gate: Gate) -> None:
    ran: list[int] = []
    threads = CountingThreads(quick_threads=1)
    running = spawn(threads.run(gate.job, 3), name="job")
    await _begun(gate)
    waiting = spawn(threads.run(lambda: ran.append(1), 4), name="job")
    await _until(lambda: threads.jobs == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (threads.jobs, threads.job_bytes) == (1, 3)
    gate.open.set()
    await running
    assert ran == []
    threads.close()


async def test_a_job_that_runs_keeps_its_room_when_its_caller_leaves(gate: Gate) -> None:
    threads = CountingThreads(quick_threads=1)
    running = spawn(threads.run(gate.job, 3), name="job")
    await _begun(gate)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (threads.jobs, threads.job_bytes) == (1, 3)
    gate.open.set()
    await _until(lambda: threads.jobs == 0)
    threads.close()
