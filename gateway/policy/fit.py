"""Does a plan fit an engine? What is lost where it does not, in words for whoever runs them.

Owns the words, and what is proposed. What is asked of a plan and an engine are the premises of the promises, and they
are gateway.core.premises'. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core import premises
from gateway.core.plan import AdmissionKind, LongPrefillMode, OrderKind, Plan
from gateway.core.types import EngineLimits, LengthClass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a plan on an engine. A warning names what is lost; the rest is for information."""

    is_warning: bool
    text: str


def findings(plan: Plan, limits: EngineLimits, *, orders_by_priority: bool | None) -> list[Finding]:
    """Compare `plan` with one engine. orders_by_priority: None where it is not known."""
    if plan.admission.kind is AdmissionKind.NONE:
        return []
    found = list(_slots(plan, limits))
    if plan.admission.kind is AdmissionKind.TOKEN_BUDGET:
        found += _parts(plan, limits)
        found += _step(plan, limits)
        found += _kv(plan, limits)
        found += _shares(plan)
        if premises.longs_may_block_inside(limits, orders_by_priority=orders_by_priority):
            found.append(
                _warning(
                    "priority is not effective and kv_tokens is not known: a long prompt that waits inside the engine "
                    "for KV blocks the short ones behind it; start the engine with --scheduling-policy priority, or "
                    "state limits.kv_tokens"
                )
            )
    if plan.order is OrderKind.STRICT_PRIORITY and orders_by_priority is False:
        found.append(
            _warning(
                "priority is not effective on this engine: classes are ordered only while they wait here, "
                "and a request that is already at the engine is passed by none"
            )
        )
    return found


def _warning(text: str) -> Finding:
    return Finding(is_warning=True, text=text)


def _note(text: str) -> Finding:
    return Finding(is_warning=False, text=text)


def _slots(plan: Plan, limits: EngineLimits) -> Iterator[Finding]:
    assert plan.admission.slots is not None
    total, engine_total = plan.admission.slots.total, limits.max_num_seqs
    if engine_total is None:
        yield _warning(
            f"max_num_seqs is not stated: slots.total ({total}) is in force, and where the engine runs fewer the "
            "rest waits inside the engine, beyond every deadline and bound set here"
        )
        return
    reserves = premises.slot_reserves(plan)
    if reserves > premises.decodes(plan, limits):
        yield _warning(
            f"the slot reserves together ({reserves}) are more than max_num_seqs ({engine_total}): "
            "short and long prompts cannot both have theirs"
        )
    if total > engine_total:
        yield _note(f"max_num_seqs ({engine_total}) is below slots.total ({total}) and is in force")
    elif total < engine_total:
        yield _note(f"slots.total ({total}) is below max_num_seqs ({engine_total}): {engine_total - total} stay unused")


def _parts(plan: Plan, limits: EngineLimits) -> Iterator[Finding]:
    """Can the engine carry long prompts in parts, and what does a short one wait for then?"""
    parts = plan.admission.long_prefill
    if parts is None:
        return
    if limits.prefix_caching is False:
        yield _warning(
            f"prefix caching is off: long prompts go whole, not {parts.mode}; start the engine with "
            "--enable-prefix-caching"
        )
    elif parts.mode is LongPrefillMode.SLICED:
        yield _note(
            f"long prompts are sent in slices of about {1000 * parts.slice_s:g} ms: a short prompt that comes "
            "meanwhile waits for one at most"
        )
    else:
        yield _note(f"a long prompt is taken back for short ones, at most {parts.recalls_max} times")


def _step(plan: Plan, limits: EngineLimits) -> Iterator[Finding]:
    threshold, step_tokens = limits.long_prefill_token_threshold, limits.max_num_batched_tokens
    short_max, parts = plan.short_prompt_tokens_max, plan.admission.long_prefill
    if not threshold and parts is not None and parts.mode is LongPrefillMode.SLICED:
        return
    if threshold is None:
        yield _warning(
            "long_prefill_token_threshold is not stated: whether short prompts enter the next step is not known"
        )
        return
    if threshold == 0:
        yield _warning(
            "long_prefill_token_threshold is 0: a long prompt takes all that a step has, so a short prompt waits "
            "until the long prompt ahead of it is computed whole"
        )
        return
    if threshold < short_max:
        yield _warning(
            f"long_prefill_token_threshold ({threshold}) is below length_classes.short.prompt_tokens_max "
            f"({short_max}): short prompts of more than {threshold} tokens take further steps to a first token"
        )
    if step_tokens is None:
        yield _warning("max_num_batched_tokens is not stated: whether a step has room for all is not known")
        return
    need = premises.step_need(plan, limits)
    if need.tokens > step_tokens:
        yield _warning(
            f"a step has {step_tokens} tokens, but long prefills, decodes and short prompts may need {need}: short "
            f"prompts beyond {max(0, step_tokens - need.before_shorts)} tokens in all wait for a further step"
        )
    elif threshold >= short_max:
        yield _note(f"every short prompt is computed in the next step: {need} <= {step_tokens}")


def _shares(plan: Plan) -> Iterator[Finding]:
    """Is anything kept for each length, and has each flow a share?"""
    admission, short_max = plan.admission, plan.short_prompt_tokens_max
    assert admission.short_prefill_tokens_max is not None
    for length in LengthClass:
        if premises.slots_kept(plan, length) == 0:
            yield _warning(
                f"no sequences are kept for {length} prompts: a flood of the others takes every one; "
                f"set admission.slots.{length}_reserve"
            )
    if admission.short_prefill_tokens_max < short_max:
        yield _warning(
            f"short_prefill_tokens_max ({admission.short_prefill_tokens_max}) is below one short prompt ({short_max}): "
            f"the longest short prompts exceed it; raise it to {short_max} or more"
        )
    if premises.unordered(plan) is not None:
        yield _warning(
            f"order {plan.order} gives no class a share of its own, so no wait is bounded but by its deadline; "
            "set order.kind to weighted_fair"
        )
    at_once = plan.request.sequences_max * short_max
    if at_once > admission.short_prefill_tokens_max:
        yield _note(
            f"a request may hold {plan.request.sequences_max} sequences (up to {at_once} short tokens, or as many long "
            "prompts, at once): it goes alone in its lane, and while it is in prefill others may take further steps; "
            "where that matters set request.sequences_max to 1"
        )


def _kv(plan: Plan, limits: EngineLimits) -> Iterator[Finding]:
    if plan.admission.kv is None or limits.kv_tokens is None:
        return
    reserves = premises.kv_reserved(plan.admission.kv)
    if reserves > limits.kv_tokens:
        yield _warning(
            f"the KV reserves together ({reserves} tokens) are more than the engine holds ({limits.kv_tokens}): "
            "short and long prompts cannot both have theirs"
        )
