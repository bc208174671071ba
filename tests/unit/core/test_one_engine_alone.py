"""Requests that one engine alone can serve, because it keeps what they go on from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget, TenantBounds
from gateway.core.ticket import Dispatched, Refused, TicketState
from gateway.core.types import Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0


class Two:
    """Two engines with one slot each, unless told otherwise."""

    def __init__(self, kind=AdmissionKind.SLOTS, tenant=None, order=OrderKind.WEIGHTED_FAIR):
        classes = [a_class(name, rank=rank, tenant=tenant) for rank, name in enumerate(("interactive", "batch"))]
        admission = an_admission(kind, slots=SlotBudget(1))
        self.plan = a_plan(*classes, admission=admission, order=order)
        self.admission = Admission(self.plan, [an_engine("a"), an_engine("b")])

    def offer(self, engine=None, tenant="acme", now=NOW, **kwargs):
        assignment = an_assignment(self.plan, tenant=tenant, engine=engine, **kwargs)
        ticket, events = self.admission.offer(assignment, now)
        self.events = events
        return ticket

    def finish(self, ticket, now=NOW):
        events = self.admission.finish(ticket, Outcome.COMPLETED, now)
        return [(event.ticket, event.engine) for event in events if isinstance(event, Dispatched)]


@pytest.mark.parametrize("engine", ["a", "b"])
@pytest.mark.parametrize("order", OrderKind)
def test_it_goes_to_its_engine(engine, order):
    pool = Two(order=order)
    assert pool.offer(engine).engine == engine


@pytest.mark.parametrize("order", OrderKind)
def test_it_waits_for_its_engine_though_another_is_free_and_only_its_own_flow_waits_with_it(order):
    pool = Two(order=order)
    first = pool.offer("a")
    bound, behind = pool.offer("a"), pool.offer(tenant="acme")
    other = pool.offer(tenant="other")
    assert (first.engine, bound.engine, behind.engine, other.engine) == ("a", None, None, "b")
    assert pool.finish(other) == []
    assert pool.offer(tenant="third").engine == "b"
    assert pool.finish(first) == [(bound, "a")]


def test_of_the_same_tenant_first_in_is_first_out():
    pool = Two()
    first, taken = pool.offer("a"), pool.offer(tenant="other")
    bound, behind = pool.offer("a"), pool.offer()
    assert pool.finish(taken) == []
    assert pool.finish(first) == [(bound, "a"), (behind, "b")]


def test_those_who_wait_for_two_engines_pass_one_another():
    pool = Two()
    at_a, at_b = pool.offer("a"), pool.offer("b", tenant="other")
    for_a, for_b = pool.offer("a"), pool.offer("b", tenant="other")
    assert pool.finish(at_b) == [(for_b, "b")]
    assert pool.finish(at_a) == [(for_a, "a")]


def test_it_is_refused_where_its_engine_is_down_or_gone_or_goes_down_while_it_waits():
    pool = Two()
    pool.offer("a")
    taken = pool.offer("b")
    waiting, behind = pool.offer("a"), pool.offer(tenant="other")
    hasty = pool.offer("a", tenant="hasty", wait_s_max=1)
    expired, refused = pool.admission.set_up("a", up=False, now=NOW + 1)
    assert isinstance(expired, Refused) and (expired.ticket, expired.outcome) == (hasty, Outcome.EXPIRED)
    assert isinstance(refused, Refused) and refused.ticket is waiting
    assert (refused.refusal.reason, refused.outcome, refused.waited_s) == (Reason.NO_ENGINE, Outcome.REFUSED, 1)
    for engine in ("a", "nowhere"):
        assert pool.offer(engine).state is TicketState.ENDED
        (refused,) = pool.events
        assert isinstance(refused, Refused) and refused.refusal.reason is Reason.NO_ENGINE
    assert behind.state is TicketState.WAITING
    assert pool.finish(taken) == [(behind, "b")]
    assert pool.admission.set_up("a", up=True, now=NOW + 1) == []
    assert pool.offer("a", tenant="hasty", now=NOW + 1).state is TicketState.WAITING


def test_sent_back_by_its_engine_it_waits_while_that_is_up_and_is_refused_once_it_is_down():
    pool = Two()
    ticket = pool.offer("a")
    pool.admission.requeue(ticket, NOW, 0.5)
    assert ticket.state is TicketState.WAITING
    (sent,) = pool.admission.tick(NOW + 1)
    assert isinstance(sent, Dispatched) and sent.ticket is ticket
    pool.admission.set_up("a", up=False, now=NOW + 1)
    (refused,) = pool.admission.requeue(ticket, NOW + 1, 0.5)
    assert isinstance(refused, Refused) and refused.refusal.reason is Reason.NO_ENGINE


@pytest.mark.parametrize("without_it", [[an_engine("b")], [replace(an_engine("a"), weight=0), an_engine("b")]])
def test_it_is_refused_at_once_where_its_engine_leaves_the_pool_or_takes_nothing_new(without_it):
    pool = Two()
    for engine in "ab":
        pool.offer(engine, tenant="first")
    bound, behind = pool.offer("a"), pool.offer()
    too_late = pool.offer("a", tenant="hasty", wait_s_max=1)
    refused, expired = [], []
    for event in pool.admission.reconfigure(pool.plan, without_it, NOW + 1):
        assert isinstance(event, Refused)
        (refused if event.outcome is Outcome.REFUSED else expired).append(event)
    assert [event.ticket for event in expired] == [too_late]
    assert [(event.ticket, event.refusal.reason, event.waited_s) for event in refused] == [(bound, Reason.NO_ENGINE, 1)]
    assert refused[0].refusal.retry_after_s is not None
    assert behind.state is TicketState.WAITING
    assert pool.offer("a").state is TicketState.ENDED


def test_sent_back_by_an_engine_that_has_left_the_pool_it_is_refused_at_once():
    pool = Two()
    ticket = pool.offer("a")
    assert pool.admission.reconfigure(pool.plan, [an_engine("b")], NOW) == []
    (refused,) = pool.admission.requeue(ticket, NOW, 1.0)
    assert isinstance(refused, Refused) and refused.refusal.reason is Reason.NO_ENGINE
    assert list(pool.admission.fleet.names()) == ["b"]


def test_refused_after_it_was_sent_back_it_costs_its_tenant_nothing():
    """Its engine computed none of it: the tenant's next requests go as if it had never been sent."""
    pool = Two()
    sent_back, other = pool.offer("a", tenant="unlucky"), pool.offer("b", tenant="other")
    pool.admission.set_up("a", up=False, now=NOW)
    pool.admission.requeue(sent_back, NOW, 0.0)
    last = [pool.offer(tenant=tenant) for tenant in ("other", "unlucky", "other")]
    assert pool.finish(other) == [(last[1], "b")]


def test_a_tenant_at_its_own_bound_is_not_brought_back_for_having_waited():
    pool = Two(tenant=TenantBounds(running_max=1))
    first = pool.offer("a")
    bound, other = pool.offer("a"), pool.offer(tenant="other")
    assert (bound.engine, other.engine) == (None, "b")
    assert pool.finish(other) == []
    assert pool.finish(first) == [(bound, "a")]


def test_a_long_one_holds_up_no_short_ones_elsewhere():
    pool = Two(AdmissionKind.TOKEN_BUDGET)
    first = pool.offer("a", prompt_tokens=8192)
    bound = pool.offer("a", prompt_tokens=8192)
    short = pool.offer(tenant="other")
    assert (first.engine, bound.engine, short.engine) == ("a", None, "b")
    assert pool.finish(first) == [(bound, "a")]


def test_a_tenant_that_comes_to_its_bound_while_it_is_passed_over_stays_aside():
    pool = Two(AdmissionKind.TOKEN_BUDGET, tenant=TenantBounds(running_max=1))
    at_a, at_b = pool.offer("a", tenant="x", prompt_tokens=8192), pool.offer("b", tenant="y")
    long = pool.offer("a", prompt_tokens=8192)
    other = pool.offer("a", tenant="z")
    short = pool.offer()
    assert pool.finish(at_b) == [(short, "b")]
    assert pool.finish(at_a) == [(other, "a")]
    assert pool.finish(short) == []
    assert pool.finish(other) == [(long, "a")]
    assert pool.admission._lanes._passed_over == []
