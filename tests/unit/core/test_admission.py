"""What Admission promises, one claim a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import (
    AdmissionKind,
    EarlyRejection,
    Feedback,
    KvBudget,
    LongPrefill,
    LongPrefillMode,
    NonStreamRelease,
    OrderKind,
    SlotBudget,
    TenantBounds,
)
from gateway.core.ticket import Dispatched, Finished, FirstToken, Queued, Refused, SliceResult, TicketState
from gateway.core.types import EngineLoad, FallbackReason, LengthClass, Outcome, Reason, Resource
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0
SHORT, LONG = 512, 8192


class Pool:
    """Admission with one clock and shorthand for offers."""

    def __init__(self, plan=None, *engines):
        self.plan = plan or a_plan()
        self.admission = Admission(self.plan, engines or [an_engine()])
        self.now = NOW
        self.events = []

    def offer(self, prompt_tokens=SHORT, service_class="interactive", **kwargs):
        assignment = an_assignment(self.plan, service_class, prompt_tokens=prompt_tokens, **kwargs)
        ticket, self.events = self.admission.offer(assignment, self.now)
        return ticket

    def finish(self, ticket, outcome=Outcome.COMPLETED):
        self.events = self.admission.finish(ticket, outcome, self.now)
        return [event.ticket for event in self.events if isinstance(event, Dispatched)]

    def first_token(self, ticket):
        self.events = self.admission.first_token(ticket, self.now)
        return [event.ticket for event in self.events if isinstance(event, Dispatched)]

    def at(self, seconds):
        self.now = NOW + seconds
        self.events = self.admission.tick(self.now)
        return self.events


def slots(total, **kwargs):
    return a_plan(
        *kwargs.pop("classes", ()),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(total)),
        order=kwargs.pop("order", OrderKind.ARRIVAL),
    )


def refusal(pool):
    (refused,) = [event for event in pool.events if isinstance(event, Refused)]
    return refused


# ── budgets ──


def test_second_long_waits_while_the_first_is_in_prefill_and_goes_at_its_first_token():
    pool = Pool()
    first, second = pool.offer(LONG), pool.offer(LONG)
    assert (first.state, second.state) == (TicketState.RUNNING, TicketState.WAITING)
    assert pool.first_token(first) == [second]


def test_a_short_goes_at_once_past_waiting_longs():
    pool = Pool()
    pool.offer(LONG)
    waiting_long = pool.offer(LONG)
    assert pool.offer(SHORT).state is TicketState.RUNNING
    assert waiting_long.state is TicketState.WAITING


def test_short_prefill_tokens_bound_the_shorts_in_prefill():
    pool = Pool()
    first, _, third = (pool.offer(SHORT) for _ in range(3))
    assert third.state is TicketState.WAITING
    assert pool.first_token(first) == [third]


def test_shorts_leave_the_slots_reserved_for_longs():
    pool = Pool(a_plan(admission=an_admission(short_prefill_tokens_max=None, slots=SlotBudget(4, 1, 2))))
    shorts = [pool.offer(SHORT) for _ in range(3)]
    assert [ticket.state for ticket in shorts] == [TicketState.RUNNING, TicketState.RUNNING, TicketState.WAITING]
    assert pool.offer(LONG).state is TicketState.RUNNING


def test_longs_leave_the_slots_reserved_for_shorts():
    pool = Pool(a_plan(admission=an_admission(long_prefills_max=None, slots=SlotBudget(4, 1, 2))))
    longs = [pool.offer(LONG) for _ in range(4)]
    assert [ticket.state for ticket in longs].count(TicketState.RUNNING) == 3
    assert pool.offer(SHORT).state is TicketState.RUNNING


def test_kv_is_reserved_in_whole_blocks_for_prompt_and_output_of_every_sequence():
    pool = Pool(None, an_engine(kv_tokens=4096, kv_block_tokens=16))
    pool.offer(prompt_tokens=100, output_tokens=1, sequences=2)
    assert pool.admission.snapshot().engines["a"].kv_reserved_tokens == 2 * 112


def test_a_short_waits_for_kv_that_the_longs_reserve_keeps():
    plan = a_plan(admission=an_admission(kv=KvBudget(short_reserve_tokens=0, long_reserve_tokens=1024)))
    pool = Pool(plan, an_engine(kv_tokens=2048))
    pool.offer(prompt_tokens=500, output_tokens=128)
    assert pool.offer(prompt_tokens=300, output_tokens=128).state is TicketState.WAITING


def test_a_request_larger_than_a_whole_budget_goes_where_that_budget_is_idle():
    pool = Pool(a_plan(admission=an_admission(short_prefill_tokens_max=256)))
    first, second = pool.offer(SHORT), pool.offer(SHORT)
    assert (first.state, second.state) == (TicketState.RUNNING, TicketState.WAITING)
    assert pool.first_token(first) == [second]


def test_n_counts_as_that_many_sequences():
    pool = Pool(slots(3), an_engine())
    pool.offer(sequences=2)
    assert pool.offer(sequences=2).state is TicketState.WAITING


def test_the_smaller_of_slots_total_and_the_engines_max_num_seqs_binds():
    pool = Pool(slots(100), an_engine(max_num_seqs=1))
    pool.offer()
    assert pool.offer().state is TicketState.WAITING


def test_passthrough_gates_nothing():
    pool = Pool(a_plan(admission=an_admission(AdmissionKind.NONE)), an_engine(max_num_seqs=1))
    assert all(pool.offer(LONG).state is TicketState.RUNNING for _ in range(50))


# ── who may pass whom ──


def test_a_long_that_lacks_only_shared_slots_is_not_passed_by_later_shorts():
    pool = Pool(a_plan(admission=an_admission(short_prefill_tokens_max=None, slots=SlotBudget(4, 0, 0))))
    shorts = [pool.offer(SHORT) for _ in range(4)]
    waiting_long = pool.offer(LONG, sequences=2)
    late_short = pool.offer(SHORT)
    assert pool.finish(shorts[0]) == []
    assert pool.finish(shorts[1]) == [waiting_long]
    assert late_short.state is TicketState.WAITING


def test_a_long_that_lacks_the_prefill_lane_is_passed_by_shorts():
    pool = Pool(a_plan(admission=an_admission(slots=SlotBudget(3, 0, 0))))
    running = [pool.offer(LONG), pool.offer(1)]
    pool.offer(LONG)
    assert pool.offer(1).state is TicketState.RUNNING
    assert running[0].state is TicketState.RUNNING


def test_first_in_first_out_inside_a_flow_whatever_the_sizes():
    pool = Pool(slots(2))
    running = [pool.offer(), pool.offer()]
    big = pool.offer(sequences=2)
    small = pool.offer(sequences=1)
    assert pool.finish(running[0]) == []
    assert pool.finish(running[1]) == [big]
    assert pool.finish(big) == [small]


def test_a_tenant_at_its_running_bound_waits_while_others_pass():
    plan = a_plan(a_class(tenant=TenantBounds(running_max=1)))
    pool = Pool(plan)
    first = pool.offer(tenant="acme")
    held = pool.offer(tenant="acme")
    other = pool.offer(tenant="globex", prompt_tokens=128)
    assert (held.state, other.state) == (TicketState.WAITING, TicketState.RUNNING)
    assert pool.finish(first) == [held]


# ── order ──


def dispatch_order(pool, tickets):
    """Free one slot after another and tell in which order the waiting tickets go, by their place in `tickets`."""
    order = []
    running = list(pool.admission._running)
    while running:
        running += (gone := pool.finish(running.pop(0)))
        order += [tickets.index(ticket) for ticket in gone]
    return order


def test_arrival_order_ignores_class():
    pool = Pool(slots(1))
    pool.offer()
    tickets = [pool.offer(service_class=name) for name in ("batch", "interactive", "standard", "interactive")]
    assert dispatch_order(pool, tickets) == [0, 1, 2, 3]


def test_strict_priority_serves_the_highest_class_first():
    pool = Pool(slots(1, order=OrderKind.STRICT_PRIORITY))
    pool.offer()
    tickets = [pool.offer(service_class=name) for name in ("batch", "standard", "interactive", "interactive")]
    assert dispatch_order(pool, tickets) == [2, 3, 1, 0]


def test_earliest_deadline_serves_the_head_that_expires_first():
    pool = Pool(slots(1, order=OrderKind.EARLIEST_DEADLINE))
    pool.offer()
    tickets = [pool.offer(tenant=str(at), wait_s_max=wait_s) for at, wait_s in enumerate((9, 3, 6))]
    assert dispatch_order(pool, tickets) == [1, 2, 0]


def test_weighted_fair_serves_backlogged_classes_in_proportion_to_their_weights():
    pool = Pool(
        slots(1, order=OrderKind.WEIGHTED_FAIR, classes=[a_class("gold", weight=3), a_class("iron", rank=1, weight=1)])
    )
    pool.offer(service_class="gold")
    names = ["gold", "iron"] * 40
    tickets = [pool.offer(service_class=name) for name in names]
    served = [names[at] for at in dispatch_order(pool, tickets)[:40]]
    assert abs(served.count("gold") - 30) <= 1


def test_weighted_fair_serves_the_tenants_of_a_class_alike_whatever_their_backlog():
    pool = Pool(slots(1, order=OrderKind.WEIGHTED_FAIR))
    pool.offer()
    owners = ["flood"] * 30 + ["quiet"] * 10
    tickets = [pool.offer(tenant=tenant) for tenant in owners]
    served = [owners[at] for at in dispatch_order(pool, tickets)[:20]]
    assert abs(served.count("quiet") - 10) <= 1


def test_an_idle_class_saves_up_no_credit():
    pool = Pool(slots(1, order=OrderKind.WEIGHTED_FAIR))
    pool.offer(service_class="standard")
    busy = [pool.offer(service_class="standard") for _ in range(20)]
    for ticket in [next(iter(pool.admission._running)), *busy[:9]]:
        pool.finish(ticket)
    late = [pool.offer(service_class="batch") for _ in range(5)]
    order = dispatch_order(pool, [*busy, *late])
    assert order[:4] != [20, 21, 22, 23], "five late arrivals do not take the turns they never waited for"


# ── deadlines and bounds ──


def test_a_wait_ends_exactly_at_its_deadline_as_429_material():
    pool = Pool()
    pool.offer(LONG)
    waiting = pool.offer(LONG)
    assert pool.admission.next_tick_at() == NOW + 30
    assert pool.at(29.999) == []
    pool.at(30)
    assert refusal(pool).refusal.reason is Reason.WAIT_DEADLINE
    assert (refusal(pool).outcome, refusal(pool).waited_s, waiting.state) == (Outcome.EXPIRED, 30, TicketState.ENDED)


def test_expiry_comes_before_dispatch_in_one_instant():
    pool = Pool()
    running = pool.offer(LONG)
    pool.offer(LONG)
    pool.now = NOW + 30
    assert pool.first_token(running) == []


def test_a_wait_of_zero_is_dispatch_now_or_refuse():
    pool = Pool()
    assert pool.offer(LONG, wait_s_max=0).state is TicketState.RUNNING
    pool.offer(LONG, wait_s_max=0)
    assert refusal(pool).refusal.reason is Reason.WAIT_DEADLINE


@pytest.mark.parametrize(
    ("bounds", "resource"),
    [
        ({"requests_max": 1}, Resource.REQUESTS),
        ({"prompt_tokens_max": 2 * LONG - 1}, Resource.PROMPT_TOKENS),
        ({"bytes_max": 4095}, Resource.BYTES),
    ],
)
def test_a_full_queue_refuses_by_the_bound_that_is_full(bounds, resource):
    pool = Pool(a_plan(a_class(**bounds)))
    pool.offer(LONG)
    pool.offer(LONG)
    pool.offer(LONG)
    assert (refusal(pool).refusal.reason, refusal(pool).refusal.resource) == (Reason.QUEUE_FULL, resource)
    assert refusal(pool).outcome is Outcome.REFUSED


def test_requests_max_zero_is_dispatch_now_or_refuse():
    pool = Pool(a_plan(a_class(requests_max=0)))
    assert pool.offer(LONG).state is TicketState.RUNNING
    pool.offer(LONG)
    assert refusal(pool).refusal.reason is Reason.QUEUE_FULL


def test_one_tenants_full_queue_leaves_room_for_others():
    pool = Pool(a_plan(a_class(tenant=TenantBounds(queued_requests_max=1))))
    pool.offer(LONG)
    pool.offer(LONG, tenant="acme")
    pool.offer(LONG, tenant="acme")
    assert refusal(pool).refusal.reason is Reason.TENANT_QUEUE_FULL
    assert pool.offer(LONG, tenant="globex").state is TicketState.WAITING


def test_a_refused_offer_consumes_nothing():
    pool = Pool(slots(1, classes=[a_class(requests_max=0)]))
    running = pool.offer()
    pool.offer()
    pool.finish(running)
    assert pool.offer().state is TicketState.RUNNING


def test_retry_after_follows_the_measured_drain_rate():
    pool = Pool(slots(1, classes=[a_class(requests_max=20, wait_s_max=(60, 60))]))
    running = pool.offer()
    backlog = [pool.offer() for _ in range(20)]
    for at, ticket in enumerate([running, *backlog[:9]]):
        pool.now = NOW + 2 * (at + 1)
        pool.finish(ticket)
    for _ in range(11):
        pool.offer()
    assert 40 <= refusal(pool).refusal.retry_after_s <= 60, "21 requests at one each 2 s"


# ── first token, end, return ──


def test_only_the_first_token_counts():
    pool = Pool()
    ticket = pool.offer(LONG)
    pool.now += 1
    pool.first_token(ticket)
    assert [event.engine_ttft_s for event in pool.events if isinstance(event, FirstToken)] == [1]
    pool.first_token(ticket)
    assert pool.events == []


def test_an_end_frees_everything_also_without_a_first_token():
    pool = Pool()
    running = pool.offer(LONG)
    waiting = pool.offer(LONG)
    assert pool.finish(running, Outcome.CLIENT_GONE) == [waiting]
    pool.finish(waiting)
    engine = pool.admission.snapshot().engines["a"]
    assert (engine.slots, engine.long_prefills, engine.kv_reserved_tokens) == (0, 0, 0)


def test_a_late_first_token_after_the_end_changes_nothing():
    pool = Pool()
    ticket = pool.offer(LONG)
    pool.finish(ticket, Outcome.CLIENT_GONE)
    next_long = pool.offer(LONG)
    pool.first_token(ticket)
    assert pool.admission.snapshot().engines["a"].long_prefills == 1
    assert next_long.state is TicketState.RUNNING


def test_a_waiter_who_leaves_is_never_sent():
    pool = Pool()
    running = pool.offer(LONG)
    left, stays = pool.offer(LONG), pool.offer(LONG)
    pool.finish(left, Outcome.CLIENT_GONE)
    assert [(event.outcome, event.waited_s) for event in pool.events if isinstance(event, Finished)] == [
        (Outcome.CLIENT_GONE, 0.0)
    ]
    assert pool.first_token(running) == [stays]


def test_grant_and_cancel_in_one_instant_loses_no_capacity():
    pool = Pool(slots(1))
    for _ in range(10_000):
        running, granted = pool.offer(), pool.offer()
        assert pool.finish(running) == [granted]
        pool.finish(granted, Outcome.CLIENT_GONE)
    assert pool.admission.snapshot().engines["a"].slots == 0


def test_an_engines_refusal_returns_the_request_to_the_head_of_its_flow_after_a_pause():
    pool = Pool()
    first = pool.offer(LONG)
    second = pool.offer(LONG)
    pool.events = pool.admission.requeue(first, pool.now, 0.25)
    assert [type(event) for event in pool.events] == [Queued]
    assert pool.admission.next_tick_at() == NOW + 0.25
    dispatched = [event.ticket for event in pool.at(0.25)]
    assert (dispatched, second.state) == ([first], TicketState.WAITING)


def test_a_returned_request_still_ends_at_its_deadline():
    pool = Pool()
    ticket = pool.offer(SHORT)
    pool.admission.requeue(ticket, pool.now, 60)
    pool.at(2)
    assert refusal(pool).refusal.reason is Reason.WAIT_DEADLINE


# ── engines ──


def test_no_engine_refuses_the_new_and_keeps_the_waiting_to_their_deadline():
    pool = Pool()
    running = pool.offer(LONG)
    waiting = pool.offer(LONG)
    pool.admission.set_up("a", False, pool.now)
    pool.offer(SHORT)
    assert refusal(pool).refusal.reason is Reason.NO_ENGINE
    assert pool.finish(running, Outcome.ENGINE_ERROR) == []
    pool.events = pool.admission.set_up("a", True, pool.now)
    assert waiting.state is TicketState.RUNNING


def test_a_deadline_that_passes_while_no_engine_is_up_says_so():
    pool = Pool()
    pool.offer(LONG)
    pool.offer(LONG)
    pool.admission.set_up("a", False, pool.now)
    pool.at(30)
    assert (refusal(pool).refusal.reason, refusal(pool).outcome) == (Reason.NO_ENGINE, Outcome.EXPIRED)


def test_shorts_go_to_the_engine_with_the_least_prefill_and_longs_are_packed():
    plan = a_plan(admission=an_admission(long_prefills_max=2))
    pool = Pool(plan, an_engine("a"), an_engine("b"))
    first_long = pool.offer(LONG)
    assert pool.offer(LONG).engine == first_long.engine
    assert pool.offer(SHORT).engine != first_long.engine


def test_longs_are_spread_where_nothing_bounds_those_in_prefill():
    plan = a_plan(admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(8)))
    pool = Pool(plan, an_engine("a"), an_engine("b"), an_engine("c"))
    assert sorted(pool.offer(LONG).engine for _ in range(6)) == ["a", "a", "b", "b", "c", "c"]


# ── reload and drain ──


def test_a_reload_keeps_waiters_their_plan_and_their_fairness():
    pool = Pool()
    running = pool.offer(LONG)
    waiting = pool.offer(LONG, service_class="batch")
    pool.admission.reconfigure(a_plan(a_class("other")), [an_engine()], pool.now)
    assert pool.first_token(running) == [waiting]
    assert waiting.assignment.service_class == "batch"


def test_smaller_budgets_act_by_attrition():
    pool = Pool(slots(3))
    running = [pool.offer() for _ in range(3)]
    pool.admission.reconfigure(slots(1), [an_engine()], pool.now)
    waiting = pool.offer()
    assert [pool.finish(ticket) for ticket in running] == [[], [], [waiting]]


def test_a_removed_engine_gets_nothing_new_and_is_dropped_when_idle():
    pool = Pool(None, an_engine("a"), an_engine("b"))
    ticket = pool.offer(SHORT)
    other = "b" if ticket.engine == "a" else "a"
    pool.admission.reconfigure(pool.plan, [an_engine(other)], pool.now)
    assert pool.offer(SHORT).engine == other
    pool.finish(ticket)
    assert set(pool.admission.snapshot().engines) == {other}


def test_drain_refuses_the_new_and_those_who_may_wait_beyond_it():
    pool = Pool()
    pool.offer(LONG)
    far, near = pool.offer(LONG), pool.offer(LONG, wait_s_max=5)
    pool.events = pool.admission.drain(pool.now, pool.now + 10)
    assert refusal(pool).ticket is far
    assert refusal(pool).refusal.reason is Reason.DRAINING
    assert near.state is TicketState.WAITING
    pool.offer(SHORT)
    assert refusal(pool).refusal.reason is Reason.DRAINING
    pool.admission.undrain(pool.now)
    assert pool.offer(SHORT).state is TicketState.RUNNING


def test_every_class_is_in_the_snapshot_also_at_zero():
    lines = Pool().admission.snapshot().lines
    assert {(name, length) for name in ("interactive", "standard", "batch") for length in LengthClass} == set(lines)


# ── step model: release, aborts, prediction, feedback ──


def taught(pool, prefills=12):
    """Let the pool's engine see prefills of its own: 100 ms each for a short, 2 s for a long."""
    for at in range(prefills):
        ticket = pool.offer(LONG if at % 2 else SHORT)
        pool.now += 2.0 if at % 2 else 0.1
        pool.first_token(ticket)
        pool.finish(ticket)
    return pool


def test_an_aborted_request_holds_its_place_until_the_steps_in_flight_end():
    pool = taught(Pool(a_plan(admission=an_admission(slots=SlotBudget(3, 1, 1)))))
    running = pool.offer(LONG)
    waiting = pool.offer(LONG)
    assert pool.finish(running, Outcome.CLIENT_GONE) == []
    due = pool.admission.next_tick_at()
    assert pool.now < due < pool.now + 2
    pool.events = pool.admission.tick(due)
    assert waiting.state is TicketState.RUNNING
    assert sum(pool.admission.snapshot().engines["a"].running.values()) == 1


def test_a_request_that_ended_by_itself_holds_nothing():
    pool = taught(Pool())
    running, waiting = pool.offer(LONG), pool.offer(LONG)
    assert pool.finish(running) == [waiting]


def release_plan(release):
    return a_plan(admission=an_admission(non_stream_release=release))


def test_a_whole_answers_prefill_goes_back_when_the_model_says_so():
    pool = taught(Pool(release_plan(NonStreamRelease.ESTIMATE)), prefills=60)
    first, second = pool.offer(LONG, stream=False), pool.offer(LONG, stream=False)
    due = pool.admission.next_tick_at()
    assert pool.now + 1 < due < pool.now + 6
    pool.events = pool.admission.tick(due)
    assert (first.state, second.state) == (TicketState.RUNNING, TicketState.RUNNING)


def test_a_whole_answers_prefill_stays_to_its_first_byte_where_the_plan_wants_that_or_nothing_is_known():
    for pool in (
        taught(Pool(release_plan(NonStreamRelease.LAST_BYTE)), 60),
        Pool(release_plan(NonStreamRelease.ESTIMATE)),
    ):
        first, second = pool.offer(LONG, stream=False), pool.offer(LONG, stream=False)
        pool.at(pool.now - NOW + 25)
        assert second.state is TicketState.WAITING
        assert pool.first_token(first) == [second]


def backlogged(early_rejection):
    """A line that drains one request in 2 s, measured, with ten in it."""
    plan = replace(slots(1, classes=[a_class(wait_s_max=(30, 30))]), early_rejection=early_rejection)
    pool = Pool(plan)
    running = [pool.offer()]
    backlog = [pool.offer() for _ in range(10)]
    for _ in range(40):
        pool.now += 2
        running += pool.finish(running.pop())
        backlog.append(pool.offer())
    return pool


def test_a_predicted_miss_is_refused_at_arrival_and_says_what_it_predicted():
    pool = backlogged(EarlyRejection(0.9))
    waiting = [pool.offer() for _ in range(6)]
    refused = refusal(pool)
    assert (refused.refusal.reason, refused.outcome) == (Reason.PREDICTED_MISS, Outcome.REFUSED)
    assert refused.refusal.observed > 30
    assert waiting[0].state is TicketState.WAITING


def test_without_early_rejection_nothing_is_predicted():
    pool = backlogged(None)
    assert all(pool.offer().state is TicketState.WAITING for _ in range(20))


def test_a_cold_gateway_predicts_no_miss():
    pool = Pool(replace(slots(1, classes=[a_class(wait_s_max=(30, 30))]), early_rejection=EarlyRejection(0.5)))
    assert all(pool.offer().state in {TicketState.RUNNING, TicketState.WAITING} for _ in range(200))


def test_a_few_predicted_misses_are_let_in_as_probes():
    pool = backlogged(EarlyRejection(0.9))
    states = [pool.offer().state for _ in range(206)]
    assert states[6:].count(TicketState.WAITING) == 2


def test_an_empty_line_refuses_nobody_whatever_it_measured():
    pool = backlogged(EarlyRejection(0.9))
    pool.at(pool.now - NOW + 31)
    assert pool.offer().state is TicketState.WAITING


def test_feedback_gives_a_second_long_only_while_shorts_meet_their_objective():
    plan = replace(
        a_plan(admission=an_admission(long_prefills_max=2, slots=SlotBudget(64, 8, 8))), feedback=Feedback(500)
    )
    pool = Pool(plan)
    first, second = pool.offer(LONG), pool.offer(LONG)
    for _ in range(80):
        short = pool.offer(1)
        pool.now += 0.1
        pool.first_token(short)
        pool.finish(short)
    assert (first.state, second.state) == (TicketState.RUNNING, TicketState.RUNNING)


# ── nothing waits for an event that has passed ──


def test_an_offer_after_an_unnoticed_deadline_lets_go_whom_the_expired_head_held_up():
    pool = Pool(slots(2))
    pool.offer()
    pool.offer(sequences=2, wait_s_max=1)
    held_up = pool.offer(wait_s_max=30)
    pool.now += 5
    pool.offer()
    assert held_up.state is TicketState.RUNNING


def test_draining_lets_go_whom_a_refused_head_held_up():
    pool = Pool(slots(2))
    pool.offer()
    pool.offer(sequences=2, wait_s_max=30)
    held_up = pool.offer(wait_s_max=5)
    pool.admission.drain(pool.now, pool.now + 10)
    assert held_up.state is TicketState.RUNNING


def test_an_engines_refusal_during_a_drain_ends_whom_the_drain_would_cut():
    pool = Pool()
    ticket = pool.offer(LONG)
    pool.admission.drain(pool.now, pool.now + 10)
    pool.events = pool.admission.requeue(ticket, pool.now, 0.25)
    assert refusal(pool).refusal.reason is Reason.DRAINING


def test_missed_service_at_a_running_bound_is_not_paid_back_in_one_go():
    held = a_class("held", weight=1, tenant=TenantBounds(running_max=1), wait_s_max=(900, 900))
    free = a_class("free", rank=1, weight=1, wait_s_max=(900, 900))
    pool = Pool(slots(4, order=OrderKind.WEIGHTED_FAIR, classes=[held, free]))
    first = pool.offer(service_class="held")
    for _ in range(20):
        pool.offer(service_class="held")
    running = [pool.offer(service_class="free") for _ in range(3)]
    for _ in range(40):
        pool.offer(service_class="free")
    for _ in range(20):
        running += pool.finish(running.pop(0))
    turns = []
    running.append(first)
    while len(turns) < 12:
        gone = pool.finish(running.pop())
        running += gone
        turns += [ticket.assignment.service_class for ticket in gone]
    assert turns.count("held") <= 7, "half of the turns from here on, not all of them"


# ── newest first, deadlines inside a flow, repeats, refunds ──


def crowded(requests_max=256):
    """One slot, a class that goes newest first in overload, and one request running."""
    queue = replace(a_class().queue, requests_max=requests_max, newest_first_in_overload=True)
    pool = Pool(slots(1, classes=[replace(a_class(wait_s_max=(10, 10)), queue=queue)]))
    return pool, pool.offer()


def test_newest_first_is_first_in_first_out_until_the_oldest_has_waited_half_its_limit():
    pool, running = crowded()
    oldest, newest = pool.offer(), pool.offer()
    pool.at(5.0)
    assert pool.finish(running) == [oldest]
    assert newest.state is TicketState.WAITING


def test_newest_first_serves_the_newest_once_the_oldest_has_waited_half_its_limit():
    pool, running = crowded()
    oldest = pool.offer()
    pool.at(5.1)
    newest = pool.offer()
    assert pool.finish(running) == [newest]
    assert pool.finish(newest) == [oldest]


def test_newest_first_still_begins_with_whom_an_engine_sent_back():
    pool, running = crowded()
    pool.offer()
    pool.at(5.1)
    newest = pool.offer()
    pool.finish(running)
    pool.events = pool.admission.requeue(newest, pool.now, 0.0)
    assert newest.state is TicketState.RUNNING


def test_in_a_full_queue_the_oldest_gives_way_to_the_newest_only_when_it_is_late():
    pool, _ = crowded(requests_max=1)
    oldest = pool.offer()
    assert pool.offer().state is TicketState.ENDED
    pool.at(5.1)
    newest = pool.offer()
    assert (oldest.state, newest.state) == (TicketState.ENDED, TicketState.WAITING)
    assert refusal(pool).ticket is oldest
    assert refusal(pool).refusal.reason is Reason.QUEUE_FULL


def test_by_earliest_deadline_a_shorter_wish_goes_first_inside_a_flow_too():
    pool = Pool(slots(1, order=OrderKind.EARLIEST_DEADLINE, classes=[a_class(wait_s_max=(30, 30))]))
    running, patient, urgent = pool.offer(), pool.offer(), pool.offer(wait_s_max=5)
    assert pool.finish(running) == [urgent]
    pool.events = pool.admission.requeue(urgent, pool.now, 0.0)
    assert pool.finish(urgent) == [patient]


def test_a_repeat_of_a_refused_request_counts_more_in_fair_queueing():
    pool = Pool(replace(slots(1, classes=[a_class(requests_max=0)]), repeat_cost=3.0))
    first = pool.offer(fingerprint=7)
    refused = pool.offer(fingerprint=8)
    pool.finish(first)
    again, fresh = pool.offer(fingerprint=8), None
    pool.finish(again)
    fresh = pool.offer(fingerprint=9)
    assert (refused.state, again.is_repeat, fresh.is_repeat) == (TicketState.ENDED, True, False)
    assert again.cost_s == pytest.approx(3 * fresh.cost_s)


def test_output_that_was_reserved_and_not_generated_is_given_back_to_the_tenants_share():
    """Two tenants alike in what they use; one states a hundred times the output."""
    plan = a_plan(a_class(wait_s_max=(1e6, 1e6)), admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)))
    pool = Pool(plan)
    served = {"frank": 0, "vast": 0}

    def offer(tenant):
        return pool.offer(tenant=tenant, output_tokens=32 if tenant == "frank" else 3200)

    running = offer("frank")
    for tenant in served:
        for _ in range(4):
            offer(tenant)
    for _ in range(200):
        tenant = running.assignment.tenant
        served[tenant] += 1
        offer(tenant)
        pool.now += 0.1
        pool.admission.first_token(running, pool.now)
        events = pool.admission.finish(running, Outcome.COMPLETED, pool.now, output_tokens=32)
        (running,) = [event.ticket for event in events if isinstance(event, Dispatched)]
    assert abs(served["frank"] - served["vast"]) <= 4


def test_an_engine_that_joins_by_a_reload_gets_nothing_until_it_is_up():
    pool = Pool(slots(1))
    pool.offer()
    waiting = pool.offer()
    pool.admission.reconfigure(pool.plan, [an_engine("a"), replace(an_engine("b"), up=False)], pool.now)
    assert waiting.state is TicketState.WAITING
    pool.admission.set_up("b", True, pool.now)
    assert waiting.engine == "b"


def test_what_an_engine_says_of_others_work_takes_slots_and_gives_them_back():
    pool = Pool(slots(4))
    for _ in range(3):
        pool.admission.observe("a", EngineLoad(sequences=3, waiting_for_room=0, preemptions=0), pool.now)
    assert [pool.offer().state for _ in range(2)] == [TicketState.RUNNING, TicketState.WAITING]
    for _ in range(3):
        pool.admission.observe("a", EngineLoad(sequences=1, waiting_for_room=0, preemptions=0), pool.now)
    assert [pool.offer().state for _ in range(2)] == [TicketState.RUNNING, TicketState.RUNNING]


def test_no_room_inside_the_engine_takes_the_second_long_away():
    plan = replace(
        a_plan(admission=an_admission(long_prefills_max=2, slots=SlotBudget(64, 8, 8))), feedback=Feedback(500)
    )
    pool = Pool(plan)
    for _ in range(100):
        short = pool.offer(1)
        pool.now += 0.1
        pool.offer(LONG)
        pool.first_token(short)
        pool.finish(short)
    assert pool.admission.snapshot().engines["a"].long_prefills == 2
    for _ in range(3):
        pool.admission.observe("a", EngineLoad(sequences=2, waiting_for_room=1, preemptions=0), pool.now)
    assert pool.admission.snapshot().engines["a"].budgets["long_prefills"] == 1


def test_an_engine_without_prefix_caching_gets_long_prompts_whole_and_says_so():
    way = LongPrefill(LongPrefillMode.SLICED, slice_s=0.1, hold_max_s=None, recalls_max=8)
    pool = Pool(a_plan(admission=an_admission(long_prefill=way)), an_engine(prefix_caching=False))
    pool.offer(20_000, is_divisible=True)
    dispatched, ended, changed = pool.events
    assert not dispatched.divided
    assert ended.result is SliceResult.FALLBACK
    assert changed.reason is FallbackReason.NO_PREFIX_CACHING
