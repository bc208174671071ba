"""Admission in front of virtual engines, in virtual time: one heap of things to come, no waiting, no clock.

Owns the time, the callers and what became of each request. Decides nothing: what Admission dispatches is sent, what
the engines' steps bring is reported back. What must hold at every instant is asserted at every instant.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from bench.simulation.steps import EngineRequest, Step
from gateway.core.admission import Admission
from gateway.core.plan import Plan
from gateway.core.ticket import Assignment, Dispatched, Event, Finished, FirstToken, Refused, Ticket
from gateway.core.types import EngineSpec, LengthClass, Outcome, Reason
from gateway.testing.builders import an_assignment

START = 1_000_000.0
SOON_S = 1.0
"""An abort holds its place until the steps in flight end: for so long an empty engine may leave somebody waiting."""


class Engine(Protocol):
    """What steps: the model in bench.simulation, or vLLM's own scheduler under the same face."""

    @property
    def busy(self) -> bool: ...

    def add(self, request: EngineRequest) -> None: ...

    def abort(self, request_id: int) -> None: ...

    def schedule(self) -> Step: ...

    def end(self, step: Step) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """One request to come. at_s: after the start. leaves_after_s: its client goes away then, if it still waits or runs."""

    at_s: float
    prompt_tokens: int
    output_tokens: int = 32
    service_class: str = "interactive"
    tenant: str = "acme"
    leaves_after_s: float | None = None


@dataclass(eq=False, slots=True)
class Fate:
    """What became of one request. late: not wholly prefilled in the first step scheduled after it reached the engine."""

    caller: Caller
    ticket: Ticket
    waited_s: float | None = None
    engine: str | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    reason: Reason | None = None
    late: bool = False

    @property
    def length(self) -> LengthClass:
        return self.ticket.assignment.length_class

    @property
    def engine_ttft_s(self) -> float:
        assert self.first_token_at is not None
        assert self.ticket.dispatched_at is not None
        return self.first_token_at - self.ticket.dispatched_at


@dataclass(eq=False, slots=True)
class Post:
    """One engine at work: the steps in flight, and what is to be told it at the next step border."""

    name: str
    engine: Engine
    batches_in_flight: int
    up: bool = True
    in_flight: deque[tuple[Step, float]] = field(default_factory=deque)
    aborts: list[int] = field(default_factory=list)
    unseen: list[Fate] = field(default_factory=list)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    in_prefill: set[int] = field(default_factory=set)
    longs_in_prefill: int = 0
    short_tokens: int = 0
    epoch: int = 0
    cut_at: float = -SOON_S

    def begin(self, ticket: Ticket) -> None:
        self.tickets[ticket.id] = ticket
        self.in_prefill.add(ticket.id)
        self._count(ticket, 1)

    def end_prefill(self, ticket: Ticket) -> None:
        """Count the prefill as over; again, or after `end`: nothing happens."""
        if ticket.id in self.in_prefill:
            self.in_prefill.discard(ticket.id)
            self._count(ticket, -1)

    def end(self, ticket: Ticket) -> None:
        self.end_prefill(ticket)
        self.tickets.pop(ticket.id, None)

    def _count(self, ticket: Ticket, sign: int) -> None:
        if ticket.assignment.length_class is LengthClass.LONG:
            self.longs_in_prefill += sign
        else:
            self.short_tokens += sign * ticket.assignment.prompt_tokens

    @property
    def free_at(self) -> float:
        """When the steps in flight have run; the past where none is."""
        return self.in_flight[-1][1] if self.in_flight else 0.0


class VirtualPool:
    """Run callers through Admission to engines. `fates`: by ticket id, in order of arrival."""

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        specs: Sequence[EngineSpec],
        *,
        batches_in_flight: int = 1,
        network_s: float = 0.001,
        assign: Callable[[Plan, Caller], Assignment] | None = None,
    ) -> None:
        self.plan = plan
        self.now = START
        self.admission = Admission(plan, specs)
        self.posts = {name: Post(name, engine, batches_in_flight) for name, engine in engines.items()}
        self.fates: dict[int, Fate] = {}
        self.waiting: set[int] = set()
        self.counts: Counter[Outcome] = Counter()
        self.steps = 0
        self.network_s = network_s
        self._assign = assign or _assign
        self._agenda: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = 0
        self._tick_at: float | None = None

    # ── running ──

    def at(self, seconds: float, what: Callable[[], None], rank: int = 2) -> None:
        """Note something to do `seconds` after the start; at one instant lower ranks go first."""
        self._number += 1
        heappush(self._agenda, (START + seconds, rank, self._number, what))

    def run(self, callers: Sequence[Caller]) -> None:
        """Play until nothing is left to come, then check that nothing is left over."""
        for caller in callers:
            self.at(caller.at_s, partial(self._arrive, caller))
        while self._agenda:
            self.now, _, _, what = heappop(self._agenda)
            what()
        self._nothing_is_left()

    def restart(self, name: str, fresh: Engine, *, down_s: float) -> None:
        """Lose an engine with all it holds; `fresh` can be reached in its place after `down_s`."""
        post = self.posts[name]
        post.engine = fresh
        post.epoch += 1
        post.up = False
        post.in_flight.clear()
        post.aborts.clear()
        post.unseen.clear()
        self._follow(self.admission.set_up(name, up=False, now=self.now))
        for ticket in list(post.tickets.values()):
            self._follow(self.admission.finish(ticket, Outcome.ENGINE_ERROR, self.now))

        def return_to_work() -> None:
            post.up = True
            self._follow(self.admission.set_up(name, up=True, now=self.now))

        self.at(self.now - START + down_s, return_to_work)

    # ── callers ──

    def _arrive(self, caller: Caller) -> None:
        ticket, events = self.admission.offer(self._assign(self.plan, caller), self.now)
        self.fates[ticket.id] = Fate(caller, ticket)
        self.waiting.add(ticket.id)
        if caller.leaves_after_s is not None:
            self.at(caller.at_s + caller.leaves_after_s, partial(self._leave, ticket), rank=1)
        self._follow(events)

    def _leave(self, ticket: Ticket) -> None:
        if self.fates[ticket.id].outcome is not None:
            return
        engine = self.fates[ticket.id].engine
        if engine is not None:
            post = self.posts[engine]
            post.cut_at = self.now
            post.aborts.append(ticket.id)
            if not post.in_flight:
                self._cross_border(post)
        self._follow(self.admission.finish(ticket, Outcome.CLIENT_GONE, self.now))

    # ── engines ──

    def _send(self, fate: Fate, event: Dispatched) -> None:
        post = self.posts[event.engine]
        assert post.up, "nothing goes to an engine that is down"
        ticket = fate.ticket
        post.begin(ticket)
        request = EngineRequest(
            ticket.id, fate.caller.prompt_tokens, fate.caller.output_tokens, priority=event.priority
        )
        self._later(partial(self._reach, post, post.epoch, fate, request))

    def _reach(self, post: Post, epoch: int, fate: Fate, request: EngineRequest) -> None:
        """The request reaches the engine, where it has not been given up on the way."""
        if epoch == post.epoch and request.id in post.tickets:
            post.unseen.append(fate)
            post.engine.add(request)
            self.at(self.now - START, partial(self._work, post, epoch), rank=4)

    def _later(self, what: Callable[[], None]) -> None:
        self.at(self.now - START + self.network_s, what, rank=0)

    def _work(self, post: Post, epoch: int) -> None:
        """Schedule steps while the engine has work and room for a batch in flight."""
        while epoch == post.epoch and len(post.in_flight) < post.batches_in_flight and post.engine.busy:
            if not post.in_flight:
                self._cross_border(post)
            step = post.engine.schedule()
            if not step.tokens:
                break
            self.steps += 1
            ends_at = max(self.now, post.free_at) + step.duration_s
            for fate in post.unseen:
                if fate.outcome is None:
                    fate.late = step.tokens.get(fate.ticket.id, 0) < fate.caller.prompt_tokens
            post.unseen.clear()
            post.in_flight.append((step, ends_at))
            self.at(ends_at - START, partial(self._end_step, post, post.epoch), rank=0)

    def _end_step(self, post: Post, epoch: int) -> None:
        if epoch != post.epoch:
            return
        step, _ = post.in_flight.popleft()
        self._cross_border(post)
        post.engine.end(step)
        self._later(partial(self._hear, post, step))
        self.at(self.now - START, partial(self._work, post, epoch), rank=4)

    def _hear(self, post: Post, step: Step) -> None:
        """The gateway reads what the step brought; of requests given up meanwhile it hears nothing."""
        for ticket_id in step.first_tokens:
            if ticket_id in post.tickets:
                self._follow(self.admission.first_token(post.tickets[ticket_id], self.now))
        for ticket_id in step.ended:
            if ticket_id in post.tickets:
                self._follow(self.admission.finish(post.tickets[ticket_id], Outcome.COMPLETED, self.now))

    def _cross_border(self, post: Post) -> None:
        for ticket_id in post.aborts:
            post.engine.abort(ticket_id)
        post.aborts.clear()

    # ── what Admission says ──

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            fate = self.fates[event.ticket.id]
            match event:
                case Dispatched():
                    assert event.waited_s <= fate.ticket.assignment.wait_s_max + 1e-9, "nothing goes after its deadline"
                    self.waiting.discard(event.ticket.id)
                    fate.waited_s, fate.engine = event.waited_s, event.engine
                    self._send(fate, event)
                case FirstToken():
                    fate.first_token_at = self.now
                    assert fate.engine is not None
                    self.posts[fate.engine].end_prefill(event.ticket)
                case Refused(refusal=refusal, waited_s=waited_s, outcome=outcome):
                    if outcome is Outcome.EXPIRED:
                        assert abs(waited_s - fate.ticket.assignment.wait_s_max) < 1e-6, "expiry is exact"
                    fate.reason, fate.waited_s = refusal.reason, waited_s
                    self._end(fate, outcome)
                case Finished(outcome=outcome):
                    self._end(fate, outcome)
                case _:
                    pass
        self._budgets_hold()
        self._no_engine_idles_before_a_line()
        self._set_timer()

    def _end(self, fate: Fate, outcome: Outcome) -> None:
        assert fate.outcome is None, "a request ends once"
        fate.outcome, fate.ended_at = outcome, self.now
        self.waiting.discard(fate.ticket.id)
        self.counts[outcome] += 1
        if fate.engine is not None:
            self.posts[fate.engine].end(fate.ticket)

    def _set_timer(self) -> None:
        at = self.admission.next_tick_at()
        if at is None or (self._tick_at is not None and self.now < self._tick_at <= at):
            return
        assert at >= self.now, "a timer is never set in the past"
        self._tick_at = at
        self.at(at - START, self._tick, rank=3)

    def _tick(self) -> None:
        self._follow(self.admission.tick(self.now))

    # ── what holds at every instant ──

    def _budgets_hold(self) -> None:
        bounds = self.plan.admission
        for post in self.posts.values():
            assert bounds.long_prefills_max is None or post.longs_in_prefill <= bounds.long_prefills_max
            assert bounds.short_prefill_tokens_max is None or post.short_tokens <= bounds.short_prefill_tokens_max
            assert bounds.slots is None or len(post.tickets) <= bounds.slots.total

    def _no_engine_idles_before_a_line(self) -> None:
        if self.waiting:
            for post in self.posts.values():
                idle = post.up and not post.tickets and self.now >= post.cut_at + SOON_S
                assert not idle, f"{len(self.waiting)} wait while engine {post.name} has nothing to do"

    def _nothing_is_left(self) -> None:
        assert not self.waiting
        assert sum(self.counts.values()) == len(self.fates), "offered = completed + refused + expired + gone + broken"
        snapshot = self.admission.snapshot()
        assert all(line.requests == 0 and line.prompt_tokens == 0 for line in snapshot.lines.values())
        for engine in snapshot.engines.values():
            assert engine.slots == engine.long_prefills == engine.kv_reserved_tokens == 0
            assert not any(engine.prefill_tokens.values())

    # ── what became of them ──

    def of(self, length: LengthClass, *, service_class: str | None = None) -> list[Fate]:
        """Return the fates of one length class, in order of arrival."""
        return [
            fate
            for fate in self.fates.values()
            if fate.length is length and service_class in {None, fate.caller.service_class}
        ]


def _assign(plan: Plan, caller: Caller) -> Assignment:
    return an_assignment(
        plan,
        caller.service_class,
        tenant=caller.tenant,
        prompt_tokens=caller.prompt_tokens,
        output_tokens=caller.output_tokens,
    )
