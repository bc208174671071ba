"""Long prompts computed part by part, so that short ones go between: how large a part is, and when it goes.

vLLM cannot put a running prefill aside; a gateway can, because the engine keeps the blocks of a prefix that it has
computed. `sliced`: the prompt is sent as growing prefixes, one at a time, the caller's own request last. `recalled`:
the request itself is sent, taken back when a short one comes, and sent again when none is left unserved.

Owns the course of every divided prefill at one engine, and the judgement whether that engine's cache carries it. One
part is at the engine at a time, so no short one is ever behind more than one. Sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

from gateway.core.plan import LongPrefill, LongPrefillMode
from gateway.core.steptime import StepModel
from gateway.core.ticket import Ticket
from gateway.core.types import LengthClass

_LAST_SLICES = 1.25
"""How many slices' time the caller's own request may still take: what is left is not cut for a small rest."""
_LOST_SHARE = 0.5
"""A part that took more than this share of what its prefix costs anew found no cache."""
_TELLING_RATIO = 3.0
"""The time of a part tells of the cache where computing its prefix anew would take this many times as long."""
_FAILURES_MAX = 3
_PROBE_EVERY_S = 60.0


def slice_end(
    model: StepModel, *, done_tokens: int, prompt_tokens: int, slice_s: float, step_tokens: int, block_tokens: int
) -> int | None:
    """Return where the next part ends so that it takes about `slice_s`; None: the rest is one part's work.

    Ends lie on block borders, since only whole blocks are cached.
    """
    if model.part_s(done_tokens, prompt_tokens, step_tokens) <= _LAST_SLICES * slice_s:
        return None
    # a·n/B + n/R + q·n·(c + n/2) = slice_s, solved for n in the form that holds for q = 0 too.
    per_token_s = model.base_s / step_tokens + model.per_token_s + model.per_token_context_s * done_tokens
    tokens = 2 * slice_s / (per_token_s + sqrt(per_token_s**2 + 2 * model.per_token_context_s * slice_s))
    end = int(done_tokens + tokens) // block_tokens * block_tokens
    end = max(end, (done_tokens // block_tokens + 1) * block_tokens)
    return end if end < prompt_tokens else None


@dataclass(eq=False, slots=True)
class Course:
    """How far one long prompt is computed. Times in seconds since the epoch.

    done_tokens: in the engine's cache, as far as is known. sent_tokens: the prefix at the engine now; None: put aside.
    is_whole: the rest goes in one part. keeps_until: it is not taken back before. deadline_at: of its first token.
    """

    ticket: Ticket
    plan: LongPrefill
    deadline_at: float
    done_tokens: int = 0
    sent_tokens: int | None = None
    sent_at: float = 0.0
    aside_since: float = 0.0
    keeps_until: float = 0.0
    recalls: int = 0
    is_whole: bool = False

    @property
    def prompt_tokens(self) -> int:
        return self.ticket.assignment.prompt_tokens

    @property
    def at_request(self) -> bool:
        """Whether the caller's own request is at the engine."""
        return self.sent_tokens == self.prompt_tokens

    def hold_s(self, model: StepModel, step_tokens: int, since: float) -> float:
        """Return how long it may be put aside for shorts: as stated, or its slack in equal shares over its parts."""
        if self.plan.hold_max_s is not None:
            return self.plan.hold_max_s
        left_s = model.part_s(self.done_tokens, self.prompt_tokens, step_tokens)
        parts = max(1.0, left_s / self.plan.slice_s)
        return max(0.0, self.deadline_at - since - left_s) / parts

    def hold_until(self, model: StepModel, step_tokens: int) -> float:
        return self.aside_since + self.hold_s(model, step_tokens, self.aside_since)


class PartOut(NamedTuple):
    """A part at the engine: from which token to which, and since when."""

    context_tokens: int
    end_tokens: int
    sent_at: float


class Courses:
    """The divided prefills of one engine."""

    __slots__ = ("_at_engine", "_block_tokens", "_courses", "_disturbed", "_failures", "_probe_at", "_step_tokens")

    def __init__(self) -> None:
        self._courses: dict[Ticket, Course] = {}
        self._at_engine: Course | None = None
        self._disturbed = False
        self._failures = 0
        self._probe_at: float | None = None
        self._step_tokens = self._block_tokens = 1

    def configure(self, *, step_tokens: int, block_tokens: int) -> None:
        """Set the tokens of one engine step and of one block of its cache."""
        self._step_tokens, self._block_tokens = step_tokens, block_tokens

    def __len__(self) -> int:
        return len(self._courses)

    def has_slice_out(self, ticket: Ticket) -> bool:
        """Tell whether a slice of this ticket's prompt, not its request itself, is at the engine."""
        course = self._courses.get(ticket)
        return course is not None and course.sent_tokens is not None and not course.at_request

    def carries(self, now: float) -> bool:
        """Tell whether prompts are to be divided here: unless the cache failed of late, but for a probe at times."""
        if self._probe_at is None:
            return True
        if now < self._probe_at:
            return False
        self._probe_at = now + _PROBE_EVERY_S
        return True

    def begin(self, ticket: Ticket, plan: LongPrefill, now: float) -> None:
        """Start a course, put aside from the first moment: `next_part` sends it."""
        assignment = ticket.assignment
        ttft_ms = assignment.class_plan.slo[LengthClass.LONG].ttft_ms
        due_s = assignment.class_plan.wait_s_max[LengthClass.LONG] if ttft_ms is None else ttft_ms / 1000
        self._courses[ticket] = Course(ticket, plan, ticket.offered_at + due_s, aside_since=now)

    def next_part(self, model: StepModel, now: float, *, shorts_wait: bool) -> Course | None:
        """Send a course's next part, where one may go now: it is at the engine then, `sent_tokens` of its prompt."""
        if self._at_engine is not None:
            return None
        for course in sorted(self._courses.values(), key=lambda course: course.deadline_at):
            if not shorts_wait or now >= course.hold_until(model, self._step_tokens):
                course.sent_tokens, course.sent_at = self._end_of_next(course, model), now
                # Who goes although shorts wait has a slice's time to itself, or it would be taken back at once.
                course.keeps_until = now + course.plan.slice_s if shorts_wait else now
                self._at_engine, self._disturbed = course, False
                return course
        return None

    def disturb(self) -> None:
        """Note that other work was sent beside the part at the engine: its time says nothing of the cache then."""
        self._disturbed = True

    def changes_at(self, model: StepModel, now: float) -> float:
        """Return when a part goes though shorts wait, or may be taken back again; infinity: not by time alone."""
        course = self._at_engine
        if course is not None:
            keeps = course.plan.mode is LongPrefillMode.RECALLED and course.keeps_until > now
            return course.keeps_until if keeps else inf
        return min((course.hold_until(model, self._step_tokens) for course in self._courses.values()), default=inf)

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
        else:
            course.done_tokens = course.sent_tokens
        self._judge(held, now)
        self._put_aside(course, now)
        return held

    def answered(self, ticket: Ticket, model: StepModel, now: float) -> bool:
        """End a course with its request's first token; True where there was one."""
        course = self.end(ticket)
        if course is None:
            return False
        if course.sent_tokens is not None and not course.is_whole:
            self._judge(self._cache_held(course, model, now, None), now)
        return True

    def recallable(self, model: StepModel, now: float) -> Ticket | None:
        """Return the request that a short one may put aside now, or None."""
        course = self._at_engine
        if course is None or course.plan.mode is not LongPrefillMode.RECALLED or course.is_whole:
            return None
        if now < course.keeps_until or course.recalls >= course.plan.recalls_max:
            return None
        if course.hold_s(model, self._step_tokens, now) <= 0.0:
            return None  # it would come back at once
        left_s = course.sent_at + model.part_s(course.done_tokens, course.prompt_tokens, self._step_tokens) - now
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
        if course is not None and self._at_engine is course:
            self._at_engine = None
        return course

    def _put_aside(self, course: Course, now: float) -> None:
        course.sent_tokens, course.aside_since = None, now
        self._at_engine = None

    def _end_of_next(self, course: Course, model: StepModel) -> int:
        if course.is_whole or course.plan.mode is LongPrefillMode.RECALLED:
            return course.prompt_tokens
        end = slice_end(
            model,
            done_tokens=course.done_tokens,
            prompt_tokens=course.prompt_tokens,
            slice_s=course.plan.slice_s,
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

    def _judge(self, held: bool | None, now: float) -> None:
        if held is None:
            return
        if held:
            self._failures, self._probe_at = 0, None
            return
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._probe_at = now + _PROBE_EVERY_S
