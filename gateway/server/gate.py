"""The only code that touches both Admission and asyncio: events become resolved futures, deadlines become timers.

Owns one future for each waiting request and one timer. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, assert_never

from gateway.core.admission import Admission
from gateway.core.plan import Plan
from gateway.core.standing import Ahead
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import (
    Assignment,
    Dispatched,
    DividingChanged,
    Event,
    Finished,
    FirstToken,
    Proceed,
    Queued,
    Recalled,
    Refused,
    SliceEnded,
    Ticket,
)
from gateway.core.types import EngineLoad, EngineSpec, Outcome, Refusal, Snapshot
from gateway.server.parts import Parts


class AdmissionRefused(Exception):  # noqa: N818 - the domain's word
    """Admission answered instead of an engine."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.refusal.message)
        self.refusal: Refusal = refused.refusal
        self.waited_s = refused.waited_s


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Seconds since the epoch, never going back, and a timer on them."""

    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer: ...


class Follower(Protocol):
    """Who is told what admission does, after it was done, and may not stand in its way."""

    def events(self, events: Sequence[Event], now: float) -> None: ...

    def set_up(self, engine: str, *, up: bool, now: float) -> None: ...

    def reconfigure(self, engines: Sequence[EngineSpec], now: float) -> None: ...

    def drain(self, deadline_at: float, now: float) -> None: ...

    def undrain(self, now: float) -> None: ...


class Lease:
    """A dispatched request's hold on its engine's budgets, from dispatch to the end of `Gate.admit`.

    outcome: set by the holder. Unset, leaving without an exception is COMPLETED, cancelled is what `admit` was told,
    with any other exception ENGINE_ERROR. output_tokens: set by the holder where the engine said how many it made.
    """

    def __init__(self, gate: Gate, placed: Dispatched) -> None:
        self._gate = gate
        self._take(placed)
        self.outcome: Outcome | None = None
        self.output_tokens: int | None = None

    @property
    def parts(self) -> Parts | None:
        """What is sent of a divided prompt, and when; None: the request goes at once."""
        return self._gate.parts_of(self.ticket)

    def first_token(self) -> None:
        """Give the prefill charge back: the engine's first token, or a whole answer's first byte, is here."""
        self._gate.first_token(self.ticket)

    def keep(self) -> None:
        """Let the request not be taken back any more: its answer, of whatever kind, is on its way to the caller."""
        if self.parts is not None:
            self.parts.keep()

    def accepted(self, *, is_accepted: bool) -> None:
        """Say whether the engine would take the request: before a prompt of which slices are to go."""
        self._gate.accepted(self.ticket, is_accepted=is_accepted)

    def slice_ended(self, *, computed: bool, cached_tokens: int | None) -> None:
        self._gate.slice_ended(self.ticket, computed=computed, cached_tokens=cached_tokens)

    async def requeue(self, pause_s: float) -> None:
        """Wait again, at the head of the flow: the engine had no room. Raises AdmissionRefused at the deadline."""
        self._take(await self._gate.requeue(self.ticket, pause_s))

    def _take(self, placed: Dispatched) -> None:
        self.ticket = placed.ticket
        self.engine = placed.engine
        self.priority = placed.priority
        self.waited_s = placed.waited_s


class Gate:
    """Admission to one pool for coroutines. admission: to look at. follower: told everything; None: nobody is.

    stands: told what stands in the way of who waits or is refused, before `observe` is told of that.
    """

    def __init__(
        self,
        admission: Admission,
        clock: Clock,
        observe: Callable[[Event, float], None],
        stands: Callable[[Ticket, Ahead], None],
    ) -> None:
        self.admission = self._admission = admission
        self._stands = stands
        self.follower: Follower | None = None
        self._clock = clock
        self._observe = observe
        self._placements: dict[int, asyncio.Future[Dispatched | Refused]] = {}
        self._parts: dict[int, Parts] = {}
        self._timer: Timer | None = None
        self._timer_at: float | None = None

    @asynccontextmanager
    async def admit(self, assignment: Assignment, if_cancelled: Callable[[], Outcome]) -> AsyncIterator[Lease]:
        """Wait for a place at an engine and hold it. Raises AdmissionRefused; leaving in any way frees everything.

        if_cancelled: says, then, what a request comes to that is cancelled in whatever phase.
        """
        now = self._clock.now()
        ticket, events = self._admission.offer(assignment, now)
        placement = self._placements[ticket.id] = asyncio.get_running_loop().create_future()
        outcome = Outcome.ENGINE_ERROR
        lease: Lease | None = None
        try:
            self._settle(events, now)
            lease = Lease(self, _placed(await placement))
            yield lease
            outcome = Outcome.COMPLETED
        except asyncio.CancelledError:
            outcome = if_cancelled()
            raise
        finally:
            self._placements.pop(ticket.id, None)
            self._parts.pop(ticket.id, None)
            output_tokens = None
            if lease is not None:
                outcome, output_tokens = lease.outcome or outcome, lease.output_tokens
            now = self._clock.now()
            self._settle(self._admission.finish(ticket, outcome, now, output_tokens=output_tokens), now)

    def first_token(self, ticket: Ticket) -> None:
        now = self._clock.now()
        self._settle(self._admission.first_token(ticket, now), now)

    def parts_of(self, ticket: Ticket) -> Parts | None:
        return self._parts.get(ticket.id)

    def accepted(self, ticket: Ticket, *, is_accepted: bool) -> None:
        now = self._clock.now()
        self._settle(self._admission.accepted(ticket, now, is_accepted=is_accepted), now)

    def slice_ended(self, ticket: Ticket, *, computed: bool, cached_tokens: int | None) -> None:
        now = self._clock.now()
        self._settle(self._admission.slice_ended(ticket, now, computed=computed, cached_tokens=cached_tokens), now)

    async def requeue(self, ticket: Ticket, pause_s: float) -> Dispatched:
        self._parts.pop(ticket.id, None)
        now = self._clock.now()
        events = self._admission.requeue(ticket, now, pause_s)
        placement = self._placements[ticket.id] = asyncio.get_running_loop().create_future()
        self._settle(events, now)
        return _placed(await placement)

    def set_up(self, engine: str, *, up: bool) -> None:
        now = self._clock.now()
        self._settle(self._admission.set_up(engine, up, now), now)
        if self.follower is not None:
            self.follower.set_up(engine, up=up, now=now)

    def engine_said(self, engine: str, load: EngineLoad) -> None:
        now = self._clock.now()
        self._settle(self._admission.observe(engine, load, now), now)

    def reconfigure(self, plan: Plan, engines: Sequence[EngineSpec]) -> None:
        now = self._clock.now()
        self._settle(self._admission.reconfigure(plan, engines, now), now)
        if self.follower is not None:
            self.follower.reconfigure(engines, now)

    def drain(self, deadline_s: float) -> None:
        """Refuse new requests, and waiting ones that may wait longer than `deadline_s` from now."""
        now = self._clock.now()
        self._settle(self._admission.drain(now, now + deadline_s), now)
        if self.follower is not None:
            self.follower.drain(now + deadline_s, now)

    def calibrated(self, engine: str, samples: Sequence[PrefillSample]) -> None:
        self._admission.calibrated(engine, samples)

    def step_models(self) -> Mapping[str, StepModel]:
        return self._admission.step_models()

    def undrain(self) -> None:
        now = self._clock.now()
        self._settle(self._admission.undrain(now), now)
        if self.follower is not None:
            self.follower.undrain(now)

    @property
    def alive(self) -> int:
        """How many wait or run here."""
        snapshot = self.snapshot()
        waiting = sum(line.requests for line in snapshot.lines.values())
        return waiting + sum(sum(engine.running.values()) for engine in snapshot.engines.values())

    def snapshot(self) -> Snapshot:
        return self._admission.snapshot()

    def _settle(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Queued | Refused):
                self._stands(event.ticket, self._admission.standing(event.ticket))
            self._observe(event, now)
            match event:
                case Dispatched(ticket=ticket) | Refused(ticket=ticket):
                    if isinstance(event, Dispatched) and event.divided:
                        self._parts[ticket.id] = Parts()
                    placement = self._placements.pop(ticket.id)
                    if not placement.cancelled():
                        placement.set_result(event)
                case Proceed(ticket=ticket, prefix_tokens=prefix_tokens):
                    self._parts[ticket.id].proceed(prefix_tokens)
                case Recalled(ticket=ticket):
                    self._parts[ticket.id].recall()
                case Queued() | FirstToken() | Finished() | SliceEnded() | DividingChanged():
                    pass
                case _:
                    assert_never(event)
        if self.follower is not None:
            self.follower.events(events, now)
        self._rearm()

    def _rearm(self) -> None:
        at = self._admission.next_tick_at()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self._clock.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        now = self._clock.now()
        self._settle(self._admission.tick(now), now)


def _placed(decision: Dispatched | Refused) -> Dispatched:
    if isinstance(decision, Refused):
        raise AdmissionRefused(decision)
    return decision
