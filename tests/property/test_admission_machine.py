"""Admission against a dict model, under every interleaving hypothesis finds."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget, TenantBounds
from gateway.core.ticket import Dispatched, Event, Finished, FirstToken, Queued, Refused, Ticket
from gateway.core.types import LengthClass, Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

CLASSES = ("interactive", "batch")
TENANTS = ("acme", "globex")
ENGINES = ("a", "b")

plans = st.builds(
    lambda kind, order, requests_max, running_max, queued_max, total: a_plan(
        a_class(
            "interactive",
            requests_max=requests_max,
            tenant=TenantBounds(queued_requests_max=queued_max, running_max=running_max),
            wait_s_max=(2, 6),
        ),
        a_class("batch", rank=1, weight=1, requests_max=4, prompt_tokens_max=9000, wait_s_max=(3, 9)),
        admission=an_admission(kind, slots=SlotBudget(total, short_reserve=1, long_reserve=1)),
        order=order,
    ),
    kind=st.sampled_from(AdmissionKind),
    order=st.sampled_from(OrderKind),
    requests_max=st.integers(0, 4),
    running_max=st.sampled_from([None, 1, 3]),
    queued_max=st.sampled_from([None, 1]),
    total=st.integers(2, 5),
)


class AdmissionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.live: dict[int, Ticket] = {}
        self.in_line: dict[int, Ticket] = {}
        self.at_engine: dict[int, str] = {}
        self.in_prefill: set[int] = set()
        self.ended: Counter[int] = Counter()
        self.cut: dict[str, list[Ticket]] = {name: [] for name in ENGINES}
        self.offered = 0
        self.up = dict.fromkeys(ENGINES, True)
        self.paused_until = dict.fromkeys(ENGINES, 0.0)
        self.draining_until: float | None = None

    @initialize(plan=plans)
    def start(self, plan):
        self.plan = plan
        self.engines = [an_engine("a", max_num_seqs=4, kv_tokens=40_000), an_engine("b")]
        self.admission = Admission(plan, self.engines)

    # what can happen

    @rule(
        service_class=st.sampled_from(CLASSES),
        tenant=st.sampled_from(TENANTS),
        prompt_tokens=st.sampled_from([1, 512, 640, 641, 8192]),
        sequences=st.sampled_from([1, 1, 1, 3]),
        wait_s=st.sampled_from([None, 0.0, 0.5]),
    )
    def offer(self, service_class, tenant, prompt_tokens, sequences, wait_s):
        assignment = an_assignment(
            self.plan,
            service_class,
            tenant=tenant,
            prompt_tokens=prompt_tokens,
            sequences=sequences,
            wait_s_max=wait_s,
        )
        self.take_in(assignment)

    def take_in(self, assignment) -> None:
        self.offered += 1
        ticket, events = self.admission.offer(assignment, self.now)
        self.live[ticket.id] = ticket
        self.in_line[ticket.id] = ticket
        self.follow(events)
        if ticket.id in self.in_line:
            assert any(isinstance(event, Queued) and event.ticket is ticket for event in events)
            self.within_queue_bounds(ticket)

    @rule(data=st.data(), outcome=st.sampled_from([Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.ENGINE_ERROR]))
    @precondition(lambda self: self.live)
    def finish(self, data, outcome):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.follow(self.admission.finish(ticket, outcome, self.now))
        assert self.ended[ticket.id] == 1
        again = self.admission.finish(ticket, Outcome.COMPLETED, self.now)
        assert not any(isinstance(event, Finished) for event in again)
        self.follow(again)

    @rule(data=st.data())
    @precondition(lambda self: self.at_engine)
    def first_token(self, data):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.at_engine)))]
        self.follow(self.admission.first_token(ticket, self.now))

    @rule(data=st.data(), pause_s=st.sampled_from([0.0, 0.25, 5.0]))
    @precondition(lambda self: self.in_prefill)
    def engine_refuses(self, data, pause_s):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.in_prefill)))]
        engine = self.at_engine.pop(ticket.id)
        self.in_prefill.discard(ticket.id)
        self.paused_until[engine] = max(self.paused_until[engine], self.now + pause_s)
        self.in_line[ticket.id] = ticket
        self.follow(self.admission.requeue(ticket, self.now, pause_s))

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 10.0]))
    def time_passes_unnoticed(self, seconds):
        """The loop was busy: deadlines pass before anybody calls."""
        self.now += seconds
        self.take_in(an_assignment(self.plan, "interactive", prompt_tokens=512))

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 10.0]))
    def time_passes(self, seconds):
        end = self.now + seconds
        while (at := self.admission.next_tick_at()) is not None and at <= end:
            assert at >= self.now, "a timer is never set in the past"
            self.now = at
            self.follow(self.admission.tick(self.now))
        self.now = end
        if seconds == 10.0:
            for cut in self.cut.values():
                cut.clear()

    @rule(engine=st.sampled_from(ENGINES), up=st.booleans())
    def engine_changes(self, engine, up):
        self.up[engine] = up
        self.follow(self.admission.set_up(engine, up, self.now))

    @rule(plan=plans)
    def reload(self, plan):
        self.plan = plan
        self.follow(self.admission.reconfigure(plan, self.engines, self.now))

    @rule(deadline_s=st.sampled_from([0.0, 3.0]))
    def drain(self, deadline_s):
        self.draining_until = self.now + deadline_s
        self.follow(self.admission.drain(self.now, self.draining_until))
        assert all(ticket.deadline <= self.draining_until for ticket in self.in_line.values())

    @rule()
    def undrain(self):
        self.draining_until = None
        self.follow(self.admission.undrain(self.now))

    # what the events must say

    def follow(self, events: list[Event]) -> None:
        for event in events:
            ticket = event.ticket
            match event:
                case Queued():
                    assert ticket.id in self.in_line
                case Dispatched(engine=engine):
                    assert self.up[engine] and self.paused_until[engine] <= self.now
                    assert ticket.deadline >= self.now, "nothing goes after its deadline"
                    del self.in_line[ticket.id]
                    self.first_in_first_out(ticket)
                    assert not self.at_running_bound(ticket)
                    self.at_engine[ticket.id] = engine
                    self.in_prefill.add(ticket.id)
                case FirstToken():
                    self.in_prefill.remove(ticket.id)
                case Refused(refusal=refusal, outcome=outcome):
                    assert (outcome is Outcome.EXPIRED) == (
                        ticket.deadline <= self.now
                        and refusal.limit is not None
                        and refusal.reason in {Reason.WAIT_DEADLINE, Reason.NO_ENGINE}
                    )
                    assert refusal.retry_after_s is not None and 1 <= refusal.retry_after_s <= 60
                    self.end(ticket)
                case Finished():
                    if ticket.id in self.at_engine and event.outcome is Outcome.CLIENT_GONE:
                        self.cut[self.at_engine[ticket.id]].append(ticket)
                    self.end(ticket)

    def end(self, ticket: Ticket) -> None:
        self.ended[ticket.id] += 1
        assert self.ended[ticket.id] == 1, "a ticket ends once"
        del self.live[ticket.id]
        self.in_line.pop(ticket.id, None)
        self.at_engine.pop(ticket.id, None)
        self.in_prefill.discard(ticket.id)

    def first_in_first_out(self, ticket: Ticket) -> None:
        flow = _flow(ticket)
        assert not any(other.id < ticket.id and _flow(other) == flow for other in self.in_line.values())

    def within_queue_bounds(self, ticket: Ticket) -> None:
        mine = [
            other
            for other in self.in_line.values()
            if other.assignment.service_class == ticket.assignment.service_class
        ]
        queue = ticket.assignment.class_plan.queue
        assert len(mine) <= queue.requests_max
        assert sum(other.assignment.prompt_tokens for other in mine) <= queue.prompt_tokens_max

    # what must hold at every instant

    @invariant()
    def nothing_is_lost(self):
        assert self.offered == sum(self.ended.values()) + len(self.in_line) + len(self.at_engine)

    @invariant()
    def snapshot_is_the_sum_over_live_tickets(self):
        snapshot = self.admission.snapshot()
        for service_class in CLASSES:
            for length in LengthClass:
                mine = [
                    ticket
                    for ticket in self.in_line.values()
                    if (ticket.assignment.service_class, ticket.assignment.length_class) == (service_class, length)
                ]
                line = snapshot.lines[service_class, length]
                assert line.requests == len(mine)
                assert line.prompt_tokens == sum(ticket.assignment.prompt_tokens for ticket in mine)
                assert line.body_bytes == sum(ticket.assignment.body_bytes for ticket in mine)
                assert line.oldest_offered_at == min((ticket.offered_at for ticket in mine), default=None)
        for name, engine in snapshot.engines.items():
            mine = [self.live[ticket_id] for ticket_id, at in self.at_engine.items() if at == name]
            in_prefill = [ticket for ticket in mine if ticket.id in self.in_prefill]
            held = sum(ticket.assignment.sequences for ticket in mine)
            lingering = sum(ticket.assignment.sequences for ticket in self.cut[name])
            assert held <= engine.slots <= held + lingering, "an aborted request holds its place for a step or two"
            if lingering:
                continue
            assert sum(engine.running.values()) == len(mine)
            assert engine.long_prefills == sum(
                ticket.assignment.sequences
                for ticket in in_prefill
                if ticket.assignment.length_class is LengthClass.LONG
            )
            for length in LengthClass:
                assert engine.prefill_tokens[length] == sum(
                    ticket.assignment.prompt_tokens for ticket in in_prefill if ticket.assignment.length_class is length
                )

    @invariant()
    def nobody_waits_past_the_deadline(self):
        at = self.admission.next_tick_at()
        assert at is not None or not self.in_line
        assert all(ticket.deadline >= at for ticket in self.in_line.values())

    @invariant()
    def an_idle_engine_leaves_nobody_waiting(self):
        """Work conservation in its simplest form: an up, unpaused, empty engine and a non-empty line never coexist."""
        for name in ENGINES:
            idle = name not in self.at_engine.values() and not self.cut[name]
            if self.up[name] and self.paused_until[name] <= self.now and idle:
                assert not [ticket for ticket in self.in_line.values() if not self.at_running_bound(ticket)]

    def at_running_bound(self, ticket: Ticket) -> bool:
        """By the plan in force, not by the ticket's own."""
        class_plan = self.plan.classes[ticket.assignment.service_class]
        mine = [other for ticket_id in self.at_engine if _owner(other := self.live[ticket_id]) == _owner(ticket)]
        bound = class_plan.tenant.running_max
        gated = self.plan.admission.kind is not AdmissionKind.NONE
        return gated and bound is not None and len(mine) >= bound


def _owner(ticket: Ticket):
    return ticket.assignment.service_class, ticket.assignment.tenant


def _flow(ticket: Ticket):
    return (*_owner(ticket), ticket.assignment.length_class)


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
