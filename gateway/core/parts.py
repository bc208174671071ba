"""Long prompts in parts at one engine: which are divided, and what is to be sent or taken back at this moment.

Owns the events of it, and when the engine is to be asked again. Which part goes when is `courses`' to say; nothing is
sent here.
"""

from __future__ import annotations

from math import ceil, inf

from gateway.core.courses import Cache, Courses
from gateway.core.dues import Due, FirstTokens, HoldEnd
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import Budget, Ledger
from gateway.core.plan import LongPrefill, LongPrefillMode, Plan
from gateway.core.slices import Course, slice_end
from gateway.core.steptime import Fit, StepModel
from gateway.core.ticket import DividingChanged, Event, Proceed, Recalled, Ticket
from gateway.core.types import DividingSnapshot, EngineLimits


class Parts:
    """The divided prompts of one engine, beside its ledger. courses: how far each is."""

    __slots__ = ("_due", "_engine", "_first_tokens", "_hold_end", "_ledger", "_limits", "_plan", "courses")

    def __init__(self, engine: str, ledger: Ledger, first_tokens: FirstTokens, due: LazyHeap[Due]) -> None:
        self.courses = Courses()
        self._engine = engine
        self._ledger = ledger
        self._first_tokens = first_tokens
        self._due = due
        self._hold_end = HoldEnd(engine)

    def configure(self, limits: EngineLimits, plan: Plan) -> None:
        """Take the limits of the engine and the plan in force; courses that were begun go on."""
        self._limits = limits
        self._plan = plan.admission
        self.courses.configure(limits)

    def wants(self, ticket: Ticket, model: StepModel) -> bool:
        """Tell whether the plan has this long prompt computed in parts, and it is long enough for two."""
        plan, assignment = self._plan_of(ticket), ticket.assignment
        if plan is None or not assignment.is_divisible:
            return False
        if plan.mode is LongPrefillMode.RECALLED:
            return True
        first_end = slice_end(
            model,
            done_tokens=0,
            prompt_tokens=assignment.prompt_tokens,
            slice_s=plan.slice_s,
            step_tokens=self._limits.step_tokens,
            block_tokens=self._limits.kv_block_tokens,
        )
        return first_end is not None

    def divide(self, ticket: Ticket, now: float) -> bool:
        """Let the ticket's prompt be computed in parts; False where this engine's cache does not carry that now."""
        plan = self._plan_of(ticket)
        assert plan is not None, "asked after wants"
        if not self.courses.trust.tries(now):
            return False
        self._due.discard(ticket)
        self.courses.begin(ticket, plan, now)
        return True

    def accepted(self, ticket: Ticket, now: float, *, is_accepted: bool) -> list[Event]:
        """Take in whether the engine would take the request; what it would refuse goes there whole, at once."""
        if is_accepted:
            self.courses.accepted(ticket, now)
            return []
        self.courses.end(ticket)
        return [Proceed(ticket, None)]

    def make_way(
        self, model: StepModel, now: float, *, shorts_in_line: bool, longs_in_line: bool, is_paused: bool
    ) -> list[Event]:
        """Let the next part of a long prompt go, or take one back for shorts; none goes to an engine without room."""
        events: list[Event] = []
        shorts_wait = shorts_in_line or self._ledger.short_prefill_tokens > 0
        if shorts_wait and (ticket := self._recall(model, now)) is not None:
            events.append(Recalled(ticket))
        if is_paused:
            return events
        course = self._next_part(model, now, shorts_wait=shorts_wait, longs_wait=longs_in_line)
        if course is not None:
            events.append(Proceed(course.ticket, None if course.at_request else course.sent_tokens))
        return events

    def slice_ended(self, ticket: Ticket, fit: Fit, now: float, *, computed: bool, cached_tokens: int | None) -> bool:
        """Take in the end of a slice; False where it failed, or found no cache. One alone teaches its time."""
        part = self.courses.part_out(ticket)
        held = self.courses.slice_ended(ticket, fit.model, now, computed=computed, cached_tokens=cached_tokens)
        if part is not None and computed and (held or not part.context_tokens):
            tokens = part.end_tokens - part.context_tokens
            fit.observe(
                prompt_tokens=tokens,
                steps=ceil(tokens / self._limits.step_tokens),
                seconds=now - part.sent_at,
                context_tokens=part.context_tokens,
            )
        return held is not False

    def changed(self, ticket: Ticket) -> list[Event]:
        """Tell once that long prompts go whole from here on, or in parts again."""
        trust = self.courses.trust
        return [DividingChanged(ticket, self._engine, trust.why_whole)] if trust.takes_change() else []

    def snapshot(self, model: StepModel) -> DividingSnapshot | None:
        """Return whether long prompts are divided here, and how far each is."""
        plan = self._plan.long_prefill
        return None if plan is None else self.courses.snapshot(plan.mode.value, model)

    def forget_timers(self) -> None:
        self._due.discard(self._hold_end)

    def _next_part(self, model: StepModel, now: float, *, shorts_wait: bool, longs_wait: bool) -> Course | None:
        """Send the next part that may go, and note when the one after it may."""
        course = self.courses.next_part(model, now, shorts_wait=shorts_wait, longs_wait=longs_wait, cache=self._cache())
        if course is not None and course.at_request:
            self._first_tokens.expect(course.ticket, self.courses.rest_s(course.ticket, model), now)
        changes_at = self.courses.changes_at(model, now)
        if changes_at == inf:
            self._due.discard(self._hold_end)
        else:
            self._due.push(self._hold_end, changes_at)
        return course

    def _recall(self, model: StepModel, now: float) -> Ticket | None:
        """Take back the request that makes way for a short, where there is one that may."""
        ticket = self.courses.recallable(model, now, self._cache())
        if ticket is not None:
            self._due.discard(ticket)
            self.courses.recalled(ticket, model, now)
        return ticket

    def _cache(self) -> Cache:
        short_tokens = self._plan.short_prefill_tokens_max or 0
        return Cache(self._ledger.cap(Budget.KV_TOKENS), self._ledger.kv_tokens, short_tokens)

    def _plan_of(self, ticket: Ticket) -> LongPrefill | None:
        """Return how the ticket's prompt is divided: as the plan it was judged by says, while the one in force does."""
        in_force = self._plan.long_prefill
        return None if in_force is None else ticket.assignment.plan.admission.long_prefill
