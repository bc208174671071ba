"""Steps that are alike, taken as one, against the same model step by step: nothing may differ, not the last bit."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest
from scenarios import CPU
from virtual_pool import assigned

from bench.simulation.posts import Caller
from bench.simulation.steps import EngineFlags, EngineRequest, Step, StepTime
from bench.simulation.virtual_engine import VirtualEngine
from bench.simulation.virtual_pool import VirtualPool
from gateway.policy.source import load
from gateway.testing.builders import an_engine

POLICIES = ("passthrough", "engine-priority", "short-first", "sliced", "slo-adaptive")


class StepByStep(VirtualEngine):
    """The same scheduler, each step of which is looked at."""

    def steps_alike(self, in_flight: int) -> int:
        assert in_flight >= 0
        return 0


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
    pool = VirtualPool(
        plan,
        engines,
        [an_engine(name, **limits) for name in names],
        assigned,
        batches_in_flight=flags.batches_in_flight,
        tells_cached=flags.prefix_caching,
    )
    at_s, callers = 0.0, []
    for _ in range(60):
        at_s += random.expovariate(random.choice([0.5, 3.0, 30.0]))
        prompt_tokens = random.choice([1, 50, 512, 512, 4000])
        leaves_after_s = random.choice([None, None, None, random.random()])
        service_class = random.choice(["interactive", "batch"])
        output_tokens = random.choice([1, 2, 30, 300])
        callers.append(Caller(at_s, prompt_tokens, output_tokens, service_class, leaves_after_s=leaves_after_s))
    pool.run(callers)
    fates = [
        (fate.outcome, fate.reason, fate.engine, fate.waited_s, fate.first_token_at, fate.ended_at, fate.late)
        for fate in pool.fates.values()
    ]
    work = [(fate.computed_tokens, fate.recalls, tuple(fate.sent)) for fate in pool.fates.values()]
    return fates, work, pool.steps, pool.counts, [(each.blocks_used, each.arrivals) for each in engines.values()]


@pytest.mark.parametrize("seed", range(24))
def test_steps_taken_as_one_are_the_steps_taken_one_by_one(seed):
    assert played(VirtualEngine, seed) == played(StepByStep, seed)


@pytest.mark.parametrize("batches_in_flight", [1, 2])
def test_a_lone_answer_is_a_handful_of_looks_at_the_engine(batches_in_flight):
    looks = 0

    class Counted(VirtualEngine):
        def schedule(self):
            nonlocal looks
            looks += 1
            return super().schedule()

    flags = replace(EngineFlags(), batches_in_flight=batches_in_flight)
    pool = VirtualPool(
        load("passthrough"), {"a": Counted(flags)}, [an_engine("a")], assigned, batches_in_flight=batches_in_flight
    )
    pool.run([Caller(0.0, 512, 1000)])
    assert pool.steps == 1000
    assert looks < 12


class Pair:
    """Two engines with the same requests: one takes its steps one by one, the other those that are alike as one."""

    def __init__(self, flags: EngineFlags) -> None:
        self.one, self.other = VirtualEngine(flags), VirtualEngine(flags)
        self.in_flight: deque[tuple[Step, Step]] = deque()
        self.batches = flags.batches_in_flight

    def step(self) -> None:
        pair = self.one.schedule(), self.other.schedule()
        assert pair[0] == pair[1]
        if pair[0].tokens:
            self.in_flight.append(pair)
        if len(self.in_flight) == self.batches or (self.in_flight and not pair[0].tokens):
            one, other = self.in_flight.popleft()
            self.one.end(one)
            self.other.end(other)

    def run(self, random: Random) -> None:
        flying = len(self.in_flight)
        possible = self.other.steps_alike(flying)
        if not possible:
            return
        scheduled = random.randint(1, possible)
        ended = scheduled - (random.random() < 0.5)
        ends = self.other.ends_alike(0.0, scheduled)
        last = self.other.run_alike(scheduled, ended)
        at_s = 0.0
        for number in range(scheduled):
            step = self.one.schedule()
            at_s += step.duration_s
            assert at_s == ends[number]
            self.in_flight.append((step, replace(last, duration_s=step.duration_s)))
            if number < ended:
                self.one.end(self.in_flight.popleft()[0])
        assert step == last
        if ended < scheduled:
            one, other = self.in_flight.popleft()
            self.one.end(one)
            self.other.end(other)

    def state(self, engine: VirtualEngine) -> Any:
        requests = [*engine.running, *engine.waiting]
        return engine.blocks_used, [
            {**asdict(replace(request, blocks=[])), "blocks": len(request.blocks)} for request in requests
        ]


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
        assert pair.state(pair.one) == pair.state(pair.other)
