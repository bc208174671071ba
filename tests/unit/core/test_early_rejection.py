"""Refusing at arrival: by what stands ahead in the request's own line, and how fast such work really went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, EarlyRejection, OrderKind, SlotBudget
from gateway.core.ticket import Dispatched, Refused, TicketState
from gateway.core.types import Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW, WAIT_S = 1_000_000.0, 10.0


class Pool:
    """One request at a time, each a second; arrival order unless stated."""

    def __init__(self, *, order=OrderKind.ARRIVAL, newest_first=False, slots=1):
        only = a_class(wait_s_max=(WAIT_S, WAIT_S), requests_max=1000)
        only = replace(only, queue=replace(only.queue, newest_first_in_overload=newest_first))
        admission = an_admission(AdmissionKind.SLOTS, slots=SlotBudget(slots))
        self.plan = replace(a_plan(only, admission=admission, order=order), early_rejection=EarlyRejection(0.9))
        self.admission = Admission(self.plan, [an_engine()])
        self.now, self.running = NOW, []

    def follow(self, events):
        self.running += [event.ticket for event in events if isinstance(event, Dispatched)]
        return [event.refusal.reason for event in events if isinstance(event, Refused)]

    def offer(self, tenant="acme", **kwargs):
        ticket, events = self.admission.offer(an_assignment(self.plan, tenant=tenant, **kwargs), self.now)
        self.follow(events)
        return ticket

    def second(self):
        """Let a second pass, in which what runs is completed."""
        self.now += 1.0
        self.follow(self.admission.tick(self.now))
        served, self.running = self.running, []
        for ticket in served:
            self.follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now))

    def kept_at(self, waiting, seconds, tenant="acme"):
        """Keep so many of a tenant in line, or as many as are let in, for so long."""
        for _ in range(seconds):
            while self.admission.standing(ticket := self.offer(tenant)).in_line < waiting and not is_refused(ticket):
                pass
            self.second()
        return self

    @property
    def ratios(self):
        return list(self.admission._tenants.by_class[an_assignment(self.plan).service_class][0].ratios._sorted)


def is_refused(ticket):
    return ticket.state is TicketState.ENDED


def test_whoever_stands_behind_more_than_goes_in_time_is_refused_and_whoever_does_not_is_not():
    pool = Pool().kept_at(8, 60)
    line = [pool.offer() for _ in range(10)]
    assert [is_refused(ticket) for ticket in line][:2] == [False, False]
    assert is_refused(line[-1])


def test_what_others_have_in_line_refuses_nobody():
    pool = Pool(order=OrderKind.WEIGHTED_FAIR).kept_at(8, 60, "flood")
    for _ in range(30):
        pool.offer("flood")
    assert is_refused(pool.offer("flood"))
    for second in range(30):
        pool.second()
        pool.offer("flood")
        if second % 3 == 0:
            assert not is_refused(pool.offer("light"))


def test_long_waits_are_not_judged_before_twenty_of_them_were_seen():
    pool = Pool()
    for _ in range(30):
        pool.offer()
    for _ in range(5):
        pool.second()
    assert not is_refused(pool.offer())
    assert len(pool.ratios) < 20


@pytest.mark.parametrize(
    ("line", "refused"),
    [({}, True), ({"order": OrderKind.EARLIEST_DEADLINE}, False), ({"newest_first": True}, False)],
)
def test_whoever_may_go_before_those_in_line_is_not_refused_for_them(line, refused):
    pool = Pool(**line).kept_at(8, 60)
    assert is_refused(pool.offer(wait_s_max=5.0)) == refused


def test_by_deadline_the_last_in_line_is_judged():
    pool = Pool(order=OrderKind.EARLIEST_DEADLINE).kept_at(8, 60)
    assert is_refused([pool.offer() for _ in range(10)][-1])


def test_that_those_ahead_expired_does_not_look_like_speed():
    """Twice as many wait as go within the limit: nobody waits longer than it, and yet the work takes twice as long."""
    pool = Pool()
    pool.plan = replace(pool.plan, early_rejection=EarlyRejection(1e-9))
    pool.admission.reconfigure(pool.plan, [an_engine()], NOW)
    for _ in range(60):
        for _ in range(2):
            pool.offer()
        pool.second()
    assert len(pool.ratios) >= 20
    assert pool.ratios[len(pool.ratios) // 2] == pytest.approx(1.0, abs=0.15)


def test_those_who_leave_the_line_by_themselves_make_it_go_faster():
    pool = Pool().kept_at(8, 60)
    before = min(pool.ratios)
    for _ in range(30):
        for ticket in (pool.offer(), pool.offer()):
            if ticket.state is TicketState.WAITING:
                pool.follow(pool.admission.finish(ticket, Outcome.CLIENT_GONE, pool.now))
        pool.kept_at(8, 1)
    assert min(pool.ratios) < 0.8 * before


def test_whoever_an_engine_sent_back_says_nothing_of_the_line():
    pool = Pool().kept_at(8, 60)
    pool.second()
    (running,) = pool.running
    assert running.forecast is not None
    seen = len(pool.ratios)
    pool.running.clear()
    pool.follow(pool.admission.requeue(running, pool.now, 0.0))
    assert pool.running == [running]
    assert len(pool.ratios) == seen


def test_a_refusal_says_what_was_predicted():
    pool = Pool().kept_at(8, 60)
    while True:
        _, events = pool.admission.offer(an_assignment(pool.plan), pool.now)
        if isinstance(events[-1], Refused):
            break
    refusal = events[-1].refusal
    assert (refusal.reason, refusal.limit) == (Reason.PREDICTED_MISS, WAIT_S)
    assert WAIT_S < refusal.observed < 1.5 * WAIT_S
