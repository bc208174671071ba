"""Long prompts in parts: how they are cut, for whom they are held and how long, and what becomes of lost work."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import LongPrefill, LongPrefillMode, Slo, SlotBudget
from gateway.core.slices import slice_end
from gateway.core.steptime import PrefillSample, StepModel
from gateway.core.ticket import Dispatched, Proceed, Recalled, SliceEnded, SliceResult, TicketState
from gateway.core.types import LengthClass, Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

CPU = StepModel(base_s=0.003, per_token_s=1 / 27_800, per_token_context_s=54e-9)
STEP, BLOCK, LONG = 2048, 16, 8192
SLICE_S, HOLD_S = 0.3, 2.0
COMPUTED, FAILED, FALLBACK = SliceResult.COMPUTED, SliceResult.FAILED, SliceResult.FALLBACK


class Parts:
    """One engine whose step times are known, and what is at it. `out`: the part of each long that is there now."""

    def __init__(
        self,
        mode=LongPrefillMode.SLICED,
        *,
        hold_max_s=HOLD_S,
        recalls_max=8,
        longs=1,
        ttft_ms=None,
        fitted=True,
        kv_tokens=None,
    ):
        way = LongPrefill(mode, SLICE_S, hold_max_s, recalls_max)
        plain = a_class(wait_s_max=(30, 300))
        service_class = replace(plain, slo={**plain.slo, LengthClass.LONG: Slo(ttft_ms=ttft_ms)})
        admission = an_admission(long_prefills_max=longs, slots=SlotBudget(16, 4, 4), long_prefill=way)
        self.plan = a_plan(service_class, admission=admission)
        self.admission = Admission(self.plan, [an_engine("a", kv_tokens=kv_tokens)])
        if fitted:
            probes = [PrefillSample(n, ceil(n / STEP), CPU.prefill_s(n, STEP)) for n in (256, 1024, 2048, 4096, LONG)]
            self.admission.calibrated("a", probes)
        self.now = 1_000_000.0
        self.out, self.done, self.results, self.recalled = {}, {}, [], []
        self.mode, self.asked = mode, []

    @property
    def model(self):
        return self.admission.step_models()["a"]

    def follow(self, events):
        for event in events:
            match event:
                case Dispatched(ticket=ticket, divided=True) if self.mode is LongPrefillMode.SLICED:
                    self.asked.append(ticket)
                case Proceed(ticket=ticket, prefix_tokens=prefix):
                    assert ticket not in self.out
                    self.out[ticket] = prefix
                case Recalled(ticket=ticket):
                    del self.out[ticket]
                    self.recalled.append(ticket)
                case SliceEnded(ticket=ticket, result=result):
                    self.results.append((ticket, result))
                case _:
                    pass
        while self.asked:  # the engine would take whatever it is asked about
            self.follow(self.admission.accepted(self.asked.pop(), self.now, is_accepted=True))
        return events

    def offer(self, prompt_tokens, **kwargs):
        ticket, events = self.admission.offer(an_assignment(self.plan, prompt_tokens=prompt_tokens, **kwargs), self.now)
        self.follow(events)
        return ticket

    def long(self, prompt_tokens=LONG, **kwargs):
        return self.offer(prompt_tokens, **({"is_divisible": True} | kwargs))

    def short(self, **kwargs):
        return self.offer(512, **kwargs)

    def end_slice(self, long, *, takes=1.0, computed=True, cached=None):
        """End the slice of `long` after `takes` times what it takes where its prefix is cached."""
        reached = self.out.pop(long)
        start = self.done.get(long, 0)
        self.now += takes * self.model.part_s(start, reached, STEP)
        self.done[long] = reached
        self.follow(self.admission.slice_ended(long, self.now, computed=computed, cached_tokens=cached))

    def to_its_request(self, long, **how):
        while self.out[long] is not None:
            self.end_slice(long, **how)

    def first_token(self, ticket):
        self.out.pop(ticket, None)
        self.follow(self.admission.first_token(ticket, self.now))

    def finish(self, ticket, outcome=Outcome.COMPLETED):
        self.out.pop(ticket, None)
        self.follow(self.admission.finish(ticket, outcome, self.now))

    def answer(self, long, *, takes=1.0):
        """Let the request itself be computed and answered."""
        self.now += takes * self.model.part_s(self.done.get(long, 0), LONG, STEP)
        self.first_token(long)
        self.finish(long)

    def after(self, seconds):
        end = self.now + seconds
        while (at := self.admission.next_tick_at()) is not None and at <= end:
            self.now = max(self.now, at)
            self.follow(self.admission.tick(self.now))
        self.now = end


# ── sliced ──


def test_a_long_prompt_goes_as_growing_prefixes_of_whole_blocks_and_its_own_request_last():
    parts = Parts()
    long, ends = parts.long(), []
    while (end := parts.out[long]) is not None:
        ends.append(end)
        parts.end_slice(long)
    assert len(ends) >= 3
    assert all(end % BLOCK == 0 for end in ends)
    for start, end in pairwise([0, *ends]):
        assert 0.5 * SLICE_S < parts.model.part_s(start, end, STEP) <= 1.25 * SLICE_S
    assert parts.results == [(long, COMPUTED)] * len(ends)
    parts.first_token(long)
    assert parts.admission.snapshot().engines["a"].long_prefills == 0


def first_slice_s(parts, *, prompts_before, short_ago_s=0.0):
    """Return how long the first slice takes of a long prompt after so many that nobody waited for."""
    for _ in range(prompts_before):
        long = parts.long()
        parts.to_its_request(long)
        parts.answer(long)
    short = parts.short()
    parts.first_token(short)
    parts.finish(short)
    parts.after(short_ago_s)
    long = parts.long()
    return parts.model.part_s(0, parts.out[long], STEP)


def test_slices_are_small_where_long_prompts_come_one_at_a_time_and_shorts_between_them():
    assert first_slice_s(Parts(), prompts_before=2) == pytest.approx(SLICE_S, rel=0.1)
    assert first_slice_s(Parts(), prompts_before=3) == pytest.approx(SLICE_S / 4, rel=0.1)
    assert first_slice_s(Parts(), prompts_before=3, short_ago_s=11.0) == pytest.approx(SLICE_S, rel=0.1)


def test_a_long_prompt_whose_deadline_is_near_has_no_time_for_small_slices():
    own_s = CPU.prefill_s(LONG, STEP)
    assert first_slice_s(Parts(ttft_ms=2100 * own_s), prompts_before=3) == pytest.approx(SLICE_S / 4, rel=0.1)
    assert first_slice_s(Parts(ttft_ms=1900 * own_s), prompts_before=3) == pytest.approx(SLICE_S, rel=0.1)


def test_slices_are_whole_from_the_moment_another_long_prompt_waits_and_for_three_more():
    parts = Parts()
    first_slice_s(parts, prompts_before=3)
    (long,) = parts.out
    parts.end_slice(long)
    waiting = parts.long()
    start = parts.out[long]
    parts.end_slice(long)
    assert parts.model.part_s(start, parts.out[long], STEP) == pytest.approx(SLICE_S, rel=0.1)
    parts.to_its_request(long)
    parts.answer(long)
    assert parts.model.part_s(0, parts.out[waiting], STEP) == pytest.approx(SLICE_S, rel=0.1)


def test_a_small_slice_is_held_for_as_much_less_so_that_the_wait_in_all_is_no_longer():
    parts = Parts()
    first_slice_s(parts, prompts_before=3)
    (long,) = parts.out
    parts.short()
    parts.end_slice(long)
    assert long not in parts.out
    parts.after(HOLD_S / 4 - 0.01)
    assert long not in parts.out
    parts.after(0.02)
    assert long in parts.out


@pytest.mark.parametrize("how", [{"prompt_tokens": 700}, {"is_divisible": False}])
def test_what_is_one_slices_work_or_cannot_be_divided_goes_whole_and_that_is_no_fallback(how):
    parts = Parts()
    parts.long(**how)
    assert parts.out == {} and parts.results == []


def test_a_rest_that_is_long_by_its_fixed_time_alone_is_not_cut():
    slow_steps = StepModel(base_s=0.5)
    assert (
        slice_end(slow_steps, done_tokens=0, prompt_tokens=700, slice_s=0.3, step_tokens=STEP, block_tokens=16) is None
    )


def test_the_next_part_waits_while_a_short_is_unserved_and_goes_at_its_first_token():
    parts = Parts()
    long, short = parts.long(), parts.short()
    parts.end_slice(long)
    assert long not in parts.out
    parts.first_token(short)
    assert long in parts.out


def test_a_part_is_held_for_shorts_no_longer_than_it_may():
    parts = Parts()
    long = parts.long()
    parts.short()
    parts.end_slice(long)
    assert parts.admission.next_tick_at() == parts.now + HOLD_S
    parts.after(HOLD_S - 0.1)
    assert long not in parts.out
    parts.after(0.2)
    assert long in parts.out


def test_an_automatic_hold_is_the_slack_before_the_deadline_in_equal_shares():
    parts = Parts(hold_max_s=None)
    long = parts.long()
    parts.short()
    parts.end_slice(long)
    left_s = parts.model.part_s(parts.done[long], LONG, STEP)
    hold_s = (long.offered_at + 300 - parts.now - left_s) / (left_s / SLICE_S)
    assert parts.admission.next_tick_at() == pytest.approx(parts.now + hold_s)


def test_a_long_that_would_miss_its_objective_is_held_for_nobody():
    parts = Parts(hold_max_s=None, ttft_ms=500)
    long = parts.long()
    parts.short()
    parts.end_slice(long)
    assert long in parts.out


def test_a_second_long_goes_when_the_first_has_its_answer():
    parts = Parts(longs=2)
    first, second = parts.long(), parts.long()
    assert second not in parts.out
    parts.to_its_request(first)
    parts.first_token(first)
    assert second in parts.out
    parts.to_its_request(second)
    parts.first_token(second)


def test_a_second_long_is_not_held_beyond_its_own_limit_though_the_first_is_held_longer():
    parts = Parts(longs=2)
    first, second = parts.long(), parts.long()
    parts.short()
    since = parts.now
    parts.end_slice(first)
    parts.after(since + HOLD_S - 0.01 - parts.now)
    assert parts.out == {}
    parts.after(0.02)
    assert second in parts.out and first not in parts.out


def test_a_client_that_leaves_during_a_slice_cancels_it_and_makes_room_for_the_next():
    parts = Parts()
    long, second = parts.long(), parts.long()
    parts.finish(long, Outcome.CLIENT_GONE)
    assert parts.results == [(long, SliceResult.CANCELLED)]
    parts.after(5.0)
    assert second in parts.out


def test_an_engine_without_room_gets_no_part_until_its_pause_is_over():
    parts = Parts()
    long, short = parts.long(), parts.short()
    parts.follow(parts.admission.requeue(short, parts.now, 5.0))
    parts.finish(short)
    parts.end_slice(long)
    assert long not in parts.out
    parts.after(5.0)
    assert long in parts.out


def test_the_timer_of_a_held_part_goes_with_its_engine():
    parts = Parts()
    long, short = parts.long(), parts.short()
    parts.end_slice(long)
    parts.admission.reconfigure(parts.plan, [an_engine("b")], parts.now)
    parts.finish(short)
    parts.out.pop(long, None)
    parts.finish(long)
    assert set(parts.admission.snapshot().engines) == {"b"}
    assert parts.admission.next_tick_at() is None


# ── caches that do not hold ──


def test_a_slice_that_fails_sends_the_rest_whole():
    parts = Parts()
    long = parts.long()
    parts.end_slice(long, computed=False)
    assert parts.results == [(long, FAILED)]
    assert parts.out[long] is None


def test_a_slice_that_the_engine_says_found_no_cache_counts_as_failed():
    parts = Parts()
    long = parts.long()
    parts.end_slice(long)
    parts.end_slice(long, cached=parts.done[long] // 4)
    assert parts.results == [(long, COMPUTED), (long, FAILED)]
    assert parts.out[long] is None


def late_slice(parts, long):
    """End slices in time until one would take over three times as long without the cache; return that factor."""
    while True:
        start, end = parts.done.get(long, 0), parts.out[long]
        factor = parts.model.part_s(0, end, STEP) / parts.model.part_s(start, end, STEP)
        if start and factor > 3.0:
            return factor
        parts.end_slice(long)


def test_a_slice_that_takes_as_long_as_computing_all_anew_found_no_cache():
    parts = Parts()
    long = parts.long()
    parts.end_slice(long, takes=late_slice(parts, long))
    assert parts.results[-1] == (long, FAILED)


def test_the_time_of_a_slice_proves_nothing_where_another_request_was_beside_it():
    parts = Parts()
    long = parts.long()
    factor = late_slice(parts, long)
    parts.first_token(parts.short())
    parts.end_slice(long, takes=factor)
    assert parts.results[-1] == (long, COMPUTED)


def test_the_time_of_a_slice_proves_nothing_where_step_times_are_not_known():
    parts = Parts(fitted=False)
    long = parts.long(prompt_tokens=32_000)
    parts.end_slice(long)
    parts.end_slice(long, takes=50.0)
    assert parts.results == [(long, COMPUTED)] * 2


def test_after_three_failures_long_prompts_go_whole_and_say_so_but_for_a_probe_a_minute():
    parts = Parts()
    for _ in range(3):
        failing = parts.long()
        parts.end_slice(failing, computed=False)
        parts.answer(failing)
    whole = parts.long()
    assert parts.results[-1] == (whole, FALLBACK)
    assert whole.state is TicketState.RUNNING and whole not in parts.out
    parts.first_token(whole)
    parts.after(60.0)
    probe = parts.long()
    assert probe in parts.out
    parts.finish(probe, Outcome.ENGINE_ERROR)
    again = parts.long()
    assert parts.results[-1] == (again, FALLBACK)


def test_a_probe_whose_cache_holds_to_its_answer_ends_the_fallback():
    parts = Parts()
    for _ in range(3):
        failing = parts.long()
        parts.end_slice(failing, computed=False)
        parts.answer(failing)
    parts.after(60.0)
    probe = parts.long()
    parts.to_its_request(probe, cached=LONG)
    parts.answer(probe)
    assert parts.long() in parts.out


def test_requests_that_find_none_of_their_slices_cached_lead_to_whole_ones_too():
    parts = Parts()
    for _ in range(3):
        long = parts.long()
        while parts.out[long] is not None:
            beside = parts.short()  # so that the request alone tells
            parts.first_token(beside)
            parts.finish(beside)
            parts.end_slice(long)
        anew = parts.model.part_s(0, LONG, STEP) / parts.model.part_s(parts.done[long], LONG, STEP)
        parts.answer(long, takes=anew)
    last = parts.long()
    assert parts.results[-1] == (last, FALLBACK)


# ── recalled ──


def recalling(**how):
    return Parts(LongPrefillMode.RECALLED, **how)


def test_a_recalled_long_goes_again_at_the_shorts_first_token():
    parts = recalling()
    long = parts.long()
    assert parts.out[long] is None
    short = parts.short()
    assert parts.recalled == [long] and long not in parts.out
    parts.first_token(short)
    assert parts.out[long] is None
    parts.first_token(long)
    assert parts.admission.snapshot().engines["a"].long_prefills == 0


def test_a_recalled_long_goes_again_at_last_when_it_was_held_as_long_as_it_may_and_then_keeps_a_slices_time():
    parts = recalling()
    long = parts.long()
    parts.short()
    parts.after(HOLD_S + 0.01)
    assert parts.out[long] is None and len(parts.recalled) == 1
    parts.after(SLICE_S - 0.02)
    assert long in parts.out
    parts.after(0.02)
    assert len(parts.recalled) == 2, "shorts still wait"


def test_a_long_is_recalled_no_more_often_than_it_may():
    parts = recalling(recalls_max=1)
    long = parts.long()
    parts.first_token(parts.short())
    parts.short()
    assert parts.recalled == [long] and long in parts.out


def test_a_long_that_may_not_be_held_is_not_recalled():
    parts = recalling(hold_max_s=0.0)
    long = parts.long()
    parts.short()
    assert parts.recalled == [] and long in parts.out


def test_a_long_that_leaves_the_shorts_no_room_in_the_cache_is_not_recalled_to_go_again_at_once():
    parts = recalling(kv_tokens=LONG + 512)
    long = parts.long()
    parts.after(SLICE_S)
    parts.short()
    assert parts.recalled == [] and long in parts.out


def test_steps_that_were_computed_before_a_recall_are_not_expected_again():
    parts = recalling()
    long = parts.long()
    whole_s = parts.model.part_s(0, LONG, STEP)
    parts.now += parts.model.step_s(STEP, 0) + parts.model.step_s(STEP, STEP) + 0.001
    parts.short()
    left_s = parts.admission._fleet["a"].parts.courses.rest_s(long, parts.model)
    assert left_s == pytest.approx(parts.model.part_s(2 * STEP, LONG, STEP)) and left_s < whole_s


@pytest.mark.parametrize(
    ("slices_left", "stream", "recalled"),
    [(1.5, True, 1), (1.5, False, 1), (0.5, True, 0), (-0.5, True, 0), (-1.5, True, 1), (-1.5, False, 0)],
)
def test_a_long_that_is_about_to_end_stays_and_a_late_one_comes_back_where_its_first_token_would_show(
    slices_left, stream, recalled
):
    parts = recalling()
    long = parts.long(stream=stream)
    parts.now += parts.model.part_s(0, LONG, STEP) - slices_left * SLICE_S
    parts.short()
    assert parts.recalled == [long] * recalled


def test_a_long_whose_engine_had_no_room_for_it_begins_anew_elsewhere():
    parts = recalling()
    long = parts.long()
    parts.out.pop(long)
    events = parts.follow(parts.admission.requeue(long, parts.now, 1.0))
    assert not any(isinstance(event, Dispatched) for event in events)
    parts.after(1.0)
    assert parts.out[long] is None
