"""The worst ratio of lane time to cost, against trying every length of answer; and a step's sum in words."""

from __future__ import annotations

import pytest

from gateway.core.lane_work import _steepest
from gateway.core.ledger import Budget, caps_of
from gateway.core.plan import AdmissionKind
from gateway.core.premises import lane_unmet, step_need
from gateway.core.types import EngineLimits, LengthClass
from gateway.testing.builders import a_plan, an_admission


@pytest.mark.parametrize(
    ("work", "work_each", "cost", "cost_each", "cost_square"),
    [
        (0.3, 0.0, 0.05, 1e-4, 1e-8),  # sequences are free: the shortest answer
        (0.01, 0.005, 5.0, 1e-5, 1e-5),  # somewhere between
        (5.0, 1e-4, 0.01, 1.0, 1e-6),  # the work is the prompt's: the shortest answer
        (0.1, 0.5, 0.1, 1e-5, 0.0),  # no attention: the longest
    ],
)
def test_the_steepest_ratio_is_found_wherever_it_lies(work, work_each, cost, cost_each, cost_square):
    tried = max(
        (work + work_each * outputs) / (cost + cost_each * outputs + cost_square * outputs**2)
        for outputs in range(1, 8193)
    )
    found = _steepest(work, work_each, cost, cost_each, cost_square, 8192)
    assert tried <= found <= 1.001 * tried


def test_a_step_is_added_up_in_words():
    limits = EngineLimits(long_prefill_token_threshold=640, max_num_seqs=128)
    assert str(step_need(a_plan(), limits)) == "1 x 640 + 8 + 1024 = 1672"


@pytest.mark.parametrize("length", list(LengthClass))
def test_kv_for_every_sequence_keeps_neither_length_from_proceeding(length):
    limits = EngineLimits(max_num_seqs=8, kv_tokens=8 * 8192)
    assert lane_unmet(a_plan(), limits, length, 8192) is None


def test_only_what_is_bounded_has_a_cap():
    plan = a_plan(admission=an_admission(AdmissionKind.TOKEN_BUDGET))
    assert Budget.KV_TOKENS not in caps_of(plan.admission, EngineLimits())
    assert caps_of(a_plan(admission=an_admission(AdmissionKind.NONE)).admission, EngineLimits(max_num_seqs=4)) == {}
