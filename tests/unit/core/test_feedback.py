"""Steering the long-prefill budget by what shorts get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.admission import Admission
from gateway.core.feedback import LongAllowance, LongControl
from gateway.core.plan import AdmissionKind, Feedback
from gateway.testing.builders import a_plan, an_admission, an_engine

NOW = 1000.0


def control(prefills_max=4, ttft_s=0.5):
    steered = LongControl()
    steered.configure(prefills_max=prefills_max, ttft_s=ttft_s)
    return steered


def serve(steered, shorts, missed, now, longs_wait=True):
    for at in range(shorts):
        steered.short_served(now, waited_s=0.0, engine_ttft_s=1.0 if at < missed else 0.1)
    steered.judge(now, longs_wait=longs_wait)
    return steered.allowance


def grown(prefills):
    steered = control()
    now = NOW
    serve(steered, 0, 0, now)
    while steered.allowance.prefills < prefills:
        now += 6
        serve(steered, 40, 0, now)
    return steered, now


def test_it_starts_with_one_long_at_a_time():
    assert control().allowance == LongAllowance(prefills=1, duty=1.0)


def test_it_grows_by_one_while_shorts_are_well_and_longs_wait():
    steered, now = grown(2)
    assert serve(steered, 40, 0, now + 6) == LongAllowance(3, 1.0)


def test_it_never_grows_beyond_the_plan():
    steered, now = grown(4)
    assert serve(steered, 40, 0, now + 6).prefills == 4


def test_it_does_not_grow_while_no_long_waits():
    steered = control()
    for at in range(10):
        serve(steered, 40, 0, NOW + 6 * at, longs_wait=False)
    assert steered.allowance.prefills == 1


def test_it_shrinks_when_more_shorts_miss_than_chance_explains():
    steered, now = grown(3)
    assert serve(steered, 40, 8, now + 2).prefills == 2


def test_one_slow_short_changes_nothing():
    steered, now = grown(3)
    assert serve(steered, 40, 1, now + 2).prefills >= 3


def test_below_one_it_pauses_between_longs_and_never_stops_them():
    steered = control()
    now = NOW
    serve(steered, 0, 0, now)
    for _ in range(20):
        now += 2
        serve(steered, 40, 40, now)
    assert steered.allowance == LongAllowance(prefills=1, duty=0.2)
    assert steered.allowance.pause_s(2.0) == pytest.approx(8.0)


def test_the_pause_between_longs_shrinks_before_a_second_long_goes():
    steered, now = grown(1)
    serve(steered, 40, 40, now + 6)
    paused = steered.allowance.duty
    assert paused < 1.0
    seen = [serve(steered, 40, 0, now + 12 + 6 * at) for at in range(8)]
    assert (seen[0].prefills, seen[0].duty) == (1, pytest.approx(paused + 0.1))
    assert LongAllowance(1, 1.0) in seen
    assert seen[-1].prefills > 1


def test_it_judges_nothing_on_fewer_than_thirty():
    steered, now = grown(3)
    assert serve(steered, 29, 29, now + 2).prefills == 3


def test_a_duty_lowered_for_shorts_is_raised_again_once_none_comes():
    steered, now = grown(1)
    for _ in range(20):
        now += 2
        serve(steered, 40, 40, now)
    assert steered.allowance.duty == 0.2
    assert not steered.judge(now + 9, longs_wait=True)
    serve(steered, 1, 1, now + 9)
    for after in (11, 18):
        assert not steered.judge(now + after, longs_wait=True), "a short came within ten seconds"
    assert not steered.judge(now + 100, longs_wait=False), "no long waits"
    steered.judge(now + 200, longs_wait=True)
    seen = []
    for after in range(210, 230):
        steered.judge(now + after, longs_wait=True)
        seen.append(steered.allowance)
    assert [each.prefills for each in seen[:2]] == [1, 1]
    assert [each.duty for each in seen[:2]] == pytest.approx([0.3, 0.4])
    assert seen[-1] == LongAllowance(1, 1.0), "more than one at a time is for shorts to judge"


def test_a_wait_in_line_leaves_the_engine_less_of_the_objective():
    steered, now = grown(3)
    for _ in range(40):
        steered.short_served(now, waited_s=0.45, engine_ttft_s=0.1)
    steered.judge(now + 2, longs_wait=True)
    assert steered.allowance.prefills == 2


def test_a_smaller_plan_takes_effect_at_once():
    steered, _ = grown(3)
    steered.configure(prefills_max=1, ttft_s=0.5)
    assert steered.allowance.prefills == 1


@pytest.mark.parametrize("kind", [AdmissionKind.NONE, AdmissionKind.SLOTS])
def test_where_a_plan_has_no_token_budgets_it_steers_none(kind):
    plan = replace(a_plan(admission=an_admission(kind)), feedback=Feedback(500.0))
    engine = Admission(plan, [an_engine()]).snapshot().engines["a"]
    assert "long_prefills" not in engine.budgets
