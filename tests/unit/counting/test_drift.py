"""When a local count gives way to the engine's, and what an estimate learns."""

from __future__ import annotations

from gateway.core.types import Reason, Refusal
from gateway.counting.counter import Count, CountingMethod, EngineCannotCount
from gateway.counting.drift import ANSWERS_MIN, ASKED_AGAIN_EVERY, WatchedCounter
from gateway.counting.estimate import BYTES_PER_TOKEN, BYTES_PER_TOKEN_LEAST, ByteEstimate
from gateway.testing.counted_calls import a_counted_call
from gateway.wire.dialects import PromptForm

CALL = a_counted_call(PromptForm.COMPLETION, {"prompt": "a" * 600})


class Fixed:
    """Counts everything as one hundred, by a method of its choice."""

    def __init__(self, method: CountingMethod) -> None:
        self.method = method

    async def count(self, _call: object, *, context_tokens: int | None = None) -> Count:
        assert context_tokens is None
        return Count(100, 100, self.method)

    def learn(self, count: Count, engine_tokens: int) -> None:
        pass


def watched() -> tuple[WatchedCounter, list[float]]:
    told: list[float] = []
    return WatchedCounter(Fixed(CountingMethod.LOCAL), Fixed(CountingMethod.ENGINE), told.append), told


async def test_a_count_that_stays_off_gives_way_to_the_engines_and_is_told_once() -> None:
    counter, told = watched()
    for _ in range(ANSWERS_MIN - 1):
        counter.learn(await counter.count(CALL), 110)
    assert (counter.has_drifted, counter.method, told) == (False, CountingMethod.LOCAL, [])
    for _ in range(5):
        counter.learn(await counter.count(CALL), 110)
    assert (counter.has_drifted, counter.method, len(told)) == (True, CountingMethod.ENGINE, 1)
    assert (await counter.count(CALL)).method is CountingMethod.ENGINE


class Dumb(Fixed):
    """An engine without a route that counts, until it `learns` to. asked: how often it was asked."""

    learns = False
    asked = 0

    async def count(self, call: object, *, context_tokens: int | None = None) -> Count:
        self.asked += 1
        if self.learns:
            return await super().count(call, context_tokens=context_tokens)
        raise EngineCannotCount(Refusal(Reason.NO_ENGINE, "It has no such route."))

    async def prompt_ids(self, _call: object) -> None:
        raise EngineCannotCount(Refusal(Reason.NO_ENGINE, "It has no such route."))


async def test_where_the_engine_cannot_count_the_local_count_goes_on_as_an_estimate() -> None:
    engine = Dumb(CountingMethod.ENGINE)
    counter = WatchedCounter(Fixed(CountingMethod.LOCAL), engine, lambda _mean: None)
    for _ in range(ANSWERS_MIN):
        counter.learn(Count(100, 100, CountingMethod.LOCAL), 110)
    counts = [await counter.count(CALL) for _ in range(ASKED_AGAIN_EVERY)]
    assert counts == [Count(100, 100, CountingMethod.ESTIMATE)] * ASKED_AGAIN_EVERY
    assert engine.asked == 1
    assert (counter.has_drifted, counter.method) == (True, CountingMethod.ESTIMATE)
    assert await counter.prompt_ids(CALL) is None
    engine.learns = True  # or another engine of the pool was asked
    assert (await counter.count(CALL)).method is CountingMethod.ENGINE
    assert counter.method is CountingMethod.ENGINE


async def test_one_odd_answer_among_right_ones_is_no_drift() -> None:
    counter, told = watched()
    for engine_tokens in [100] * 40 + [120] + [100] * 40:
        counter.learn(await counter.count(CALL), engine_tokens)
    assert told == []


async def test_estimates_are_no_drift() -> None:
    counter, told = watched()
    for _ in range(ANSWERS_MIN * 2):
        counter.learn(Count(500, 500, CountingMethod.ESTIMATE), 100)
    assert told == []


async def test_an_estimate_comes_near_to_what_the_engine_counts() -> None:
    counter = ByteEstimate()
    for _ in range(400):
        counter.learn(await counter.count(CALL), 120)
    assert abs((await counter.count(CALL)).prompt_tokens - 120) <= 3


async def test_odd_texts_move_an_estimate_no_further_than_its_bounds() -> None:
    counter = ByteEstimate()
    counter.learn(await counter.count(CALL), 100_000)
    assert counter.bytes_per_token > BYTES_PER_TOKEN * 0.97
    for _ in range(1000):
        counter.learn(await counter.count(CALL), 100_000)
    assert counter.bytes_per_token == BYTES_PER_TOKEN_LEAST


async def test_media_and_short_prompts_teach_nothing() -> None:
    counter = ByteEstimate()
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    image = a_counted_call(PromptForm.CHAT, {"messages": [{"role": "user", "content": [part]}]})
    counter.learn(await counter.count(image), 5000)
    counter.learn(await counter.count(CALL), 20)
    assert counter.bytes_per_token == BYTES_PER_TOKEN
