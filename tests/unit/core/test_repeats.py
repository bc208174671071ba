"""Requests that come again after a refusal: known within bounds, and charged in fair queueing alone."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.core.repeats import Repeats
from gateway.core.ticket import Dispatched, TicketState
from gateway.core.types import Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0
PLAN = a_plan()


def asks(fingerprint=None, *, says_retry=False, plan=PLAN, service_class="interactive", **kwargs):
    return replace(an_assignment(plan, service_class, **kwargs), fingerprint=fingerprint, says_retry=says_retry)


def test_the_like_of_a_refused_request_is_a_repeat_of_its_own_tenant_and_class_alone():
    repeats = Repeats()
    assert not repeats.is_repeat(asks(1), NOW)
    repeats.refused(asks(1), NOW)
    assert repeats.is_repeat(asks(1), NOW)
    assert not repeats.is_repeat(asks(2), NOW)
    assert not repeats.is_repeat(asks(1, tenant="globex"), NOW)
    assert not repeats.is_repeat(asks(1, service_class="batch"), NOW)


def test_a_refusal_is_remembered_for_two_minutes_and_no_longer():
    repeats = Repeats()
    repeats.refused(asks(1), NOW)
    assert repeats.is_repeat(asks(1), NOW + 120)
    assert not repeats.is_repeat(asks(1), NOW + 120.001)


def test_a_second_refusal_is_remembered_from_its_own_moment():
    repeats = Repeats()
    repeats.refused(asks(1), NOW)
    repeats.refused(asks(1), NOW + 100)
    assert repeats.is_repeat(asks(1), NOW + 200)


def test_no_more_than_4096_refusals_are_remembered_and_the_oldest_is_forgotten_first():
    repeats = Repeats()
    for fingerprint in range(4096):
        repeats.refused(asks(fingerprint), NOW)
    repeats.refused(asks(0), NOW)
    repeats.refused(asks(4096), NOW)
    assert len(repeats._refused_at) == 4096
    assert repeats.is_repeat(asks(0), NOW)
    assert not repeats.is_repeat(asks(1), NOW)


def test_a_request_without_a_fingerprint_is_a_repeat_only_by_its_own_word():
    repeats = Repeats()
    repeats.refused(asks(1), NOW)
    repeats.refused(asks(None), NOW)
    assert not repeats.is_repeat(asks(None), NOW)
    assert repeats.is_repeat(asks(None, says_retry=True), NOW)


# ── through Admission ──


def one_at_a_time(repeat_cost, requests_max=100):
    plan = a_plan(
        a_class(requests_max=requests_max, wait_s_max=(900, 900)),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )
    return replace(plan, repeat_cost=repeat_cost)


def test_whoever_expired_or_was_refused_is_known_when_it_comes_again():
    plan = one_at_a_time(1.0, requests_max=0)
    admission = Admission(plan, [an_engine()])
    running, _ = admission.offer(asks(7, plan=plan), NOW)
    refused, _ = admission.offer(asks(8, plan=plan), NOW)
    admission.finish(running, Outcome.COMPLETED, NOW)
    assert (refused.state, refused.is_repeat) == (TicketState.ENDED, False)
    assert admission.offer(asks(8, plan=plan), NOW)[0].is_repeat
    assert not admission.offer(asks(7, plan=plan), NOW)[0].is_repeat


def test_repeats_get_their_share_by_what_the_plan_counts_them_for_and_no_refusal():
    plan = one_at_a_time(3.0)
    admission = Admission(plan, [an_engine()])
    running, _ = admission.offer(asks(plan=plan, tenant="first"), NOW)
    for _ in range(40):
        for tenant, says_retry in (("again", True), ("new", False)):
            ticket, _ = admission.offer(asks(plan=plan, tenant=tenant, says_retry=says_retry), NOW)
            assert ticket.state is TicketState.WAITING
    served = []
    for _ in range(40):
        (running,) = [
            event.ticket for event in admission.finish(running, Outcome.COMPLETED, NOW) if isinstance(event, Dispatched)
        ]
        served.append(running.assignment.tenant)
    assert abs(served.count("new") - 30) <= 1, "three to one"


def test_a_repeat_takes_no_more_of_any_budget_than_its_first_try():
    plan = replace(PLAN, repeat_cost=5.0)
    slots = []
    for says_retry in (False, True):
        admission = Admission(plan, [an_engine(kv_tokens=10_000)])
        admission.offer(asks(plan=plan, says_retry=says_retry), NOW)
        engine = admission.snapshot().engines["a"]
        slots.append((engine.slots, engine.kv_reserved_tokens, dict(engine.prefill_tokens)))
    assert slots[0] == slots[1]
