"""Steps that are alike, taken as one, against the same model step by step: nothing may differ, not the last bit."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from scenarios import CPU
from virtual_pool import assigned

from bench.simulation.engine_room import EngineRoom
from bench.simulation.posts import Caller
from bench.simulation.quick_engine import QuickEngine
from bench.simulation.steps import EngineFlags, EngineRequest, Step, StepTime
from bench.simulation.virtual_engine import VirtualEngine
from bench.simulation.virtual_pool import VirtualPool
from gateway.observe.release import CORE_IS_COMPILED
from gateway.policy.source import load
from gateway.testing.builders import an_engine

POLICIES = ("passthrough", "engine-priority", "short-first", "sliced", "slo-adaptive")


def some_flags(random: Random) -> EngineFlags:
    return EngineFlags(
        max_num_batched_tokens=random.choice([512, 2048]),
        long_prefill_token_threshold=random.choice([0, 640]),
        max_num_seqs=random.choice([4, 16, 128]),
        kv_blocks=random.choice([700, 4096]),
        priority_scheduling=random.random() < 0.5,
        batches_in_flight=random.choice([1, 2]),
        prefix_caching=random.random() < 0.5,
        max_num_active_seqs=random.choice([None, 3]),
    )


def played(engine: type[VirtualEngine], seed: int) -> tuple[Any, ...]:
    """Return all that can be seen of one run: who got what when, and what the engines hold in the end."""
    random = Random(seed)
    flags, step_time = some_flags(random), random.choice([CPU, StepTime(0.02, 1e-5, 1e-9)])
    plan = load(random.choice(POLICIES))
    names = ["a", "b"][: random.choice([1, 2])]
    limits = {"max_num_batched_tokens": flags.max_num_batched_tokens, "max_num_seqs": flags.max_num_seqs}
    engines = {name: engine(flags, step_time) for name in names}
    room = EngineRoom(engines, batches_in_flight=flags.batches_in_flight)
    specs = [an_engine(name, **limits) for name in names]
    pools = [
        VirtualPool(plan, room, specs, assigned, number=number, tells_cached=flags.prefix_caching)
        for number in range(random.choice([1, 1, 2]))
    ]
    at_s, callers = 0.0, []
    for _ in range(60):
        at_s += random.expovariate(random.choice([0.5, 3.0, 30.0]))
        prompt_tokens = random.choice([1, 50, 512, 512, 4000])
        leaves_after_s = random.choice([None, None, None, random.random()])
        service_class = random.choice(["interactive", "batch"])
        output_tokens = random.choice([1, 2, 30, 300])
        callers.append(Caller(at_s, prompt_tokens, output_tokens, service_class, leaves_after_s=leaves_after_s))
    for pool in pools:
        pool.expect(callers[pools.index(pool) :: len(pools)])
        if len(pools) > 1:
            pool.look_at_engines()
    room.run()
    fates = [fate for pool in pools for fate in pool.fates.values()]
    seen = [
        (fate.outcome, fate.reason, fate.engine, fate.waited_s, fate.first_token_at, fate.ended_at, fate.late)
        for fate in fates
    ]
    work = [(fate.computed_tokens, fate.recalls, tuple(fate.sent)) for fate in fates]
    return seen, work, room.steps, [(each.blocks_used, each.arrivals) for each in engines.values()]


@pytest.mark.parametrize("seed", range(24))
def test_steps_taken_as_one_are_the_steps_taken_one_by_one(seed):
    assert played(QuickEngine, seed) == played(VirtualEngine, seed)


@pytest.mark.skipif(CORE_IS_COMPILED, reason="it counts the calls of a class that is compiled then")
@pytest.mark.parametrize("batches_in_flight", [1, 2])
def test_a_lone_answer_is_a_handful_of_looks_at_the_engine(batches_in_flight):
    looks = 0

    class Counted(QuickEngine):
        def schedule(self):
            nonlocal looks
            looks += 1
            return QuickEngine.schedule(self)

    flags = replace(EngineFlags(), batches_in_flight=batches_in_flight)
    room = EngineRoom({"a": Counted(flags)}, batches_in_flight=batches_in_flight)
    VirtualPool(load("passthrough"), room, [an_engine("a")], assigned).run([Caller(0.0, 512, 1000)])
    assert room.steps == 1000
    assert looks < 12


def counts_of(request: EngineRequest) -> dict[str, Any]:
    """Return all that a request says of itself, but which blocks it holds."""
    said = {name: getattr(request, name) for name in dir(request) if not name.startswith("_") and name != "held"}
    return {name: value for name, value in said.items() if not callable(value)}


class Pair:
    """Two engines with the same requests: one takes its steps one by one, the other as it may."""

    def __init__(self, flags: EngineFlags) -> None:
        self.one, self.other = VirtualEngine(flags), QuickEngine(flags)
        self.in_flight: deque[tuple[Step, Step]] = deque()
        self.batches = flags.batches_in_flight

    def step(self) -> None:
        one, other = self.one.schedule(), self.other.schedule()
        assert (one.duration_s, one.first_tokens, one.ended) == (other.duration_s, other.first_tokens, other.ended)
        named = {number: count for number, count in other.tokens.items() if number not in one.ended}
        assert named.items() <= one.tokens.items()
        assert one.is_empty == other.is_empty
        assert sum(one.tokens.values()) >= sum(named.values()) + other.grouped - len(one.ended)
        if not one.is_empty:
            self.in_flight.append((one, other))
        if len(self.in_flight) == self.batches or (self.in_flight and one.is_empty):
            self.end()

    def end(self) -> None:
        one, other = self.in_flight.popleft()
        self.one.end(one)
        self.other.end(other)

    def run(self, random: Random) -> int:
        possible = self.other.steps_alike()
        flying = [steps for steps in self.in_flight if steps[0].first_tokens or steps[0].ended]
        if not possible or flying or len(self.in_flight) != self.batches - 1:
            return 0
        scheduled = random.randint(1, possible)
        ended = scheduled - (random.random() < 0.5)
        ends = self.other.ends_alike(0.0, scheduled)
        others = self.other.run_alike(scheduled, ended)
        ones, at_s = [one for one, _ in self.in_flight], 0.0
        for number in range(scheduled):
            ones.append(self.one.schedule())
            at_s += ones[-1].duration_s
            assert at_s == ends[number]
            assert set(ones[-1].tokens.values()) == {1}
            if number < ended:
                self.one.end(ones.pop(0))
        self.in_flight = deque(zip(ones, others, strict=True))
        if len(self.in_flight) == self.batches:
            self.end()
        return scheduled

    def look(self) -> None:
        """See that every request stands where it stood step by step."""
        assert self.one.blocks_used == self.other.blocks_used
        for one, other in zip(
            [*self.one.running, *self.one.waiting], [*self.other.running, *self.other.waiting], strict=True
        ):
            self.other.look_at(other)
            assert counts_of(one) == counts_of(other)


@pytest.mark.parametrize("seed", range(24))
def test_after_steps_taken_as_one_every_request_stands_where_it_stood(seed):
    random = Random(seed)
    pair = Pair(replace(some_flags(random), kv_blocks=random.choice([160, 700])))
    for number in range(300):
        if random.random() < 0.1:
            asked = number, random.choice([1, 50, 640, 1500]), random.choice([1, 2, 30, 300]), random.randint(0, 2)
            pair.one.add(EngineRequest(*asked))
            pair.other.add(EngineRequest(*asked))
        if number and random.random() < 0.02:
            gone = random.randrange(number)
            pair.one.abort(gone)
            pair.other.abort(gone)
        if random.random() < 0.3:
            pair.run(random)
        else:
            pair.step()
        if random.random() < 0.2:
            pair.look()
    pair.look()


@pytest.mark.parametrize("engine", [VirtualEngine, QuickEngine])
def test_a_token_is_delivered_by_the_step_that_sampled_it_and_by_none_before(engine):
    """Two steps in flight, a chunk and behind it the chunk with which the prompt is complete."""
    stepped = engine(EngineFlags(max_num_batched_tokens=64, batches_in_flight=2))
    request = EngineRequest(1, 100, 3)
    stepped.add(request)
    first, second = stepped.schedule(), stepped.schedule()
    assert (first.first_tokens, second.first_tokens) == ([], [1])
    stepped.end(first)
    assert request.delivered == 0
    stepped.schedule()
    stepped.end(second)
    stepped.look_at(request)
    assert request.delivered == 1
