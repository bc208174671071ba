"""Refusing at its dispatch a short that would miss its objective: on evidence, by state, and never the last one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import EarlyRejection, OrderKind, Slo, SlotBudget
from gateway.core.ticket import Dispatched, Refused, TicketState
from gateway.core.types import LengthClass, Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0
SHORT, LONG = 512, 8192


def a_purging_plan(ttft_ms=500.0, *, purges=True):
    plain = a_class(wait_s_max=(60, 60))
    slo = {LengthClass.SHORT: Slo(ttft_ms=ttft_ms), LengthClass.LONG: Slo(ttft_ms=1.0)}
    plan = a_plan(
        replace(plain, slo=slo),
        admission=an_admission(short_prefill_tokens_max=SHORT, slots=SlotBudget(8, 1, 1)),
        order=OrderKind.ARRIVAL,
    )
    return replace(plan, early_rejection=EarlyRejection(0.9, purges=purges))


class Pool:
    def __init__(self, plan=None):
        self.plan = plan or a_purging_plan()
        self.admission = Admission(self.plan, [an_engine()])
        self.now = NOW

    def offer(self, prompt_tokens=SHORT):
        ticket, self.events = self.admission.offer(an_assignment(self.plan, prompt_tokens=prompt_tokens), self.now)
        return ticket

    def answer(self, ticket, after_s):
        self.now += after_s
        events = self.admission.first_token(ticket, self.now)
        events += self.admission.finish(ticket, Outcome.COMPLETED, self.now)
        self.dispatched = [event.ticket for event in events if isinstance(event, Dispatched)]
        self.refused = [event for event in events if isinstance(event, Refused)]

    def taught(self, ttft_s, *, beside_long=False, shorts=20):
        """Let the pool see what shorts take, one after another, beside a long prompt or not."""
        long = self.offer(LONG) if beside_long else None
        for _ in range(shorts):
            self.answer(self.offer(), ttft_s)
        if long is not None:
            self.answer(long, 0.0)
        return self

    def after_a_wait(self, wait_s, waiting=2):
        """Hold `waiting` shorts in line behind one for so long; return them."""
        running, held = self.offer(), [self.offer() for _ in range(waiting)]
        self.answer(running, wait_s)
        return held


def test_a_short_that_would_miss_its_objective_is_refused_at_its_dispatch_and_the_next_goes():
    pool = Pool().taught(0.2)
    first, second = pool.after_a_wait(0.4)
    (refused,) = pool.refused
    assert refused.ticket is first
    assert (refused.outcome, refused.refusal.reason) == (Outcome.REFUSED, Reason.PREDICTED_MISS)
    assert (refused.refusal.limit, refused.refusal.observed) == (0.5, pytest.approx(0.6, abs=0.001))
    assert pool.dispatched == [second]


def test_a_short_that_can_still_make_it_is_sent():
    pool = Pool().taught(0.2)
    first, _ = pool.after_a_wait(0.29)
    assert pool.dispatched == [first]


def test_the_only_one_in_its_lane_is_never_purged():
    pool = Pool().taught(0.2)
    (only,) = pool.after_a_wait(30, waiting=1)
    assert pool.dispatched == [only]


def test_of_many_hopeless_ones_the_last_goes_so_the_engine_is_not_idle_and_the_estimate_stays_true():
    pool = Pool().taught(0.2)
    *hopeless, last = pool.after_a_wait(30, waiting=10)
    assert [event.ticket for event in pool.refused] == hopeless
    assert pool.dispatched == [last]


@pytest.mark.parametrize(("shorts", "purged"), [(18, 0), (20, 1)])
def test_nothing_is_purged_on_fewer_than_twenty_measurements(shorts, purged):
    """The short that runs while the others wait is one measurement more."""
    pool = Pool().taught(0.2, shorts=shorts)
    pool.after_a_wait(0.4)
    assert len(pool.refused) == purged


def test_longs_are_never_purged():
    pool = Pool().taught(0.2)
    running, first, _ = (pool.offer(LONG) for _ in range(3))
    pool.answer(running, 30)
    assert pool.dispatched == [first]


def test_without_an_objective_or_without_the_word_for_it_nothing_is_purged():
    for plan in (
        a_purging_plan(ttft_ms=None),
        a_purging_plan(purges=False),
        replace(a_purging_plan(), early_rejection=None),
    ):
        pool = Pool(plan).taught(0.2)
        first, _ = pool.after_a_wait(30)
        assert pool.dispatched == [first]


def test_what_shorts_took_beside_a_long_purges_none_where_the_engine_has_no_long():
    pool = Pool().taught(0.2).taught(5.0, beside_long=True)
    first, _ = pool.after_a_wait(0.1)
    assert pool.dispatched == [first]


def test_what_shorts_took_beside_a_long_purges_beside_a_long():
    pool = Pool().taught(0.01).taught(0.45, beside_long=True)
    pool.offer(LONG)
    first, second = pool.after_a_wait(0.1)
    assert [event.ticket for event in pool.refused] == [first]
    assert second.state is TicketState.RUNNING
