"""What is known of a pool from outside, as dicts, and what must hold of it after every step.

Owns the model and the checks; what happens is the rules' (`admission_rules`, `test_admission_machine`). It learns of
dispatches and ends from the events alone, and holds every count of the pool against its own.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant

from gateway.core.admission import Admission
from gateway.core.ledger import caps_of, needs_of
from gateway.core.line import is_half_late
from gateway.core.plan import AdmissionKind, OrderKind, Plan
from gateway.core.ticket import Dispatched, Event, Finished, FirstToken, Queued, Refused, Ticket
from gateway.core.types import EngineSpec, LengthClass, Outcome, Reason

REPEATED_S = 120.0


def at_depth(examples: int) -> settings:
    """Return how far a machine goes: `examples` runs of 40 steps, and under the profile `deep` fifty times as many."""
    deep = settings.get_current_profile_name() == "deep"
    return settings(max_examples=examples * 50 if deep else examples, stateful_step_count=80 if deep else 40)


class AdmissionModel(RuleBasedStateMachine):
    """up, paused_until, weight: of the engines of the configuration; gone: of those that left it with work under way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.offered = 0
        self.live: dict[int, Ticket] = {}
        self.in_line: dict[int, Ticket] = {}
        self.sent_back: set[int] = set()
        self.at_engine: dict[int, str] = {}
        self.in_prefill: set[int] = set()
        self.ended: dict[int, Ticket] = {}
        self.cut: dict[str, list[Ticket]] = {}
        self.refused_at: dict[tuple[str, str, int], float] = {}
        self.draining_until: float | None = None
        self.specs: dict[str, EngineSpec] = {}
        self.up: dict[str, bool] = {}
        self.paused_until: dict[str, float] = {}

    def begin(self, plan: Plan, specs: list[EngineSpec]) -> None:
        self.plan = plan
        self.admission = Admission(plan, specs)
        self.configured(specs)

    def configured(self, specs: list[EngineSpec]) -> None:
        """Note the engines of the configuration. One that was not there, or was idle when it went, is a new one."""
        known = self.admission.snapshot().engines if self.specs else {}
        for spec in specs:
            if spec.name not in known:
                self.up[spec.name], self.paused_until[spec.name] = spec.up, -inf
        self.specs = {spec.name: spec for spec in specs}

    def takes_work(self, engine: str) -> bool:
        spec = self.specs.get(engine)
        return spec is not None and spec.weight > 0 and self.up[engine] and self.paused_until[engine] <= self.now

    # what the events must say

    def follow(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Queued(ticket=ticket):
                    assert ticket.id in self.in_line
                case Dispatched(ticket=ticket, engine=engine):
                    self.dispatched(ticket, engine)
                case FirstToken(ticket=ticket):
                    self.in_prefill.remove(ticket.id)
                case Refused():
                    self.refused(event)
                case Finished(ticket=ticket, outcome=outcome):
                    if ticket.id in self.at_engine and outcome in {Outcome.CLIENT_GONE, Outcome.TIMED_OUT}:
                        self.cut.setdefault(self.at_engine[ticket.id], []).append(ticket)
                    self.end(ticket)

    def dispatched(self, ticket: Ticket, engine: str) -> None:
        assert self.takes_work(engine)
        assert ticket.assignment.engine in {None, engine}
        assert ticket.deadline > self.now or ticket.offered_at == self.now, "nothing goes at its deadline or later"
        self.in_turn(ticket)
        del self.in_line[ticket.id]
        self.sent_back.discard(ticket.id)
        assert not self.at_running_bound(ticket)
        self.at_engine[ticket.id] = engine
        self.in_prefill.add(ticket.id)

    def in_turn(self, ticket: Ticket) -> None:
        """Of its line whoever an engine sent back goes, or the next by deadline, or the oldest, or where asked the newest."""
        flow = [other for other in self.in_line.values() if _flow(other) == _flow(ticket)]
        one_lane = [other for other in self.in_line.values() if _owner(other) == _owner(ticket)]
        line = flow if self.plan.admission.kind is AdmissionKind.TOKEN_BUDGET else one_lane
        sent_back = [other for other in line if other.id in self.sent_back]
        if self.plan.order is OrderKind.EARLIEST_DEADLINE:
            assert ticket is min(flow, key=lambda other: (other.deadline, other.id))
        elif sent_back:
            assert ticket is min(sent_back, key=lambda other: other.id)
        elif ticket is not min(flow, key=lambda other: other.id):
            class_plan = self.plan.classes.get(ticket.assignment.service_class, ticket.assignment.class_plan)
            assert self.may_be_newest_first(class_plan)
            assert is_half_late(min(line, key=lambda other: other.id), self.now)
            assert ticket is max(line, key=lambda other: other.id)

    def may_be_newest_first(self, class_plan) -> bool:
        return class_plan.queue.newest_first_in_overload

    def refused(self, event: Refused) -> None:
        ticket, refusal = event.ticket, event.refusal
        assert (event.outcome is Outcome.EXPIRED) == (
            ticket.deadline <= self.now
            and refusal.limit is not None
            and refusal.reason in {Reason.WAIT_DEADLINE, Reason.NO_ENGINE}
        )
        assert refusal.retry_after_s is not None and 1 <= refusal.retry_after_s <= 60
        if refusal.reason is Reason.PREDICTED_MISS:
            assert self.plan.early_rejection is not None
            others = [other for other in self.in_line.values() if other is not ticket]
            assert any(other.assignment.length_class is ticket.assignment.length_class for other in others) or (
                self.plan.admission.kind is not AdmissionKind.TOKEN_BUDGET and others
            ), "whoever is alone in line is never refused early"
        if ticket.assignment.fingerprint is not None:
            self.refused_at[*_owner(ticket), ticket.assignment.fingerprint] = self.now
        self.end(ticket)

    def end(self, ticket: Ticket) -> None:
        assert ticket.id not in self.ended, "a ticket ends once"
        self.ended[ticket.id] = self.live.pop(ticket.id)
        self.in_line.pop(ticket.id, None)
        self.at_engine.pop(ticket.id, None)
        self.in_prefill.discard(ticket.id)
        self.sent_back.discard(ticket.id)

    def within_queue_bounds(self, ticket: Ticket) -> None:
        """Of the ticket's own plan, which it was let in by."""
        mine = [
            other
            for other in self.in_line.values()
            if other.assignment.service_class == ticket.assignment.service_class
        ]
        queue, tenant = ticket.assignment.class_plan.queue, ticket.assignment.class_plan.tenant
        assert len(mine) <= queue.requests_max
        assert sum(other.assignment.prompt_tokens for other in mine) <= queue.prompt_tokens_max
        assert sum(other.assignment.body_bytes for other in mine) <= queue.bytes_max
        own = [other for other in mine if _owner(other) == _owner(ticket)]
        assert tenant.queued_requests_max is None or len(own) <= tenant.queued_requests_max

    # what must hold at every instant

    @invariant()
    def nothing_is_lost(self):
        assert self.offered == len(self.ended) + len(self.in_line) + len(self.at_engine)
        assert self.live.keys() == self.in_line.keys() | self.at_engine.keys()

    @invariant()
    def lines_are_the_sums_over_those_who_wait(self):
        for (service_class, length), line in self.admission.snapshot().lines.items():
            mine = [
                ticket
                for ticket in self.in_line.values()
                if (ticket.assignment.service_class, ticket.assignment.length_class) == (service_class, length)
            ]
            assert line.requests == len(mine)
            assert line.prompt_tokens == sum(ticket.assignment.prompt_tokens for ticket in mine)
            assert line.body_bytes == sum(ticket.assignment.body_bytes for ticket in mine)
            assert line.oldest_offered_at == min((ticket.offered_at for ticket in mine), default=None)
        lines = self.admission.snapshot().lines
        assert {(t.assignment.service_class, t.assignment.length_class) for t in self.in_line.values()} <= lines.keys()

    @invariant()
    def ledgers_are_the_sums_over_those_at_engines(self):
        engines = self.admission.snapshot().engines
        holding = {*self.at_engine.values()}
        assert self.specs.keys() | holding <= engines.keys()
        assert engines.keys() <= self.specs.keys() | holding | {name for name in self.cut if self.lingering(name)}
        for name, engine in engines.items():
            mine = [self.live[ticket_id] for ticket_id, at in self.at_engine.items() if at == name]
            in_prefill = [ticket.needs for ticket in mine if ticket.id in self.in_prefill]
            held = [ticket.needs for ticket in mine + self.lingering(name)]
            assert engine.slots == sum(needs[2] for needs in held)
            assert engine.kv_reserved_tokens == sum(needs[3] for needs in held)
            assert sum(engine.running.values()) == len(mine)
            if not self.lingering(name):
                assert engine.long_prefills == sum(needs[1] for needs in in_prefill if needs[0])
                assert engine.prefill_tokens[LengthClass.SHORT] == sum(n[1] for n in in_prefill if not n[0])
            if name in self.specs:
                self.within_caps(name, engine)

    def within_caps(self, name: str, engine) -> None:
        """What is learned of an engine lowers its budgets, to one at the least; nothing raises them over the plan."""
        planned = {b.name.lower(): cap for b, cap in caps_of(self.plan.admission, self.specs[name].limits).items()}
        assert engine.budgets.keys() == planned.keys()
        assert all(min(1, planned[budget]) <= cap <= planned[budget] for budget, cap in engine.budgets.items())

    @invariant()
    def tenants_are_those_who_have_something_here(self):
        waiting = Counter(_owner(ticket) for ticket in self.in_line.values())
        running = Counter(_owner(self.live[ticket_id]) for ticket_id in self.at_engine)
        known = {(tenant.class_plan.name, tenant.name): tenant for tenant in self.admission._tenants}
        assert known.keys() == waiting.keys() | running.keys()
        for owner, tenant in known.items():
            assert (tenant.queued(), tenant.running) == (waiting[owner], running[owner])
            assert sum(backlog.requests for backlog in tenant.backlogs) == waiting[owner]
            assert all(backlog.requests or backlog.work_s == 0.0 for backlog in tenant.backlogs)

    @invariant()
    def nobody_waits_past_the_deadline(self):
        at = self.admission.next_tick_at()
        assert at is not None or not self.in_line
        assert all(ticket.deadline >= at for ticket in self.in_line.values())

    @invariant()
    def an_idle_engine_leaves_nobody_waiting(self):
        """Work conservation in its simplest form: an up, unpaused, empty engine and a non-empty line never coexist."""
        for name in self.specs:
            if self.takes_work(name) and name not in self.at_engine.values() and not self.lingering(name):
                waiting = [ticket for ticket in self.in_line.values() if not self.is_held_up(ticket, name)]
                assert not waiting

    def is_held_up(self, ticket: Ticket, engine: str) -> bool:
        """By its tenant's own bound, by a request of its tenant that waits for another engine, by a pause of longs."""
        mine = [other for other in self.in_line.values() if _owner(other) == _owner(ticket)]
        elsewhere = any(other.assignment.engine not in {None, engine} for other in mine)
        longs_pause = self.plan.feedback is not None and any(other.needs[0] for other in mine)
        return elsewhere or longs_pause or self.at_running_bound(ticket)

    def at_running_bound(self, ticket: Ticket) -> bool:
        """By the plan in force, not by the ticket's own; of a class that is gone, by its last."""
        class_plan = self.plan.classes.get(ticket.assignment.service_class, ticket.tenant.class_plan)
        mine = [ticket_id for ticket_id in self.at_engine if _owner(self.live[ticket_id]) == _owner(ticket)]
        bound = class_plan.tenant.running_max
        gated = self.plan.admission.kind is not AdmissionKind.NONE
        return gated and bound is not None and len(mine) >= bound

    def lingering(self, engine: str) -> list[Ticket]:
        """Return who was aborted there and holds its place still, until the steps in flight have ended."""
        if engine not in self.admission.fleet.names():
            return []
        charged = self.admission.fleet[engine].ledger._charged
        return [ticket for ticket in self.cut.get(engine, []) if ticket.id in charged]

    def is_repeat(self, assignment) -> bool:
        key = (assignment.service_class, assignment.tenant, assignment.fingerprint)
        return assignment.says_retry or self.now - self.refused_at.get(key, -inf) <= REPEATED_S

    def needs(self, assignment):
        return needs_of(assignment, max((spec.limits.kv_block_tokens for spec in self.specs.values()), default=1))


def _owner(ticket: Ticket):
    return ticket.assignment.service_class, ticket.assignment.tenant


def _flow(ticket: Ticket):
    return (*_owner(ticket), ticket.assignment.length_class)
