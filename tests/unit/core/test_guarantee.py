import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.feedback import DUTY_MIN, LongControl
from gateway.core.guarantee import Guarantee, LongRate, NotPromised, ShortEntry, Wait, guarantee
from gateway.core.ledger import kv_reserves
from gateway.core.plan import AdmissionKind, Feedback, KvBudget, OrderKind, Plan, SlotBudget
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass
from gateway.testing.builders import a_class, a_plan, an_admission

FITTING = EngineLimits(max_num_batched_tokens=2048, long_prefill_token_threshold=640, max_num_seqs=128)
SLOTS = SlotBudget(total=128, short_reserve=32, long_reserve=16)
TENANTS = {"interactive": 1, "batch": 1}


def plan_with(**admission: Any) -> Plan:
    classes = (
        a_class("interactive", rank=0, weight=2, wait_s_max=(60, 300), output_tokens_max=32),
        a_class("batch", rank=1, weight=1, wait_s_max=(60, 300), output_tokens_max=32),
    )
    plan = a_plan(*classes, admission=an_admission(**({"slots": SLOTS} | admission)))
    return replace(plan, short_prompt_tokens_max=640)


def promised(
    plan: Plan,
    limits: EngineLimits = FITTING,
    model: StepModel = StepModel(),  # noqa: B008 - frozen
    **facts: Any,
) -> Guarantee:
    given: dict[str, Any] = {"context_tokens": 8192, "tenants": TENANTS} | facts
    bounds = guarantee(plan, limits, model, **given)
    assert bounds is not None
    return bounds


def waits(bounds: Guarantee, length: LengthClass = LengthClass.LONG, name: str = "batch") -> Wait:
    (flow,) = (each for each in bounds.flows if (each.service_class, each.length_class) == (name, length))
    assert isinstance(flow.always, Wait)
    return flow.always


def test_a_short_has_its_first_token_after_the_batches_in_flight_and_its_own_step() -> None:
    entry = promised(plan_with()).short_entry
    shared_s, lone_s = 0.006 + 1792 / 25_000, 0.006 + 2048 / 25_000
    assert isinstance(entry, ShortEntry)
    assert entry.steps == 3
    assert entry.ttft_s == pytest.approx(2 * lone_s + shared_s)
    assert entry.busy_ttft_s == pytest.approx(3 * shared_s)


def test_the_rate_is_that_of_the_shortest_longs_with_turnaround_and_reserve() -> None:
    rate = promised(plan_with()).long_rate
    step_s = 0.006 + 1792 / 25_000
    assert isinstance(rate, LongRate)
    assert rate.at_prompt_tokens == 641
    assert rate.free_tokens_per_s == pytest.approx(641 / (4 * step_s))
    assert rate.tokens_per_s == pytest.approx(641 / (4 * step_s + 32 * step_s / 16))
    assert rate.full_speed_output_tokens == 60


@pytest.mark.parametrize(
    ("limits", "admission", "part"),
    [
        (replace(FITTING, long_prefill_token_threshold=512), {}, "the threshold (512) cuts short prompts"),
        (replace(FITTING, long_prefill_token_threshold=0), {}, "one long prompt fills every step"),
        (replace(FITTING, long_prefill_token_threshold=None), {}, "are not known"),
        (replace(FITTING, max_num_batched_tokens=1791), {}, "a step needs 1792 tokens and has 1791"),
        (FITTING, {"short_prefill_tokens_max": 639}, "is below one short prompt"),
        (FITTING, {"kind": AdmissionKind.SLOTS}, "keeps no step tokens"),
    ],
)
def test_nothing_is_a_number_where_entry_is_not_promised(
    limits: EngineLimits, admission: dict[str, Any], part: str
) -> None:
    bounds = promised(plan_with(**admission), limits)
    entry = bounds.short_entry
    assert isinstance(entry, NotPromised)
    assert part in entry.why
    assert bounds.long_rate == entry
    assert all(each.always == each.free == entry for each in bounds.flows)


@pytest.mark.parametrize(
    ("limits", "admission", "part"),
    [
        (FITTING, {"slots": SlotBudget(128, 32, 0)}, "no sequences are kept for long prompts"),
        (replace(FITTING, max_num_seqs=40), {}, "more than the sequences there are"),
        (replace(FITTING, kv_tokens=65_536), {"kv": KvBudget(1024, 4096)}, "less than one request needs (8192 tokens)"),
        (replace(FITTING, kv_tokens=9_000), {"kv": KvBudget(1024, 8192)}, "more than the engine holds"),
    ],
)
def test_the_long_lane_has_no_rate_where_shorts_can_take_all(
    limits: EngineLimits, admission: dict[str, Any], part: str
) -> None:
    bounds = promised(plan_with(**admission), limits)
    assert isinstance(bounds.short_entry, ShortEntry)
    assert isinstance(bounds.long_rate, NotPromised)
    assert part in bounds.long_rate.why


def test_kv_for_fewer_longs_than_sequences_lowers_the_rate() -> None:
    known = replace(FITTING, kv_tokens=65_536)
    few, many = (promised(plan_with(kv=KvBudget(1024, kept)), known).long_rate for kept in (8192, 32_768))
    assert isinstance(few, LongRate)
    assert isinstance(many, LongRate)
    assert few.tokens_per_s < many.tokens_per_s


def test_priority_that_is_not_effective_counts_where_a_long_may_wait_inside() -> None:
    assert isinstance(promised(plan_with(), orders_by_priority=False).short_entry, NotPromised)
    known = replace(FITTING, kv_tokens=65_536)
    assert isinstance(promised(plan_with(), known, orders_by_priority=False).short_entry, ShortEntry)


def test_waits_grow_with_the_tenants_and_with_an_open_number_only_the_deadline_holds() -> None:
    one, three = (waits(promised(plan_with(), tenants={"batch": number})) for number in (1, 3))
    assert one.empty_line_s < three.empty_line_s
    assert one.safe_requests > three.safe_requests
    flow = promised(plan_with(), tenants={"batch": None}).flows[-1]
    assert isinstance(flow.always, NotPromised)
    assert "wait_s_max" in flow.always.why


@pytest.mark.parametrize("order", [kind for kind in OrderKind if kind is not OrderKind.WEIGHTED_FAIR])
def test_an_order_without_shares_bounds_no_wait(order: OrderKind) -> None:
    for flow in promised(replace(plan_with(), order=order)).flows:
        assert isinstance(flow.always, NotPromised)
        assert str(order) in flow.always.why


def test_feedback_promises_one_long_at_a_time_at_its_least_duty() -> None:
    plan = plan_with()
    steered = promised(replace(plan, feedback=Feedback(500.0))).long_rate
    plain = promised(plan).long_rate
    assert isinstance(steered, LongRate)
    assert isinstance(plain, LongRate)
    assert steered.free_tokens_per_s == pytest.approx(DUTY_MIN * plain.free_tokens_per_s)


def test_the_least_duty_is_where_feedback_stops() -> None:
    control = LongControl()
    control.configure(prefills_max=1, ttft_s=0.1)
    for second in range(40):
        for _ in range(40):
            control.short_served(float(second), waited_s=0.0, engine_ttft_s=1.0)
        control.judge(float(second), longs_wait=True)
    assert control.allowance.duty == DUTY_MIN


def test_a_context_no_longer_than_a_short_has_no_longs_and_an_unknown_one_promises_nothing() -> None:
    rate = promised(plan_with(), context_tokens=512).long_rate
    assert isinstance(rate, NotPromised)
    assert isinstance(promised(plan_with(), context_tokens=None).short_entry, NotPromised)


def test_a_plan_that_gates_nothing_promises_nothing() -> None:
    plan = plan_with(kind=AdmissionKind.NONE)
    assert guarantee(plan, FITTING, StepModel(), context_tokens=8192, tenants={}) is None


def test_attention_lowers_the_rate_and_a_ratio_with_its_worst_between_the_ends_is_found() -> None:
    heavy = guarantee(
        plan_with(),
        FITTING,
        StepModel(0.003, 1 / 27_800, 54e-9, fitted=True),
        context_tokens=8192,
        tenants=TENANTS,
    )
    assert heavy is not None
    assert heavy.model_fitted
    assert waits(heavy).empty_line_s > waits(promised(plan_with())).empty_line_s


def test_without_kv_reserves_of_its_own_a_plan_keeps_the_share_that_its_slots_are() -> None:
    admission = plan_with().admission
    assert admission.slots is not None
    kept = kv_reserves(admission, 64_000)
    assert kept.long_reserve_tokens == 64_000 * admission.slots.long_reserve // admission.slots.total
    assert kept.short_reserve_tokens == 64_000 * admission.slots.short_reserve // admission.slots.total


def test_every_number_is_for_steps_that_are_longer_by_twice_the_spread() -> None:
    fitted = StepModel(fitted=True, spread=0.05)
    exact, spread = promised(plan_with()), promised(plan_with(), model=fitted)
    assert spread.model_spread == 0.05
    assert isinstance(exact.short_entry, ShortEntry)
    assert isinstance(spread.short_entry, ShortEntry)
    assert spread.short_entry.ttft_s == pytest.approx(1.1 * exact.short_entry.ttft_s)
    assert isinstance(exact.long_rate, LongRate)
    assert isinstance(spread.long_rate, LongRate)
    assert spread.long_rate.tokens_per_s == pytest.approx(exact.long_rate.tokens_per_s / 1.1)
    assert waits(spread).wait_s == pytest.approx(1.1 * waits(exact).wait_s)
    assert waits(spread).safe_prompt_tokens < waits(exact).safe_prompt_tokens


def names_in(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from names_in(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, tuple):
        for inner in value:
            yield from names_in(inner, f"{path}[]")
    else:
        yield path


def test_the_documented_members_are_those_that_are_served() -> None:
    page = (Path(__file__).parents[3] / "docs/admission.md").read_text()
    table = page[page.index("| member of `guarantee` |") :].split("\n\n", 1)[0]
    documented = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    served = [promised(plan_with()), promised(plan_with(), context_tokens=None)]
    assert len(documented) == len(set(documented))
    assert set(documented) == {name for each in served for name in names_in(asdict(each))}
