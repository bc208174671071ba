"""Long prompts in parts: when one goes, what its end says of the cache, and what is told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.cache_trust import CacheTrust
from gateway.core.ledger import Budget, Ledger
from gateway.core.plan import LongPrefill, LongPrefillMode
from gateway.core.slices import slice_end
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import Dispatched, DividingChanged, Proceed, Recalled, SliceEnded, SliceResult
from gateway.core.types import FallbackReason, Outcome
from gateway.testing.builders import a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0
SHORT, LONG = 512, 20_000
SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.1, hold_max_s=5.0, recalls_max=8)
RECALLED = replace(SLICED, mode=LongPrefillMode.RECALLED)


def plan_of(way=SLICED, **admission):
    return a_plan(admission=an_admission(long_prefill=way, **admission))


class Line:
    """One engine's Admission with a clock; events of the last call in `events`."""

    def __init__(self, plan=None, **limits):
        self.plan = plan or plan_of()
        self.admission = Admission(self.plan, [an_engine(**limits)])
        self.now, self.events = NOW, []

    def offer(self, prompt_tokens=LONG, *, accepts=True, **kwargs):
        kwargs = {"is_divisible": prompt_tokens > 640} | kwargs
        ticket, self.events = self.admission.offer(
            an_assignment(self.plan, prompt_tokens=prompt_tokens, **kwargs), self.now
        )
        dispatched = [event for event in self.events if isinstance(event, Dispatched) and event.ticket is ticket]
        if accepts and dispatched and dispatched[0].divided:
            self.events += self.admission.accepted(ticket, self.now, is_accepted=True)
        return ticket

    def slice_ends(self, ticket, *, after_s=0.1, computed=True, cached_tokens=None):
        self.now += after_s
        self.events = self.admission.slice_ended(ticket, self.now, computed=computed, cached_tokens=cached_tokens)
        (ended,) = self.said(SliceEnded)
        return ended.result

    def first_token(self, ticket, *, after_s=0.1):
        self.now += after_s
        self.events = self.admission.first_token(ticket, self.now)

    def finish(self, ticket, **kwargs):
        self.events = self.admission.finish(ticket, Outcome.COMPLETED, self.now, **kwargs)

    def said(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def prefix(self):
        """Return how much of a prompt was sent just now; None: the request itself."""
        (proceeded,) = self.said(Proceed)
        return proceeded.prefix_tokens

    def one(self, *, cached=True):
        """Play one long prompt to its end; `cached`: what was computed of it is found, or it never is.

        Returns what was told of the engine meanwhile: why prompts go whole from then on.
        """
        ticket, done = self.offer(), 0
        events = list(self.events)
        while self.said(Proceed) and (prefix := self.prefix()) is not None:
            if self.slice_ends(ticket, cached_tokens=done if cached else 0) is SliceResult.COMPUTED:
                done = prefix
            events += self.events
        self.first_token(ticket)
        events += self.events
        self.finish(ticket)
        return [event.reason for event in events if isinstance(event, DividingChanged)]

    def why_whole(self):
        return self.admission.snapshot().engines["a"].dividing.reason


# ── before the first slice ──


def test_nothing_goes_before_the_engine_has_said_that_it_would_take_the_request():
    line = Line()
    ticket = line.offer(accepts=False)
    assert [type(event) for event in line.events] == [Dispatched]
    line.events = line.admission.tick(NOW + 100.0)
    assert line.events == []
    line.now += 100.0
    line.events = line.admission.accepted(ticket, line.now, is_accepted=True)
    assert 0 < line.prefix() < LONG


def test_what_the_engine_would_refuse_goes_whole_at_once_though_shorts_wait():
    line = Line()
    ticket = line.offer(accepts=False)
    line.offer(SHORT)
    line.events = line.admission.accepted(ticket, line.now, is_accepted=False)
    assert line.events == [Proceed(ticket, None)]
    assert line.admission.snapshot().engines["a"].dividing.courses == ()


def test_a_recalled_request_is_its_own_question():
    line = Line(plan_of(RECALLED))
    line.offer(accepts=False)
    assert line.prefix() is None


def test_a_request_is_divided_as_the_plan_says_that_it_was_judged_by_while_prompts_are_divided_at_all():
    for in_force, divided in ((RECALLED, True), (None, False)):
        line = Line(plan_of(long_prefills_max=1))
        first = line.offer()
        waiting = line.offer()
        line.admission.reconfigure(plan_of(in_force), [an_engine()], line.now)
        line.finish(first)
        (dispatched,) = line.said(Dispatched)
        assert (dispatched.ticket, dispatched.divided) == (waiting, divided)
        assert line.said(Proceed) == [], "its slices are asked for first, or it is whole"


# ── what the end of a part says of the cache ──


def test_a_lost_prefix_makes_its_request_whole_and_three_more_lost_than_kept_the_engine():
    line = Line()
    assert [line.one(cached=False) for _ in range(2)] == [[], []]
    assert line.one() == []
    assert line.one(cached=False) == []
    assert line.why_whole() is None
    assert line.one(cached=False) == [FallbackReason.NOT_CACHED]
    assert line.why_whole() is FallbackReason.NOT_CACHED
    assert line.one() == []


def test_one_prompt_a_minute_is_tried_in_parts_and_a_kept_one_brings_them_all_back():
    line = Line()
    for _ in range(3):
        line.one(cached=False)
    line.now += 61.0
    assert line.one(cached=False) == []
    seen = line.admission.snapshot().engines["a"].dividing
    assert seen.since < seen.tries_at
    line.offer()
    assert [event.result for event in line.said(SliceEnded)] == [SliceResult.FALLBACK]
    line.finish(line.events[0].ticket)
    line.now += 61.0
    assert line.one() == [None]
    assert line.why_whole() is None
    assert line.admission.snapshot().engines["a"].dividing.since is None


def test_a_slice_that_fails_is_told_apart_from_a_cache_that_lost():
    line = Line()
    for _ in range(3):
        ticket = line.offer()
        assert line.slice_ends(ticket, computed=False) is SliceResult.FAILED
        changed = line.said(DividingChanged)
        line.finish(ticket)
    assert [event.reason for event in changed] == [FallbackReason.FAILED]


def test_trust_is_not_needed_where_the_engine_says_that_it_keeps_nothing():
    trust = CacheTrust()
    trust.prefix_caching = False
    assert not trust.tries(NOW)
    assert trust.tries_at is None
    assert trust.why_whole is FallbackReason.NO_PREFIX_CACHING
    assert trust.takes_change()
    assert not trust.takes_change()


def a_fitted_line(**kwargs):
    line = Line(**kwargs)
    model = StepModel(0.006, 1 / 25_000, 1e-8)
    samples = [PrefillSample(tokens, 1, model.step_s(tokens)) for tokens in (64, 512, 1024, 2048)]
    line.admission.calibrated("a", samples)
    return line


@pytest.mark.parametrize(("stream", "lost"), [(True, 1), (False, 0)])
def test_the_time_of_the_last_part_tells_of_the_cache_only_where_the_answer_is_a_stream(stream, lost):
    """The first byte of a whole answer comes after its decoding, however much was cached."""
    line = a_fitted_line()
    ticket = line.offer(stream=stream)
    while (prefix := line.prefix()) is not None:
        line.slice_ends(ticket, cached_tokens=prefix)
    line.first_token(ticket, after_s=30.0)
    assert line.admission._fleet["a"].parts.courses.trust._lost == lost


def test_the_time_of_a_part_that_others_shared_tells_nothing():
    line = a_fitted_line()
    ticket = line.offer()
    while (prefix := line.prefix()) is not None:
        line.slice_ends(ticket, cached_tokens=prefix)
    line.offer(SHORT)
    line.first_token(ticket, after_s=30.0)
    assert line.admission._fleet["a"].parts.courses.trust._lost == 0


def test_an_answer_that_came_as_its_request_was_taken_back_ends_its_course_and_tells_nothing():
    line = Line(plan_of(RECALLED))
    ticket = line.offer(accepts=False)
    line.offer(SHORT)
    assert line.said(Recalled)
    line.first_token(ticket)
    assert line.admission.snapshot().engines["a"].dividing.courses == ()
    assert line.admission._fleet["a"].parts.courses.trust._lost == 0


# ── how long one is held ──


def test_a_part_is_held_while_a_short_is_unserved_but_not_where_the_cache_would_lose_what_it_builds_on():
    for kv_tokens, goes in ((1 << 30, False), (26_000, True)):
        line = Line(kv_tokens=kv_tokens)
        ticket = line.offer()
        served, unserved = line.offer(SHORT), line.offer(256)
        line.slice_ends(ticket, cached_tokens=0)
        assert line.said(Proceed) == []
        line.admission.first_token(served, line.now)
        for _ in range(60):
            line.finish(served, output_tokens=16)
            served = line.offer(SHORT)
            if line.said(Proceed):
                break
            line.admission.first_token(served, line.now)
        assert bool(line.said(Proceed)) is goes or bool(line.admission.tick(line.now)) is goes
        assert unserved.first_token_at is None


def test_what_a_request_leaves_in_the_cache_is_its_reserve_where_its_output_is_not_known():
    line = Line(kv_tokens=1 << 20)
    line.offer()
    short = line.offer(SHORT, output_tokens=128)
    line.finish(short)
    assert line.admission._fleet["a"].parts.courses._freed_tokens == SHORT + 128
    short = line.offer(SHORT, output_tokens=128)
    line.finish(short, output_tokens=10)
    assert line.admission._fleet["a"].parts.courses._freed_tokens == 2 * SHORT + 128 + 10


def test_a_cap_is_without_end_where_the_budget_does_not_bind():
    ledger = Ledger({Budget.KV_TOKENS: 100})
    assert ledger.cap(Budget.KV_TOKENS) == 100
    assert ledger.cap(Budget.SLOTS) == float("inf")


def test_nothing_is_held_for_shorts_that_would_find_no_room_beside_it():
    line = Line(kv_tokens=LONG + 512)
    ticket = line.offer(output_tokens=16)
    line.offer(SHORT)
    line.slice_ends(ticket, cached_tokens=0)
    assert line.said(Proceed)


# ── what is seen of it ──


def test_a_course_shows_its_part_of_how_many_and_since_when_it_is_held():
    line = Line()
    ticket = line.offer(accepts=False)
    (course,) = line.admission.snapshot().engines["a"].dividing.courses
    assert (course.part, course.held_since, course.done_tokens) == (1, None, 0)
    line.events = line.admission.accepted(ticket, line.now, is_accepted=True)
    first = line.prefix()
    line.offer(SHORT)
    (course,) = line.admission.snapshot().engines["a"].dividing.courses
    assert (course.part, course.held_since) == (1, None)
    parts = course.parts
    line.slice_ends(ticket, cached_tokens=0)
    (course,) = line.admission.snapshot().engines["a"].dividing.courses
    assert (course.part, course.parts, course.done_tokens, course.held_since) == (2, parts, first, line.now)
    assert Line(plan_of(None)).admission.snapshot().engines["a"].dividing is None


# ── how large a part is ──


def test_no_slice_is_aimed_at_less_than_four_fixed_costs_of_a_step():
    dear = StepModel(base_s=0.1, per_token_s=1 / 10_000)
    sizes = {slice_end(dear, done_tokens=0, prompt_tokens=20_000, slice_s=s, step_tokens=2048, block_tokens=16)
             for s in (0.01, 0.1, 0.4)}  # fmt: skip
    assert sizes == {2048}, "a whole step: a second begun would leave no time for more"


def test_a_slice_ends_with_its_step_where_another_begun_would_add_less_than_it_costs():
    model = StepModel(base_s=0.05, per_token_s=1 / 10_000)
    full_s = model.step_s(2048)
    ends = [slice_end(model, done_tokens=0, prompt_tokens=20_000, slice_s=s, step_tokens=2048, block_tokens=16)
            for s in (full_s, full_s + 0.04, full_s + 0.06)]  # fmt: skip
    assert ends == [2048, 2048, 2144]


@pytest.mark.parametrize(("slice_s", "end"), [(0.17, 128), (0.2, 256), (0.01, 128)])
def test_a_slice_ends_on_the_nearest_block_border_and_after_one_block_at_least(slice_s, end):
    model = StepModel(base_s=0.0, per_token_s=0.001)
    assert end == slice_end(
        model, done_tokens=0, prompt_tokens=20_000, slice_s=slice_s, step_tokens=2048, block_tokens=128
    )
