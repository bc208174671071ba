"""The worst that a lane can be made to do: engine steps, the time that one request occupies its lane, and its cost.

Owns the arithmetic of sections 1 to 3 of docs/admission.md, by pieces of prompt length: within one piece the work of a
request is bounded at its upper end and its cost at its lower. Judges no premise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

from gateway.core.feedback import DUTY_MIN
from gateway.core.plan import Plan
from gateway.core.premises import decodes
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass

BATCHES_IN_FLIGHT = 2
"""m, and g: batches committed when a request arrives; 2 with asynchronous scheduling, vLLM's default."""
_GROWTH = 1.05


@dataclass(frozen=True, slots=True)
class StepBound:
    """shared_s: a step of several requests. lone_s: of a long prompt alone, to which the threshold does not apply."""

    shared_s: float
    lone_s: float
    batches: int = BATCHES_IN_FLIGHT

    @property
    def short_ttft_s(self) -> float:
        return self.batches * max(self.shared_s, self.lone_s) + self.shared_s


def step_bound(plan: Plan, limits: EngineLimits, model: StepModel, context_tokens: int) -> StepBound:
    """Bound one step: chunks and decodes at the end of the context, short prompts at its beginning."""
    longs, shorts = plan.admission.long_prefills_max, plan.admission.short_prefill_tokens_max
    assert longs is not None
    assert shorts is not None
    deep = longs * limits.chunk_tokens + decodes(plan, limits)
    attention = model.per_token_context_s * (deep * context_tokens + shorts * plan.short_prompt_tokens_max / 2)
    lone = min(limits.step_tokens, context_tokens)
    return StepBound(
        model.base_s + (deep + shorts) * model.per_token_s + attention,
        model.step_s(lone, context_tokens - lone),
    )


@dataclass(frozen=True)
class LaneWork:
    """One lane. sequences: requests that are under way at least before a sequence or KV is waited for; None: free.

    prefill_s: lane seconds of one prefill, by the upper end of its piece. step_s: of each output token on a sequence.
    """

    length_class: LengthClass
    pieces: Sequence[tuple[int, int]]
    prefill_s: Sequence[float]
    stay_s: float
    step_s: float
    sequences: int | None
    chunk_tokens: int
    context_tokens: int
    outputs_max: int
    model: StepModel

    @property
    def shortest_prompt_tokens(self) -> int:
        return self.pieces[0][0]

    @property
    def start_s(self) -> float:
        """How long those that are under way on arrival may hold what the lane needs."""
        if self.sequences is None:
            return self.stay_s
        return self.stay_s + self.step_s * self.outputs_max

    @property
    def _output_s(self) -> float:
        return 0.0 if self.sequences is None else self.step_s / self.sequences

    @cached_property
    def work_per_cost(self) -> float:
        """Lane seconds of one second of cost, at most: over all prompt and output lengths."""
        return max(
            _steepest(
                work_s,
                self._output_s,
                self._prefill_cost_s(low),
                *self._per_output_s(low),
                self._outputs(low, self.outputs_max),
            )
            for (low, _), work_s in zip(self.pieces, self.prefill_s, strict=True)
        )

    def tokens_per_s(self) -> tuple[float, int]:
        """Return the least prompt tokens a second while the lane is backlogged, and the prompt length of that."""
        return min(
            (low / (work_s + self._output_s * self._outputs(low, self.outputs_max)), low)
            for (low, _), work_s in zip(self.pieces, self.prefill_s, strict=True)
        )

    def full_speed_output_tokens(self) -> int:
        """Return the longest answers with which prefill, not the reserve, is what binds at every prompt length."""
        assert self.sequences is not None
        return floor(max(0.0, min(self.prefill_s) * (self.sequences - 1) / self.step_s))

    def cost_max_s(self, output_tokens_max: int | None) -> float:
        """Return the largest cost of one request in this lane. output_tokens_max: as its class has it."""
        limit = output_tokens_max or self.context_tokens
        return max(
            cost_s + self.model.decode_s(self._outputs(high, limit), high)
            for (_, high), cost_s in zip(self.pieces, self._prefill_costs_s, strict=True)
        )

    def cost_per_token_max_s(self, output_tokens_max: int | None) -> float:
        """Return the largest cost of a request for each token of its prompt."""
        limit = output_tokens_max or self.context_tokens
        return max(
            (cost_s + self.model.decode_s(self._outputs(low, limit), high)) / low
            for (low, high), cost_s in zip(self.pieces, self._prefill_costs_s, strict=True)
        )

    @cached_property
    def _prefill_costs_s(self) -> list[float]:
        return [self._prefill_cost_s(high) for _, high in self.pieces]

    def _outputs(self, prompt_tokens: int, limit: int) -> int:
        return max(1, min(limit, self.context_tokens - prompt_tokens))

    def _prefill_cost_s(self, prompt_tokens: int) -> float:
        return self.model.prefill_s(prompt_tokens, self.chunk_tokens)

    def _per_output_s(self, prompt_tokens: int) -> tuple[float, float]:
        q = self.model.per_token_context_s
        return self.model.per_token_s + q * prompt_tokens, q / 2


def lane_of(  # noqa: PLR0917 - the facts of one engine
    plan: Plan,
    limits: EngineLimits,
    model: StepModel,
    length_class: LengthClass,
    context_tokens: int,
    bound: StepBound,
    *,
    sequences: int | None,
) -> LaneWork:
    """Return the work of one lane. sequences: as in LaneWork."""
    admission, chunk = plan.admission, limits.chunk_tokens
    short_max = min(plan.short_prompt_tokens_max, context_tokens)
    if length_class is LengthClass.SHORT:
        assert admission.short_prefill_tokens_max is not None
        pieces = _growing(short_max)
        # Whoever lacks short tokens finds more than this many at work, or one short at the least.
        at_work = admission.short_prefill_tokens_max - short_max + 1
        prefill_s = [bound.short_ttft_s * min(1.0, high / at_work) for _, high in pieces]
        stay_s = bound.short_ttft_s
    else:
        assert admission.long_prefills_max is not None
        pieces = _chunked(short_max + 1, context_tokens - 1, chunk)
        # Feedback may go down to one long at a time, with a pause after each.
        places = 1.0 * DUTY_MIN if plan.feedback else float(min(admission.long_prefills_max, sequences or (1 << 30)))
        held_s = [(ceil(high / chunk) + bound.batches) * bound.shared_s for _, high in pieces]
        prefill_s = [each / places for each in held_s]
        stay_s = (held_s[-1] / DUTY_MIN if plan.feedback else held_s[-1]) + bound.batches * bound.lone_s
    return LaneWork(
        length_class=length_class,
        pieces=pieces,
        prefill_s=prefill_s,
        stay_s=stay_s,
        step_s=bound.shared_s,
        sequences=sequences,
        chunk_tokens=chunk,
        context_tokens=context_tokens,
        outputs_max=min(
            context_tokens, max(each.output_tokens_max or context_tokens for each in plan.classes.values())
        ),
        model=model,
    )


def _growing(longest: int) -> list[tuple[int, int]]:
    """Cut 1 … longest into pieces that each grow by a small part."""
    pieces, low = [], 1
    while low <= longest:
        high = min(longest, max(low, floor(low * _GROWTH)))
        pieces.append((low, high))
        low = high + 1
    return pieces


def _chunked(shortest: int, longest: int, chunk: int) -> list[tuple[int, int]]:
    """Cut shortest … longest where a prompt begins to need a further chunk."""
    pieces, low = [], shortest
    while low <= longest:
        high = min(longest, ceil(low / chunk) * chunk)
        pieces.append((low, high))
        low = high + 1
    return pieces


def _steepest(  # noqa: PLR0917 - coefficients of one fraction
    work: float, work_each: float, cost: float, cost_each: float, cost_square: float, outputs_max: int
) -> float:
    """Return the largest (work + work_each·o) / (cost + cost_each·o + cost_square·o²) for 1 ≤ o ≤ outputs_max."""

    def ratio(outputs: float) -> float:
        return (work + work_each * outputs) / (cost + cost_each * outputs + cost_square * outputs * outputs)

    candidates = [1.0, float(outputs_max)]
    if work_each > 0.0 and cost_square > 0.0:
        # Where the derivative is 0: cost_square·work_each·o² + 2·cost_square·work·o = work_each·cost − work·cost_each.
        square, half = cost_square * work_each, cost_square * work
        inside = half * half + square * (work_each * cost - work * cost_each)
        if inside > 0.0:
            candidates.append(min(float(outputs_max), max(1.0, (sqrt(inside) - half) / square)))
    return max(map(ratio, candidates))
