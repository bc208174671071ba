"""The long prompts that one engine computes in parts: which part goes when, and what its end says of the cache.

One part is at the engine at a time, so no short one is ever behind more than one. Owns the course of every divided
prompt at that engine. Sends nothing. One module, because what a part's end says of the cache decides which goes next.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from gateway.core.cache_trust import CacheTrust
from gateway.core.plan import LongPrefill, LongPrefillMode
from gateway.core.slice_share import SliceShare
from gateway.core.slices import Course, slice_end
from gateway.core.steptime import StepModel
from gateway.core.ticket import Ticket
from gateway.core.types import CourseSnapshot, DividingSnapshot, EngineLimits, FallbackReason, LengthClass

_LOST_SHARE = 0.5
"""A part that took more than this share of what its prefix costs anew found no cache."""
_TELLING_RATIO = 3.0
"""The time of a part tells of the cache where computing its prefix anew would take this many times as long."""
_TIMES_LEFT = 2.0
"""A long prompt has time for small slices while its deadline is so many times further than what is left of it."""


class PartOut(NamedTuple):
    """A part at the engine: from which token to which, and since when."""

    context_tokens: int
    end_tokens: int
    sent_at: float


class Cache(NamedTuple):
    """An engine's KV cache. tokens: infinity where its size is not known. short_tokens: that shorts may use at once."""

    tokens: float
    reserved_tokens: int
    short_tokens: int


class Courses:
    """The divided prefills of one engine. trust: whether its cache carries them."""

    __slots__ = (
        "_at_engine",
        "_block_tokens",
        "_courses",
        "_disturbed",
        "_freed_tokens",
        "_share",
        "_step_tokens",
        "trust",
    )

    def __init__(self) -> None:
        self.trust = CacheTrust()
        self._courses: dict[Ticket, Course] = {}
        self._at_engine: Course | None = None
        self._disturbed = False
        self._freed_tokens = 0
        self._share = SliceShare()
        self._step_tokens = self._block_tokens = 1

    def configure(self, limits: EngineLimits) -> None:
        """Take the tokens of one engine step and of one block of its cache, and whether it keeps what it computed."""
        self._step_tokens, self._block_tokens = limits.step_tokens, limits.kv_block_tokens
        self.trust.prefix_caching = limits.prefix_caching

    def __len__(self) -> int:
        return len(self._courses)

    def has_slice_out(self, ticket: Ticket) -> bool:
        """Tell whether a slice of this ticket's prompt, not its request itself, is at the engine."""
        course = self._courses.get(ticket)
        return course is not None and course.sent_tokens is not None and not course.at_request

    def begin(self, ticket: Ticket, plan: LongPrefill, now: float) -> None:
        """Start a course, put aside from the first moment: `next_part` sends it, slices once they are `accepted`."""
        assignment = ticket.assignment
        ttft_ms = assignment.class_plan.slo[LengthClass.LONG].ttft_ms
        due_s = assignment.class_plan.wait_s_max[LengthClass.LONG] if ttft_ms is None else ttft_ms / 1000
        is_accepted = plan.mode is LongPrefillMode.RECALLED  # what goes first is the request itself
        course = Course(ticket, plan, ticket.offered_at + due_s, is_accepted, aside_since=now)
        course.freed_tokens = self._freed_tokens
        self._courses[ticket] = course

    def accepted(self, ticket: Ticket, now: float) -> None:
        """Note that the engine would take the request: its slices may go from now on."""
        course = self._courses[ticket]
        course.is_accepted, course.aside_since = True, now

    def next_part(
        self, model: StepModel, now: float, *, shorts_wait: bool, longs_wait: bool, cache: Cache
    ) -> Course | None:
        """Send a course's next part, where one may go now: it is at the engine then, `sent_tokens` of its prompt."""
        if longs_wait or len(self._courses) > 1:
            self._share.long_waits()
        if self._at_engine is not None:
            return None
        self._share_out(model, now, cache)
        for course in sorted(self._going(), key=lambda course: course.deadline_at):
            if not shorts_wait or self._is_crowded(course, cache) or now >= course.hold_until(model, self._step_tokens):
                course.sent_tokens, course.sent_at = self._end_of_next(course, model), now
                course.parts_sent += 1
                # Who goes although shorts wait has a slice's time to itself, or it would be taken back at once.
                course.keeps_until = now + course.slice_s if shorts_wait else now
                self._at_engine, self._disturbed = course, False
                return course
        return None

    def disturb(self, now: float, *, by_short: bool) -> None:
        """Note that other work was sent beside the part at the engine: its time says nothing of the cache then."""
        self._disturbed = True
        if by_short:
            self._share.short_came(now)

    def left(self, ticket: Ticket, output_tokens: int | None) -> None:
        """Note that a request has left: its course ends, and what it computed outlives what the cache held before.

        output_tokens: what was generated for it; None: not known, perhaps all that was reserved.
        """
        if not self._courses:
            return
        self.end(ticket)
        kept_tokens = ticket.kv_tokens
        if output_tokens is not None:
            kept_tokens = min(kept_tokens, ticket.assignment.prompt_tokens + output_tokens)
        self._freed_tokens += kept_tokens

    def changes_at(self, model: StepModel, now: float) -> float:
        """Return when a part goes though shorts wait, or may be taken back again; infinity: not by time alone."""
        course = self._at_engine
        if course is not None:
            keeps = course.plan.mode is LongPrefillMode.RECALLED and course.keeps_until > now
            return course.keeps_until if keeps else inf
        return min((course.hold_until(model, self._step_tokens) for course in self._going()), default=inf)

    def part_out(self, ticket: Ticket) -> PartOut | None:
        """Return the part at the engine, if it is this ticket's and nothing else was sent beside it."""
        course = self._at_engine
        if course is None or course.ticket is not ticket or course.sent_tokens is None or self._disturbed:
            return None
        return PartOut(course.done_tokens, course.sent_tokens, course.sent_at)

    def slice_ended(
        self, ticket: Ticket, model: StepModel, now: float, *, computed: bool, cached_tokens: int | None
    ) -> bool | None:
        """Take in the end of the slice at the engine; return whether the cache held what lay before it.

        cached_tokens: of its prefix, as the engine says; None: it does not say, and the time it took has to. None is
        returned where nothing tells: the slice was computed, and what it built on is not known.
        """
        course = self._courses[ticket]
        assert course.sent_tokens is not None, "a slice ends that was sent"
        held = self._cache_held(course, model, now, cached_tokens) if computed else False
        if held is False:
            course.is_whole = True
            self.trust.lost(FallbackReason.NOT_CACHED if computed else FallbackReason.FAILED, now)
        else:
            course.done_tokens = course.sent_tokens
            course.found_cached |= held is True
        self._put_aside(course, now)
        return held

    def answered(self, ticket: Ticket, model: StepModel, now: float) -> Course | None:
        """End a course with its request's first token, where there is one; its `busy_s` is complete then."""
        course = self._courses.get(ticket)
        if course is not None:
            if course.sent_tokens is not None:
                # A whole answer's first byte comes after its decoding too, which is neither prefill nor telling.
                streams, rest_s = ticket.assignment.stream, self.rest_s(ticket, model)
                course.busy_s += now - course.sent_at if streams else min(now - course.sent_at, rest_s)
                held = self._cache_held(course, model, now, None) if streams and not course.is_whole else None
                if held is False:
                    course.is_whole = True
                    self.trust.lost(FallbackReason.NOT_CACHED, now)
                course.found_cached |= held is True
            self.served(ticket)
        return course

    def served(self, ticket: Ticket) -> None:
        """End a course whose prefill is over; nothing happens where there is none."""
        course = self.end(ticket)
        if course is not None and course.found_cached and not course.is_whole:
            self.trust.kept()

    def recallable(self, model: StepModel, now: float, cache: Cache) -> Ticket | None:
        """Return the request that a short one may put aside now, or None."""
        course = self._at_engine
        if course is None or course.plan.mode is not LongPrefillMode.RECALLED or course.is_whole:
            return None
        if now < course.keeps_until or course.recalls >= course.plan.recalls_max:
            return None
        if course.hold_s(model, self._step_tokens, now) <= 0.0 or _fills(course, cache):
            return None  # it would come back at once
        left_s = course.sent_at + model.part_s(course.done_tokens, course.prompt_tokens, self._step_tokens) - now
        if abs(left_s) <= course.plan.slice_s:
            return None  # about to end: a short one waits no longer for it than for a slice
        # An answer that is no stream does not show when its prefill has ended: by the model it is over.
        over = left_s <= 0.0 and not course.ticket.assignment.stream
        return None if over else course.ticket

    def recalled(self, ticket: Ticket, model: StepModel, now: float) -> None:
        """Note that the request comes back: what its steps computed until now is cached, as far as the model knows."""
        course = self._courses[ticket]
        spent_s = now - course.sent_at
        while (
            course.done_tokens < course.prompt_tokens - self._step_tokens
            and (step_s := model.step_s(self._step_tokens, course.done_tokens)) <= spent_s
        ):
            spent_s -= step_s
            course.done_tokens += self._step_tokens
        course.recalls += 1
        self._put_aside(course, now)

    def rest_s(self, ticket: Ticket, model: StepModel) -> float:
        """Predict the prefill that is left of a course."""
        course = self._courses[ticket]
        return model.part_s(course.done_tokens, course.prompt_tokens, self._step_tokens)

    def end(self, ticket: Ticket) -> Course | None:
        """Forget a course: its prefill is over, or its request has left. Returns it where there was one."""
        course = self._courses.pop(ticket, None)
        if course is not None:
            self._share.long_ended()
            self._at_engine = None if self._at_engine is course else self._at_engine
        return course

    def snapshot(self, mode: str, model: StepModel) -> DividingSnapshot:
        """Return whether prompts are divided here, and how far each is that was."""
        courses = tuple(self._seen(course, model) for course in self._courses.values())
        return DividingSnapshot(mode, self.trust.why_whole, self.trust.since, self.trust.tries_at, courses)

    def _seen(self, course: Course, model: StepModel) -> CourseSnapshot:
        assignment, is_out = course.ticket.assignment, course.sent_tokens is not None
        parts, end = course.parts_sent, course.sent_tokens or course.done_tokens
        while end < course.prompt_tokens:
            end = self._end_of_next(course, model, end)
            parts += 1
        return CourseSnapshot(
            service_class=assignment.service_class,
            prompt_tokens=course.prompt_tokens,
            done_tokens=course.done_tokens,
            part=course.parts_sent if is_out else course.parts_sent + 1,
            parts=parts,
            held_since=None if is_out or not course.is_accepted else course.aside_since,
            recalls=course.recalls,
        )

    def _going(self) -> list[Course]:
        return [course for course in self._courses.values() if course.is_accepted]

    def _share_out(self, model: StepModel, now: float, cache: Cache) -> None:
        """Say how large slices are now: small for who has time for what that costs, and room beside it."""
        share = self._share.at(now)
        for course in self._going():
            if course.plan.mode is LongPrefillMode.SLICED:
                left_s = model.part_s(course.done_tokens, course.prompt_tokens, self._step_tokens)
                has_time = course.deadline_at - now > _TIMES_LEFT * left_s
                course.share = share if has_time and not self._is_crowded(course, cache) else 1.0

    def _is_crowded(self, course: Course, cache: Cache) -> bool:
        """Tell whether the cache is too small for a course to be held (on).

        Beside it there is no room for the shorts that it would be held for; or what others have left there since it
        was put aside, which outlives it, fills what neither they nor it need, so that it would soon be lost.
        """
        if _fills(course, cache):
            return True
        room_tokens = cache.tokens - cache.reserved_tokens + course.ticket.kv_tokens - course.done_tokens
        return course.done_tokens > 0 and self._freed_tokens - course.freed_tokens >= room_tokens

    def _put_aside(self, course: Course, now: float) -> None:
        course.busy_s += now - course.sent_at
        course.sent_tokens, course.aside_since, course.freed_tokens = None, now, self._freed_tokens
        self._at_engine = None

    def _end_of_next(self, course: Course, model: StepModel, done_tokens: int | None = None) -> int:
        if course.is_whole or course.plan.mode is LongPrefillMode.RECALLED:
            return course.prompt_tokens
        end = slice_end(
            model,
            done_tokens=course.done_tokens if done_tokens is None else done_tokens,
            prompt_tokens=course.prompt_tokens,
            slice_s=course.slice_s,
            step_tokens=self._step_tokens,
            block_tokens=self._block_tokens,
        )
        return course.prompt_tokens if end is None else end

    def _cache_held(self, course: Course, model: StepModel, now: float, cached_tokens: int | None) -> bool | None:
        if not course.done_tokens:
            return None
        if cached_tokens is not None:
            return cached_tokens > _LOST_SHARE * course.done_tokens
        assert course.sent_tokens is not None
        part_s = model.part_s(course.done_tokens, course.sent_tokens, self._step_tokens)
        anew_s = model.part_s(0, course.sent_tokens, self._step_tokens)
        if self._disturbed or not model.fitted or anew_s < _TELLING_RATIO * part_s:
            return None
        return now - course.sent_at <= part_s + _LOST_SHARE * (anew_s - part_s)


def _fills(course: Course, cache: Cache) -> bool:
    """Tell whether the course leaves the shorts that it would be put aside for no room in the cache."""
    return cache.tokens - course.ticket.kv_tokens < cache.short_tokens
