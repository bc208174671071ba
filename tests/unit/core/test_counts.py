"""What is counted is what is there: of tenants, of the oldest in line, of the values a quantile is taken of."""

from __future__ import annotations

from random import Random

from gateway.core.admission import Admission
from gateway.core.estimate import Quantile
from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget, TenantBounds
from gateway.core.ticket import Dispatched, TicketState
from gateway.core.types import LengthClass, Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0


def one_at_a_time(*classes, order=OrderKind.WEIGHTED_FAIR):
    return a_plan(*classes, admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)), order=order)


def test_a_tenant_that_has_nothing_here_any_more_is_not_remembered():
    plan = one_at_a_time(a_class(requests_max=2))
    pool = Admission(plan, [an_engine()])
    served, expired, left, refused = (
        pool.offer(an_assignment(plan, tenant=f"tenant {number}"), NOW)[0] for number in range(4)
    )
    assert refused.state is TicketState.ENDED
    assert {tenant.name for tenant in pool._tenants} == {"tenant 0", "tenant 1", "tenant 2"}
    pool.finish(left, Outcome.CLIENT_GONE, NOW)
    pool.tick(expired.deadline)
    pool.finish(served, Outcome.COMPLETED, expired.deadline)
    pool.drain(expired.deadline, expired.deadline)
    pool.offer(an_assignment(plan, tenant="too late"), expired.deadline)
    assert not list(pool._tenants)


def test_a_class_that_a_reload_removed_keeps_its_tenants_bound():
    bound = a_class("old", tenant=TenantBounds(running_max=1))
    plan = a_plan(bound, a_class("new", rank=1))
    pool = Admission(plan, [an_engine()])
    first, second = (pool.offer(an_assignment(plan, "old"), NOW)[0] for _ in range(2))
    pool.reconfigure(a_plan(a_class("new")), [an_engine()], NOW)
    assert (first.state, second.state) == (TicketState.RUNNING, TicketState.WAITING)
    events = pool.finish(first, Outcome.COMPLETED, NOW)
    assert [event.ticket for event in events if isinstance(event, Dispatched)] == [second]


def test_the_oldest_in_line_is_the_oldest_also_after_one_came_back_before_it():
    plan = one_at_a_time(a_class(wait_s_max=(60, 60)), order=OrderKind.EARLIEST_DEADLINE)
    pool = Admission(plan, [an_engine()])
    running, _ = pool.offer(an_assignment(plan), NOW)
    oldest, _ = pool.offer(an_assignment(plan), NOW + 1)
    sooner, _ = pool.offer(an_assignment(plan, wait_s_max=5), NOW + 2)
    pool.finish(running, Outcome.COMPLETED, NOW + 3)
    pool.requeue(sooner, NOW + 3, 1.0)
    line = pool.snapshot().lines["interactive", LengthClass.SHORT]
    assert (line.requests, line.oldest_offered_at) == (2, oldest.offered_at)


def test_of_those_who_left_the_line_no_more_are_kept_than_wait_and_none_of_them_expires():
    plan = one_at_a_time(a_class(wait_s_max=(60, 60), requests_max=2000, prompt_tokens_max=1 << 30))
    pool = Admission(plan, [an_engine()])
    pool.offer(an_assignment(plan), NOW)
    first, *others = (pool.offer(an_assignment(plan, wait_s_max=60 - number / 100), NOW)[0] for number in range(1000))
    for ticket in others[:-10]:
        pool.finish(ticket, Outcome.CLIENT_GONE, NOW)
    waits = [first, *others[-10:]]
    assert len(pool._waiting._by_deadline) < 100
    assert pool.next_tick_at() == min(ticket.deadline for ticket in waits)
    expired = [event.ticket for event in pool.tick(first.deadline)]
    assert expired == sorted(waits, key=lambda ticket: ticket.deadline)


def test_a_quantile_is_of_the_last_256_values_whatever_came_before():
    random, quantile, values = Random(7), Quantile(), []
    for _ in range(600):
        values.append(random.choice([0.5, 1.0, random.random()]))
        quantile.add(values[-1])
        kept = sorted(values[-256:])
        if len(kept) >= 20:
            assert quantile.at(0.5) == kept[min(len(kept), -(-(len(kept) + 1) // 2)) - 1]
            assert quantile.at(1.0) == kept[-1]
