"""Long prompts in parts, under every interleaving hypothesis finds: one part at a time, held only while shorts wait."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.admission import Admission
from gateway.core.plan import LongPrefill, LongPrefillMode, SlotBudget
from gateway.core.ticket import (
    Dispatched,
    DividingChanged,
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
from gateway.core.types import Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

HOLD_S = 2.0
RECALLS = 1
PAUSE_S = 0.25
ENGINES = ("a", "b")

ways = st.builds(
    LongPrefill,
    mode=st.sampled_from(LongPrefillMode),
    slice_s=st.sampled_from([0.05, 0.3]),
    hold_max_s=st.just(HOLD_S),
    recalls_max=st.just(RECALLS),
)


class PartsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.live: dict[int, Ticket] = {}
        self.divided: dict[int, Ticket] = {}
        self.out: dict[int, int | None] = {}
        self.reached: dict[int, int] = {}
        self.aside_since: dict[int, float] = {}
        self.recalls: dict[int, int] = {}
        self.asked: set[int] = set()
        self.paused_until: dict[str, float] = {}

    @initialize(way=ways, longs=st.integers(1, 2), engines=st.integers(1, 2))
    def start(self, way, longs, engines):
        self.way = way
        admission = an_admission(long_prefills_max=longs, slots=SlotBudget(8, 2, 2), long_prefill=way)
        self.plan = a_plan(a_class(wait_s_max=(30, 300)), admission=admission)
        self.names = ENGINES[:engines]
        self.admission = Admission(self.plan, [an_engine(name) for name in self.names])

    # what can happen

    @rule(prompt_tokens=st.sampled_from([512, 4000, 20_000]), stream=st.booleans(), divisible=st.booleans())
    def offer(self, prompt_tokens, stream, divisible):
        assignment = an_assignment(
            self.plan, prompt_tokens=prompt_tokens, stream=stream, is_divisible=divisible and prompt_tokens > 640
        )
        ticket, events = self.admission.offer(assignment, self.now)
        self.live[ticket.id] = ticket
        self.follow(events)

    @rule(data=st.data(), is_accepted=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.asked)
    def engine_says_whether_it_takes_it(self, data, is_accepted):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.asked)))]
        self.asked.discard(ticket.id)
        if is_accepted:
            self.aside_since[ticket.id] = self.now
        else:
            self.forget(ticket)
        events = self.admission.accepted(ticket, self.now, is_accepted=is_accepted)
        if not is_accepted:
            assert events[0] == Proceed(ticket, None), "what is refused is refused at once"
            del events[0]
        self.follow(events)

    @rule(data=st.data(), computed=st.booleans(), cached=st.sampled_from([None, 0, 10**6]))
    @precondition(lambda self: self.slices_out())
    def slice_ends(self, data, computed, cached):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.slices_out())))]
        reached = self.out.pop(ticket.id)
        self.aside_since[ticket.id] = self.now
        events = self.admission.slice_ended(ticket, self.now, computed=computed, cached_tokens=cached)
        first = events[0]
        assert isinstance(first, SliceEnded)
        if first.result is SliceResult.COMPUTED:
            assert computed
            self.reached[ticket.id] = reached
        self.follow(events)

    @rule(data=st.data())
    @precondition(lambda self: self.answerable())
    def first_token(self, data):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.answerable())))]
        self.forget(ticket)
        self.follow(self.admission.first_token(ticket, self.now))

    @rule(data=st.data(), outcome=st.sampled_from([Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.ENGINE_ERROR]))
    @precondition(lambda self: self.live)
    def finish(self, data, outcome):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        slice_out = ticket.id in self.slices_out()
        self.forget(ticket)
        events = self.admission.finish(ticket, outcome, self.now)
        cancelled = [event for event in events if isinstance(event, SliceEnded) and event.ticket is ticket]
        assert len(cancelled) == slice_out
        self.follow(events)

    @rule(data=st.data())
    @precondition(lambda self: self.answerable())
    def engine_has_no_room(self, data):
        ticket = self.live[data.draw(st.sampled_from(sorted(self.answerable())))]
        self.forget(ticket)
        self.paused_until[ticket.engine] = self.now + PAUSE_S
        self.follow(self.admission.requeue(ticket, self.now, PAUSE_S))

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.5]))
    def time_passes(self, seconds):
        end = self.now + seconds
        while (at := self.admission.next_tick_at()) is not None and at <= end:
            assert at >= self.now
            self.now = at
            self.follow(self.admission.tick(self.now))
            assert self.admission.next_tick_at() != at, "a moment that has come is over"
        self.now = end

    # what the events must say

    def follow(self, events: list[Event]) -> None:
        for event in events:
            ticket = event.ticket
            match event:
                case Dispatched(divided=True):
                    assert ticket.assignment.is_divisible
                    self.divided[ticket.id] = ticket
                    self.reached[ticket.id] = self.recalls[ticket.id] = 0
                    if self.way.mode is LongPrefillMode.SLICED:
                        self.asked.add(ticket.id)
                    else:
                        self.aside_since[ticket.id] = self.now
                case Proceed(prefix_tokens=prefix):
                    assert ticket.id in self.divided, "only what is divided and has no first token goes in parts"
                    assert ticket.id not in self.out, "one part at a time"
                    assert ticket.id not in self.asked, "nothing is computed that the engine might refuse"
                    assert self.paused_until.get(ticket.engine, 0.0) <= self.now, "none to an engine without room"
                    assert not [other for other in self.out if self.live[other].engine == ticket.engine]
                    if prefix is not None:
                        assert self.reached[ticket.id] < prefix < ticket.assignment.prompt_tokens
                    self.out[ticket.id] = prefix
                    del self.aside_since[ticket.id]
                case Recalled():
                    assert self.out.pop(ticket.id) is None
                    self.recalls[ticket.id] += 1
                    assert self.recalls[ticket.id] <= RECALLS
                    assert self.shorts_wait(ticket.engine)
                    self.aside_since[ticket.id] = self.now
                case Finished() | Refused():
                    self.live.pop(ticket.id, None)
                    self.forget(ticket)
                case FirstToken() | SliceEnded() | DividingChanged():
                    pass

    @invariant()
    def nothing_is_put_aside_but_for_shorts_and_not_longer_than_it_may(self):
        if not hasattr(self, "admission"):
            return
        for number, since in self.aside_since.items():
            engine = self.live[number].engine
            is_taken = any(self.live[other].engine == engine for other in self.out)
            if is_taken or self.paused_until.get(engine, 0.0) > self.now:
                continue
            assert self.shorts_wait(engine)
            assert self.now - since <= HOLD_S + PAUSE_S + 1e-6

    @invariant()
    def charges_are_what_runs(self):
        if hasattr(self, "admission"):
            running = {ticket.engine for ticket in self.live.values() if ticket.dispatched_at is not None}
            for name, engine in self.admission.snapshot().engines.items():
                assert name in running or sum(engine.running.values()) == 0

    # helpers

    def slices_out(self) -> list[int]:
        return [number for number, prefix in self.out.items() if prefix is not None]

    def answerable(self) -> list[int]:
        """Return those whose own request is at an engine without a first token."""
        return [
            number
            for number, ticket in self.live.items()
            if ticket.engine is not None
            and ticket.first_token_at is None
            and (number not in self.divided or self.out.get(number, 0) is None)
        ]

    def shorts_wait(self, engine: str | None) -> bool:
        shorts = [ticket for ticket in self.live.values() if ticket.assignment.prompt_tokens <= 640]
        return any(
            ticket.engine is None or (ticket.engine == engine and ticket.first_token_at is None) for ticket in shorts
        )

    def forget(self, ticket: Ticket) -> None:
        for kept in (self.divided, self.out, self.reached, self.aside_since, self.recalls):
            kept.pop(ticket.id, None)
        self.asked.discard(ticket.id)


TestParts = PartsMachine.TestCase
TestParts.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
