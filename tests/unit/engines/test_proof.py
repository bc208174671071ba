"""The proof of priority order, against a model of an engine's queue, in no time."""

from __future__ import annotations

import asyncio
import heapq
import itertools

import pytest

from gateway.core.types import EngineLimits
from gateway.engines import proof

LIMITS = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640)


class Queue:
    """One prompt at a time, the rest waiting: by priority or by arrival. Time passes when the proof pauses."""

    def __init__(self, *, by_priority, fails=False):
        self._by_priority = by_priority
        self._fails = fails
        self._arrivals = itertools.count()
        self._waiting = []
        self._running = None
        self.bodies = []
        self.pauses = 0

    async def complete(self, body, priority):
        self.bodies.append(body)
        if self._fails:
            return False
        rank = priority if self._by_priority else 0
        done = asyncio.get_running_loop().create_future()
        if self._running is None:
            self._running = done
        else:
            heapq.heappush(self._waiting, (rank, next(self._arrivals), done))
        await done
        return True

    async def pause(self, _seconds):
        self.pauses += 1
        for _ in range(5):
            await asyncio.sleep(0)
        if self.pauses % 2 == 0:
            asyncio.get_running_loop().call_later(0.001, self._step)

    def _step(self):
        if self._running is not None:
            self._running.set_result(None)
        self._running = heapq.heappop(self._waiting)[2] if self._waiting else None
        if self._running is not None:
            asyncio.get_running_loop().call_later(0.001, self._step)


async def prove(queue):
    load = proof.plan_load(LIMITS, 12288)
    return await proof.obeys_priority(queue.complete, load, "tiny", b"salt", queue.pause)


async def test_a_queue_by_priority_is_proved():
    queue = Queue(by_priority=True)
    assert await prove(queue)
    assert queue.pauses == 2 * proof.ROUNDS


async def test_a_queue_by_arrival_is_not():
    queue = Queue(by_priority=False)
    assert not await prove(queue)


async def test_an_engine_that_fails_proves_nothing():
    assert not await prove(Queue(by_priority=True, fails=True))


async def test_no_prompt_shares_a_beginning_with_another_so_that_no_cache_shortens_it():
    queue = Queue(by_priority=True)
    await prove(queue)
    beginnings = {tuple(body["prompt"][:16]) for body in queue.bodies}
    assert len(beginnings) == len(queue.bodies)
    assert {body["max_tokens"] for body in queue.bodies} == {1}


@pytest.mark.parametrize(
    ("limits", "context", "fillers", "contender"),
    [
        (LIMITS, 12288, (1920, 2560, 3200, 3840), 640),
        (EngineLimits(max_num_batched_tokens=2048), 12288, (6144,), 2048),
        (EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=0), None, (6144,), 2048),
        (EngineLimits(), 32768, (24576,), 8192),
    ],
)
def test_the_fillers_take_every_token_of_a_step(limits, context, fillers, contender):
    assert proof.plan_load(limits, context) == proof.Load(fillers, contender)


@pytest.mark.parametrize(
    ("limits", "context"), [(EngineLimits(), 12288), (EngineLimits(max_num_batched_tokens=65536), None)]
)
def test_a_round_that_would_not_fit_is_not_tried(limits, context):
    assert proof.plan_load(limits, context) is None


def test_what_to_state_is_said_where_the_round_was_sized_by_a_guess():
    guessed, stated = (proof.why_not_planned(limits) for limits in (EngineLimits(), LIMITS))
    assert stated == "no round of the proof fits the model's context"
    assert guessed.startswith(stated)
    assert "state the engine's limits.max_num_batched_tokens and limits.max_num_seqs" in guessed
