"""What `gateway check` prints is never exceeded: the bounds of gateway.core.guarantee against engines that step.

The engines take exactly the times of the step model that the bounds are computed from, so a bound that fails here is
wrong, not unlucky. Floods are shaped to be worst for each bound.
"""

from __future__ import annotations

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
    capacity_per_s,
    mixed_callers,
    short_first,
    shorts_only,
)
from virtual_engine import StepTime
from virtual_pool import START, Caller, VirtualPool

from gateway.core.guarantee import Guarantee, guarantee
from gateway.core.plan import Plan
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass, Reason

STEP_TIMES = pytest.mark.parametrize("step_time", MODELS.values(), ids=MODELS.keys())
BATCHES = pytest.mark.parametrize("batches_in_flight", [1, 2], ids=["sync", "async"])


def printed(plan: Plan, step_time: StepTime) -> Guarantee:
    model = StepModel(step_time.base_s, 1 / step_time.tokens_per_s, step_time.per_token_context_s, fitted=True)
    bounds = guarantee(plan, EngineLimits(**LIMITS), model, longest_prompt_tokens=LONG)
    assert bounds is not None
    return bounds


def longest_short_ttft_s(pool: VirtualPool) -> float:
    served = [fate for fate in pool.of(LengthClass.SHORT) if fate.first_token_at is not None]
    assert served
    return max(fate.engine_ttft_s for fate in served) - 2 * pool.network_s


@STEP_TIMES
@BATCHES
def test_no_short_takes_longer_to_its_first_token_than_printed(step_time, batches_in_flight):
    limit_s = printed(short_first(), step_time).short_ttft_s
    for load in (0.5, 0.95, 1.3):
        pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
        pool.run(mixed_callers(7, step_time, load, requests=250))
        assert longest_short_ttft_s(pool) <= limit_s


@STEP_TIMES
@BATCHES
def test_nor_does_one_that_comes_while_a_lone_long_has_whole_steps_to_itself(step_time, batches_in_flight):
    limit_s = printed(short_first(), step_time).short_ttft_s
    for tenth in range(1, 20):
        at_s = tenth / 20 * step_time.chunk_s(LONG, 0)
        pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
        pool.run([Caller(0.0, LONG, 1, "batch"), Caller(at_s, SHORT, 1)])
        assert longest_short_ttft_s(pool) <= limit_s


@pytest.mark.parametrize("long_tokens", [641, LONG])
@STEP_TIMES
@BATCHES
def test_backlogged_longs_of_any_length_proceed_at_the_printed_rate_in_a_flood_of_shorts(
    step_time, batches_in_flight, long_tokens
):
    plan, until_s = short_first(), 20.0
    pool = a_pool(plan, step_time, batches_in_flight=batches_in_flight)
    rate = printed(plan, step_time).long_tokens_per_s
    flood_per_s = 1.8 * capacity_per_s(step_time, shorts_only)
    callers = [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(Random(1), flood_per_s, until_s=until_s)]
    ahead = min(180_000 // long_tokens, 150)
    callers += [Caller(0.001 * number, long_tokens, OUTPUT_TOKENS, "batch") for number in range(ahead)]
    pool.run(callers)
    firsts = sorted(
        fate.first_token_at - START for fate in pool.of(LengthClass.LONG) if fate.first_token_at is not None
    )
    backlogged_until_s = min(until_s, firsts[-1])
    done = sum(at_s <= backlogged_until_s for at_s in firsts) * long_tokens
    assert done >= rate * backlogged_until_s - long_tokens


@pytest.mark.parametrize("tenants", [1, 4])
@BATCHES
def test_a_class_within_its_safe_queue_never_expires_while_every_other_class_floods(batches_in_flight, tenants):
    """The class of least weight queues up to the printed bound and no further; nobody in it is refused for waiting."""
    batch = an_unbounded_class("batch", weight=1, wait_s_max=200.0)
    flood = replace(an_unbounded_class("interactive", weight=4, wait_s_max=20.0), rank=0)
    safe = printed(short_first(flood, batch), FAST).flows["batch"].safe_queue_tokens
    assert safe > 2 * LONG, "a bound of nothing is no bound"
    batch = replace(batch, queue=replace(batch.queue, prompt_tokens_max=safe))
    pool = a_pool(short_first(flood, batch), FAST, batches_in_flight=batches_in_flight)
    random = Random(3)
    names = ["acme", *[f"other-{number}" for number in range(1, tenants)]]
    callers = [Caller(0.01 * number, LONG, OUTPUT_TOKENS, "batch", "acme") for number in range(safe // LONG)]
    callers += [
        Caller(at_s, random.choice([700, LONG]), OUTPUT_TOKENS, "batch", random.choice(names))
        for at_s in arrivals(random, 2.0, until_s=250.0)
    ]
    callers += [Caller(at_s, LONG, OUTPUT_TOKENS) for at_s in arrivals(random, 2.0, until_s=250.0)]
    callers += [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(random, 6.0, until_s=250.0)]
    pool.run(callers)
    mine = pool.of(LengthClass.LONG, service_class="batch")
    assert any(fate.reason is Reason.QUEUE_FULL for fate in mine), "the class never filled its queue"
    assert not [fate for fate in mine if fate.reason is Reason.WAIT_DEADLINE]
    limit_s = printed(pool.plan, FAST).flows["batch"].wait_s
    assert max(fate.waited_s for fate in mine) <= limit_s
