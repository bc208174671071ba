"""What a promise rests on, and which of it does not hold: one sentence for each, or None.

Owns the premises of docs/admission.md as conditions on a plan and an engine; gateway.policy.fit says in other words
what to change where one is broken. Computes no bound.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.ledger import kv_reserves, sequences_of
from gateway.core.plan import AdmissionKind, KvBudget, OrderKind, Plan
from gateway.core.types import EngineLimits, LengthClass


class StepNeed(NamedTuple):
    """The tokens that one engine step may be asked for: K·T + D + P_S."""

    longs: int
    threshold: int
    decodes: int
    shorts: int

    @property
    def before_shorts(self) -> int:
        return self.longs * self.threshold + self.decodes

    @property
    def tokens(self) -> int:
        return self.before_shorts + self.shorts

    def __str__(self) -> str:
        return f"{self.longs} x {self.threshold} + {self.decodes} + {self.shorts} = {self.tokens}"


def step_need(plan: Plan, limits: EngineLimits) -> StepNeed:
    """Add up a step of a plan with token budgets on an engine whose threshold is known."""
    longs, shorts = plan.admission.long_prefills_max, plan.admission.short_prefill_tokens_max
    assert longs is not None
    assert shorts is not None
    assert limits.long_prefill_token_threshold is not None
    return StepNeed(longs, limits.long_prefill_token_threshold, decodes(plan, limits), shorts)


def entry_unmet(  # noqa: PLR0911 - one return a premise
    plan: Plan, limits: EngineLimits, *, orders_by_priority: bool | None
) -> str | None:
    """Return why a short prompt may need more than the next step, None where it does not."""
    admission, threshold, short_max = plan.admission, limits.long_prefill_token_threshold, plan.short_prompt_tokens_max
    if admission.kind is not AdmissionKind.TOKEN_BUDGET:
        return f"admission.kind {admission.kind} keeps no step tokens for short prompts"
    if threshold is None or limits.max_num_batched_tokens is None or limits.max_num_seqs is None:
        return "the engine's threshold, step tokens or sequences are not known"
    if threshold == 0:
        return "the engine has no threshold: one long prompt fills every step"
    if threshold < short_max:
        return f"the threshold ({threshold}) cuts short prompts of up to {short_max} tokens"
    need = step_need(plan, limits)
    if need.shorts < short_max:
        return f"short_prefill_tokens_max ({need.shorts}) is below one short prompt ({short_max})"
    if need.tokens > limits.max_num_batched_tokens:
        return f"a step needs {need.tokens} tokens and has {limits.max_num_batched_tokens}"
    if longs_may_block_inside(limits, orders_by_priority=orders_by_priority):
        return "priority is not effective and the KV cache is not known: a long prompt may block the engine's line"
    return None


def lane_unmet(  # noqa: PLR0911 - one return a premise
    plan: Plan, limits: EngineLimits, length_class: LengthClass, context_tokens: int
) -> str | None:
    """Return why one length class can be kept from proceeding by the other, None where it cannot."""
    if slot_reserves(plan) > decodes(plan, limits):
        return "the slot reserves are more than the sequences there are"
    if slots_kept(plan, length_class) == 0:
        return f"no sequences are kept for {length_class} prompts (slots.{length_class}_reserve is 0)"
    if limits.kv_tokens is None:
        return None
    if _kv_for_all_slots(plan, limits, context_tokens):
        return None
    kept = kv_reserves(plan.admission, limits.kv_tokens)
    if kv_reserved(kept) > limits.kv_tokens:
        return "the KV reserves are more than the engine holds"
    need = kv_of_one(plan, limits, length_class, context_tokens)
    if _kv_kept(kept, length_class) < need:
        return f"the KV kept for {length_class} prompts is less than one request needs ({need} tokens)"
    return None


def longs_may_block_inside(limits: EngineLimits, *, orders_by_priority: bool | None) -> bool:
    """Tell whether a long prompt that waits in the engine for KV may hold up the short ones behind it."""
    return orders_by_priority is False and limits.kv_tokens is None


def slot_reserves(plan: Plan) -> int:
    assert plan.admission.slots is not None
    return plan.admission.slots.short_reserve + plan.admission.slots.long_reserve


def kv_reserved(kept: KvBudget) -> int:
    return kept.short_reserve_tokens + kept.long_reserve_tokens


def decodes(plan: Plan, limits: EngineLimits) -> int:
    """D: sequences that may decode at once."""
    return sequences_of(plan.admission, limits)


def sequences_kept(plan: Plan, limits: EngineLimits, length_class: LengthClass, context_tokens: int) -> int:
    """Count the requests of one sequence that a length class has under way at least, before it waits for a sequence
    or for KV; `lane_unmet` holds of neither.
    """
    kept = slots_kept(plan, length_class)
    if limits.kv_tokens is None or _kv_for_all_slots(plan, limits, context_tokens):
        return kept
    kv = _kv_kept(kv_reserves(plan.admission, limits.kv_tokens), length_class)
    return min(kept, kv // kv_of_one(plan, limits, length_class, context_tokens))


def kv_of_one(plan: Plan, limits: EngineLimits, length_class: LengthClass, context_tokens: int) -> int:
    """Return the KV tokens of the largest request of one sequence, in whole blocks."""
    outputs = max(each.output_tokens_max or context_tokens for each in plan.classes.values())
    prompt = min(context_tokens, plan.short_prompt_tokens_max) if length_class is LengthClass.SHORT else context_tokens
    return -(-min(context_tokens, prompt + outputs) // limits.kv_block_tokens) * limits.kv_block_tokens


def unordered(plan: Plan) -> str | None:
    """Return why the order gives a flow no share of its own, None where it does."""
    if plan.order is OrderKind.WEIGHTED_FAIR:
        return None
    return f"order {plan.order} gives no class a share of its own: others can always go first"


def slots_kept(plan: Plan, length_class: LengthClass) -> int:
    """Return the sequences that the other length class may not use."""
    slots = plan.admission.slots
    assert slots is not None
    return slots.short_reserve if length_class is LengthClass.SHORT else slots.long_reserve


def _kv_kept(kv: KvBudget, length_class: LengthClass) -> int:
    return kv.short_reserve_tokens if length_class is LengthClass.SHORT else kv.long_reserve_tokens


def _kv_for_all_slots(plan: Plan, limits: EngineLimits, context_tokens: int) -> bool:
    assert limits.kv_tokens is not None
    return decodes(plan, limits) * kv_of_one(plan, limits, LengthClass.LONG, context_tokens) <= limits.kv_tokens
