"""(plan, identity, shape) → Assignment, or the Refusal that says why not. Pure judgement of one request.

Owns the length class, the context and output limits, the KV reserve and the engine priority. Sees no queue.
"""

from __future__ import annotations

from gateway.core.plan import ClassPlan, Plan
from gateway.core.ticket import Assignment
from gateway.core.types import LONG, Identity, Reason, Refusal, Shape

_DEADLINE_MS_BITS = 43  # milliseconds since the epoch until the year 2248
_DEADLINE_MS_MAX = (1 << _DEADLINE_MS_BITS) - 1


def classify(
    plan: Plan,
    identity: Identity,
    shape: Shape,
    *,
    context_tokens: int | None,
    wait_s_wish: float | None = None,
    output_param: str = "max_tokens",
    prompt_param: str = "prompt",
    fingerprint: int | None = None,
    says_retry: bool = False,
    is_divisible: bool = False,
    engine: str | None = None,
) -> Assignment | Refusal:
    """Judge one request by the plan it is pinned to.

    context_tokens: the model's context length, None where unknown. wait_s_wish: the caller's own wait limit in
    seconds; it can only shorten the class's. output_param, prompt_param: the members that state the output and the
    prompt, for `error.param`. fingerprint, says_retry, is_divisible, engine: as an Assignment has
    them.
    """
    class_plan = plan.classes.get(identity.service_class)
    if class_plan is None:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"The policy {plan.name} has no service class {identity.service_class}.",
            code="service_class_not_allowed",
        )
    if shape.sequences > plan.request.sequences_max:
        return Refusal(
            Reason.BAD_REQUEST,
            f"This request asks for {shape.sequences} sequences; at most {plan.request.sequences_max} are allowed "
            "(the policy's request.sequences_max). Ask for fewer at once, or have that raised.",
            code="too_many_sequences",
            param="n",
            limit=plan.request.sequences_max,
            observed=shape.sequences,
        )
    too_long = _over_context(shape, context_tokens, output_param, prompt_param) or _over_cap(
        class_plan, shape, output_param
    )
    if too_long is not None:
        return too_long
    length_class = plan.length_class(shape.longest_prompt_tokens)
    output_tokens_max, output_tokens_set = _output(class_plan, shape, context_tokens)
    held_tokens = shape.longest_prompt_tokens + output_tokens_max
    if context_tokens is not None:
        # An estimate may say more; the engine holds no more.
        held_tokens = min(held_tokens, context_tokens)
    wait_s_max = class_plan.wait_s_max[length_class]
    return Assignment(
        plan=plan,
        class_plan=class_plan,
        tenant=identity.tenant,
        length_class=length_class,
        prompt_tokens=shape.prompt_tokens,
        longest_prompt_tokens=shape.longest_prompt_tokens,
        output_tokens_max=output_tokens_max,
        sequences=shape.sequences,
        kv_tokens=held_tokens * shape.sequences,
        body_bytes=shape.body_bytes,
        wait_s_max=wait_s_max if wait_s_wish is None else min(wait_s_max, wait_s_wish),
        stream=shape.stream,
        output_tokens_set=output_tokens_set,
        fingerprint=fingerprint,
        says_retry=says_retry,
        is_divisible=is_divisible,
        engine=engine,
    )


def _output(class_plan: ClassPlan, shape: Shape, context_tokens: int | None) -> tuple[int, int | None]:
    """Return how many output tokens one sequence is reserved, and the limit that the request is sent with.

    The limit is None where its own or the engine's default is not above the class's.
    """
    stated, cap = shape.output_tokens_stated, class_plan.output_tokens_max
    room = None if context_tokens is None else max(0, context_tokens - shape.longest_prompt_tokens)
    # What an estimate leaves of the context may be less than what the engine finds left.
    left_max = room if shape.is_exact else context_tokens
    default = left_max if shape.output_tokens_default is None else shape.output_tokens_default
    is_set = stated is None and cap is not None and (default is None or default > cap)
    bounds = [bound for bound in (room, default if stated is None else stated, cap) if bound is not None]
    return min(bounds, default=0), cap if is_set else None


def _over_context(shape: Shape, context_tokens: int | None, output_param: str, prompt_param: str) -> Refusal | None:
    if context_tokens is None:
        return None
    generates = shape.output_tokens_default != 0
    prompt_tokens_max = context_tokens - 1 if generates else context_tokens
    if shape.is_exact and shape.longest_prompt_tokens > prompt_tokens_max:
        why = "which leaves no room for an answer" if generates else "which is more"
        return Refusal(
            Reason.CONTEXT_LENGTH,
            f"This model's context is {context_tokens} tokens; the prompt has {shape.longest_prompt_tokens}, {why}. "
            "Shorten the prompt.",
            param=prompt_param,
            limit=context_tokens,
            observed=shape.longest_prompt_tokens,
        )
    stated = shape.output_tokens_stated
    if stated is not None and stated > context_tokens:
        return Refusal(
            Reason.CONTEXT_LENGTH,
            f"{output_param}={stated} is more than the model's whole context of {context_tokens} tokens. Ask for less.",
            param=output_param,
            limit=context_tokens,
            observed=stated,
        )
    return None


def _over_cap(class_plan: ClassPlan, shape: Shape, output_param: str) -> Refusal | None:
    stated, cap = shape.output_tokens_stated, class_plan.output_tokens_max
    if stated is None or cap is None or stated <= cap:
        return None
    return Refusal(
        Reason.BAD_REQUEST,
        f"{output_param}={stated} is more than the {cap} output tokens allowed to service class {class_plan.name}.",
        code="output_tokens_too_large",
        param=output_param,
        limit=cap,
        observed=stated,
    )


def engine_priority(assignment: Assignment, deadline: float) -> int:
    """Return vLLM's request priority (signed 64-bit, lower is sooner).

    Strictly by class rank, then short before long, then by wait deadline (`deadline`: seconds since the epoch).
    """
    band = 2 * assignment.class_plan.rank + (assignment.length_class is LONG)
    deadline_ms = int(deadline * 1000)
    if not 0 <= deadline_ms <= _DEADLINE_MS_MAX:
        deadline_ms = 0 if deadline_ms < 0 else _DEADLINE_MS_MAX
    return (band << _DEADLINE_MS_BITS) + deadline_ms
