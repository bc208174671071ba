"""A second policy over one pool: an Admission of its own that sees the same offers and sends nothing.

Owns the shadow's core, its clock and its pairs. It lives in events: at each real one it first catches up with what
came due in its own world, each thing at its own time, and then takes in what really happened. A request takes of an
engine what it really took, counted from the shadow's own dispatch of it, where that came no sooner than the real one;
otherwise what its like took lately. docs/shadow.md says what that can tell, and what it cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from gateway.core.admission import Admission
from gateway.core.plan import Plan
from gateway.core.ticket import Assignment, Dispatched, Event, Finished, FirstToken, Queued, Refused, Ticket
from gateway.core.types import EngineSpec, Outcome, Reason, Refusal
from gateway.shadow.counts import Fate, Line
from gateway.shadow.pairs import Ending, Pair, Span, Typical

PAIRS_MAX = 8192
STEPS_MAX = 4 * PAIRS_MAX

Compared = Callable[[Line, Fate, Fate], object]


class RanAway(Exception):  # noqa: N818 - the state that it names
    """The shadow does not come to an end of what is due."""


class PoolShadow:
    """compared: called once for each request that both policies have decided on.

    real: the pool's own admission, to look at. older: requests that were there before the shadow and have not ended:
    so long its engines are emptier than the real ones, and what is offered is not compared. assumed: requests whose
    times in the shadow are not their own. left: whose caller left before both had decided. unfollowed: beyond
    PAIRS_MAX at once.
    """

    def __init__(self, plan: Plan, real: Admission, compared: Compared, now: float, *, older: int = 0) -> None:
        self._real = real
        self._compared = compared
        self._now = now
        self._core = Admission(_without_steering(plan), real.fleet.specs())
        self._core.fleet.follow(real.fleet)
        self._judged: dict[int, Assignment | Refusal] = {}
        self._pairs: dict[int, Pair] = {}
        self._twins: dict[int, Pair] = {}
        self._due: list[tuple[float, int, Callable[[float], Sequence[Event]]]] = []
        self._dues = self._ages = 0
        self._youngest_sent = self._youngest_sent_in_shadow = 0
        self._first_judged_id: float = inf
        self._typical: defaultdict[Line, Typical] = defaultdict(Typical)
        self.older = older
        self.assumed = self.left = self.unfollowed = 0

    # ── what really happens ──

    def judged(self, assignment: Assignment, by_shadow: Assignment | Refusal) -> None:
        """Take note of how the shadow's plan judges a request, just before it is offered."""
        self._judged[id(assignment)] = by_shadow

    def refused_unoffered(self, line: Line, reason: Reason, by_shadow: Assignment | Refusal, now: float) -> None:
        """Take in a request that the plan in force refuses by its shape alone."""
        self.advance(now)
        if (pair := self._new_pair(line)) is not None:
            pair.real = Fate(reason)
            self._offer(pair, by_shadow, now)

    def events(self, events: Sequence[Event], now: float) -> None:
        """Take in what one call of the real admission brought about, in its order."""
        for event in events:
            # Known before the shadow catches up: what both send at one moment takes its own times in both.
            if isinstance(event, Dispatched) and (pair := self._pairs.get(event.ticket.id)) is not None:
                pair.sent_at = now
        for event in events:
            self.advance(now)
            self._event(event, now)

    def _event(self, event: Event, now: float) -> None:
        pair = self._pairs.get(event.ticket.id) or self._first_seen(event, now)
        if pair is None:
            return
        match event:
            case Dispatched(waited_s=waited_s):
                passed = self._youngest_sent > pair.age
                self._youngest_sent = max(self._youngest_sent, pair.age)
                pair.sent_at = now  # also where one engine sent it back and another took it in the same call
                if pair.real is None:
                    self._decided(pair, real=Fate(None, waited_s, passed))
            case Queued():
                pair.sent_at = None
            case FirstToken(engine_ttft_s=engine_ttft_s):
                self._typical[pair.line].saw_first_token(engine_ttft_s)
                if not pair.is_assumed:
                    assert pair.sent_at is not None, "a first token comes from an engine"
                    pair.prefill = Span(pair.sent_at, now)
                    self._expect_first_token(pair)
            case Refused(refusal=refusal, waited_s=waited_s):
                del self._pairs[event.ticket.id]
                self._refused(pair, Fate(refusal.reason, waited_s))
            case Finished():
                del self._pairs[event.ticket.id]
                self._ended(pair, event, now)
            case _:
                pass  # a part of a long prompt: the shadow has it computed whole

    def set_up(self, engine: str, *, up: bool, now: float) -> None:
        self.advance(now)
        self._take(self._core.set_up(engine, up, now), now)

    def reconfigure(self, plan: Plan, engines: Sequence[EngineSpec], now: float) -> None:
        """Put the shadow's plan, or other engines, in force. What waits or runs in the shadow keeps its place."""
        self.advance(now)
        events = self._core.reconfigure(_without_steering(plan), engines, now)
        self._core.fleet.follow(self._real.fleet)
        self._take(events, now)

    def drain(self, deadline_at: float, now: float) -> None:
        self.advance(now)
        self._take(self._core.drain(now, deadline_at), now)

    def undrain(self, now: float) -> None:
        self.advance(now)
        self._take(self._core.undrain(now), now)

    def compare_anew(self) -> None:
        """Leave out whatever a plan judged that is in force no more."""
        for pair in (*self._pairs.values(), *self._twins.values()):
            pair.counts = False
        self.assumed = self.left = self.unfollowed = 0

    # ── the shadow's own time ──

    def advance(self, now: float) -> None:
        """Let everything happen that was due in the shadow by now, in its order, each at its time."""
        for _ in range(STEPS_MAX):
            tick_at = self._core.next_tick_at()
            due_at = self._due[0][0] if self._due else inf
            if min(due_at, inf if tick_at is None else tick_at) > now:
                return
            if tick_at is not None and tick_at < due_at:
                at = max(self._now, tick_at)
                self._take(self._core.tick(at), at)
            else:
                at = max(self._now, due_at)
                self._take(heappop(self._due)[2](at), at)
        raise RanAway

    def _when(self, at: float, call: Callable[[float], Sequence[Event]]) -> None:
        self._dues += 1
        heappush(self._due, (at, self._dues, call))

    def _take(self, events: Sequence[Event], now: float) -> None:
        self._now = now
        for event in events:
            pair = self._twins[event.ticket.id]
            match event:
                case Dispatched(waited_s=waited_s):
                    passed = self._youngest_sent_in_shadow > pair.age
                    self._youngest_sent_in_shadow = max(self._youngest_sent_in_shadow, pair.age)
                    self._decided(pair, shadow=Fate(None, waited_s, passed))
                    self._sent_in_shadow(pair, now)
                case Refused(refusal=refusal, waited_s=waited_s):
                    del self._twins[event.ticket.id]
                    self._decided(pair, shadow=Fate(refusal.reason, waited_s))
                case Finished():
                    del self._twins[event.ticket.id]
                case _:
                    pass

    # ── a pair ──

    def _first_seen(self, event: Event, now: float) -> Pair | None:
        """Pair a request with its twin at its first event; None for one that is not followed."""
        ticket = event.ticket
        by_shadow = self._judged.pop(id(ticket.assignment), None)
        if by_shadow is None:
            # Who was judged and is not followed is younger than the shadow.
            if self.older and ticket.id < self._first_judged_id and isinstance(event, Finished | Refused):
                self.older -= 1
            return None
        self._first_judged_id = min(self._first_judged_id, ticket.id)
        pair = self._new_pair(Line(ticket.assignment.service_class, ticket.assignment.length_class))
        if pair is not None:
            self._pairs[ticket.id] = pair
            pair.sent_at = now if isinstance(event, Dispatched) else None
            self._offer(pair, by_shadow, now)
        return pair

    def _new_pair(self, line: Line) -> Pair | None:
        if max(len(self._pairs), len(self._twins)) >= PAIRS_MAX:
            self.unfollowed += 1
            return None
        self._ages += 1
        return Pair(self._ages, line, counts=self.older == 0)

    def _offer(self, pair: Pair, by_shadow: Assignment | Refusal, now: float) -> None:
        if isinstance(by_shadow, Refusal):
            self._decided(pair, shadow=Fate(by_shadow.reason))
            return
        pair.twin, events = self._core.offer(_whole(by_shadow), now)
        self._twins[pair.twin.id] = pair
        self._take(events, now)

    def _decided(self, pair: Pair, *, real: Fate | None = None, shadow: Fate | None = None) -> None:
        pair.real, pair.shadow = real or pair.real, shadow or pair.shadow
        if pair.counts and pair.real is not None and pair.shadow is not None:
            pair.counts = False
            self._compared(pair.line, pair.real, pair.shadow)

    def _sent_in_shadow(self, pair: Pair, now: float) -> None:
        """Expect what the request takes of its engine: its own times, unless the shadow sends it sooner, or alone."""
        if pair.sent_at is not None and pair.sent_at <= now:
            self._expect_first_token(pair)
            self._expect_end(pair)
        else:
            self._assume(pair)

    def _assume(self, pair: Pair) -> None:
        assert pair.running_twin is not None, "only what the shadow sent needs times"
        pair.is_assumed = True
        self.assumed += 1
        pair.prefill, pair.ending = self._typical[pair.line].of(*pair.running_twin)
        self._expect_first_token(pair)
        self._expect_end(pair)

    def _expect_first_token(self, pair: Pair) -> None:
        running, prefill = pair.running_twin, pair.prefill
        if running is not None and prefill is not None:
            twin, sent_at = running
            self._when(prefill.after(sent_at), partial(self._core.first_token, twin))

    def _expect_end(self, pair: Pair) -> None:
        running, ending = pair.running_twin, pair.ending
        if running is not None and ending is not None:
            twin, sent_at = running
            self._when(ending.span.after(sent_at), partial(self._end, twin, ending))

    def _end(self, twin: Ticket, ending: Ending, now: float) -> Sequence[Event]:
        return self._core.finish(twin, ending.outcome, now, output_tokens=ending.output_tokens)

    def _refused(self, pair: Pair, fate: Fate) -> None:
        if pair.real is None:
            self._decided(pair, real=fate)
        elif pair.running_twin is not None and pair.ending is None:
            self._assume(pair)  # its engine had sent it back: how long it takes will not be known

    def _ended(self, pair: Pair, event: Finished, now: float) -> None:
        outcome = event.outcome
        if pair.sent_at is None or outcome is Outcome.CLIENT_GONE:
            # The caller has left both worlds.
            self.left += pair.counts
            pair.counts = False
            if pair.twin is not None:
                self._take(self._core.finish(pair.twin, outcome, now, output_tokens=event.output_tokens), now)
            return
        span = Span(pair.sent_at, now)
        if outcome is Outcome.COMPLETED:
            self._typical[pair.line].saw_end(now - pair.sent_at)
        if not pair.is_assumed:
            pair.ending = Ending(span, outcome, event.output_tokens)
            self._expect_end(pair)


def _without_steering(plan: Plan) -> Plan:
    """Return the plan as a shadow runs it: feedback would steer by what the plan in force makes of the engines."""
    return replace(plan, feedback=None)


def _whole(assignment: Assignment) -> Assignment:
    """Return it as one that is computed in one go: nobody sends a shadow's parts."""
    return replace(assignment, is_divisible=False) if assignment.is_divisible else assignment
