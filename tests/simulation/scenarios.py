"""Engines, plans and callers of the simulations, and the arithmetic that their claims are held against.

Owns the two step models (a CPU engine with a tiny model, as measured; a faster engine without an attention term, as
assumed), the shape of the plan (that of the shipped `short-first`), and the lane rate computed from first principles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import ceil
from random import Random

from virtual_pool import Caller, VirtualPool

from bench.simulation.steps import EngineFlags, EngineRequest, StepTime
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.plan import ClassPlan, Plan, SlotBudget, TenantBounds
from gateway.core.types import EngineSpec
from gateway.testing.builders import a_class, a_plan, an_admission, an_engine

CPU, FAST = StepTime(), StepTime(base_s=0.006, per_token_s=1 / 25_000, per_token_context_s=0.0)
MODELS = {"cpu": CPU, "fast": FAST}
BATCHED_TOKENS, THRESHOLD, SEQUENCES = 2048, 640, 128
LONG_PREFILLS, SHORT_PREFILL_TOKENS = 1, 1024
SLOTS = SlotBudget(total=SEQUENCES, short_reserve=32, long_reserve=16)
SHORT, LONG, OUTPUT_TOKENS = 512, 8192, 32
LIMITS = {
    "max_num_batched_tokens": BATCHED_TOKENS,
    "long_prefill_token_threshold": THRESHOLD,
    "max_num_seqs": SEQUENCES,
}


def short_first(*classes: ClassPlan, **admission: int | None) -> Plan:
    """Return a plan of the shape of `short-first`: three classes, 16 : 4 : 1, one long in prefill."""
    chosen = classes or (
        a_class("interactive", rank=0, weight=16, wait_s_max=(2, 30), output_tokens_max=OUTPUT_TOKENS),
        a_class("standard", rank=1, weight=4, wait_s_max=(10, 60), output_tokens_max=OUTPUT_TOKENS),
        a_class("batch", rank=2, weight=1, wait_s_max=(60, 300), output_tokens_max=OUTPUT_TOKENS),
    )
    budgets = {"long_prefills_max": LONG_PREFILLS, "short_prefill_tokens_max": SHORT_PREFILL_TOKENS} | admission
    return a_plan(*chosen, admission=an_admission(slots=SLOTS, **budgets))


def an_unbounded_class(
    name: str, *, weight: float = 1, wait_s_max: float, tenant: TenantBounds | None = None
) -> ClassPlan:
    """Return a class whose queue holds whatever comes, for claims about waiting alone."""
    return a_class(
        name,
        weight=weight,
        requests_max=1 << 30,
        prompt_tokens_max=1 << 40,
        bytes_max=1 << 50,
        wait_s_max=(wait_s_max, wait_s_max),
        tenant=tenant,
        output_tokens_max=OUTPUT_TOKENS,
    )


def a_pool(plan: Plan, step_time: StepTime = CPU, *, engines: int = 1, batches_in_flight: int = 1) -> VirtualPool:
    """Return a pool of engines a, b, c … that match the plan."""
    names = [chr(ord("a") + number) for number in range(engines)]
    specs: list[EngineSpec] = [an_engine(name, **LIMITS) for name in names]
    flags = EngineFlags(BATCHED_TOKENS, THRESHOLD, SEQUENCES, batches_in_flight=batches_in_flight)
    return VirtualPool(
        plan, {name: VirtualEngine(flags, step_time) for name in names}, specs, batches_in_flight=batches_in_flight
    )


def arrivals(random: Random, rate_per_s: float, *, from_s: float = 0.0, until_s: float) -> Iterator[float]:
    """Yield Poisson arrival times, seconds after the start."""
    at_s = from_s + random.expovariate(rate_per_s)
    while at_s < until_s:
        yield at_s
        at_s += random.expovariate(rate_per_s)


def shorts_only(_: Random) -> int:
    return SHORT


def mixed(random: Random) -> int:
    """Draw a prompt length: four shorts to one long."""
    return SHORT if random.random() < 0.8 else LONG


@cache
def capacity_per_s(step_time: StepTime, draw: Callable[[Random], int], *, threshold: int = 0) -> float:
    """Return the requests a second that an engine without a gate works off a large backlog of these lengths."""
    engine, random = VirtualEngine(EngineFlags(BATCHED_TOKENS, threshold, SEQUENCES), step_time), Random(0)
    requests = 200
    for number in range(requests):
        engine.add(EngineRequest(number, draw(random), OUTPUT_TOKENS))
    busy_s = 0.0
    while engine.busy:
        step = engine.schedule()
        engine.end(step)
        busy_s += step.duration_s
    return requests / busy_s


def mixed_callers(seed: int, step_time: StepTime, load: float, *, requests: int, engines: int = 1) -> list[Caller]:
    """Return an 80/20 mix at `load` times the capacity, over three classes and four tenants."""
    random = Random(seed)
    rate_per_s = load * engines * capacity_per_s(step_time, mixed)
    at_s, callers = 0.0, []
    for _ in range(requests):
        at_s += random.expovariate(rate_per_s)
        service_class = random.choice(["interactive", "standard", "batch"])
        tenant = random.choice(["acme", "globex", "initech", "umbrella"])
        callers.append(Caller(at_s, mixed(random), OUTPUT_TOKENS, service_class, tenant))
    return callers


def step_bound_s(step_time: StepTime, *, context: int) -> float:
    """Bound a step of several requests: K chunks and D decodes on top of `context`, P_S short tokens on top of none."""
    short_s = SHORT_PREFILL_TOKENS * step_time.per_token_s
    short_s += step_time.per_token_context_s * SHORT_PREFILL_TOKENS * THRESHOLD / 2
    return (
        step_time.base_s
        + LONG_PREFILLS * step_time.chunk_s(THRESHOLD, context)
        + SEQUENCES * step_time.chunk_s(1, context)
        + short_s
    )


def lone_step_bound_s(step_time: StepTime) -> float:
    """Bound a step of a lone long, to which the threshold does not apply."""
    return step_time.base_s + step_time.chunk_s(BATCHED_TOKENS, LONG - BATCHED_TOKENS)


def lane_rate(step_time: StepTime, prompt_tokens: int, *, turnaround_steps: int) -> float:
    """Bound from below the prompt tokens a second of a backlogged long lane, all prompts alike (Theorem 2).

    K longs in prefill turn over in ⌈p/T⌉ + g steps, the reserved slots in o steps more; each step is at most the
    bound for where its chunk stands.
    """
    chunks = ceil(prompt_tokens / THRESHOLD)
    prefill_s = sum(step_bound_s(step_time, context=min(chunk * THRESHOLD, prompt_tokens)) for chunk in range(chunks))
    prefill_s += turnaround_steps * step_bound_s(step_time, context=prompt_tokens)
    held_s = prefill_s + OUTPUT_TOKENS * step_bound_s(step_time, context=prompt_tokens)
    return min(LONG_PREFILLS * prompt_tokens / prefill_s, SLOTS.long_reserve * prompt_tokens / held_s)
