"""Admission to one pool of engines: who waits, how long, who goes next, and who is refused.

Owns every ticket from offer to its single end. Pure: no call awaits, each takes `now` (seconds since the epoch, never
going back) and returns what happened as events, in order. Inside one call waits expire before anything is
dispatched. Sends nothing, sleeps never: the gate resolves the events and calls `tick` at `next_tick_at`.

One module, because a ticket has one owner: what is judged, ordered, charged or predicted on the way is others' work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.core.classify import engine_priority
from gateway.core.early_rejection import EarlyRejection
from gateway.core.estimate import retry_after_s
from gateway.core.fleet import Fleet
from gateway.core.lane import Lane
from gateway.core.ledger import needs_of
from gateway.core.orders import order_of
from gateway.core.plan import AdmissionKind, Plan
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import (
    Assignment,
    Dispatched,
    Event,
    Finished,
    FirstToken,
    Queued,
    Refused,
    Ticket,
    TicketState,
)
from gateway.core.types import EngineSpec, LengthClass, LineSnapshot, Outcome, Reason, Refusal, Snapshot
from gateway.core.waiting import Waiting

_CUT = frozenset({Outcome.CLIENT_GONE, Outcome.TIMED_OUT})
_EMPTY_LINE = LineSnapshot(requests=0, prompt_tokens=0, body_bytes=0, oldest_offered_at=None)


class Admission:
    """One pool. On one event loop every call is atomic, so there are no locks."""

    def __init__(self, plan: Plan, engines: Sequence[EngineSpec], seed: int = 0) -> None:
        self._seed = seed
        self._offers = 0
        self._waiting = Waiting()
        self._early = EarlyRejection(self._waiting)
        self._running: dict[int, Ticket] = {}
        self._tenants_running: Counter[tuple[str, str]] = Counter()
        self._drain_at: float | None = None
        self._plan = plan
        self._fleet = Fleet(engines, plan)
        self._lanes = {lane: Lane(order_of(plan.order)) for lane in _lane_names(plan)}

    # ── what the gate calls ──

    def offer(self, assignment: Assignment, now: float) -> tuple[Ticket, list[Event]]:
        """Take in one request: the events tell whether it was dispatched, waits, or is refused."""
        at = self.next_tick_at()
        events = self.tick(now) if at is not None and at <= now else []
        self._offers += 1
        ticket = Ticket(self._offers, assignment, now, now + assignment.wait_s_max, TicketState.WAITING)
        no = self._closed(ticket) or self._early.judge(ticket, self._plan.early_rejection, now)
        if no is not None:
            return ticket, [*events, self._refuse(ticket, no, now)]
        ticket.needs = needs_of(assignment, self._fleet.kv_block_tokens)
        self._waiting.join(ticket, now)
        lane = self._lane(ticket)
        lane.append(ticket)
        if lane.head() is ticket:  # otherwise nothing can go that could not go before
            events += self._dispatch(now)
        if ticket.state is TicketState.WAITING:
            full = self._waiting.over_bound(assignment)
            if full is not None:
                events.append(self._refuse(ticket, full, now))
            elif ticket.deadline <= now:
                events.append(self._expired(ticket, now))
            else:
                events.append(Queued(ticket))
        return ticket, events

    def first_token(self, ticket: Ticket, now: float) -> list[Event]:
        """Note the engine's first token (or a non-streaming answer's first byte). Only the first call counts."""
        if ticket.state is not TicketState.RUNNING or ticket.first_token_at is not None:
            return self.tick(now)
        ticket.first_token_at = now
        assert ticket.engine is not None
        assert ticket.dispatched_at is not None
        engine_ttft_s = now - ticket.dispatched_at
        engine = self._fleet[ticket.engine]
        engine.first_token(ticket, engine_ttft_s, now)
        engine.judge(now, longs_wait=self._lane_for(LengthClass.LONG).head() is not None)
        return [FirstToken(ticket, engine_ttft_s), *self.tick(now)]

    def finish(self, ticket: Ticket, outcome: Outcome, now: float) -> list[Event]:
        """End a ticket in whatever state it is. Idempotent: a ticket ends once, with the first outcome."""
        if ticket.state is TicketState.ENDED:
            return self.tick(now)
        waited_s = None
        if ticket.state is TicketState.WAITING:
            waited_s = now - ticket.offered_at
            self._leave_line(ticket, now)
        else:
            self._leave_engine(ticket, now, cut=outcome in _CUT)
        ticket.state = TicketState.ENDED
        return [Finished(ticket, outcome, waited_s), *self.tick(now)]

    def requeue(self, ticket: Ticket, now: float, pause_s: float) -> list[Event]:
        """Put a dispatched ticket whose engine had no room back at the head of its flow; its deadline stays.

        The engine gets nothing more for `pause_s`. A ticket whose deadline has passed meanwhile ends as expired, and
        while draining one that may wait beyond the drain is refused.
        """
        assert ticket.state is TicketState.RUNNING, "only a dispatched ticket can come back"
        assert ticket.first_token_at is None, "an engine that has answered cannot have had no room"
        assert ticket.engine is not None
        self._fleet.pause(ticket.engine, now + pause_s)
        self._leave_engine(ticket, now, cut=False)
        ticket.state, ticket.engine, ticket.dispatched_at = TicketState.WAITING, None, None
        ticket.requeues += 1
        if self._drain_at is not None and ticket.deadline > self._drain_at:
            return [self._refuse(ticket, self._draining(ticket), now), *self.tick(now)]
        self._waiting.join(ticket, now)
        self._lane(ticket).put_back(ticket)
        return [Queued(ticket), *self.tick(now)]

    def tick(self, now: float) -> list[Event]:
        """Expire every wait whose deadline has come, then dispatch whatever fits."""
        events = self._expire(now)
        events += self._dispatch(now)
        return events

    def next_tick_at(self) -> float | None:
        """Return when `tick` has something to do although nobody calls, or None."""
        first = self._waiting.next_deadline()
        change_at = self._fleet.next_change_at()
        if first is None:
            return change_at
        return first[1] if change_at is None else min(first[1], change_at)

    def set_up(self, engine: str, up: bool, now: float) -> list[Event]:
        """Note that an engine can be reached, or cannot. Waiting tickets keep their place either way."""
        self._fleet.set_up(engine, up)
        return self.tick(now)

    def drain(self, now: float, deadline_at: float) -> list[Event]:
        """Refuse every new offer, and every waiting ticket that may wait beyond `deadline_at`; the rest stay."""
        self._drain_at = deadline_at
        events = self._expire(now)
        for ticket in self._in_line():
            if ticket.deadline > deadline_at:
                events.append(self._refuse(ticket, self._draining(ticket), now))
        return events + self._dispatch(now)

    def undrain(self, now: float) -> list[Event]:
        self._drain_at = None
        return self.tick(now)

    def reconfigure(self, plan: Plan, engines: Sequence[EngineSpec], now: float) -> list[Event]:
        """Put a new plan in force. Waiting tickets keep their place, deadline and plan; fairness is remembered.

        Smaller budgets act by attrition. An engine that is gone takes nothing new and is dropped when it is idle.
        """
        waiting = self._in_line()
        self._plan = plan
        self._fleet.configure(engines, plan)
        order = order_of(plan.order)
        self._lanes = {name: self._lane_for(name).emptied(order, plan.classes) for name in _lane_names(plan)}
        for ticket in waiting:
            self._lane(ticket).append(ticket)
        for ticket in self._running.values():
            self._hold_tenant(ticket.assignment)
        return self.tick(now)

    def calibrated(self, engine: str, samples: Sequence[PrefillSample]) -> None:
        """Take prefills that had an idle engine to themselves: its step model starts anew from them."""
        self._fleet[engine].calibrated(samples)

    def step_models(self) -> Mapping[str, StepModel]:
        """Return how long steps take at each engine, as it is known now."""
        return {name: self._fleet[name].fit.model for name in self._fleet.snapshot()}

    def snapshot(self) -> Snapshot:
        """Return what waits and what runs now; every class of the plan is present, also at 0."""
        empty = {(name, length): _EMPTY_LINE for name in self._plan.classes for length in LengthClass}
        return Snapshot(
            lines=empty | dict(self._waiting.lines()),
            engines=self._fleet.snapshot(),
            draining=self._drain_at is not None,
        )

    # ── in and out of lines ──

    def _closed(self, ticket: Ticket) -> Refusal | None:
        if self._drain_at is not None:
            return self._draining(ticket)
        if not self._fleet.any_up:
            return Refusal(
                Reason.NO_ENGINE,
                "No engine can serve this model now.",
                retry_after_s=self._retry_after_s(ticket, ticket.offered_at),
            )
        return None

    def _draining(self, ticket: Ticket) -> Refusal:
        message = "This gateway is shutting down; try again, another instance will answer."
        return Refusal(Reason.DRAINING, message, retry_after_s=1.0 + self._jitter(ticket))

    def _expire(self, now: float) -> list[Event]:
        events: list[Event] = []
        while (first := self._waiting.next_deadline()) is not None and first[1] <= now:
            events.append(self._expired(first[0], now))
        return events

    def _expired(self, ticket: Ticket, now: float) -> Event:
        waited_s = now - ticket.offered_at
        if self._fleet.any_up:
            reason, message = Reason.WAIT_DEADLINE, "waited in line until its deadline"
        else:
            reason, message = Reason.NO_ENGINE, "waited until its deadline while no engine could be reached"
        limit = ticket.assignment.wait_s_max
        refusal = Refusal(reason, f"The request {message} of {limit:g} s.", limit=limit, observed=waited_s)
        return self._refuse(ticket, refusal, now, Outcome.EXPIRED)

    def _refuse(self, ticket: Ticket, refusal: Refusal, now: float, outcome: Outcome = Outcome.REFUSED) -> Event:
        if ticket in self._waiting:
            self._leave_line(ticket, now)
        ticket.state = TicketState.ENDED
        waited_s = now - ticket.offered_at
        retry_s = self._retry_after_s(ticket, now) if refusal.retry_after_s is None else refusal.retry_after_s
        return Refused(ticket, replace(refusal, waited_s=waited_s, retry_after_s=retry_s), waited_s, outcome)

    def _leave_line(self, ticket: Ticket, now: float) -> None:
        self._lane(ticket).remove(ticket)
        self._waiting.leave(ticket, now, served=False)

    def _retry_after_s(self, ticket: Ticket, now: float) -> float:
        waiting_tokens, tokens_per_s = self._waiting.drain_of(ticket.assignment, now)
        return retry_after_s(
            waiting_tokens=waiting_tokens + ticket.assignment.prompt_tokens,
            tokens_per_s=tokens_per_s,
            wait_s_max=ticket.assignment.class_plan.wait_s_max[ticket.assignment.length_class],
            jitter=self._jitter(ticket),
        )

    def _jitter(self, ticket: Ticket) -> float:
        """Spread callers over [0, 1) by a fixed scramble (Knuth's multiplicative hash) of the ticket's number."""
        return ((ticket.id + self._seed) * 2654435761 & 0xFFFFFFFF) / 2**32

    # ── to and from engines ──

    def _dispatch(self, now: float) -> list[Event]:
        events: list[Event] = []
        self._fleet.settle(now)
        while self._waiting and (choice := self._fleet.choose(self._heads())) is not None:
            ticket, engine = choice
            ticket.cost = engine.cost_s(ticket.assignment)
            self._lane(ticket).serve(ticket)
            self._waiting.leave(ticket, now, served=True)
            engine.take(ticket, now)
            ticket.state, ticket.engine, ticket.dispatched_at = TicketState.RUNNING, engine.name, now
            self._running[ticket.id] = ticket
            self._tenants_running[ticket.assignment.service_class, ticket.assignment.tenant] += 1
            self._hold_tenant(ticket.assignment)
            priority = engine_priority(ticket.assignment, ticket.deadline)
            events.append(Dispatched(ticket, engine.name, priority, now - ticket.offered_at))
        return events

    def _heads(self) -> list[Ticket]:
        return [head for lane in self._lanes.values() if (head := lane.head()) is not None]

    def _leave_engine(self, ticket: Ticket, now: float, *, cut: bool) -> None:
        assert ticket.engine is not None
        engine = self._fleet[ticket.engine]
        engine.leave(ticket, now, cut=cut)
        self._fleet.drop_if_idle(engine)
        del self._running[ticket.id]
        owner = (ticket.assignment.service_class, ticket.assignment.tenant)
        self._tenants_running[owner] -= 1
        if not self._tenants_running[owner]:
            del self._tenants_running[owner]
        self._hold_tenant(ticket.assignment)

    def _hold_tenant(self, assignment: Assignment) -> None:
        """Set the tenant aside in every lane while it runs as much as its class allows, by the plan in force."""
        class_plan = self._plan.classes.get(assignment.service_class, assignment.class_plan)
        running_max = class_plan.tenant.running_max
        if running_max is None or self._plan.admission.kind is AdmissionKind.NONE:
            return
        at_bound = self._tenants_running[class_plan.name, assignment.tenant] >= running_max
        for lane in self._lanes.values():
            if at_bound:
                lane.set_aside(class_plan, assignment.tenant)
            else:
                lane.bring_back(class_plan, assignment.tenant)

    # ── shape ──

    def _lane(self, ticket: Ticket) -> Lane:
        return self._lane_for(ticket.assignment.length_class)

    def _lane_for(self, length_class: LengthClass) -> Lane:
        return self._lanes.get(length_class) or self._lanes[LengthClass.SHORT]

    def _in_line(self) -> list[Ticket]:
        return sorted(self._waiting.tickets(), key=lambda ticket: ticket.id)


def _lane_names(plan: Plan) -> tuple[LengthClass, ...]:
    """Token budgets make two lanes, short before long; without them one lane (SHORT) holds both lengths."""
    if plan.admission.kind is AdmissionKind.TOKEN_BUDGET:
        return LengthClass.SHORT, LengthClass.LONG
    return (LengthClass.SHORT,)
