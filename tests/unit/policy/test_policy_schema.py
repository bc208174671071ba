import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.plan import (
    AdmissionKind,
    EarlyRejection,
    Feedback,
    KvBudget,
    NonStreamRelease,
    OrderKind,
    Plan,
    QueueBounds,
    RequestBounds,
    Slo,
    SlotBudget,
    TenantBounds,
)
from gateway.core.types import LengthClass
from gateway.policy import source
from gateway.strict_yaml import ConfigError

MINIMAL = "{version: 1, name: mine, service_classes: {only: {weight: 1}}}"

FULL = """
version: 1
name: mine
length_classes: {short: {prompt_tokens_max: 600}, long: {}}
service_classes:
  interactive:
    weight: 16
    queue: {requests_max: 200, prompt_tokens_max: 200000, bytes_max: 60000000}
    wait_s_max: {short: 2, long: 31.5}
    per_tenant: {queued_requests_max: 64, running_max: 32}
    output_tokens_max: 4000
    slo: {short: {ttft_ms: 500, stall_ms: 1000, e2e_ms: 20000}, long: {ttft_ms: 20000}}
  batch: {weight: 1}
admission:
  kind: token_budget
  long_prefills_max: 2
  short_prefill_tokens_max: 1000
  non_stream_release: last_byte
  slots: {total: 100, short_reserve: 30, long_reserve: 10}
  kv: {short_reserve_tokens: 5000, long_reserve_tokens: 6000}
  long_prefill: {mode: whole, slice_ms: 300, hold_max_s: auto, recalls_max: 8}
order: {kind: earliest_deadline}
early_rejection: {enabled: false, confidence: 0.9}
feedback: {kind: none}
request: {sequences_max: 8, stop_max: 4, list_items_max: 100}
"""


def load(folder: Path, text: str) -> Plan:
    file = folder / "policy.yaml"
    file.write_text(text)
    return source.load(str(file))


def refusal_of(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value


def changed(path: str, value: Any) -> str:
    """FULL with one member set, at a path such as `admission.kv`."""
    document = yaml.safe_load(FULL)
    *places, last = path.split(".")
    here = document
    for place in places:
        here = here[place]
    here[last] = value
    return yaml.safe_dump(document)


def test_every_field_arrives_in_the_plan(tmp_path: Path) -> None:
    plan = load(tmp_path, FULL)
    assert plan.name == "mine"
    assert plan.short_prompt_tokens_max == 600
    interactive = plan.classes["interactive"]
    assert (interactive.weight, interactive.rank, interactive.output_tokens_max) == (16, 0, 4000)
    assert interactive.queue == QueueBounds(200, 200_000, 60_000_000)
    assert interactive.wait_s_max == {LengthClass.SHORT: 2, LengthClass.LONG: 31.5}
    assert interactive.tenant == TenantBounds(64, 32)
    assert interactive.slo == {LengthClass.SHORT: Slo(500, 1000, 20_000), LengthClass.LONG: Slo(20_000)}
    assert plan.admission.kind is AdmissionKind.TOKEN_BUDGET
    assert (plan.admission.long_prefills_max, plan.admission.short_prefill_tokens_max) == (2, 1000)
    assert plan.admission.slots == SlotBudget(100, 30, 10)
    assert plan.admission.kv == KvBudget(5000, 6000)
    assert plan.admission.non_stream_release is NonStreamRelease.LAST_BYTE
    assert plan.order is OrderKind.EARLIEST_DEADLINE
    assert plan.request == RequestBounds(8, 4, 100)
    assert (plan.early_rejection, plan.feedback) == (None, None)


def test_early_rejection_and_release_by_estimate_are_on_unless_stated(tmp_path: Path) -> None:
    plan = load(tmp_path, MINIMAL)
    assert plan.early_rejection == EarlyRejection(0.9, purges=False)
    assert plan.admission.non_stream_release is NonStreamRelease.ESTIMATE


def test_feedback_steers_by_the_tightest_objective_of_any_class(tmp_path: Path) -> None:
    plan = load(tmp_path, changed("feedback", {"kind": "aimd"}))
    assert plan.feedback == Feedback(short_ttft_ms=500)


@pytest.mark.parametrize(
    ("service_class", "more", "message"),
    [
        ("{weight: 1}", "", "feedback.target: names an objective that no service class has"),
        (
            "{weight: 1, slo: {short: {ttft_ms: 9}}}",
            ", admission: {kind: slots}",
            "feedback.kind: has no long-prefill budget to steer",
        ),
    ],
)
def test_feedback_without_an_objective_or_a_budget_is_refused(
    tmp_path: Path, service_class: str, more: str, message: str
) -> None:
    text = f"{{version: 1, name: mine, service_classes: {{only: {service_class}}}, feedback: {{kind: aimd}}{more}}}"
    assert message in str(refusal_of(tmp_path, text))


def test_all_but_version_name_and_classes_have_defaults(tmp_path: Path) -> None:
    plan = load(tmp_path, MINIMAL)
    assert plan.short_prompt_tokens_max == 640
    assert plan.admission.kind is AdmissionKind.TOKEN_BUDGET
    assert (plan.admission.long_prefills_max, plan.admission.short_prefill_tokens_max) == (1, 1024)
    assert plan.admission.slots == SlotBudget(128, 32, 16)
    assert plan.order is OrderKind.WEIGHTED_FAIR
    assert plan.request == RequestBounds(16, 64, 1024)
    only = plan.classes["only"]
    assert only.queue == QueueBounds(256, 200_000, 67_108_864)
    assert only.wait_s_max == {LengthClass.SHORT: 2, LengthClass.LONG: 30}
    assert only.tenant == TenantBounds(None, None)
    assert only.output_tokens_max == 4096
    assert only.slo == {LengthClass.SHORT: Slo(), LengthClass.LONG: Slo()}


@pytest.mark.parametrize("missing", ["version", "name", "service_classes"])
def test_what_has_no_default_must_be_stated(tmp_path: Path, missing: str) -> None:
    document = yaml.safe_load(FULL)
    del document[missing]
    refusal = refusal_of(tmp_path, yaml.safe_dump(document))
    assert (refusal.key_path, refusal.problem) == (missing, "is missing")


@given(
    weights=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True).filter(lambda name: name != "none"),
        st.integers(1, 4),
        min_size=1,
        max_size=8,
    )
)
def test_rank_follows_weight_then_name(weights: dict[str, int]) -> None:
    classes = {name: {"weight": weight} for name, weight in weights.items()}
    policy = source.parse(
        json.dumps({"version": 1, "name": "p", "service_classes": classes}).encode(),
        file="p",
        model=source.Policy,
    )
    plan = source.compile_policy(policy, file="p", sha256="")
    by_rank = sorted(plan.classes.values(), key=lambda each: each.rank)
    assert [each.rank for each in by_rank] == list(range(len(weights)))
    assert [each.name for each in by_rank] == sorted(weights, key=lambda name: (-weights[name], name))
    assert all(name == each.name for name, each in plan.classes.items())


@pytest.mark.parametrize("kind", list(OrderKind))
def test_every_order_compiles(tmp_path: Path, kind: OrderKind) -> None:
    assert load(tmp_path, changed("order.kind", kind.value)).order is kind


@pytest.mark.parametrize(
    ("admission", "kind", "slots"),
    [
        ({"kind": "none"}, AdmissionKind.NONE, None),
        ({"kind": "slots"}, AdmissionKind.SLOTS, SlotBudget(128)),
        ({"kind": "slots", "slots": {"total": 24}}, AdmissionKind.SLOTS, SlotBudget(24)),
        ({"kind": "token_budget"}, AdmissionKind.TOKEN_BUDGET, SlotBudget(128, 32, 16)),
    ],
)
def test_every_admission_compiles(
    tmp_path: Path, admission: dict[str, Any], kind: AdmissionKind, slots: SlotBudget | None
) -> None:
    plan = load(tmp_path, changed("admission", admission))
    assert (plan.admission.kind, plan.admission.slots) == (kind, slots)


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("service_classes.interactive.queue.requests_max", lambda plan: plan.classes["interactive"].queue.requests_max),
        ("service_classes.interactive.queue.prompt_tokens_max", lambda plan: plan.classes["interactive"].queue.prompt_tokens_max),
        ("service_classes.interactive.queue.bytes_max", lambda plan: plan.classes["interactive"].queue.bytes_max),
        ("service_classes.interactive.wait_s_max.short", lambda plan: plan.classes["interactive"].wait_s_max[LengthClass.SHORT]),
        ("service_classes.interactive.wait_s_max.long", lambda plan: plan.classes["interactive"].wait_s_max[LengthClass.LONG]),
        ("service_classes.interactive.per_tenant.queued_requests_max", lambda plan: plan.classes["interactive"].tenant.queued_requests_max),
        ("length_classes.short.prompt_tokens_max", lambda plan: plan.short_prompt_tokens_max),
        ("admission.slots.short_reserve", lambda plan: plan.admission.slots.short_reserve),
        ("admission.slots.long_reserve", lambda plan: plan.admission.slots.long_reserve),
        ("admission.kv.short_reserve_tokens", lambda plan: plan.admission.kv.short_reserve_tokens),
        ("request.stop_max", lambda plan: plan.request.stop_max),
    ],
)  # fmt: skip
def test_a_zero_is_honoured_and_never_replaced_by_a_default(tmp_path: Path, path: str, read: Any) -> None:
    assert read(load(tmp_path, changed(path, 0))) == 0


@pytest.mark.parametrize(
    "path",
    [
        "service_classes.interactive.weight",
        "service_classes.interactive.per_tenant.running_max",
        "service_classes.interactive.output_tokens_max",
        "service_classes.interactive.slo.short.ttft_ms",
        "admission.long_prefills_max",
        "admission.short_prefill_tokens_max",
        "admission.slots.total",
        "request.sequences_max",
        "request.list_items_max",
    ],
)
def test_a_zero_that_would_starve_somebody_for_ever_is_refused(tmp_path: Path, path: str) -> None:
    refusal = refusal_of(tmp_path, changed(path, 0))
    assert refusal.key_path == path
    assert "must be" in refusal.problem


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "version: 2 is not 1. Write 1."),
        ("name", "Übung", "name: is not a valid name"),
        ("service_classes", {}, "service_classes: is empty"),
        ("service_classes", {"中文": {"weight": 1}}, "is not a valid name"),
        ("service_classes", {"none": {"weight": 1}}, "service_classes.none: is not a valid name"),
        ("service_classes.batch", {}, "service_classes.batch.weight: is missing"),
        ("service_classes.batch.wieght", 1, "service_classes.batch.wieght: is not a known key. Write `weight` if that is meant."),
        ("order.kind", "fifo", "order.kind: 'fifo' is not one of: arrival, strict_priority, weighted_fair, earliest_deadline."),
        ("admission.kind", "tokens", "admission.kind: 'tokens' is not one of: none, slots, token_budget."),
        ("admission", {"kind": "none", "slots": {"total": 1}}, "admission.slots: is not a known key. Write `kind`|Known keys here: kind."),
        ("admission", {"kind": "slots", "slots": {"total": 1, "long_reserve": 1}}, "admission.slots.long_reserve: is not a known key."),
        ("admission.slots", {"total": 40}, "admission.slots: holds reserves that are more than total."),
        ("admission.slots", {"total": 8, "short_reserve": 8, "long_reserve": 0}, "admission.slots: reserves every slot for one length class."),
        ("admission.short_prefill_tokens_max", 599, "admission.short_prefill_tokens_max: is below the longest short prompt (600). Give 600 or more"),
        ("feedback", {"kind": "aimd", "target": "long.ttft_ms"}, "feedback.target: 'long.ttft_ms' is not short.ttft_ms."),
        ("feedback", {"kind": "pid"}, "feedback.kind: 'pid' is not one of: aimd, none."),
        ("early_rejection.confidence", 1, "early_rejection.confidence: must be below 1"),
        ("admission.non_stream_release", "first_token", "admission.non_stream_release: 'first_token' is not one of: last_byte, estimate."),
        ("service_classes.batch.wait_s_max", {"short": -1}, "service_classes.batch.wait_s_max.short: must be at least 0, not -1."),
        ("service_classes.batch.wait_s_max", 5, "service_classes.batch.wait_s_max: should be a mapping of keys to values, not 5."),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_carried_out_is_refused(tmp_path: Path, path: str, value: Any, message: str) -> None:
    shown = str(refusal_of(tmp_path, changed(path, value)))
    assert any(part in shown for part in message.split("|"))
    assert shown.startswith(str(tmp_path / "policy.yaml"))


def places(here: Any, path: str = "") -> Iterator[str]:
    """The path of every mapping of a document."""
    if isinstance(here, dict):
        yield path
        for key, value in here.items():
            yield from places(value, f"{path}.{key}" if path else key)


@pytest.mark.parametrize("place", [path for path in places(yaml.safe_load(FULL)) if path != "service_classes"])
def test_an_unknown_key_is_refused_in_every_section_of_a_policy(tmp_path: Path, place: str) -> None:
    path = f"{place}.unheard_of" if place else "unheard_of"
    refusal = refusal_of(tmp_path, changed(path, 1))
    assert (refusal.key_path, refusal.problem) == (path, "is not a known key")
