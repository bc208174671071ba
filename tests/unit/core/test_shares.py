"""Requests by weight among engines with room, and what an engine with weight 0 gets; what stands in a request's way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gateway.core.admission import Admission
from gateway.core.ledger import Budget
from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.core.ticket import TicketState
from gateway.core.types import Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000.0


def a_pool(slots=100, **weights):
    plan = a_plan(a_class(wait_s_max=(30, 30)), admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(slots)))
    return plan, Admission(plan, [replace(an_engine(name), weight=weight) for name, weight in weights.items()])


def offer(plan, admission):
    return admission.offer(an_assignment(plan), NOW)[0]


def shares(plan, admission, requests=100):
    return Counter(offer(plan, admission).engine for _ in range(requests))


def test_engines_with_room_share_by_weight():
    plan, admission = a_pool(a=90, b=10)
    assert shares(plan, admission) == {"a": 90, "b": 10}


def test_where_weights_are_alike_load_decides():
    plan, admission = a_pool(a=5, b=5)
    assert shares(plan, admission, 10) == {"a": 5, "b": 5}


def test_a_weight_makes_nobody_wait_while_another_engine_has_room():
    plan, admission = a_pool(slots=4, a=99, b=1)
    assert shares(plan, admission, 8) == {"a": 4, "b": 4}


def test_an_engine_that_was_away_does_not_make_up_for_it():
    plan, admission = a_pool(slots=1000, a=1, b=2)
    admission.set_up("a", False, NOW)
    assert shares(plan, admission, 60) == {"b": 60}
    admission.set_up("a", True, NOW)
    found = shares(plan, admission, 60)
    assert abs(found["a"] - 20) <= 1


def test_an_engine_of_weight_0_gets_nothing_new_and_ends_what_it_has():
    plan, admission = a_pool(a=1, b=1)
    first = offer(plan, admission)
    assert first.engine == "a"
    admission.reconfigure(plan, [replace(an_engine("a"), weight=0.0), an_engine("b")], NOW)
    assert shares(plan, admission, 10) == {"b": 10}
    assert admission.fleet.specs() == [replace(an_engine("a"), weight=0.0), an_engine("b")]
    admission.first_token(first, NOW)
    admission.finish(first, Outcome.COMPLETED, NOW)
    assert first.state is TicketState.ENDED
    assert admission.snapshot().engines["a"].weight == 0


def test_where_only_drained_engines_are_up_there_is_none():
    plan, admission = a_pool(a=0, b=1)
    admission.set_up("b", False, NOW)
    (event,) = admission.offer(an_assignment(plan), NOW)[1]
    assert event.refusal.reason is Reason.NO_ENGINE


def test_a_waiting_request_goes_when_its_engines_weight_comes_back():
    plan, admission = a_pool(slots=1, a=1, b=0)
    offer(plan, admission)
    waiting = offer(plan, admission)
    assert waiting.state is TicketState.WAITING
    admission.reconfigure(plan, [an_engine("a"), an_engine("b")], NOW)
    assert waiting.engine == "b"


def test_what_stands_in_the_way_is_the_line_and_the_budgets_that_lack():
    plan, admission = a_pool(slots=1, a=1, b=0)
    offer(plan, admission)
    waiting = offer(plan, admission)
    ahead = admission.standing(waiting)
    assert (ahead.in_line, ahead.in_lane) == (1, 1)
    one, other = ahead.engines
    assert (one.engine, one.takes_work, one.lacks()) == ("a", True, [Budget.SLOTS])
    assert (one.used[Budget.SLOTS], one.caps[Budget.SLOTS]) == (1, 1)
    assert (other.engine, other.takes_work, other.lacks()) == ("b", False, [])


def test_no_more_than_eight_engines_are_looked_at():
    plan, admission = a_pool(**{f"e{number}": 1 for number in range(20)})
    assert len(admission.standing(offer(plan, admission)).engines) == 8
