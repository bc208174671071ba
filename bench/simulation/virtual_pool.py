"""Admission in front of virtual engines, in virtual time: one gateway, its callers and what became of each request.

Decides nothing: what Admission dispatches, divides or takes back is sent, what the engines bring is reported back. The
one algorithm that the proxy runs, without the proxy. Several may share an engine room: each then learns of the others
what the engines' own numbers say. A watcher is told all of it, and has no say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from bench.simulation.engine_room import EngineRoom
from bench.simulation.posts import Caller, Fate, Part, Post, Sender
from bench.simulation.steps import EngineRequest
from bench.simulation.virtual_engine import VirtualEngine
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
    Ticket,
)
from gateway.core.types import EngineSpec, Outcome

LOOK_EVERY_S = 1.0
"""As a gateway looks at its engines' numbers."""
_FIRST_PART = 1 << 40
"""Requests that are parts are numbered from here; one that goes at once bears its ticket's number."""
_NUMBERS = 1 << 48
"""Each gateway has so many numbers for its requests, that no other has."""


class Watcher(Protocol):
    """Whoever looks on."""

    def hears(self, fate: Fate, event: Event) -> None:
        """Take note of an event before it is followed."""

    def sends(self, post: Post, part: Part) -> None:
        """Take note of a request before it goes to an engine."""

    def settled(self) -> None:
        """Take note that all is followed that one call of Admission said."""


class VirtualPool(Sender):
    """Run callers through Admission to engines. `fates`: by ticket id, in order of arrival.

    number: of this gateway, among those of the room. tells_cached: the engines say how much of a prompt they found
    cached (`--enable-prompt-tokens-details`).
    """

    def __init__(
        self,
        plan: Plan,
        room: EngineRoom,
        specs: Sequence[EngineSpec],
        assign: Callable[[Plan, Caller], Assignment],
        *,
        number: int = 0,
        tells_cached: bool = False,
        watcher: Watcher | None = None,
    ) -> None:
        self.plan = plan
        self.room = room
        self.posts = room.posts
        self.admission = Admission(plan, specs)
        self.fates: dict[int, Fate] = {}
        self._assign = assign
        self._tells_cached = tells_cached
        self._watcher = watcher
        self._first_number = number * _NUMBERS
        self._parts = self._first_number + _FIRST_PART
        self._tick_at: float | None = None

    # ── running ──

    def run(self, callers: Sequence[Caller]) -> None:
        """Play until nothing is left to come."""
        self.expect(callers)
        self.room.run()

    def expect(self, callers: Sequence[Caller]) -> None:
        """Let callers come, each at its time from now on."""
        self.room.unfinished += len(callers)
        self._let_come(iter(sorted(callers, key=lambda caller: caller.at_s)), self.room.now)

    def look_at_engines(self) -> None:
        """Take in what the engines say of themselves, now and every second until nothing is left to come."""
        room = self.room
        if room.unfinished:
            for post in room.posts.values():
                if post.up:
                    self._follow(self.admission.observe(post.name, post.load, room.now))
            room.at(room.now + LOOK_EVERY_S, self.look_at_engines, rank=1)

    def restart(self, name: str, fresh: VirtualEngine, *, down_s: float) -> None:
        """Lose an engine of this gateway alone, with all it holds; `fresh` is in its place after `down_s`."""
        post, room = self.posts[name], self.room
        post.lose(fresh)
        self._follow(self.admission.set_up(name, up=False, now=room.now))
        for ticket in list(post.tickets):
            self._follow(self.admission.finish(ticket, Outcome.ENGINE_ERROR, room.now))

        def return_to_work() -> None:
            post.up = True
            self._follow(self.admission.set_up(name, up=True, now=room.now))

        room.at(room.now + down_s, return_to_work)

    # ── callers ──

    def _let_come(self, callers: Iterator[Caller], began: float) -> None:
        caller = next(callers, None)
        if caller is not None:
            self.room.at(began + caller.at_s, partial(self._arrive, caller, callers, began))

    def _arrive(self, caller: Caller, callers: Iterator[Caller], began: float) -> None:
        self._let_come(callers, began)
        room = self.room
        ticket, events = self.admission.offer(self._assign(self.plan, caller), room.now)
        self.fates[ticket.id] = Fate(caller, ticket)
        if caller.leaves_after_s is not None:
            room.at(room.now + caller.leaves_after_s, partial(self._leave, ticket), rank=1)
        self._follow(events)

    def _leave(self, ticket: Ticket) -> None:
        fate = self.fates[ticket.id]
        if fate.outcome is not None:
            return
        if fate.engine is not None:
            self.posts[fate.engine].cut_at = self.room.now
            self._take_back(self.posts[fate.engine], ticket)
        self._follow(self.admission.finish(ticket, Outcome.CLIENT_GONE, self.room.now))

    # ── engines ──

    def _place(self, fate: Fate, event: Dispatched) -> None:
        """Send a request, or ask whether the engine would take it before any slice of it goes."""
        post, ticket = self.posts[event.engine], fate.ticket
        fate.waited_s, fate.engine = event.waited_s, event.engine
        fate.priority = event.priority if fate.caller.priority is None else fate.caller.priority
        post.tickets[ticket] = None
        if not event.divided:
            self._send(post, Part(self, fate, self._request(fate, None, self._first_number + ticket.id)))
            return
        way = ticket.assignment.plan.admission.long_prefill
        assert way is not None, "only what the plan divides is divided"
        if way.mode is LongPrefillMode.SLICED:
            asked = partial(self._hear_whether_it_is_taken, post, post.epoch, ticket)
            self.room.at(self.room.now + 2 * self.room.network_s, asked, rank=0)

    def _hear_whether_it_is_taken(self, post: Post, epoch: int, ticket: Ticket) -> None:
        if epoch == post.epoch and ticket in post.tickets:
            is_accepted = not self.fates[ticket.id].caller.is_bad
            self._follow(self.admission.accepted(ticket, self.room.now, is_accepted=is_accepted))

    def _request(self, fate: Fate, prefix_tokens: int | None, number: int) -> EngineRequest:
        caller, ticket = fate.caller, fate.ticket
        is_part = number - self._first_number >= _FIRST_PART
        prompt_tokens = caller.prompt_tokens if prefix_tokens is None else prefix_tokens
        return EngineRequest(
            number,
            prompt_tokens,
            caller.output_tokens if prefix_tokens is None else 1,
            priority=fate.priority,
            prefix=self._first_number + ticket.id if is_part else 0,
            prefix_tokens=prompt_tokens if is_part else 0,
        )

    def _proceed(self, fate: Fate, prefix_tokens: int | None) -> None:
        assert fate.engine is not None
        post = self.posts[fate.engine]
        if prefix_tokens is None and fate.caller.is_bad:
            refused = partial(self._refused_by_engine, post, post.epoch, fate.ticket)
            self.room.at(self.room.now + 2 * self.room.network_s, refused, rank=0)
            return
        self._parts += 1
        fate.sent.append(prefix_tokens)
        self._send(post, Part(self, fate, self._request(fate, prefix_tokens, self._parts), prefix_tokens))

    def _refused_by_engine(self, post: Post, epoch: int, ticket: Ticket) -> None:
        if epoch == post.epoch and ticket in post.tickets:
            self._follow(self.admission.finish(ticket, Outcome.COMPLETED, self.room.now))

    def _send(self, post: Post, part: Part) -> None:
        if self._watcher is not None:
            self._watcher.sends(post, part)
        self.room.send(post, part)

    def _take_back(self, post: Post, ticket: Ticket) -> None:
        """Abort what is at the engine of this ticket."""
        for part in [part for part in post.parts.values() if _fate(part).ticket is ticket]:
            self.room.take_back(post, part)

    def first_token(self, part: Part) -> None:
        """Hear of a request's first token."""
        if part.prefix_tokens is None:
            self._follow(self.admission.first_token(_fate(part).ticket, self.room.now))

    def ended(self, part: Part) -> None:
        """Hear that a request has its last token."""
        ticket, now = _fate(part).ticket, self.room.now
        if part.prefix_tokens is None:
            self._follow(self.admission.finish(ticket, Outcome.COMPLETED, now))
        else:
            cached = part.request.cached_tokens if self._tells_cached else None
            self._follow(self.admission.slice_ended(ticket, now, computed=True, cached_tokens=cached))

    # ── what Admission says ──

    def _follow(self, events: list[Event]) -> None:
        watcher = self._watcher
        for event in events:
            fate = self.fates[event.ticket.id]
            if watcher is not None:
                watcher.hears(fate, event)
            self._take_in(fate, event)
        self._set_timer()
        if watcher is not None:
            watcher.settled()

    def _take_in(self, fate: Fate, event: Event) -> None:
        match event:
            case Dispatched():
                self._place(fate, event)
            case FirstToken():
                fate.first_token_at = self.room.now
            case Finished():
                self._end(fate, event.outcome)
            case Proceed():
                self._proceed(fate, event.prefix_tokens)
            case Recalled():
                assert fate.engine is not None
                fate.recalls += 1
                self._take_back(self.posts[fate.engine], fate.ticket)
            case Refused():
                fate.reason, fate.waited_s = event.refusal.reason, event.waited_s
                self._end(fate, event.outcome)
            case _:
                pass

    def _end(self, fate: Fate, outcome: Outcome) -> None:
        fate.outcome, fate.ended_at = outcome, self.room.now
        self.room.unfinished -= 1
        if fate.engine is not None:
            self.posts[fate.engine].tickets.pop(fate.ticket, None)

    def _set_timer(self) -> None:
        at = self.admission.next_tick_at()
        if at is None or (self._tick_at is not None and self.room.now < self._tick_at <= at):
            return
        assert at >= self.room.now, "a timer is never set in the past"
        self._tick_at = at
        self.room.at(at, self._tick, rank=3)

    def _tick(self) -> None:
        """Let Admission do what is due; what was due then may have been settled meanwhile."""
        at = self.admission.next_tick_at()
        self._tick_at = None
        if at is not None and at <= self.room.now:
            self._follow(self.admission.tick(self.room.now))
        else:
            self._set_timer()


def _fate(part: Part) -> Fate:
    assert isinstance(part.fate, Fate), "a part of this gateway's"
    return part.fate
