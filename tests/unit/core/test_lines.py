"""Who goes next inside a line, who gives way where it is full, and what a flow is charged in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, Feedback, OrderKind, SlotBudget, TenantBounds
from gateway.core.ticket import Dispatched, Queued, Refused, TicketState
from gateway.core.types import Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0


def newest_first(**bounds):
    plain = a_class(**({"wait_s_max": (20, 20)} | bounds))
    return replace(plain, queue=replace(plain.queue, newest_first_in_overload=True))


def one_at_a_time(*classes, order=OrderKind.WEIGHTED_FAIR):
    return a_plan(*classes, admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)), order=order)


class Line:
    """One engine that does one request at a time, busy from the start."""

    def __init__(self, plan, *engines):
        self.plan = plan
        self.admission = Admission(plan, engines or [an_engine()])
        self.now = NOW
        self.running = self.offer()

    def offer(self, **kwargs):
        ticket, self.events = self.admission.offer(an_assignment(self.plan, **kwargs), self.now)
        return ticket

    def next(self, **how):
        """End what runs and return who goes in its place."""
        events = self.admission.finish(self.running, Outcome.COMPLETED, self.now, **how)
        (self.running,) = [event.ticket for event in events if isinstance(event, Dispatched)]
        return self.running

    @property
    def refused(self):
        return [event.ticket for event in self.events if isinstance(event, Refused)]


def test_what_runs_for_hours_keeps_its_place_until_it_ends():
    line = Line(one_at_a_time(a_class(wait_s_max=(1e6, 1e6))))
    waiting = line.offer()
    for _ in range(100):
        line.now += 3600
        assert not [event for event in line.admission.tick(line.now) if isinstance(event, Dispatched)]
    assert line.next() is waiting


# ── newest first in overload ──


def test_below_half_the_limit_a_newest_first_line_is_first_in_first_out():
    line = Line(one_at_a_time(newest_first()))
    waiting = [line.offer() for _ in range(3)]
    line.now += 10
    assert [line.next() for _ in range(3)] == waiting


def test_once_the_oldest_has_waited_half_its_limit_the_newest_goes_first():
    line = Line(one_at_a_time(newest_first()))
    waiting = [line.offer() for _ in range(3)]
    line.now += 10.001
    newest = line.offer()
    assert [line.next() for _ in range(4)] == [newest, *reversed(waiting)]


def test_when_the_late_ones_are_gone_the_line_is_first_in_first_out_again():
    line = Line(one_at_a_time(newest_first()))
    line.offer()
    line.now += 10.001
    fresh = [line.offer() for _ in range(3)]
    assert line.next() is fresh[2]
    line.now += 9.999
    line.admission.tick(line.now)
    assert [line.next(), line.next()] == fresh[:2]


def test_whom_an_engine_sent_back_goes_before_the_newest_in_overload():
    line = Line(one_at_a_time(newest_first()))
    line.offer()
    line.now += 10.001
    line.offer()
    returned = line.running
    line.admission.requeue(returned, line.now, 0.25)
    line.now += 0.25
    (dispatched,) = line.admission.tick(line.now)
    assert dispatched.ticket is returned


def test_where_the_queue_is_full_and_late_the_oldest_gives_way_to_the_newest():
    line = Line(one_at_a_time(newest_first(requests_max=2)))
    oldest, second = line.offer(), line.offer()
    line.now += 10.001
    newest = line.offer()
    assert line.refused == [oldest]
    assert [type(event) for event in line.events] == [Refused, Queued]
    assert (second.state, newest.state) == (TicketState.WAITING, TicketState.WAITING)


@pytest.mark.parametrize(("newest_goes_first", "waited_s"), [(True, 10), (False, 15)])
def test_where_the_queue_is_full_but_not_late_or_not_newest_first_the_newest_is_refused(newest_goes_first, waited_s):
    chosen = newest_first(requests_max=2) if newest_goes_first else a_class(requests_max=2, wait_s_max=(20, 20))
    line = Line(one_at_a_time(chosen))
    line.offer(), line.offer()
    line.now += waited_s
    newest = line.offer()
    assert line.refused == [newest]


def test_a_tenant_over_its_own_bound_never_makes_another_give_way():
    line = Line(one_at_a_time(newest_first(tenant=TenantBounds(queued_requests_max=1))))
    other = line.offer(tenant="quiet")
    line.now += 10.001
    line.offer(tenant="flood")
    newest = line.offer(tenant="flood")
    assert line.refused == [newest]
    assert other.state is TicketState.WAITING


# ── earliest deadline ──


def test_earliest_deadline_first_also_inside_a_flow_and_equal_ones_as_they_came():
    line = Line(one_at_a_time(a_class(), order=OrderKind.EARLIEST_DEADLINE))
    tickets = [line.offer(wait_s_max=wait_s) for wait_s in (9, 3, 6, 3)]
    assert [tickets.index(line.next()) for _ in tickets] == [1, 3, 2, 0]


def test_whom_an_engine_sent_back_goes_again_by_its_own_deadline():
    line = Line(one_at_a_time(a_class(wait_s_max=(20, 20)), order=OrderKind.EARLIEST_DEADLINE))
    sooner, returned = line.offer(wait_s_max=5), line.running
    later = line.offer(wait_s_max=30)
    events = line.admission.requeue(returned, line.now, 0.0)
    (line.running,) = [event.ticket for event in events if isinstance(event, Dispatched)]
    assert [line.running, line.next(), line.next()] == [sooner, returned, later]


# ── fairness by what was really used ──


def test_a_huge_max_tokens_costs_a_tenant_no_share_once_its_real_use_is_known():
    line = Line(one_at_a_time(a_class(wait_s_max=(900, 900), requests_max=400, prompt_tokens_max=1 << 30)))
    for _ in range(100):
        line.offer(tenant="states much", output_tokens=4000)
        line.offer(tenant="states little", output_tokens=10)
    served = [line.next(output_tokens=10).assignment.tenant for _ in range(100)]
    assert abs(served.count("states much") - 50) <= 2


def test_where_real_use_is_not_known_the_reserve_stands_as_the_charge():
    line = Line(one_at_a_time(a_class(wait_s_max=(900, 900), requests_max=400, prompt_tokens_max=1 << 30)))
    for _ in range(100):
        line.offer(tenant="states much", output_tokens=4000)
        line.offer(tenant="states little", output_tokens=10)
    served = [line.next().assignment.tenant for _ in range(100)]
    assert served.count("states much") < 25


def test_an_answer_that_never_began_is_charged_no_output():
    plan = one_at_a_time(a_class(wait_s_max=(900, 900), requests_max=400, prompt_tokens_max=1 << 30))
    line = Line(plan)
    for _ in range(100):
        line.offer(tenant="fails", output_tokens=4000)
        line.offer(tenant="works", output_tokens=10)
    turns = []
    for _ in range(60):
        fails = line.running.assignment.tenant == "fails"
        outcome = Outcome.ENGINE_ERROR if fails else Outcome.COMPLETED
        events = line.admission.finish(line.running, outcome, line.now)
        (line.running,) = [event.ticket for event in events if isinstance(event, Dispatched)]
        turns.append(line.running.assignment.tenant)
    assert abs(turns.count("fails") - 30) <= 2


def test_what_an_idle_tenant_gets_back_it_finds_when_it_returns():
    plan = a_plan(a_class(wait_s_max=(900, 900)), admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)))
    tags = []
    for known in (None, 1):
        line = Line(plan)
        much = line.offer(tenant="states much", output_tokens=4000)
        line.admission.finish(much, Outcome.COMPLETED, line.now, output_tokens=known)
        lines = line.admission._lanes.short._classes["interactive"]
        tags.append(lines.idle_finish_tags["states much"])
    assert tags[1] < 0.2 * tags[0]


def test_what_one_tenant_gave_back_is_its_classes_at_once_also_where_another_waits_for_it():
    classes = [a_class(name, rank=rank, weight=1) for rank, name in enumerate(("interactive", "batch"))]
    line = Line(one_at_a_time(*classes))
    line.offer(service_class="batch", output_tokens=1000)
    much = line.offer(tenant="states much", output_tokens=4000)
    line.next()
    assert line.next() is much
    other = line.offer(tenant="other")
    line.offer(service_class="batch")
    assert line.next(output_tokens=10) is other


def test_a_refund_into_a_lane_that_a_reload_took_away_changes_nothing():
    admission = Admission(plan := a_plan(), [an_engine()])
    long, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    admission.reconfigure(one_at_a_time(a_class("other")), [an_engine()], NOW)
    admission.finish(long, Outcome.COMPLETED, NOW, output_tokens=1)
    assert admission.snapshot().engines["a"].slots == 0


def test_a_refund_never_becomes_credit_over_those_who_were_served_meanwhile():
    """What was forgiven when a tenant came back from being idle is not paid out to it later."""
    plan = a_plan(
        a_class(wait_s_max=(900, 900), requests_max=400),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)),
    )
    line = Line(plan)
    late = line.offer(tenant="returns", output_tokens=4000)
    for _ in range(40):
        line.offer(tenant="steady", output_tokens=100)
        line.offer(tenant="returns", output_tokens=100)
    events = line.admission.finish(late, Outcome.COMPLETED, line.now, output_tokens=1)
    served = [event.ticket for event in events if isinstance(event, Dispatched)]
    turns = []
    for _ in range(40):
        ticket = served.pop()
        turns.append(ticket.assignment.tenant)
        events = line.admission.finish(ticket, Outcome.COMPLETED, line.now)
        served += [event.ticket for event in events if isinstance(event, Dispatched)]
    assert abs(turns.count("returns") - 20) <= 2


def test_of_ever_more_tenants_the_past_is_kept_of_those_who_took_most():
    line = Line(one_at_a_time(a_class(wait_s_max=(900, 900))))
    line.offer(tenant="heavy", output_tokens=4000)
    line.next()
    for number in range(1100):
        line.offer(tenant=f"t{number}", prompt_tokens=1 + number % 2, output_tokens=1)
        line.next()
    past = line.admission._lanes.short._classes["interactive"].idle_finish_tags
    assert 500 < len(past) <= 1024
    assert "heavy" in past


def test_a_refund_to_a_tenant_whose_past_is_forgotten_changes_nothing():
    plan = a_plan(a_class(wait_s_max=(900, 900)), admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)))
    line = Line(plan)
    first = line.offer(tenant="forgotten", prompt_tokens=1, output_tokens=1)
    past = line.admission._lanes.short._classes["interactive"].idle_finish_tags
    for number in range(1100):
        line.offer(tenant=f"t{number}", prompt_tokens=100)
        line.next()
    past = line.admission._lanes.short._classes["interactive"].idle_finish_tags
    assert "forgotten" not in past
    before = dict(past)
    line.admission.finish(first, Outcome.COMPLETED, line.now, output_tokens=0)
    assert past == before


# ── several engines, and engines that go ──


def test_an_engine_that_is_named_again_before_it_was_idle_goes_on_as_it_was():
    line = Line(one_at_a_time(a_class()))
    line.admission.reconfigure(line.plan, [an_engine("b")], line.now)
    line.admission.reconfigure(line.plan, [an_engine("a")], line.now)
    waiting = line.offer()
    assert line.next() is waiting
    assert set(line.admission.snapshot().engines) == {"a"}


def test_shorts_go_where_their_step_is_predicted_to_end_first():
    line = Line(a_plan(admission=an_admission(long_prefills_max=1)), an_engine("a"), an_engine("b"))
    beside, other = line.running.engine, {"a": "b", "b": "a"}[line.running.engine]
    assert line.offer(prompt_tokens=100).engine == other
    assert line.offer(prompt_tokens=100).engine == other
    assert line.offer(prompt_tokens=600).engine == other
    assert line.offer(prompt_tokens=1).engine == beside


def test_an_engine_may_retire_in_the_pause_between_two_longs():
    plan = replace(a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8))), feedback=Feedback(500))
    admission = Admission(plan, [an_engine("a"), an_engine("b")])
    control = admission._fleet["a"]._control
    control.allowance = replace(control.allowance, duty=0.5)
    admission.set_up("b", up=False, now=NOW)
    long, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    admission.first_token(long, NOW + 2)
    admission.finish(long, Outcome.COMPLETED, NOW + 2)
    admission.reconfigure(plan, [an_engine("b")], NOW + 2)
    admission.set_up("b", up=True, now=NOW + 2)
    assert set(admission.snapshot().engines) == {"b"}
    admission.tick(NOW + 10)
    assert admission.next_tick_at() is None


def test_a_pause_between_longs_holds_the_next_long_and_no_short_and_ends_with_feedback():
    plan = replace(a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8))), feedback=Feedback(500))
    admission = Admission(plan, [an_engine("a")])
    control = admission._fleet["a"]._control
    control.allowance = replace(control.allowance, duty=0.5)
    first, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    second, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    admission.first_token(first, NOW + 2)
    short, _ = admission.offer(an_assignment(plan, prompt_tokens=1), NOW + 2)
    assert (second.state, short.state) == (TicketState.WAITING, TicketState.RUNNING)
    assert admission.next_tick_at() == NOW + 4
    admission.reconfigure(replace(plan, feedback=None), [an_engine("a")], NOW + 2)
    assert second.state is TicketState.RUNNING
    assert admission.next_tick_at() is None


def test_at_full_duty_the_next_long_goes_at_the_first_token_of_the_one_before():
    plan = replace(a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8))), feedback=Feedback(500))
    admission = Admission(plan, [an_engine("a")])
    first, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    second, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    whole, _ = admission.offer(an_assignment(plan, prompt_tokens=1, stream=False), NOW)
    admission.first_token(whole, NOW + 1)
    admission.first_token(first, NOW + 2)
    assert second.state is TicketState.RUNNING


def test_engines_resume_each_at_the_end_of_its_own_pause():
    line = Line(one_at_a_time(a_class(wait_s_max=(60, 60))), an_engine("a"), an_engine("b"))
    other = line.offer()
    waiting = [line.offer() for _ in range(2)]
    line.admission.requeue(line.running, line.now, 1.0)
    line.admission.requeue(other, line.now, 5.0)
    line.admission.tick(line.now + 1.0)
    assert [line.running.state, other.state] == [TicketState.RUNNING, TicketState.WAITING]
    line.admission.tick(line.now + 5.0)
    assert other.state is TicketState.RUNNING
    assert all(ticket.state is TicketState.WAITING for ticket in waiting)


def test_a_tenant_below_its_running_bound_is_served_as_any_other():
    plan = a_plan(
        a_class(wait_s_max=(60, 60), tenant=TenantBounds(running_max=2)),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(4)),
    )
    line = Line(plan)
    second, third = line.offer(), line.offer()
    assert (second.state, third.state) == (TicketState.RUNNING, TicketState.WAITING)
    assert line.offer(tenant="globex").state is TicketState.RUNNING
    assert line.next() is third


def test_an_end_after_the_end_changes_nothing():
    line = Line(one_at_a_time(a_class()))
    waiting, first = line.offer(), line.running
    assert line.next() is waiting
    assert line.admission.finish(first, Outcome.ENGINE_ERROR, line.now) == []
    assert line.admission.snapshot().engines["a"].slots == 1


def test_the_pause_between_longs_ends_by_itself():
    plan = replace(a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8))), feedback=Feedback(500))
    admission = Admission(plan, [an_engine("a")])
    control = admission._fleet["a"]._control
    control.allowance = replace(control.allowance, duty=0.5)
    first, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    second, _ = admission.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    admission.first_token(first, NOW + 2)
    admission.tick(NOW + 4)
    assert second.state is TicketState.RUNNING


def test_an_aborted_request_on_a_retired_engine_leaks_no_charge():
    admission = Admission(a_plan(), [an_engine("a"), an_engine("b")])
    plan = a_plan()
    now = NOW
    admission.set_up("b", up=False, now=now)
    for _ in range(12):
        ticket, _ = admission.offer(an_assignment(plan), now)
        now += 0.1
        admission.first_token(ticket, now)
        admission.finish(ticket, Outcome.COMPLETED, now)
    cut, _ = admission.offer(an_assignment(plan), now)
    admission.reconfigure(plan, [an_engine("b")], now)
    admission.finish(cut, Outcome.CLIENT_GONE, now)
    assert set(admission.snapshot().engines) == {"a", "b"}, "it holds its place until the steps in flight end"
    admission.tick(admission.next_tick_at())
    assert set(admission.snapshot().engines) == {"b"}
