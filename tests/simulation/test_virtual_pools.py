"""Floods, mixes, restarts and leavers in virtual time: what Admission promises holds for every single request.

VirtualPool itself asserts at every event that budgets hold, that no engine idles before a line, that nothing goes after
its deadline, that expiry is exact, and at the end that every request ended once and every charge is back. The claims
here are about bounds and counts; time is virtual throughout.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from scenarios import (
    CPU,
    FAST,
    LONG,
    MODELS,
    OUTPUT_TOKENS,
    SHORT,
    THRESHOLD,
    a_pool,
    an_unbounded_class,
    arrivals,
    capacity_per_s,
    lane_rate,
    lone_step_bound_s,
    mixed,
    mixed_callers,
    short_first,
    shorts_only,
    step_bound_s,
)
from virtual_pool import START, Caller, Fate, VirtualPool

from bench.simulation.steps import EngineFlags
from bench.simulation.virtual_engine import VirtualEngine
from gateway.core.feedback import DUTY_MIN
from gateway.core.plan import EarlyRejection, Feedback, Plan, Slo
from gateway.core.steptime import StepModel
from gateway.core.types import LengthClass, Outcome, Reason

BATCHES = pytest.mark.parametrize("batches_in_flight", [1, 2], ids=["sync", "async"])
STEP_TIMES = pytest.mark.parametrize("step_time", MODELS.values(), ids=MODELS.keys())
OVERLOAD_REASONS = {Reason.QUEUE_FULL, Reason.TENANT_QUEUE_FULL, Reason.WAIT_DEADLINE, Reason.PREDICTED_MISS}


def served(pool: VirtualPool, length: LengthClass, *, service_class: str | None = None) -> list[Fate]:
    return [fate for fate in pool.of(length, service_class=service_class) if fate.first_token_at is not None]


def shorts_entered_in_one_step(pool: VirtualPool, step_time, batches_in_flight: int) -> None:
    """Every short was prefilled in the first step after it arrived: within the steps in flight then, and its own."""
    own_s = step_bound_s(step_time, context=LONG)
    in_flight_s = batches_in_flight * max(own_s, lone_step_bound_s(step_time))
    shorts = served(pool, LengthClass.SHORT)
    assert shorts
    for fate in shorts:
        assert not fate.late
        assert fate.engine_ttft_s <= in_flight_s + own_s + 2 * pool.network_s + 1e-9


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


# ── mixes ──


@pytest.mark.parametrize("load", [0.7, 0.95, 1.3])
@STEP_TIMES
@BATCHES
def test_in_a_mix_every_short_enters_in_one_step_and_every_flow_is_served(load, step_time, batches_in_flight):
    pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
    pool.run(mixed_callers(1, step_time, load, requests=400))
    shorts_entered_in_one_step(pool, step_time, batches_in_flight)
    for service_class in pool.plan.classes:
        for length in LengthClass:
            assert served(pool, length, service_class=service_class)
    refused = [fate for fate in pool.fates.values() if fate.outcome is not Outcome.COMPLETED]
    assert {fate.reason for fate in refused} <= OVERLOAD_REASONS
    if load < 0.9:
        assert not refused, "well below capacity nobody is refused"


def test_without_a_cap_on_longs_shorts_come_late_so_the_cap_is_what_protects_them():
    pool = a_pool(short_first(long_prefills_max=None))
    pool.run(mixed_callers(1, CPU, 0.95, requests=400))
    assert any(fate.late for fate in served(pool, LengthClass.SHORT))


# ── floods ──


@STEP_TIMES
@BATCHES
def test_in_a_flood_of_shorts_longs_proceed_at_the_lane_rate_or_faster(step_time, batches_in_flight):
    """1.8 times what the engine could do with shorts alone; longs wait throughout."""
    until_s = 40.0
    pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
    rate_per_s = lane_rate(step_time, LONG, turnaround_steps=2)
    longs_every_s = 0.5 * LONG / rate_per_s
    flood_per_s = 1.8 * capacity_per_s(step_time, shorts_only)
    callers = [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(Random(1), flood_per_s, until_s=until_s)]
    callers += [
        Caller(number * longs_every_s, LONG, OUTPUT_TOKENS, "batch") for number in range(int(until_s / longs_every_s))
    ]
    pool.run(callers)
    longs = served(pool, LengthClass.LONG)
    done = sum(fate.caller.prompt_tokens for fate in longs if fate.first_token_at <= START + until_s)
    assert done >= rate_per_s * until_s - LONG
    shorts_entered_in_one_step(pool, step_time, batches_in_flight)
    refused = [fate for fate in pool.of(LengthClass.SHORT) if fate.outcome is not Outcome.COMPLETED]
    assert refused, "the flood was no flood"
    assert {fate.reason for fate in refused} <= OVERLOAD_REASONS


@STEP_TIMES
@BATCHES
def test_in_a_flood_of_longs_no_short_waits_in_line_and_each_enters_in_the_next_step(step_time, batches_in_flight):
    """Three times the longs that the engine could do; shorts few enough for their own budget."""
    pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
    long_per_s = 3 * lane_rate(step_time, LONG, turnaround_steps=0) / LONG
    shorts_per_s = 0.1 / step_bound_s(step_time, context=LONG)
    callers = [Caller(at_s, LONG, OUTPUT_TOKENS, "batch") for at_s in arrivals(Random(1), long_per_s, until_s=60.0)]
    callers += [Caller(at_s, SHORT, OUTPUT_TOKENS) for at_s in arrivals(Random(2), shorts_per_s, until_s=60.0)]
    pool.run(callers)
    shorts_entered_in_one_step(pool, step_time, batches_in_flight)
    shorts = pool.of(LengthClass.SHORT)
    assert all(fate.outcome is Outcome.COMPLETED for fate in shorts)
    assert sum(fate.waited_s > 0.0 for fate in shorts) <= 0.05 * len(shorts), "only a burst within one step may queue"
    assert any(fate.outcome is not Outcome.COMPLETED for fate in pool.of(LengthClass.LONG)), "the flood was no flood"


def test_taking_all_longs_away_never_raises_the_95th_percentile_of_the_shorts_wait_for_their_first_token():
    callers = mixed_callers(5, CPU, 0.95, requests=400)
    waits = []
    for kept in (callers, [caller for caller in callers if caller.prompt_tokens == SHORT]):
        pool = a_pool(short_first())
        pool.run(kept)
        waits.append(p95([fate.waited_s + fate.engine_ttft_s for fate in served(pool, LengthClass.SHORT)]))
    assert waits[1] < waits[0]


def test_a_spike_leaves_nothing_behind_once_its_line_has_drained():
    """Ten seconds at three times the capacity, early refusal on; when the calm has lasted one deadline, all are served."""
    plan = replace(short_first(an_unbounded_class("interactive", wait_s_max=2.0)), early_rejection=EarlyRejection(0.9))
    pool = a_pool(plan)
    full = capacity_per_s(CPU, shorts_only)
    callers = [Caller(at_s, SHORT) for at_s in arrivals(Random(1), 3 * full, until_s=10.0)]
    callers += [Caller(at_s, SHORT) for at_s in arrivals(Random(2), 0.6 * full, from_s=10.0, until_s=40.0)]
    pool.run(callers)
    refused = [fate for fate in pool.fates.values() if fate.outcome is not Outcome.COMPLETED]
    assert len(refused) > 100, "the spike was no spike"
    assert max(fate.caller.at_s for fate in refused) < 10.0 + 2.0


def test_predicted_misses_never_leave_an_engine_idle_nor_lock_a_line_out():
    """A flood of shorts with longs in prefill, early refusal on: shorts go on being served every second."""
    plan = replace(short_first(), early_rejection=EarlyRejection(0.9))
    pool = a_pool(plan)
    flood_per_s = 1.8 * capacity_per_s(CPU, shorts_only)
    callers = [Caller(at_s, SHORT) for at_s in arrivals(Random(1), flood_per_s, until_s=40.0)]
    callers += [Caller(at_s, LONG, OUTPUT_TOKENS, "batch") for at_s in (3.0, 9.0, 15.0, 21.0)]
    busy_without: list[str] = []

    def watch(pool: VirtualPool = pool) -> None:
        if any(not post.engine.busy for post in pool.posts.values()):
            busy_without.append(f"idle at {pool.now - START:.3f} s")

    for tenth in range(10, 390):
        pool.at(tenth / 10, watch, rank=5)
    pool.run(callers)
    assert busy_without == []
    assert any(fate.reason is Reason.PREDICTED_MISS for fate in pool.fates.values())
    firsts = {int(fate.first_token_at - START) for fate in served(pool, LengthClass.SHORT)}
    assert set(range(40)) <= firsts, "every second brought first tokens"


def purging(ttft_ms: float, *, purges: bool) -> Plan:
    """One class whose shorts have an objective, and the longest wait that is still worth it."""
    only = an_unbounded_class("interactive", wait_s_max=ttft_ms / 1000)
    only = replace(only, slo={length: Slo(ttft_ms=ttft_ms) for length in LengthClass})
    batch = an_unbounded_class("batch", wait_s_max=600.0)
    return replace(short_first(only, replace(batch, rank=1, weight=1)), early_rejection=EarlyRejection(0.9, purges))


@pytest.mark.parametrize("ttft_s", [0.5, 1.0])
def test_refusing_at_dispatch_never_leaves_an_engine_idle_before_a_line_and_serves_more_in_time(ttft_s):
    """Shorts at 1.8 times the capacity, longs beside them: an estimate that a long spoilt may not lock shorts out."""
    flood_per_s = 1.8 * capacity_per_s(CPU, shorts_only)
    callers = [Caller(at_s, SHORT) for at_s in arrivals(Random(1), flood_per_s, until_s=40.0)]
    callers += [Caller(at_s, LONG, OUTPUT_TOKENS, "batch") for at_s in (3.0, 9.0, 15.0, 21.0)]
    in_time = {}
    for purges in (False, True):
        pool = a_pool(purging(1000 * ttft_s, purges=purges))
        pool.run(callers)  # which asserts at every event that no engine idles before a line
        shorts = served(pool, LengthClass.SHORT)
        in_time[purges] = sum(fate.waited_s + fate.engine_ttft_s <= ttft_s for fate in shorts)
        firsts = {int(fate.first_token_at - START) for fate in shorts}
        assert set(range(40)) <= firsts, "every second brought first tokens"
        longs = [fate for fate in pool.fates.values() if fate.length is LengthClass.LONG]
        assert all(fate.outcome is Outcome.COMPLETED for fate in longs), "longs are never refused for an objective"
    assert in_time[True] > in_time[False]


def test_feedback_lets_an_engine_idle_before_longs_alone_and_for_no_longer_than_its_pause():
    """An objective that no short can keep beside a long: longs pause, up to four times as long as each was in prefill."""
    pool = a_pool(replace(short_first(), feedback=Feedback(150.0)))
    pool.run(mixed_callers(1, CPU, 0.7, requests=300))  # which asserts that nothing else lets an engine idle
    assert pool.pauses_seen > 20, "no long was held back"
    longs = sorted(served(pool, LengthClass.LONG), key=lambda fate: fate.ticket.dispatched_at)
    for one, other in pairwise(longs):
        pause_s = one.engine_ttft_s * (1 - DUTY_MIN) / DUTY_MIN
        waited_from = max(one.first_token_at, other.ticket.offered_at)
        assert other.ticket.dispatched_at <= waited_from + pause_s + 1e-6


# ── several engines, restarts, leavers ──


@pytest.mark.parametrize("load", [0.95, 1.3])
def test_several_engines_take_from_one_line_and_each_keeps_the_promise(load):
    pool = a_pool(short_first(), FAST, engines=3)
    pool.run(mixed_callers(2, FAST, load, requests=900, engines=3))
    shorts_entered_in_one_step(pool, FAST, 1)
    used = {fate.engine for fate in pool.fates.values() if fate.engine is not None}
    assert used == {"a", "b", "c"}


def test_while_one_engine_is_away_the_others_serve_and_when_it_is_back_it_serves_again():
    pool = a_pool(short_first(), FAST, engines=2)
    pool.at(10.0, partial(pool.restart, "a", VirtualEngine(EngineFlags(), FAST), down_s=5.0))
    pool.run(mixed_callers(3, FAST, 0.9, requests=700, engines=2))
    sent = [fate.ticket.dispatched_at - START for fate in pool.fates.values() if fate.engine == "a"]
    assert not any(10.0 < at_s < 15.0 for at_s in sent)
    assert any(at_s < 10.0 for at_s in sent)
    assert any(at_s >= 15.0 for at_s in sent)
    broken = [fate for fate in pool.fates.values() if fate.outcome is Outcome.ENGINE_ERROR]
    assert broken
    assert all(fate.engine == "a" and fate.ended_at == START + 10.0 for fate in broken)


def test_while_the_only_engine_is_away_who_waits_keeps_its_place_to_its_deadline():
    """The line that the outage finds is longer than the engine can take at once; newcomers are told at once."""
    pool = a_pool(short_first(an_unbounded_class("interactive", wait_s_max=20.0)), FAST)
    pool.at(10.0, partial(pool.restart, "a", VirtualEngine(EngineFlags(), FAST), down_s=5.0))
    rate_per_s, random = 2.0 * capacity_per_s(FAST, mixed), Random(4)
    pool.run([Caller(at_s, mixed(random)) for at_s in arrivals(random, rate_per_s, until_s=30.0)])
    refused = [fate for fate in pool.fates.values() if fate.outcome is Outcome.REFUSED]
    assert refused
    assert {fate.reason for fate in refused} == {Reason.NO_ENGINE}
    assert all(10.0 <= fate.caller.at_s <= 15.0 for fate in refused)
    through = [
        fate for fate in pool.fates.values() if fate.caller.at_s < 10.0 and fate.waited_s > 15.0 - fate.caller.at_s
    ]
    assert any(fate.outcome is Outcome.COMPLETED for fate in through)
    assert all(fate.reason in {None, Reason.WAIT_DEADLINE} for fate in through)


@BATCHES
@pytest.mark.parametrize("load", [0.95, 1.3])
def test_clients_that_leave_in_any_phase_take_everything_with_them(load, batches_in_flight):
    random = Random(6)
    callers = [
        replace(caller, leaves_after_s=random.choice([None, random.expovariate(1.0), random.expovariate(0.1)]))
        for caller in mixed_callers(6, CPU, load, requests=500)
    ]
    pool = a_pool(short_first(), batches_in_flight=batches_in_flight)
    pool.run(callers)
    shorts_entered_in_one_step(pool, CPU, batches_in_flight)
    gone = [fate for fate in pool.fates.values() if fate.outcome is Outcome.CLIENT_GONE]
    phases = {
        "in line" if fate.engine is None else "prefill" if fate.first_token_at is None else "decode" for fate in gone
    }
    assert phases == {"in line", "prefill", "decode"}
    assert not any(post.engine.busy for post in pool.posts.values()), "the engine works for nobody who is gone"


# ── what Admission learns ──


@pytest.mark.parametrize("load", [0.2, 0.7, 1.3])
@STEP_TIMES
@BATCHES
def test_the_learned_step_model_predicts_what_passes(load, step_time, batches_in_flight):
    """Costs, holds and release estimates rest on it: after a few idle probes it stays true under load of any weight."""
    pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
    probes = [Caller(5.0 * number, length, 1) for number, length in enumerate([64, 512, 2048, 8192] * 3)]
    callers = [replace(caller, at_s=60.0 + caller.at_s) for caller in mixed_callers(1, step_time, load, requests=400)]
    pool.run(probes + callers)
    model = pool.admission._fleet["a"].fit.model
    for prompt_tokens in (SHORT, LONG):
        chunks = -(-prompt_tokens // THRESHOLD)
        true_s = chunks * step_time.base_s + step_time.chunk_s(prompt_tokens, 0)
        assert true_s / 2 <= model.prefill_s(prompt_tokens, THRESHOLD) <= 2 * true_s


@pytest.mark.parametrize("load", [0.2, 0.7, 1.3])
@STEP_TIMES
@BATCHES
def test_without_probes_traffic_of_two_lengths_alone_never_leads_the_step_model_astray(
    load, step_time, batches_in_flight
):
    """Two lengths cannot tell three coefficients apart; what is predicted for them must stay near what they take."""
    pool = a_pool(short_first(), step_time, batches_in_flight=batches_in_flight)
    pool.run(mixed_callers(1, step_time, load, requests=400))
    model = pool.admission._fleet["a"].fit.model
    for prompt_tokens in (SHORT, LONG):
        default_s = StepModel().prefill_s(prompt_tokens, THRESHOLD)
        true_s = -(-prompt_tokens // THRESHOLD) * step_time.base_s + step_time.chunk_s(prompt_tokens, 0)
        assert min(default_s, true_s) / 2 <= model.prefill_s(prompt_tokens, THRESHOLD) <= 2 * max(default_s, true_s)
