"""Judging one request: length class, limits, priority."""

from __future__ import annotations

import pytest

from gateway.core.classify import classify, engine_priority
from gateway.core.ticket import Assignment
from gateway.core.types import Identity, LengthClass, Reason, Shape
from gateway.testing.builders import a_class, a_plan, an_assignment

PLAN = a_plan()


def judge(
    service_class="interactive", *, plan=PLAN, context_tokens=16384, wait_s_wish=None, prompt_param="prompt", **shape
):
    fields = {
        "prompt_tokens": 512,
        "longest_prompt_tokens": 512,
        "output_tokens_stated": None,
        "output_tokens_default": None,
        "sequences": 1,
        "body_bytes": 2048,
        "stream": True,
    } | shape
    return classify(
        plan,
        Identity("k1", service_class, "acme"),
        Shape(**fields),
        context_tokens=context_tokens,
        wait_s_wish=wait_s_wish,
        prompt_param=prompt_param,
    )


@pytest.mark.parametrize(("tokens", "length"), [(640, LengthClass.SHORT), (641, LengthClass.LONG)])
def test_length_follows_the_longest_prompt_whatever_the_class(tokens, length):
    assert judge(longest_prompt_tokens=tokens, prompt_tokens=9999).length_class is length


@pytest.mark.parametrize(
    ("shape", "param"),
    [
        ({"longest_prompt_tokens": 16384}, "prompt"),
        ({"output_tokens_stated": 16385}, "max_tokens"),
    ],
)
def test_prompt_alone_or_stated_output_alone_over_the_context_is_refused(shape, param):
    refusal = judge(**shape)
    assert (refusal.reason, refusal.param) == (Reason.CONTEXT_LENGTH, param)


def test_a_prompt_that_fills_the_context_passes_where_nothing_is_generated():
    assignment = judge(longest_prompt_tokens=16384, output_tokens_default=0)
    assert (assignment.output_tokens_max, assignment.kv_tokens, assignment.output_tokens_set) == (0, 16384, None)
    refusal = judge(longest_prompt_tokens=16385, output_tokens_default=0)
    assert (refusal.reason, refusal.limit, refusal.observed) == (Reason.CONTEXT_LENGTH, 16384, 16385)


def test_a_prompt_over_the_context_is_named_by_the_member_that_holds_it():
    assert judge(longest_prompt_tokens=16384, prompt_param="messages").param == "messages"


def test_prompt_and_output_that_overrun_the_context_together_pass_and_reserve_what_fits():
    assignment = judge(longest_prompt_tokens=16000, prompt_tokens=16000, output_tokens_stated=4000)
    assert (assignment.output_tokens_max, assignment.kv_tokens, assignment.output_tokens_set) == (384, 16384, None)


def test_an_estimate_over_the_context_is_let_through_and_reserves_no_more_than_the_context():
    assignment = judge(longest_prompt_tokens=20000, prompt_tokens=20000, is_exact=False)
    assert (assignment.output_tokens_max, assignment.kv_tokens) == (0, 16384)
    refusal = judge(longest_prompt_tokens=20000, output_tokens_stated=16385, is_exact=False)
    assert refusal.param == "max_tokens"


def test_an_estimate_does_not_hide_that_the_engines_default_exceeds_the_cap():
    assert judge(longest_prompt_tokens=16000, is_exact=False).output_tokens_set == 4096
    assert judge(longest_prompt_tokens=16000).output_tokens_set is None


def test_output_over_the_class_cap_is_refused():
    refusal = judge(output_tokens_stated=4097)
    assert (refusal.reason, refusal.code, refusal.limit) == (Reason.BAD_REQUEST, "output_tokens_too_large", 4096)


@pytest.mark.parametrize(
    ("default", "context_tokens", "expected"),
    [(None, 16384, 4096), (16, 16384, None), (None, 1000, None), (5000, None, 4096), (None, None, 4096)],
)
def test_unstated_output_is_set_only_where_the_engines_default_exceeds_the_cap(default, context_tokens, expected):
    assert judge(output_tokens_default=default, context_tokens=context_tokens).output_tokens_set == expected


def test_a_class_without_an_output_cap_leaves_the_limit_to_the_engine():
    uncapped = a_plan(a_class(output_tokens_max=None))
    open_ended = judge(plan=uncapped)
    assert (open_ended.output_tokens_set, open_ended.output_tokens_max) == (None, 16384 - 512)
    assert judge(plan=uncapped, output_tokens_stated=9999).output_tokens_max == 9999
    assert judge(plan=uncapped, context_tokens=None).output_tokens_set is None


def test_kv_covers_every_sequence():
    assert judge(sequences=3, output_tokens_stated=10).kv_tokens == 3 * 522


def test_too_many_sequences_are_refused():
    refusal = judge(sequences=17)
    assert refusal.code == "too_many_sequences"
    assert "request.sequences_max" in refusal.message


def test_a_class_that_the_policy_lacks_is_not_allowed():
    assert judge("gold").reason is Reason.NOT_ALLOWED


@pytest.mark.parametrize(("wish", "expected"), [(None, 2), (60, 2), (1, 1), (0, 0)])
def test_a_callers_wish_shortens_the_wait_and_never_lengthens_it(wish, expected):
    assignment = judge(wait_s_wish=wish)
    assert isinstance(assignment, Assignment)
    assert assignment.wait_s_max == expected


def test_engine_priority_is_by_class_then_length_then_deadline_and_fits_64_bits():
    def priority(service_class, tokens, deadline):
        return engine_priority(an_assignment(PLAN, service_class, prompt_tokens=tokens), deadline)

    soon, late = 1.8e9, 1.9e9
    ordered = [
        priority("interactive", 512, soon),
        priority("interactive", 512, late),
        priority("interactive", 8192, soon),
        priority("standard", 512, soon),
        priority("batch", 8192, 1e15),
    ]
    assert ordered == sorted(ordered)
    assert len(set(ordered)) == len(ordered)
    assert ordered[0] >= 0 and ordered[-1] < 2**63
