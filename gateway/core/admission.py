"""Admission to one pool of engines: who waits, how long, who goes next, and who is refused.

Owns every ticket from offer to its single end. Pure: no call awaits, each takes `now` (seconds since the epoch, never
going back) and returns what happened as events, in order. Inside one call waits expire before anything is
dispatched. Sends nothing, sleeps never: the gate resolves the events and calls `tick` at `next_tick_at`.

One module, because a ticket has one owner: what is judged, ordered, charged or predicted on the way is others' work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from gateway.core import early_rejection
from gateway.core.classify import engine_priority
from gateway.core.engine import Engine
from gateway.core.fleet import Fleet
from gateway.core.ledger import needs_of
from gateway.core.line import is_half_late
from gateway.core.plan import Plan
from gateway.core.refusals import Refusals, no_engine
from gateway.core.repeats import Repeats
from gateway.core.standing import Ahead
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import (
    ENDED,
    RUNNING,
    WAITING,
    Assignment,
    Dispatched,
    Event,
    Finished,
    FirstToken,
    Queued,
    Refused,
    SliceEnded,
    SliceResult,
    Ticket,
)
from gateway.core.types import (
    CLIENT_GONE,
    COMPLETED,
    TIMED_OUT,
    EngineLoad,
    EngineSpec,
    LengthClass,
    LineSnapshot,
    Outcome,
    Refusal,
    Resource,
    Snapshot,
)
from gateway.core.waiting import Waiting

_EMPTY_LINE = LineSnapshot(requests=0, prompt_tokens=0, body_bytes=0, oldest_offered_at=None)


class Admission:
    """One pool. On one event loop every call is atomic, so there are no locks. fleet: the engines, to look at."""

    def __init__(self, plan: Plan, engines: Sequence[EngineSpec], seed: int = 0) -> None:
        self._offers = 0
        self._waiting = Waiting(plan)
        self._lanes, self._tenants = self._waiting.lanes, self._waiting.tenants
        self._refusals = Refusals(seed)
        self._early = early_rejection.EarlyRejection()
        self._repeats = Repeats()
        self._running: dict[Ticket, Engine] = {}
        self._drain_at: float | None = None
        self._plan = plan
        self.fleet = self._fleet = Fleet(engines, plan)

    # ── what the gate calls ──

    def offer(self, assignment: Assignment, now: float) -> tuple[Ticket, list[Event]]:
        """Take in one request: the events tell whether it was dispatched, waits, or is refused."""
        events: list[Event] = []
        if self._waiting.expires_at <= now or self._fleet.next_change_at() <= now:
            self._go_on(now, events)
        self._offers += 1
        fleet = self._fleet
        tenant = self._tenants.named(assignment.class_plan, assignment.tenant)
        ticket = Ticket(self._offers, assignment, tenant, needs_of(assignment, fleet.kv_block_tokens), now)
        ticket.is_repeat = self._repeats.is_repeat(assignment, now)
        no = self._refused_at_arrival(ticket, now)
        if no is not None:
            events.append(self._refuse(ticket, no, now))
            return ticket, events
        ticket.cost_s = fleet.cost_s(assignment)
        if ticket.is_repeat:
            ticket.cost_s *= self._plan.repeat_cost
        # Otherwise nothing can go that could not go before.
        if self._waiting.join(ticket, now) and (fleet.has_slot(ticket.is_long) or fleet.divides):
            head = self._lanes.by_length[ticket.is_long].head(now)
            if head is ticket or (head is not None and head.assignment.engine is not None):
                self._dispatch(now, events)
        if ticket.state is WAITING:
            self._seat(ticket, now, events)
        return ticket, events

    def first_token(self, ticket: Ticket, now: float) -> list[Event]:
        """Note the engine's first token (or a non-streaming answer's first byte). Only the first call counts."""
        if ticket.state is not RUNNING or ticket.first_token_at is not None:
            return self.tick(now)
        ticket.first_token_at = now
        assert ticket.dispatched_at is not None
        engine_ttft_s = now - ticket.dispatched_at
        engine = self._running[ticket]
        engine.first_token(ticket, engine_ttft_s, now)
        engine.judge(now, longs_wait=self._lanes.long.head(now) is not None)
        events: list[Event] = [FirstToken(ticket, engine_ttft_s), *engine.parts.changed(ticket)]
        self._go_on(now, events)
        return events

    def finish(self, ticket: Ticket, outcome: Outcome, now: float, *, output_tokens: int | None = None) -> list[Event]:
        """End a ticket in whatever state it is. Idempotent: a ticket ends once, with the first outcome.

        output_tokens: what the engine generated, over all sequences; None: not known. What was reserved beyond it is
        given back to the flow's share.
        """
        if ticket.state is ENDED:
            return self.tick(now)
        waited_s = None
        events: list[Event] = []
        was_waiting, ticket.state = ticket.state is WAITING, ENDED
        if was_waiting:
            waited_s = now - ticket.offered_at
            self._waiting.leave(ticket, now, served=False, moved=True)
        else:
            if ticket.is_long and self._running[ticket].parts.courses.has_slice_out(ticket):
                events.append(SliceEnded(ticket, SliceResult.CANCELLED))
            self._leave_engine(
                ticket, now, cut=outcome is CLIENT_GONE or outcome is TIMED_OUT, output_tokens=output_tokens
            )
            if ticket.first_token_at is None and outcome is not COMPLETED:
                output_tokens = 0
            if output_tokens is not None:
                self._refund(ticket, output_tokens)
        self._tenants.forget_if_idle(ticket.tenant)
        events.append(Finished(ticket, outcome, waited_s, output_tokens))
        self._go_on(now, events)
        return events

    def requeue(self, ticket: Ticket, now: float, pause_s: float) -> list[Event]:
        """Put a dispatched ticket whose engine had no room back at the head of its flow; its deadline stays.

        The engine gets nothing more for `pause_s`. A ticket whose deadline has passed meanwhile ends as expired; one
        that waiting cannot help is refused: beyond a drain, or for an engine alone that is down or takes nothing new.
        """
        assert ticket.state is RUNNING, "only a dispatched ticket can come back"
        assert ticket.first_token_at is None, "an engine that has answered cannot have had no room"
        assert ticket.engine is not None
        self._fleet.pause(ticket.engine, now + pause_s)
        self._leave_engine(ticket, now, cut=False)
        ticket.state, ticket.engine, ticket.dispatched_at = WAITING, None, None
        ticket.requeues += 1
        refusal = None
        if self._drain_at is not None and ticket.deadline > self._drain_at:
            refusal = self._refusals.draining(ticket)
        elif not self._fleet.may_yet_serve(ticket.assignment):
            refusal = no_engine(ticket.assignment)
        if refusal is not None:
            self._lanes.by_length[ticket.is_long].refund(ticket, ticket.cost_s)
            return [self._refuse(ticket, refusal, now), *self.tick(now)]
        self._waiting.join(ticket, now, sent_back=True)
        return [Queued(ticket), *self.tick(now)]

    def observe(self, engine: str, load: EngineLoad, now: float) -> list[Event]:
        """Correct an engine's budgets by what it says of itself. Not called while it says nothing: they stay."""
        self._fleet[engine].observe(load, now)
        return self.tick(now)

    def accepted(self, ticket: Ticket, now: float, *, is_accepted: bool) -> list[Event]:
        """Note whether the engine would take a divided request: before its first slice, which goes for this alone."""
        return self._running[ticket].parts.accepted(ticket, now, is_accepted=is_accepted) + self.tick(now)

    def slice_ended(
        self, ticket: Ticket, now: float, *, computed: bool, cached_tokens: int | None = None
    ) -> list[Event]:
        """Note the end of the slice that `Proceed` asked for; cached_tokens: of its prefix, where the engine says."""
        engine = self._running[ticket]
        held = engine.parts.slice_ended(ticket, engine.fit, now, computed=computed, cached_tokens=cached_tokens)
        result = SliceResult.COMPUTED if held else SliceResult.FAILED
        return [SliceEnded(ticket, result), *engine.parts.changed(ticket), *self.tick(now)]

    def tick(self, now: float) -> list[Event]:
        """Expire every wait whose deadline has come, then dispatch whatever fits."""
        events: list[Event] = []
        self._go_on(now, events)
        return events

    def next_tick_at(self) -> float | None:
        """Return when `tick` has something to do although nobody calls, or None."""
        first, change_at = self._waiting.first_to_expire(), self._fleet.next_change_at()
        at = change_at if first is None else min(change_at, first.deadline)
        return None if at == inf else at

    def set_up(self, engine: str, up: bool, now: float) -> list[Event]:
        """Note whether an engine can be reached. Waiting tickets keep their place, but for those of it alone."""
        self._fleet.set_up(engine, up)
        return self.tick(now) if up else self._refuse_in_vain(now)

    def drain(self, now: float, deadline_at: float) -> list[Event]:
        """Refuse every new offer, and every waiting ticket that may wait beyond `deadline_at`; the rest stay."""
        self._drain_at = deadline_at
        events: list[Event] = []
        self._expire(now, events)
        beyond = [ticket for ticket in self._waiting.tickets() if ticket.deadline > deadline_at]
        events += [self._turn_away(ticket, self._refusals.draining(ticket), now) for ticket in beyond]
        self._dispatch(now, events)
        return events

    def undrain(self, now: float) -> list[Event]:
        self._drain_at = None
        return self.tick(now)

    def reconfigure(self, plan: Plan, engines: Sequence[EngineSpec], now: float) -> list[Event]:
        """Put a new plan in force. Waiting tickets keep their place, deadline and plan; fairness is remembered.

        Smaller budgets act by attrition. An engine that is gone takes nothing new and is dropped when it is idle;
        whoever waits for it alone is refused.
        """
        self._plan = plan
        self._fleet.configure(engines, plan)
        self._waiting.reconfigure(plan)
        return self._refuse_in_vain(now)

    def calibrated(self, engine: str, samples: Sequence[PrefillSample]) -> None:
        """Take prefills that had an idle engine to themselves: its step model starts anew from them."""
        self._fleet[engine].calibrated(samples)

    def step_models(self) -> Mapping[str, StepModel]:
        """Return how long steps take at each engine, as it is known now."""
        return {name: self._fleet[name].fit.model for name in self._fleet.names()}

    def standing(self, ticket: Ticket) -> Ahead:
        """Return what stands in the ticket's way now: its line, and the budgets of the first few engines."""
        in_lane = self._lanes.by_length[ticket.is_long].requests
        return Ahead(ticket.class_backlog.requests, in_lane, self._fleet.standings(ticket))

    def snapshot(self) -> Snapshot:
        """Return what waits and what runs now; every class of the plan is present, also at 0."""
        empty = {(name, length): _EMPTY_LINE for name in self._plan.classes for length in LengthClass}
        return Snapshot(
            lines=empty | dict(self._waiting.lines()),
            engines=self._fleet.snapshot(self._running),
            draining=self._drain_at is not None,
        )

    # ── in and out of lines ──

    def _go_on(self, now: float, events: list[Event]) -> None:
        """Do what is due, waits that end first; what happens joins `events`."""
        if self._waiting.expires_at <= now:
            self._expire(now, events)
        self._dispatch(now, events)

    def _refused_at_arrival(self, ticket: Ticket, now: float) -> Refusal | None:
        if self._drain_at is not None:
            return self._refusals.draining(ticket)
        if not self._fleet.may_serve(ticket.assignment):
            return no_engine(ticket.assignment)
        return self._early.at_arrival(ticket, self._plan, now)

    def _refuse_in_vain(self, now: float) -> list[Event]:
        """Go on without the tickets that wait for one engine alone which takes nothing."""
        events: list[Event] = []
        self._expire(now, events)
        in_vain = [ticket for ticket in self._waiting.tickets() if not self._fleet.may_yet_serve(ticket.assignment)]
        events += [self._turn_away(ticket, no_engine(ticket.assignment), now) for ticket in in_vain]
        self._dispatch(now, events)
        return events

    def _seat(self, ticket: Ticket, now: float, events: list[Event]) -> None:
        """Settle a ticket that waits now: within its class's bounds and its own limit, or not at all."""
        assignment = ticket.assignment
        while (full := self._waiting.over_bound(ticket)) is not None:
            gives_way = ticket
            if assignment.class_plan.queue.newest_first_in_overload and full.resource is Resource.REQUESTS:
                oldest = self._lanes.by_length[ticket.is_long].oldest_of_flow(ticket)
                gives_way = oldest if is_half_late(oldest, now) else ticket
            events.append(self._turn_away(gives_way, full, now))
            if gives_way is ticket:
                return
        events.append(self._expired(ticket, now) if ticket.deadline <= now else Queued(ticket))

    def _expire(self, now: float, events: list[Event]) -> None:
        while self._waiting.expires_at <= now:
            if (ticket := self._waiting.first_to_expire()) is not None and ticket.deadline <= now:
                events.append(self._expired(ticket, now))

    def _expired(self, ticket: Ticket, now: float) -> Event:
        refusal = self._refusals.expired(ticket, now, any_engine=self._fleet.any_up)
        return self._turn_away(ticket, refusal, now, Outcome.EXPIRED)

    def _refuse(self, ticket: Ticket, refusal: Refusal, now: float, outcome: Outcome = Outcome.REFUSED) -> Event:
        """End a ticket that is in no line."""
        ticket.state = ENDED
        self._tenants.forget_if_idle(ticket.tenant)
        self._repeats.refused(ticket.assignment, now)
        waited_s = now - ticket.offered_at
        retry_s = self._refusals.retry_after_s(ticket, now) if refusal.retry_after_s is None else refusal.retry_after_s
        return Refused(ticket, refusal.completed(waited_s, retry_s), waited_s, outcome)

    def _turn_away(self, ticket: Ticket, refusal: Refusal, now: float, outcome: Outcome = Outcome.REFUSED) -> Event:
        """End a ticket that waits."""
        ticket.state = ENDED
        self._waiting.leave(ticket, now, served=False, moved=False)
        return self._refuse(ticket, refusal, now, outcome)

    # ── to and from engines ──

    def _dispatch(self, now: float, events: list[Event]) -> None:
        fleet, lanes = self._fleet, self._lanes
        fleet.settle(now)
        while heads := lanes.heads(now, fleet):
            if (choice := fleet.choose(heads)) is None:
                if lanes.pass_over_bound(heads):
                    continue
                break
            ticket, engine = choice
            hopeless = self._refused_at_dispatch(ticket, engine, now)
            if hopeless is None:
                self._send(ticket, engine, now, events)
            else:
                events.append(self._turn_away(ticket, hopeless, now))
        lanes.resume()
        if fleet.divides:  # after everything else that happens now
            shorts, longs = lanes.short.head(now) is not None, lanes.long.head(now) is not None
            for each in fleet.dividing():
                events += each.make_way(now, shorts_in_line=shorts, longs_in_line=longs)

    def _refused_at_dispatch(self, ticket: Ticket, engine: Engine, now: float) -> Refusal | None:
        early = self._plan.early_rejection
        if early is None or not early.purges or self._lanes.by_length[ticket.is_long].requests < 2:
            return None
        return early_rejection.at_dispatch(ticket, engine.short_ttft_s(early.confidence), now)

    def _send(self, ticket: Ticket, engine: Engine, now: float, events: list[Event]) -> None:
        assignment, tenant = ticket.assignment, ticket.tenant
        ticket.state, ticket.engine, ticket.dispatched_at = RUNNING, engine.name, now
        self._waiting.leave(ticket, now, served=True, moved=True)
        self._fleet.take(ticket, engine, now)
        self._running[ticket] = engine
        tenant.running += 1
        if tenant.running >= tenant.running_max:
            self._lanes.hold(tenant)
        priority = engine_priority(assignment, ticket.deadline)
        wants_parts = ticket.is_long == 1 and engine.parts.wants(ticket, engine.fit.model)
        divided = wants_parts and engine.parts.divide(ticket, now)
        events.append(Dispatched(ticket, engine.name, priority, now - ticket.offered_at, divided))
        if wants_parts and not divided:
            events.append(SliceEnded(ticket, SliceResult.FALLBACK))
        if wants_parts:
            events += engine.parts.changed(ticket)

    def _leave_engine(self, ticket: Ticket, now: float, *, cut: bool, output_tokens: int | None = None) -> None:
        engine = self._running.pop(ticket)
        engine.leave(ticket, now, cut=cut, output_tokens=output_tokens)
        if engine.retired:
            self._fleet.drop_if_idle(engine)
        tenant = ticket.tenant
        tenant.running -= 1
        if tenant.is_set_aside:
            self._lanes.hold(tenant)

    def _refund(self, ticket: Ticket, output_tokens: int) -> None:
        unused_s = self._fleet.unused_s(ticket.assignment, output_tokens)
        if unused_s > 0.0:
            self._lanes.by_length[ticket.is_long].refund(ticket, min(unused_s, ticket.cost_s))
