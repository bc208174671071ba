"""From a policy file's model to a Plan.

Owns every `match` on a kind. Reads no file.
"""

from __future__ import annotations

from typing import assert_never

from gateway.core.plan import (
    AdmissionKind,
    AdmissionPlan,
    ClassPlan,
    EarlyRejection,
    Feedback,
    KvBudget,
    LongPrefill,
    LongPrefillMode,
    NonStreamRelease,
    Plan,
    QueueBounds,
    RequestBounds,
    Slo,
    SlotBudget,
    TenantBounds,
)
from gateway.core.types import LengthClass
from gateway.policy import schema
from gateway.strict_yaml import ConfigError


def compile_policy(policy: schema.Policy, *, file: str, sha256: str) -> Plan:
    """The plan that `policy` states; raises ConfigError for what contradicts itself."""
    ranked = sorted(policy.service_classes, key=lambda name: (-policy.service_classes[name].weight, name))
    return Plan(
        name=policy.name,
        sha256=sha256,
        short_prompt_tokens_max=policy.length_classes.short.prompt_tokens_max,
        classes={name: _class_plan(name, rank, policy.service_classes[name]) for rank, name in enumerate(ranked)},
        admission=_admission_plan(policy.admission),
        order=policy.order.kind,
        request=RequestBounds(
            sequences_max=policy.request.sequences_max,
            stop_max=policy.request.stop_max,
            list_items_max=policy.request.list_items_max,
        ),
        early_rejection=_early_rejection(policy),
        repeat_cost=policy.request.repeat_cost,
        feedback=_feedback(policy, file),
    )


def _early_rejection(policy: schema.Policy) -> EarlyRejection | None:
    stated = policy.early_rejection
    return EarlyRejection(stated.confidence, purges=stated.purge) if stated.enabled else None


def _feedback(policy: schema.Policy, file: str) -> Feedback | None:
    """The tightest objective of any class's short prompts is the one that the long-prefill budget is steered by."""
    match policy.feedback:
        case schema.NoFeedback():
            return None
        case schema.AimdFeedback():
            stated = [each.slo.short.ttft_ms for each in policy.service_classes.values()]
            objectives = [ttft_ms for ttft_ms in stated if ttft_ms is not None]
            if not objectives:
                fix = "Give a class slo.short.ttft_ms, or set feedback.kind to none"
                raise ConfigError(file, "feedback.target", "names an objective that no service class has", fix)
            if not isinstance(policy.admission, schema.TokenBudgetAdmission):
                fix = "Set admission.kind to token_budget, or feedback.kind to none"
                raise ConfigError(file, "feedback.kind", "has no long-prefill budget to steer", fix)
            return Feedback(short_ttft_ms=min(objectives))
        case _:
            assert_never(policy.feedback)


def _class_plan(name: str, rank: int, stated: schema.ServiceClass) -> ClassPlan:
    return ClassPlan(
        name=name,
        rank=rank,
        weight=stated.weight,
        queue=QueueBounds(
            requests_max=stated.queue.requests_max,
            prompt_tokens_max=stated.queue.prompt_tokens_max,
            bytes_max=stated.queue.bytes_max,
            newest_first_in_overload=stated.queue.newest_first_in_overload,
        ),
        wait_s_max={LengthClass.SHORT: stated.wait_s_max.short, LengthClass.LONG: stated.wait_s_max.long},
        tenant=TenantBounds(
            queued_requests_max=stated.per_tenant.queued_requests_max,
            running_max=stated.per_tenant.running_max,
        ),
        output_tokens_max=stated.output_tokens_max,
        slo={LengthClass.SHORT: _slo(stated.slo.short), LengthClass.LONG: _slo(stated.slo.long)},
    )


def _slo(stated: schema.Objectives) -> Slo:
    return Slo(ttft_ms=stated.ttft_ms, stall_ms=stated.stall_ms, e2e_ms=stated.e2e_ms)


def _long_prefill(stated: schema.LongPrefill) -> LongPrefill | None:
    if stated.mode == "whole":
        return None
    return LongPrefill(LongPrefillMode(stated.mode), stated.slice_ms / 1000, stated.hold_max_s, stated.recalls_max)


def _admission_plan(
    stated: schema.NoAdmission | schema.SlotAdmission | schema.TokenBudgetAdmission,
) -> AdmissionPlan:
    match stated:
        case schema.NoAdmission():
            return AdmissionPlan(
                kind=AdmissionKind.NONE,
                long_prefills_max=None,
                short_prefill_tokens_max=None,
                slots=None,
                kv=None,
                non_stream_release=NonStreamRelease.LAST_BYTE,
            )
        case schema.SlotAdmission():
            return AdmissionPlan(
                kind=AdmissionKind.SLOTS,
                long_prefills_max=None,
                short_prefill_tokens_max=None,
                slots=SlotBudget(total=stated.slots.total),
                kv=None,
                non_stream_release=NonStreamRelease.LAST_BYTE,
            )
        case schema.TokenBudgetAdmission():
            return AdmissionPlan(
                kind=AdmissionKind.TOKEN_BUDGET,
                long_prefills_max=stated.long_prefills_max,
                short_prefill_tokens_max=stated.short_prefill_tokens_max,
                slots=SlotBudget(
                    total=stated.slots.total,
                    short_reserve=stated.slots.short_reserve,
                    long_reserve=stated.slots.long_reserve,
                ),
                kv=None
                if stated.kv is None
                else KvBudget(stated.kv.short_reserve_tokens, stated.kv.long_reserve_tokens),
                non_stream_release=stated.non_stream_release,
                long_prefill=_long_prefill(stated.long_prefill),
            )
        case _:
            assert_never(stated)
