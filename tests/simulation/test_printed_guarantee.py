"""What `gateway check` prints is never exceeded, and not absurdly loose: the bounds against engines that step.

The engines take exactly the times of the step model that the bounds are computed from, and the costs are charged by
it, so a bound that fails here is wrong, not unlucky. Floods are shaped to be worst for each bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from scenarios import (
    FAST,
    LIMITS,
    LONG,
    MODELS,
    OUTPUT_TOKENS,
    SHORT,
    a_pool,
    an_unbounded_class,
    arrivals,
    mixed_callers,
    short_first,
)
from virtual_pool import START, Caller, VirtualPool

from bench.simulation.steps import StepTime
from gateway.core.guarantee import Guarantee, LongRate, ShortEntry, Wait, guarantee
from gateway.core.plan import Plan
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass, Reason

CONTEXT = LONG + OUTPUT_TOKENS
STEP_TIMES = pytest.mark.parametrize("step_time", MODELS.values(), ids=MODELS.keys())
BATCHES = pytest.mark.parametrize("batches_in_flight", [1, 2], ids=["sync", "async"])


def printed(plan: Plan, step_time: StepTime = FAST, **tenants: int) -> Guarantee:
    model = StepModel(step_time.base_s, step_time.per_token_s, step_time.per_token_context_s, fitted=True)
    bounds = guarantee(plan, EngineLimits(**LIMITS), model, context_tokens=CONTEXT, tenants=tenants)
    assert bounds is not None
    return bounds


def wait_of(bounds: Guarantee, name: str, length: LengthClass) -> Wait:
    """Return what holds however the other lane behaves."""
    (flow,) = (each for each in bounds.flows if (each.service_class, each.length_class) == (name, length))
    assert isinstance(flow.always, Wait)
    return flow.always


def entry_of(bounds: Guarantee) -> ShortEntry:
    assert isinstance(bounds.short_entry, ShortEntry)
    return bounds.short_entry


def longest_short_ttft_s(pool: VirtualPool) -> float:
    served = [fate for fate in pool.of(LengthClass.SHORT) if fate.first_token_at is not None]
    assert served
    return max(fate.engine_ttft_s for fate in served) - 2 * pool.network_s


@STEP_TIMES
@BATCHES
def test_no_short_takes_longer_to_its_first_token_than_printed(step_time, batches_in_flight):
    limit_s = entry_of(printed(short_first(), step_time)).ttft_s
    for load in (0.5, 1.3):
        pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
        pool.run(mixed_callers(7, step_time, load, requests=200))
        assert longest_short_ttft_s(pool) <= limit_s


@STEP_TIMES
def test_a_short_that_comes_while_a_long_runs_alone_comes_near_the_printed_bound_and_never_over(step_time):
    limit_s, worst_s = entry_of(printed(short_first(), step_time)).ttft_s, 0.0
    for tenth in range(1, 40):
        pool = a_pool(short_first(), step_time, batches_in_flight=2)
        at_s = tenth / 40 * (8 * step_time.base_s + step_time.chunk_s(LONG, 0))
        pool.run([Caller(0.0, LONG, 1, "batch"), Caller(at_s, SHORT, 1)])
        worst_s = max(worst_s, longest_short_ttft_s(pool))
    assert limit_s / 2 <= worst_s <= limit_s


@pytest.mark.parametrize("long_tokens", [641, 1281, LONG])
@STEP_TIMES
@BATCHES
def test_backlogged_longs_of_any_length_proceed_at_the_printed_rate_in_a_flood_of_shorts(
    step_time, batches_in_flight, long_tokens
):
    plan, ahead = short_first(), 25
    rate = printed(plan, step_time).long_rate
    assert isinstance(rate, LongRate)
    pool = a_pool(plan, step_time, batches_in_flight=batches_in_flight)
    callers = [Caller(0.001 * number, long_tokens, OUTPUT_TOKENS, "batch") for number in range(ahead)]
    callers += [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(Random(1), 30.0, until_s=30.0)]
    pool.run(callers)
    last = max(fate.first_token_at for fate in pool.of(LengthClass.LONG) if fate.first_token_at is not None) - START
    done = sum(fate.first_token_at is not None for fate in pool.of(LengthClass.LONG)) * long_tokens
    assert done >= rate.tokens_per_s * last - long_tokens


def a_flood(plan: Plan, random: Random, names: Sequence[str], until_s: float) -> list[Caller]:
    """Return every other flow at more than the engine can take, in both lanes."""
    longs = [
        Caller(at_s, random.choice([641, 4000, LONG]), OUTPUT_TOKENS, "interactive", "acme")
        for at_s in arrivals(random, 3.0, until_s=until_s)
    ]
    shorts = [
        Caller(at_s, random.choice([100, SHORT]), OUTPUT_TOKENS, "interactive", "acme")
        for at_s in arrivals(random, 40.0, until_s=until_s)
    ]
    assert plan.classes.keys() >= {"interactive", "batch"}
    others = [
        Caller(at_s, random.choice([SHORT, LONG]), OUTPUT_TOKENS, "batch", random.choice(names))
        for at_s in arrivals(random, 3.0, until_s=until_s)
        if names
    ]
    return [*longs, *shorts, *others]


def fair_plan(wait_s_max: float) -> Plan:
    return replace(
        short_first(
            an_unbounded_class("interactive", weight=2, wait_s_max=30.0),
            an_unbounded_class("batch", weight=1, wait_s_max=wait_s_max),
        ),
    )


@pytest.mark.parametrize("tenants", [1, 3])
@pytest.mark.parametrize("length", list(LengthClass))
@BATCHES
def test_who_has_none_of_its_own_ahead_never_waits_longer_than_printed(batches_in_flight, length, tenants):
    plan, tokens = fair_plan(1000.0), SHORT if length is LengthClass.SHORT else LONG
    limit_s = wait_of(printed(plan, batch=tenants, interactive=1), "batch", length).empty_line_s
    names = [f"other-{number}" for number in range(1, tenants)]
    callers = a_flood(plan, Random(3), names, 40.0)
    callers += [Caller(5.0 + number * 1.2 * limit_s, tokens, OUTPUT_TOKENS, "batch", "mine") for number in range(2)]
    pool = a_pool(plan, FAST, batches_in_flight=batches_in_flight)
    pool.run(callers)
    mine = [fate for fate in pool.of(length) if fate.caller.tenant == "mine"]
    waits = [fate.waited_s for fate in mine if fate.waited_s is not None]
    assert len(waits) == 2
    assert max(waits) <= limit_s


LOOSE = 6
"""How far a constructed worst flood stays from the bound: its steps are not all full, its turn-arounds not all late."""


def expired_behind(queued: int, plan: Plan) -> int:
    """Return how many of one tenant's `queued` longs expire while another class floods with the shortest longs."""
    random = Random(3)
    callers = [Caller(4.0 + 0.001 * number, 641, 1, "interactive", "acme") for number in range(640)]
    callers += [
        Caller(at_s, SHORT, OUTPUT_TOKENS, "interactive", "acme") for at_s in arrivals(random, 40, until_s=90.0)
    ]
    callers += [Caller(5.0 + 0.0001 * number, LONG, OUTPUT_TOKENS, "batch", "mine") for number in range(queued)]
    pool = a_pool(plan, FAST, batches_in_flight=2)
    pool.run(callers)
    mine = pool.of(LengthClass.LONG, service_class="batch")
    assert len(mine) == queued
    return sum(fate.reason is Reason.WAIT_DEADLINE for fate in mine)


def test_nobody_expires_within_the_safe_queue_and_some_do_in_one_of_several_times_the_size():
    flood = an_unbounded_class("interactive", weight=2, wait_s_max=200.0)
    plan = short_first(flood, an_unbounded_class("batch", weight=1, wait_s_max=80.0))
    safe = wait_of(printed(plan, batch=1, interactive=1), "batch", LengthClass.LONG).safe_requests
    assert safe >= 2, "a bound of nothing is no bound"
    assert expired_behind(safe, plan) == 0
    assert expired_behind(LOOSE * safe, plan) > 0
