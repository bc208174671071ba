"""What a plan on an engine promises, in numbers: steps to a short's first token, waits under any flood, safe queues.

Owns the bounds; docs/admission.md derives them. They hold while the premises hold (K·T + D + P_S ≤ B, T not below the
longest short prompt, reserved slots, effective priority, the step model); gateway.policy.fit says which is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from gateway.core.plan import AdmissionPlan, ClassPlan, Plan
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits

STEPS_IN_FLIGHT = 2
"""Batches committed before a new request can enter: 2 with asynchronous scheduling, vLLM's default on a GPU."""
_TURNAROUND_STEPS = 2


@dataclass(frozen=True, slots=True)
class FlowBound:
    """One service class of the long lane. None: without bound (its queue or the lane's rate is not bounded).

    wait_s: no accepted long prompt waits longer, whatever the others do, its own queue being full.
    safe_queue_tokens: while the class queues no more prompt tokens than this, no wait ends at its deadline.
    """

    wait_s: float
    wait_s_max: float
    safe_queue_tokens: int


@dataclass(frozen=True, slots=True)
class Guarantee:
    """short_ttft_steps, short_ttft_s: a short's first token after dispatch, at most. long_tokens_per_s: at least."""

    step_tokens: int
    short_ttft_steps: int
    short_ttft_s: float
    long_tokens_per_s: float
    flows: Mapping[str, FlowBound]


def guarantee(plan: Plan, limits: EngineLimits, model: StepModel, *, longest_prompt_tokens: int) -> Guarantee | None:
    """Compute the bounds of one engine; None where the plan has no token budgets or the engine no threshold.

    longest_prompt_tokens: the longest prompt there can be, the model's context length.
    """
    admission = plan.admission
    longs, shorts, slots = admission.long_prefills_max, admission.short_prefill_tokens_max, admission.slots
    if longs is None or shorts is None or slots is None or not limits.long_prefill_token_threshold:
        return None
    decodes = min(slots.total, limits.max_num_seqs or slots.total)
    step_tokens = longs * limits.chunk_tokens + decodes + shorts
    step_s = _heaviest_step_s(admission, limits, model, decodes, longest_prompt_tokens)
    long_tokens_per_s = _lane_rate(admission, limits, step_s, longest_prompt_tokens, plan)
    return Guarantee(
        step_tokens=step_tokens,
        short_ttft_steps=STEPS_IN_FLIGHT + 1,
        short_ttft_s=(STEPS_IN_FLIGHT + 1) * step_s,
        long_tokens_per_s=long_tokens_per_s,
        flows={
            name: _flow_bound(plan, class_plan, longs, long_tokens_per_s, longest_prompt_tokens)
            for name, class_plan in plan.classes.items()
        },
    )


def _heaviest_step_s(
    admission: AdmissionPlan, limits: EngineLimits, model: StepModel, decodes: int, longest: int
) -> float:
    """Bound one step: every long chunk at the end of the longest prompt, every decode there too, shorts from 0."""
    assert admission.long_prefills_max is not None
    assert admission.short_prefill_tokens_max is not None
    long_tokens = admission.long_prefills_max * limits.chunk_tokens
    attention = model.per_token_context_s * (long_tokens + decodes) * longest
    return model.step_s(long_tokens + decodes + admission.short_prefill_tokens_max) + attention


def _lane_rate(admission: AdmissionPlan, limits: EngineLimits, step_s: float, longest: int, plan: Plan) -> float:
    """Bound the long lane's prompt tokens a second from below while it is backlogged, whatever the short lane does."""
    assert admission.long_prefills_max is not None
    assert admission.slots is not None
    prefill_steps = ceil(longest / limits.chunk_tokens) + _TURNAROUND_STEPS
    by_prefill = admission.long_prefills_max * longest / (prefill_steps * step_s)
    outputs = max(class_plan.output_tokens_max for class_plan in plan.classes.values())
    held_steps = prefill_steps + min(outputs, max(1, longest - plan.short_prompt_tokens_max))
    by_slots = max(1, admission.slots.long_reserve) * longest / (held_steps * step_s)
    return min(by_prefill, by_slots)


def _flow_bound(plan: Plan, class_plan: ClassPlan, longs: int, rate: float, longest: int) -> FlowBound:
    """Bound one class's waits in the long lane under weighted fair queueing; tenants of a class share its bound."""
    share = class_plan.weight / sum(other.weight for other in plan.classes.values())
    others = (len(plan.classes) - 1) * longest
    fixed = longs * longest + (1 / share - 1) * longest + others
    queued = class_plan.queue.prompt_tokens_max
    wait_s_max = max(class_plan.wait_s_max.values())
    return FlowBound(
        wait_s=(fixed + queued / share) / rate,
        wait_s_max=wait_s_max,
        safe_queue_tokens=max(0, int(share * (rate * wait_s_max - fixed))),
    )
