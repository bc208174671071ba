"""Does a plan fit an engine? What is lost where it does not, in words for whoever runs them.

Owns the inequality behind `short-first`: with K long prompts in prefill, each given T tokens of a step, D sequences
decoding and P_S short prompt tokens outstanding, every short prompt is computed whole in the first step after it
reaches the engine if K x T + D + P_S <= B tokens a step and no short prompt is longer than T. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.plan import AdmissionKind, AdmissionPlan, LongPrefillMode, OrderKind, Plan
from gateway.core.types import EngineLimits


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a plan on an engine. A warning names what is lost; the rest is for information."""

    is_warning: bool
    text: str


def findings(plan: Plan, limits: EngineLimits, *, orders_by_priority: bool | None) -> list[Finding]:
    """Compare `plan` with one engine. orders_by_priority: None where it is not known."""
    if plan.admission.kind is AdmissionKind.NONE:
        return []
    found = list(_slots(plan.admission, limits))
    if plan.admission.kind is AdmissionKind.TOKEN_BUDGET:
        found += _parts(plan, limits)
        found += _step(plan, limits)
        found += _kv(plan.admission, limits)
        found += _shares(plan)
        if orders_by_priority is False and limits.kv_tokens is None:
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


def _slots(admission: AdmissionPlan, limits: EngineLimits) -> Iterator[Finding]:
    assert admission.slots is not None
    total, engine_total = admission.slots.total, limits.max_num_seqs
    if engine_total is None:
        yield _warning(
            f"max_num_seqs is not stated: slots.total ({total}) is in force, and where the engine runs fewer the "
            "rest waits inside the engine, beyond every deadline and bound set here"
        )
        return
    reserves = admission.slots.short_reserve + admission.slots.long_reserve
    if reserves > engine_total:
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
    yield from _inequality(plan, limits, threshold, step_tokens)


def _inequality(plan: Plan, limits: EngineLimits, threshold: int, step_tokens: int) -> Iterator[Finding]:
    admission, short_max = plan.admission, plan.short_prompt_tokens_max
    assert admission.slots is not None
    longs, short_tokens = admission.long_prefills_max, admission.short_prefill_tokens_max
    assert longs is not None
    assert short_tokens is not None
    total = admission.slots.total
    decodes = total if limits.max_num_seqs is None else min(total, limits.max_num_seqs)
    needed = longs * threshold + decodes + short_tokens
    sum_in_words = f"{longs} x {threshold} + {decodes} + {short_tokens} = {needed}"
    if needed > step_tokens:
        yield _warning(
            f"a step has {step_tokens} tokens, but long prefills, decodes and short prompts may need {sum_in_words}: "
            f"short prompts beyond {max(0, step_tokens - longs * threshold - decodes)} tokens in all wait for a "
            "further step"
        )
    elif threshold >= short_max:
        yield _note(f"every short prompt is computed in the next step: {sum_in_words} <= {step_tokens}")


def _shares(plan: Plan) -> Iterator[Finding]:
    """Is anything kept for each length, and has each flow a share?"""
    admission, short_max = plan.admission, plan.short_prompt_tokens_max
    assert admission.slots is not None
    assert admission.short_prefill_tokens_max is not None
    for length, kept in (("short", admission.slots.short_reserve), ("long", admission.slots.long_reserve)):
        if kept == 0:
            yield _warning(
                f"no sequences are kept for {length} prompts: a flood of the others takes every one; "
                f"set admission.slots.{length}_reserve"
            )
    if admission.short_prefill_tokens_max < short_max:
        yield _warning(
            f"short_prefill_tokens_max ({admission.short_prefill_tokens_max}) is below one short prompt ({short_max}): "
            f"the longest short prompts exceed it; raise it to {short_max} or more"
        )
    if plan.order is not OrderKind.WEIGHTED_FAIR:
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


def _kv(admission: AdmissionPlan, limits: EngineLimits) -> Iterator[Finding]:
    if admission.kv is None or limits.kv_tokens is None:
        return
    reserves = admission.kv.short_reserve_tokens + admission.kv.long_reserve_tokens
    if reserves > limits.kv_tokens:
        yield _warning(
            f"the KV reserves together ({reserves} tokens) are more than the engine holds ({limits.kv_tokens}): "
            "short and long prompts cannot both have theirs"
        )
