from dataclasses import replace
from typing import Any

import pytest

from gateway.core.plan import KvBudget, OrderKind, Plan, SlotBudget
from gateway.core.types import EngineLimits
from gateway.policy import source
from gateway.policy.fit import findings

FITTING = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640, max_num_seqs=128)


def plan_with(name: str = "short-first", **admission: Any) -> Plan:
    plan = source.load(name)
    return replace(plan, admission=replace(plan.admission, **admission))


def warnings_of(plan: Plan, limits: EngineLimits, *, orders_by_priority: bool | None = True) -> list[str]:
    found = findings(plan, limits, orders_by_priority=orders_by_priority)
    return [finding.text for finding in found if finding.is_warning]


def test_a_fitting_engine_gives_no_warning_and_the_sum_in_figures() -> None:
    assert warnings_of(plan_with(), FITTING) == []
    notes = [found.text for found in findings(plan_with(), FITTING, orders_by_priority=True)]
    assert notes[0] == "every short prompt is computed in the next step: 1 x 640 + 128 + 1024 = 1792 <= 2048"


def test_the_inequality_holds_up_to_equality() -> None:
    assert warnings_of(plan_with(), replace(FITTING, max_num_batched_tokens=1792)) == []
    (warning,) = warnings_of(plan_with(), replace(FITTING, max_num_batched_tokens=1791))
    assert "1 x 640 + 128 + 1024 = 1792" in warning
    assert "short prompts beyond 1023 tokens in all wait for a further step" in warning


def test_more_long_prefills_than_a_step_holds_are_warned_of() -> None:
    (warning,) = warnings_of(plan_with(long_prefills_max=4), FITTING)
    assert "4 x 640 + 128 + 1024 = 3712" in warning
    assert "short prompts beyond 0 tokens" in warning


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        (replace(FITTING, long_prefill_token_threshold=512), "short prompts of more than 512 tokens take further steps"),
        (replace(FITTING, long_prefill_token_threshold=0), "waits until the long prompt ahead of it is computed whole"),
        (replace(FITTING, long_prefill_token_threshold=None), "long_prefill_token_threshold is not stated"),
        (replace(FITTING, max_num_batched_tokens=None), "max_num_batched_tokens is not stated"),
        (replace(FITTING, max_num_seqs=None), "max_num_seqs is not stated"),
        (replace(FITTING, max_num_seqs=40), "the slot reserves together (48) are more than max_num_seqs (40)"),
    ],
)  # fmt: skip
def test_each_broken_premise_is_named_with_what_is_lost(limits: EngineLimits, part: str) -> None:
    assert any(part in warning for warning in warnings_of(plan_with(), limits))


def test_the_smaller_of_slots_and_sequences_is_said_to_be_in_force() -> None:
    texts = [found.text for found in findings(plan_with(), replace(FITTING, max_num_seqs=64), orders_by_priority=True)]
    assert "max_num_seqs (64) is below slots.total (128) and is in force" in texts
    texts = [found.text for found in findings(plan_with(), replace(FITTING, max_num_seqs=160), orders_by_priority=True)]
    assert "slots.total (128) is below max_num_seqs (160): 32 stay unused" in texts


def test_kv_reserves_beyond_the_engines_cache_are_warned_of() -> None:
    plan = plan_with(kv=KvBudget(short_reserve_tokens=6000, long_reserve_tokens=5000))
    assert warnings_of(plan, replace(FITTING, kv_tokens=11_000)) == []
    (warning,) = warnings_of(plan, replace(FITTING, kv_tokens=10_000))
    assert "the KV reserves together (11000 tokens) are more than the engine holds (10000)" in warning
    assert warnings_of(plan, replace(FITTING, kv_tokens=None)) == []


def test_strict_priority_on_an_engine_without_it_is_warned_of() -> None:
    plan = source.load("engine-priority")
    (warning,) = warnings_of(plan, FITTING, orders_by_priority=False)
    assert "priority is not effective on this engine" in warning
    assert warnings_of(plan, FITTING, orders_by_priority=None) == []
    assert warnings_of(plan_with(), replace(FITTING, kv_tokens=65_536), orders_by_priority=False) == []


def test_an_engine_without_priority_and_with_an_unknown_cache_is_warned_of() -> None:
    (warning,) = warnings_of(plan_with(), FITTING, orders_by_priority=False)
    assert "waits inside the engine for KV blocks the short ones behind it" in warning


@pytest.mark.parametrize(
    ("admission", "part"),
    [
        ({"slots": SlotBudget(128, 0, 16)}, "no sequences are kept for short prompts"),
        ({"slots": SlotBudget(128, 32, 0)}, "set admission.slots.long_reserve"),
        ({"short_prefill_tokens_max": 512}, "raise it to 640 or more"),
    ],
)
def test_a_budget_that_keeps_too_little_is_named_with_the_setting_to_change(
    admission: dict[str, Any], part: str
) -> None:
    (warning,) = warnings_of(plan_with(**admission), FITTING)
    assert part in warning


@pytest.mark.parametrize("order", [kind for kind in OrderKind if kind is not OrderKind.WEIGHTED_FAIR])
def test_an_order_without_shares_is_warned_of(order: OrderKind) -> None:
    (warning,) = warnings_of(replace(plan_with(), order=order), FITTING)
    assert "set order.kind to weighted_fair" in warning


def test_a_request_of_several_prompts_is_noted_where_it_exceeds_what_a_step_keeps() -> None:
    texts = [found.text for found in findings(plan_with(), FITTING, orders_by_priority=True)]
    assert any("set request.sequences_max to 1" in text for text in texts)
    plan = replace(plan_with(), request=replace(plan_with().request, sequences_max=1))
    texts = [found.text for found in findings(plan, FITTING, orders_by_priority=True)]
    assert not any("sequences_max" in text for text in texts)


def test_slots_alone_are_not_held_against_a_step() -> None:
    assert (
        warnings_of(plan_with("bounded-fifo", slots=SlotBudget(24)), replace(FITTING, long_prefill_token_threshold=0))
        == []
    )


def test_a_plan_without_a_gate_has_nothing_to_fit() -> None:
    assert findings(source.load("passthrough"), EngineLimits(), orders_by_priority=None) == []


def test_the_promise_is_not_printed_where_a_short_prompt_may_exceed_the_threshold() -> None:
    found = findings(plan_with(), replace(FITTING, long_prefill_token_threshold=512), orders_by_priority=True)
    assert not any("every short prompt" in finding.text for finding in found)


def test_a_plan_in_slices_says_what_a_short_waits_for_and_wants_no_threshold() -> None:
    stock = replace(FITTING, long_prefill_token_threshold=0)
    assert warnings_of(plan_with("sliced"), stock) == []
    notes = [found.text for found in findings(plan_with("sliced"), stock, orders_by_priority=True)]
    assert any("slices of about 300 ms" in note for note in notes)


def test_without_prefix_caching_a_plan_in_slices_is_warned_of() -> None:
    (warning,) = warnings_of(plan_with("sliced"), replace(FITTING, prefix_caching=False))
    assert "prefix caching is off: long prompts go whole" in warning
