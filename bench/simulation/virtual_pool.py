"""Admission in front of virtual engines, in virtual time: one heap of things to come, no waiting, no clock.

Owns the time, the callers and what became of each request. Decides nothing: what Admission dispatches, divides or takes
back is sent, what the engines' steps bring is reported back. The one algorithm that the proxy runs, without the proxy.

One module, because the engines' steps and Admission's events turn into one another: each end of a step is told, and
each telling may send something into the next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush

from bench.simulation.posts import Caller, Engine, Fate, Part, Post, Run
from bench.simulation.steps import EngineRequest, Step
from gateway.core.admission import Admission
from gateway.core.plan import LongPrefillMode, Plan
from gateway.core.ticket import (
    Assignment,
    Dispatched,
    Event,
    Finished,
    FirstToken,
    Proceed,
    Recalled,
    Refused,
    SliceEnded,
    SliceResult,
    Ticket,
)
from gateway.core.types import EngineSpec, Outcome

START = 1_000_000.0
_FIRST_PART = 1 << 40
"""Requests that are parts are numbered from here; one that goes at once bears its ticket's number."""


class VirtualPool:
    """Run callers through Admission to engines. `fates`: by ticket id, in order of arrival.

    network_s: one way between the gateway and an engine. tells_cached: the engines say how much of a prompt they found
    cached (`--enable-prompt-tokens-details`).
    """

    def __init__(
        self,
        plan: Plan,
        engines: Mapping[str, Engine],
        specs: Sequence[EngineSpec],
        assign: Callable[[Plan, Caller], Assignment],
        *,
        batches_in_flight: int = 1,
        network_s: float = 0.001,
        tells_cached: bool = False,
    ) -> None:
        self.plan = plan
        self.now = START
        self.admission = Admission(plan, specs)
        self.posts = {name: Post(name, engine, batches_in_flight) for name, engine in engines.items()}
        self.fates: dict[int, Fate] = {}
        self.waiting: set[int] = set()
        self.counts: Counter[Outcome] = Counter()
        self.slices: Counter[SliceResult] = Counter()
        self.steps = 0
        self.network_s = network_s
        self._tells_cached = tells_cached
        self._assign = assign
        self._agenda: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = 0
        self._parts = _FIRST_PART
        self._tick_at: float | None = None

    # ── running ──

    def at(self, seconds: float, what: Callable[[], None], rank: int = 2) -> None:
        """Note something to do `seconds` after the start; at one instant lower ranks go first."""
        self._number += 1
        heappush(self._agenda, (START + seconds, rank, self._number, what))

    def run(self, callers: Sequence[Caller]) -> None:
        """Play until nothing is left to come."""
        for caller in callers:
            self.at(caller.at_s, partial(self._arrive, caller))
        while self._agenda:
            self.now, _, _, what = heappop(self._agenda)
            what()

    def restart(self, name: str, fresh: Engine, *, down_s: float) -> None:
        """Lose an engine with all it holds; `fresh` can be reached in its place after `down_s`."""
        post = self.posts[name]
        post.lose(fresh)
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
        fate = self.fates[ticket.id]
        if fate.outcome is not None:
            return
        if fate.engine is not None:
            self.posts[fate.engine].cut_at = self.now
            self._take_back(self.posts[fate.engine], ticket)
        self._follow(self.admission.finish(ticket, Outcome.CLIENT_GONE, self.now))

    # ── engines ──

    def _place(self, fate: Fate, event: Dispatched) -> None:
        """Send a request, or ask whether the engine would take it before any slice of it goes."""
        post, ticket = self.posts[event.engine], fate.ticket
        fate.waited_s, fate.engine = event.waited_s, event.engine
        fate.priority = event.priority if fate.caller.priority is None else fate.caller.priority
        post.begin(ticket)
        if not event.divided:
            self._send(post, Part(fate, self._request(fate, None, ticket.id), None))
            return
        way = ticket.assignment.plan.admission.long_prefill
        assert way is not None, "only what the plan divides is divided"
        if way.mode is LongPrefillMode.SLICED:
            asked = partial(self._hear_whether_it_is_taken, post, post.epoch, ticket)
            self.at(self.now - START + 2 * self.network_s, asked, rank=0)

    def _hear_whether_it_is_taken(self, post: Post, epoch: int, ticket: Ticket) -> None:
        if epoch == post.epoch and ticket.id in post.tickets:
            is_accepted = not self.fates[ticket.id].caller.is_bad
            self._follow(self.admission.accepted(ticket, self.now, is_accepted=is_accepted))

    def _request(self, fate: Fate, prefix_tokens: int | None, number: int) -> EngineRequest:
        caller, ticket = fate.caller, fate.ticket
        is_part = number >= _FIRST_PART
        prompt_tokens = caller.prompt_tokens if prefix_tokens is None else prefix_tokens
        return EngineRequest(
            number,
            prompt_tokens,
            caller.output_tokens if prefix_tokens is None else 1,
            priority=fate.priority,
            prefix=ticket.id if is_part else 0,
            prefix_tokens=prompt_tokens if is_part else 0,
        )

    def _proceed(self, fate: Fate, prefix_tokens: int | None) -> None:
        assert fate.engine is not None
        post = self.posts[fate.engine]
        if prefix_tokens is None and fate.caller.is_bad:
            refused = partial(self._refused_by_engine, post, post.epoch, fate.ticket)
            self.at(self.now - START + 2 * self.network_s, refused, rank=0)
            return
        self._parts += 1
        fate.sent.append(prefix_tokens)
        self._send(post, Part(fate, self._request(fate, prefix_tokens, self._parts), prefix_tokens))

    def _refused_by_engine(self, post: Post, epoch: int, ticket: Ticket) -> None:
        if epoch == post.epoch and ticket.id in post.tickets:
            self._follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now))

    def _send(self, post: Post, part: Part) -> None:
        post.parts[part.request.id] = part
        self._later(partial(self._reach, post, post.epoch, part))

    def _reach(self, post: Post, epoch: int, part: Part) -> None:
        """The request reaches the engine, where it has not been given up on the way."""
        if epoch == post.epoch and part.request.id in post.parts:
            self._interrupt(post)
            post.unseen.append(part)
            post.engine.add(part.request)
            self.at(self.now - START, partial(self._work, post, epoch), rank=4)

    def _take_back(self, post: Post, ticket: Ticket) -> None:
        """Abort what is at the engine of this ticket; it works on it until the steps in flight end."""
        self._interrupt(post)
        for part in [part for part in post.parts.values() if part.fate.ticket is ticket]:
            post.let_go(part.request.id)
            post.aborts.append(part.request.id)
        if not post.in_flight:
            post.cross_border()

    def _later(self, what: Callable[[], None]) -> None:
        self.at(self.now - START + self.network_s, what, rank=0)

    def _work(self, post: Post, epoch: int) -> None:
        """Schedule steps while the engine has work and room for a batch in flight."""
        while epoch == post.epoch and post.has_room and post.engine.busy:
            if not post.in_flight:
                post.cross_border()
            if steps := post.may_run():
                run = post.begin_run(self.now, steps)
                self.at(run.over_at - START, partial(self._end_run, post, run), rank=0)
                break
            step = post.engine.schedule()
            if step.is_empty:
                break
            self.steps += 1
            ends_at = max(self.now, post.free_at) + step.duration_s
            post.see(step)
            post.in_flight.append((step, ends_at))
            self.at(ends_at - START, partial(self._end_step, post, post.epoch, ends_at), rank=0)

    def _end_run(self, post: Post, run: Run) -> None:
        if post.run is run:
            self._interrupt(post)

    def _interrupt(self, post: Post) -> None:
        """Look at an engine's steps one by one again."""
        if post.run is None:
            return
        self.steps += post.end_run(self.now)
        for _, ends_at in post.in_flight:
            self.at(ends_at - START, partial(self._end_step, post, post.epoch, ends_at), rank=0)
        self.at(self.now - START, partial(self._work, post, post.epoch), rank=4)

    def _end_step(self, post: Post, epoch: int, ends_at: float) -> None:
        if epoch != post.epoch or not post.in_flight or post.in_flight[0][1] != ends_at:
            return  # lost with its process, or taken into a run
        step, _ = post.in_flight.popleft()
        post.cross_border()
        post.engine.end(step)
        if step.first_tokens or step.ended:
            self._later(partial(self._hear, post, epoch, step))
        self.at(self.now - START, partial(self._work, post, epoch), rank=4)

    def _hear(self, post: Post, epoch: int, step: Step) -> None:
        """The gateway reads what the step brought; of requests given up meanwhile it hears nothing."""
        if epoch != post.epoch:
            return
        for request_id in step.first_tokens:
            part = post.parts.get(request_id)
            if part is not None and part.prefix_tokens is None:
                self._follow(self.admission.first_token(part.fate.ticket, self.now))
        for request_id in step.ended:
            part = post.let_go(request_id)
            if part is None:
                continue
            if part.prefix_tokens is None:
                self._follow(self.admission.finish(part.fate.ticket, Outcome.COMPLETED, self.now))
            else:
                cached = part.request.cached_tokens if self._tells_cached else None
                ended = self.admission.slice_ended(part.fate.ticket, self.now, computed=True, cached_tokens=cached)
                self._follow(ended)

    # ── what Admission says ──

    def _follow(self, events: list[Event]) -> None:
        for event in events:
            self._take_in(self.fates[event.ticket.id], event)
        self._set_timer()

    def _take_in(self, fate: Fate, event: Event) -> None:
        match event:
            case Dispatched():
                self.waiting.discard(event.ticket.id)
                self._place(fate, event)
            case Proceed(prefix_tokens=prefix_tokens):
                self._proceed(fate, prefix_tokens)
            case Recalled():
                assert fate.engine is not None
                fate.recalls += 1
                self._take_back(self.posts[fate.engine], fate.ticket)
            case SliceEnded(result=result):
                self.slices[result] += 1
            case FirstToken():
                fate.first_token_at = self.now
                assert fate.engine is not None
                self.posts[fate.engine].end_prefill(event.ticket)
            case Refused(refusal=refusal, waited_s=waited_s, outcome=outcome):
                fate.reason, fate.waited_s = refusal.reason, waited_s
                self._end(fate, outcome)
            case Finished(outcome=outcome):
                self._end(fate, outcome)
            case _:
                pass

    def _end(self, fate: Fate, outcome: Outcome) -> None:
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
