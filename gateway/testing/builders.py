"""Plans, assignments and engines for tests: valid as they are, each field open to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.plan import (
    AdmissionKind,
    AdmissionPlan,
    ClassPlan,
    KvBudget,
    LongPrefill,
    NonStreamRelease,
    OrderKind,
    Plan,
    QueueBounds,
    RequestBounds,
    Slo,
    SlotBudget,
    TenantBounds,
)
from gateway.core.ticket import Assignment
from gateway.core.types import EngineLimits, EngineSpec, LengthClass

DEFAULT_WEIGHTS: Mapping[str, float] = {"interactive": 16, "standard": 4, "batch": 1}


def a_class(
    name: str = "interactive",
    *,
    rank: int = 0,
    weight: float = 16,
    requests_max: int = 256,
    prompt_tokens_max: int = 200_000,
    bytes_max: int = 1 << 26,
    wait_s_max: tuple[float, float] = (2, 30),
    tenant: TenantBounds | None = None,
    output_tokens_max: int | None = 4096,
) -> ClassPlan:
    """Return a service class; wait_s_max: (short, long)."""
    return ClassPlan(
        name=name,
        rank=rank,
        weight=weight,
        queue=QueueBounds(requests_max, prompt_tokens_max, bytes_max),
        wait_s_max=dict(zip(LengthClass, wait_s_max, strict=True)),
        tenant=tenant or TenantBounds(),
        output_tokens_max=output_tokens_max,
        slo={length: Slo() for length in LengthClass},
    )


def an_admission(
    kind: AdmissionKind = AdmissionKind.TOKEN_BUDGET,
    *,
    long_prefills_max: int | None = 1,
    short_prefill_tokens_max: int | None = 1024,
    slots: SlotBudget | None = None,
    kv: KvBudget | None = None,
    non_stream_release: NonStreamRelease = NonStreamRelease.LAST_BYTE,
    long_prefill: LongPrefill | None = None,
) -> AdmissionPlan:
    return AdmissionPlan(
        kind=kind,
        long_prefills_max=long_prefills_max,
        short_prefill_tokens_max=short_prefill_tokens_max,
        slots=slots or SlotBudget(total=8, short_reserve=2, long_reserve=2),
        kv=kv,
        non_stream_release=non_stream_release,
        long_prefill=long_prefill,
    )


def a_plan(
    *classes: ClassPlan,
    admission: AdmissionPlan | None = None,
    order: OrderKind = OrderKind.WEIGHTED_FAIR,
    short_prompt_tokens_max: int = 640,
    name: str = "a-plan",
) -> Plan:
    """Return a plan of these classes, or of three in the ratio 16 : 4 : 1."""
    chosen = classes or tuple(
        a_class(class_name, rank=rank, weight=weight)
        for rank, (class_name, weight) in enumerate(DEFAULT_WEIGHTS.items())
    )
    return Plan(
        name=name,
        sha256="0" * 64,
        short_prompt_tokens_max=short_prompt_tokens_max,
        classes={class_plan.name: class_plan for class_plan in chosen},
        admission=admission or an_admission(),
        order=order,
        request=RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024),
    )


def an_assignment(
    plan: Plan,
    service_class: str = "interactive",
    *,
    tenant: str = "acme",
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    sequences: int = 1,
    body_bytes: int = 2048,
    wait_s_max: float | None = None,
    stream: bool = True,
    is_divisible: bool = False,
    fingerprint: int | None = None,
    engine: str | None = None,
) -> Assignment:
    """Return a classified request of one prompt; its length class follows from `prompt_tokens`."""
    class_plan = plan.classes[service_class]
    length_class = plan.length_class(prompt_tokens)
    return Assignment(
        plan=plan,
        class_plan=class_plan,
        tenant=tenant,
        length_class=length_class,
        prompt_tokens=prompt_tokens * sequences,
        longest_prompt_tokens=prompt_tokens,
        output_tokens_max=output_tokens,
        sequences=sequences,
        kv_tokens=(prompt_tokens + output_tokens) * sequences,
        body_bytes=body_bytes,
        wait_s_max=class_plan.wait_s_max[length_class] if wait_s_max is None else wait_s_max,
        stream=stream,
        is_divisible=is_divisible,
        fingerprint=fingerprint,
        engine=engine,
    )


def an_engine(name: str = "a", **limits: Any) -> EngineSpec:
    return EngineSpec(name, EngineLimits(**limits))
