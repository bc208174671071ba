"""What a second policy would have done with the same requests, told by what they really took."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.core.ticket import TicketState
from gateway.core.types import LengthClass, Outcome, Reason, Refusal
from gateway.shadow import pool as shadow_pool
from gateway.shadow.counts import Disagreement, Fate, Line, LineCount, disagreement
from gateway.shadow.pool import PoolShadow, RanAway
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

SHORT = LengthClass.SHORT
LINE = Line("interactive", SHORT)


def slots(total, *, wait_s=30, requests_max=100, order=OrderKind.ARRIVAL, name="a-plan"):
    classes = (
        a_class("interactive", wait_s_max=(wait_s, wait_s), requests_max=requests_max),
        a_class("batch", rank=1, weight=1, wait_s_max=(wait_s, wait_s), requests_max=requests_max),
    )
    plan = a_plan(*classes, admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(total)), order=order)
    return replace(plan, name=name)


class World:
    """A real admission under one plan and a shadow under another, on a clock that a test moves."""

    def __init__(self, plan, shadow_plan, *, engines=("a",), older=0):
        self.plan, self.shadow_plan = plan, shadow_plan
        self.now = 1_000.0
        self.real = Admission(plan, [an_engine(name) for name in engines])
        self.fates = []
        self.shadow = PoolShadow(shadow_plan, self.real, self.compared, self.now, older=older)

    def compared(self, line, real, shadow):
        self.fates.append((line, real, shadow))

    def at(self, now):
        self.now = 1_000.0 + now
        return self

    def take(self, events):
        self.shadow.events(events, self.now)

    def offer(self, service_class="interactive", *, by_shadow=None, **kwargs):
        assignment = an_assignment(self.plan, service_class, **kwargs)
        self.shadow.judged(assignment, by_shadow or an_assignment(self.shadow_plan, service_class, **kwargs))
        ticket, events = self.real.offer(assignment, self.now)
        self.take(events)
        return ticket

    def first_token(self, ticket):
        self.take(self.real.first_token(ticket, self.now))

    def finish(self, ticket, outcome=Outcome.COMPLETED, **kwargs):
        self.take(self.real.finish(ticket, outcome, self.now, **kwargs))

    def tick(self):
        self.take(self.real.tick(self.now))

    @property
    def kinds(self):
        return [disagreement(real, shadow) for _, real, shadow in self.fates]

    def shadow_running(self):
        (engine,) = self.shadow._core.snapshot().engines.values()
        return sum(engine.running.values())


def test_what_went_at_once_and_would_wait():
    world = World(slots(2), slots(1))
    first, second = world.offer(), world.offer()
    assert world.kinds == [None]
    world.at(1).finish(first)
    world.at(3).finish(second)
    world.shadow.advance(world.now)
    assert world.kinds == [None, Disagreement.WOULD_WAIT]
    assert world.fates[1][2] == Fate(None, 1.0)


def test_a_request_takes_what_it_really_took_from_the_shadows_own_dispatch_on():
    world = World(slots(3), slots(1))
    first, second, third = (world.offer() for _ in range(3))
    world.at(1).finish(first)
    world.at(5).finish(second)
    world.at(5.5).finish(third)
    world.shadow.advance(1_005.9)
    assert world.kinds == [None, Disagreement.WOULD_WAIT]
    world.shadow.advance(1_006.0)
    assert [fate.waited_s for _, _, fate in world.fates] == [0.0, 1.0, 6.0]


def test_what_was_refused_and_would_be_admitted_takes_what_its_like_took_lately():
    world = World(slots(1, requests_max=0), slots(2, requests_max=5))
    first = world.offer()
    world.at(4).finish(first)
    second, _refused = world.offer(), world.offer()
    assert world.kinds == [None, None, Disagreement.WOULD_ADMIT]
    assert world.shadow.assumed == 1
    assert world.shadow_running() == 2
    world.at(7.9).shadow.advance(world.now)
    assert world.shadow_running() == 2
    world.shadow.advance(1_008.0)
    assert world.shadow_running() == 1
    world.finish(second)
    world.shadow.advance(1_009.0)
    assert world.shadow_running() == 0


def test_what_the_shadow_sends_sooner_takes_what_its_like_took_lately():
    world = World(slots(1), slots(2))
    first = world.offer()
    world.at(2).finish(first)
    third, fourth = world.offer(), world.offer()
    assert world.kinds == [None, None]
    world.shadow.advance(1_004.0)
    assert world.shadow_running() == 1, "the fourth ran for the two seconds of the first"
    world.at(10).finish(third)
    assert world.kinds == [None, None, Disagreement.WOULD_NOT_WAIT]
    world.at(11).first_token(fourth)
    world.finish(fourth)
    world.shadow.advance(world.now)
    assert world.shadow_running() == 0


def test_what_was_served_and_would_be_refused_by_bound_by_deadline_or_by_its_shape():
    world = World(slots(4), slots(1, requests_max=1, wait_s=2))
    too_many = Refusal(Reason.BAD_REQUEST, "too many")
    tickets = [world.offer(), world.offer(), world.offer(), world.offer(by_shadow=too_many)]
    world.at(5)
    for ticket in tickets:
        world.finish(ticket)
    refusals = [fate.reason for _, _, fate in world.fates if fate.reason]
    assert refusals == [Reason.QUEUE_FULL, Reason.BAD_REQUEST, Reason.WAIT_DEADLINE]
    assert Counter(world.kinds) == {None: 1, Disagreement.WOULD_REFUSE: 3}


def test_what_the_plan_in_force_refuses_by_its_shape_may_be_admitted_in_the_shadow():
    world = World(slots(1), slots(1))
    world.shadow.refused_unoffered(LINE, Reason.BAD_REQUEST, an_assignment(world.shadow_plan), world.now)
    world.shadow.refused_unoffered(LINE, Reason.BAD_REQUEST, Refusal(Reason.BAD_REQUEST, "no"), world.now)
    assert world.kinds == [Disagreement.WOULD_ADMIT, None]


def test_another_order_is_counted_for_whoever_is_passed_in_one_of_the_two():
    world = World(slots(1), slots(1, order=OrderKind.STRICT_PRIORITY))
    running = world.offer()
    batch, interactive = world.offer("batch"), world.offer()
    world.at(1).finish(running)
    world.at(2).finish(batch)
    world.at(3).finish(interactive)
    world.shadow.advance(world.now)
    kinds = {line.service_class: disagreement(real, fate) for line, real, fate in world.fates[1:]}
    assert kinds == {"batch": Disagreement.WOULD_REORDER, "interactive": None}


def test_a_caller_who_leaves_leaves_both_worlds_and_is_not_compared_before_both_have_decided():
    world = World(slots(2), slots(1))
    first, second = world.offer(), world.offer()
    world.at(1).finish(second, Outcome.CLIENT_GONE)
    assert world.kinds == [None]
    assert world.shadow.left == 1
    world.finish(first, Outcome.CLIENT_GONE)
    world.shadow.advance(world.now)
    assert world.shadow_running() == 0
    assert world.shadow.left == 1


def test_who_leaves_the_line_before_a_dispatch_is_gone_from_a_shadow_that_had_sent_it():
    world = World(slots(1), slots(2))
    world.offer()
    waiting = world.offer()
    assert world.shadow_running() == 2
    world.at(1).finish(waiting, Outcome.CLIENT_GONE)
    assert world.shadow_running() == 1
    assert world.shadow.left == 1


def test_an_engine_that_sends_a_request_back_is_not_mirrored():
    world = World(slots(1, wait_s=5), slots(1, wait_s=5))
    ticket = world.offer()
    world.take(world.real.requeue(ticket, world.now, 0.25))
    assert world.shadow_running() == 1
    world.at(0.25).tick()
    assert ticket.state is TicketState.RUNNING
    world.at(2).first_token(ticket)
    world.at(4).finish(ticket)
    assert world.kinds == [None]
    world.shadow.advance(1_005.0)
    assert world.shadow_running() == 0


def test_what_one_engine_sends_back_and_another_takes_at_once_is_followed():
    world = World(slots(1), slots(1), engines=("a", "b"))
    ticket = world.offer()
    world.at(1).take(world.real.requeue(ticket, world.now, 0.25))
    assert ticket.state is TicketState.RUNNING
    world.at(2).first_token(ticket)
    world.at(4).finish(ticket)
    assert (world.kinds, world.shadow.left) == ([None], 0)
    world.shadow.advance(1_005.0)
    assert not any(sum(engine.running.values()) for engine in world.shadow._core.snapshot().engines.values())


def test_what_expires_after_its_engine_sent_it_back_does_not_run_for_ever_in_the_shadow():
    world = World(slots(1, wait_s=1), slots(1, wait_s=1))
    ticket = world.offer()
    world.take(world.real.requeue(ticket, world.now, 60))
    world.at(1).tick()
    assert ticket.state is TicketState.ENDED
    assert (world.kinds, world.shadow.assumed) == ([None], 1)
    world.shadow.advance(1_100.0)
    assert world.shadow_running() == 0


def test_nothing_is_compared_while_requests_from_before_the_shadow_are_there():
    world = World(slots(2), slots(2))
    before = an_assignment(world.plan)
    old, _ = world.real.offer(before, world.now)
    world.shadow = PoolShadow(world.shadow_plan, world.real, world.compared, world.now, older=1)
    world.offer()
    world.at(1).finish(old)
    assert world.shadow.older == 0
    world.offer()
    assert len(world.fates) == 1


def test_requests_of_a_plan_that_is_in_force_no_more_are_not_compared():
    world = World(slots(2), slots(1))
    world.offer()
    ticket = world.offer()
    world.shadow.reconfigure(slots(2), world.real.fleet.specs(), world.now)
    world.shadow.compare_anew()
    assert len(world.fates) == 2, "a larger budget sends who waits"
    world.at(1).finish(ticket)
    assert len(world.fates) == 2


def test_engines_that_come_and_go_and_a_drain_reach_the_shadow():
    world = World(slots(1), slots(1))
    world.take(world.real.set_up("a", False, world.now))
    world.shadow.set_up("a", up=False, now=world.now)
    world.offer()
    world.shadow.set_up("a", up=True, now=world.now)
    world.take(world.real.set_up("a", True, world.now))
    world.take(world.real.drain(world.now, world.now + 1))
    world.shadow.drain(world.now + 1, world.now)
    world.offer()
    world.shadow.undrain(world.now)
    world.take(world.real.undrain(world.now))
    world.offer()
    assert [fate.reason for _, _, fate in world.fates] == [Reason.NO_ENGINE, Reason.DRAINING, None]
    assert world.kinds[:2] == [None, None]


def test_more_requests_than_the_bound_are_not_followed(monkeypatch):
    monkeypatch.setattr(shadow_pool, "PAIRS_MAX", 2)
    world = World(slots(5), slots(5))
    tickets = [world.offer() for _ in range(3)]
    for ticket in tickets:
        world.at(1).finish(ticket)
    assert (len(world.fates), world.shadow.unfollowed, world.shadow.older) == (2, 1, 0)


def test_the_end_of_one_that_is_not_followed_does_not_stand_for_that_of_an_older_one(monkeypatch):
    monkeypatch.setattr(shadow_pool, "PAIRS_MAX", 1)
    world = World(slots(5), slots(5), older=1)
    older, events = world.real.offer(an_assignment(world.plan), world.now)
    world.take(events)
    _followed, unfollowed = world.offer(), world.offer()
    world.at(1).finish(unfollowed)
    assert world.shadow.older == 1
    world.at(2).finish(older)
    assert world.shadow.older == 0


def test_a_shadow_that_comes_to_no_end_says_so(monkeypatch):
    world = World(slots(1), slots(1))
    monkeypatch.setattr(world.shadow._core, "next_tick_at", lambda: world.now)
    with pytest.raises(RanAway):
        world.offer()


def test_the_shadow_knows_the_step_times_that_the_real_engines_taught_and_learns_none():
    plan = a_plan()
    world = World(plan, plan)
    before = world.real.step_models()["a"]
    for turn in range(20):
        ticket = world.at(10 * turn).offer()
        world.at(10 * turn + 3).first_token(ticket)
        world.at(10 * turn + 4).finish(ticket)
    world.shadow.advance(world.now)
    assert world.real.step_models()["a"] != before
    assert world.shadow._core.step_models() == world.real.step_models()
    world.shadow._core.calibrated("a", [])
    assert world.shadow._core.step_models() == world.real.step_models()


@pytest.mark.parametrize("seed", range(12))
def test_a_policy_in_its_own_shadow_never_disagrees(seed):
    random = Random(seed)
    plan = a_plan(
        a_class("interactive", wait_s_max=(2, 4), requests_max=6),
        a_class("batch", rank=1, weight=1, wait_s_max=(3, 6), requests_max=6),
        admission=an_admission(slots=SlotBudget(4, 1, 1)),
        order=list(OrderKind)[seed % 4],
    )
    world = World(plan, plan, engines=("a", "b"))
    alive, offers = [], 0
    for _ in range(600):
        then = world.now + random.choice((0.0, 0.05, 0.3))
        while (tick_at := world.real.next_tick_at()) is not None and tick_at <= then:
            world.now = tick_at
            world.tick()
        world.now = then
        alive = [ticket for ticket in alive if ticket.state is not TicketState.ENDED]
        running = [ticket for ticket in alive if ticket.state is TicketState.RUNNING]
        act = random.random()
        if act < 0.5 or not running:
            offers += 1
            alive.append(
                world.offer(
                    random.choice(["interactive", "batch"]),
                    tenant=random.choice("xy"),
                    prompt_tokens=random.choice([100, 600, 4000]),
                    stream=random.random() < 0.7,
                )
            )
        elif act < 0.75:
            world.first_token(random.choice(running))
        else:
            world.finish(random.choice(running), output_tokens=random.choice([None, 3]))
    assert set(world.kinds) == {None}
    assert {real.reason for _, real, _ in world.fates} >= {None, Reason.QUEUE_FULL}
    assert len(world.fates) + sum(ticket.state is TicketState.WAITING for ticket in alive) == offers


def test_a_line_counts_the_gravest_difference_once_and_the_waits_of_what_both_sent():
    count = LineCount()
    full, late = Reason.QUEUE_FULL, Reason.WAIT_DEADLINE
    pairs = [
        (Fate(None, 1.0), Fate(full)),
        (Fate(late, 2.0), Fate(None, 0.0)),
        (Fate(None, 0.0), Fate(None, 3.0)),
        (Fate(None, 2.0, passed=True), Fate(None, 0.0)),
        (Fate(None, 2.0, passed=True), Fate(None, 1.0)),
        (Fate(late), Fate(full)),
        (Fate(None), Fate(None)),
    ]
    kinds = [count.compare(real, shadow) for real, shadow in pairs]
    assert kinds == [*Disagreement, None, None]
    assert (count.compared, count.both_sent) == (7, 4)
    assert (count.waited_s, count.shadow_waited_s) == (4.0, 4.0)
    assert (count.refusals, count.admitted) == ({full: 1}, {late: 1})
