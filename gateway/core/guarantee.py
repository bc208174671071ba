"""What a plan promises on one engine, in numbers: a short's first token, the rate of longs, waits, safe queues.

Owns the bounds; docs/admission.md derives them. A bound whose premise does not hold is the reason instead of a number.
They are for streamed requests of one sequence, for a tenant below its own running bound, and no better than the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from gateway.core import premises
from gateway.core.lane_work import LaneWork, StepBound, lane_of, step_bound
from gateway.core.plan import AdmissionKind, ClassPlan, Plan
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits, LengthClass


@dataclass(frozen=True, slots=True)
class NotPromised:
    """why: the premise that does not hold, as part of a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class ShortEntry:
    """A short's first token after dispatch, at most. ttft_s: whatever runs; busy_ttft_s: unless a long ran alone."""

    steps: int
    ttft_s: float
    busy_ttft_s: float


@dataclass(frozen=True, slots=True)
class LongRate:
    """Prompt tokens a second of a backlogged long lane, at least; worst at prompts of at_prompt_tokens.

    free_tokens_per_s: while sequences and KV are free, so that prefill alone bounds it. full_speed_output_tokens:
    answers up to this length keep the reserve from binding.
    """

    tokens_per_s: float
    free_tokens_per_s: float
    at_prompt_tokens: int
    output_tokens: int
    full_speed_output_tokens: int


@dataclass(frozen=True, slots=True)
class Wait:
    """wait_s: the whole own line full, under any flood by all others. empty_line_s: none of its own ahead.

    safe_requests, safe_prompt_tokens: the largest queue bound with which no accepted request expires; 0: none has that.
    Either suffices: the smaller of a plan's two bounds decides.
    """

    wait_s: float
    empty_line_s: float
    safe_requests: int
    safe_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class FlowBound:
    """One tenant of one service class in one lane. always: all answers at their limit. free: while sequences and KV
    suffice.
    """

    service_class: str
    length_class: LengthClass
    tenants: int | None
    wait_s_max: float
    always: Wait | NotPromised
    free: Wait | NotPromised


@dataclass(frozen=True, slots=True)
class Guarantee:
    """model_fitted: the seconds are of this engine; else of the default step model.

    model_spread: of the fit, as StepModel has it: twice as much is in every number.
    """

    model_fitted: bool
    model_spread: float | None
    short_entry: ShortEntry | NotPromised
    long_rate: LongRate | NotPromised
    flows: tuple[FlowBound, ...]


def guarantee(
    plan: Plan,
    limits: EngineLimits,
    model: StepModel,
    *,
    context_tokens: int | None,
    tenants: Mapping[str, int | None],
    orders_by_priority: bool | None = None,
) -> Guarantee | None:
    """Compute the bounds of one engine; None for a plan that gates nothing.

    context_tokens: the longest prompt and answer there can be. tenants: by service class, those that may send; None
    where their number is open.
    """
    if plan.admission.kind is AdmissionKind.NONE:
        return None
    unmet = premises.entry_unmet(plan, limits, orders_by_priority=orders_by_priority)
    if unmet is None and context_tokens is None:
        unmet = "the context length is not known"
    if unmet is not None:
        no = NotPromised(unmet)
        flows = tuple(_flow(each, length, tenants, no, no) for length in LengthClass for each in _ranked(plan))
        return Guarantee(model.fitted, model.spread, no, no, flows)
    assert context_tokens is not None
    model = model.at_worst()
    bound = step_bound(plan, limits, model, context_tokens)
    lanes = {length: _lanes(plan, limits, model, length, context_tokens, bound) for length in LengthClass}
    return Guarantee(
        model.fitted,
        model.spread,
        ShortEntry(bound.batches + 1, bound.short_ttft_s, (bound.batches + 1) * bound.shared_s),
        _long_rate(lanes[LengthClass.LONG]),
        tuple(
            _flow(each, length, tenants, *waits)
            for length in LengthClass
            for each, *waits in zip(
                _ranked(plan), *(_waits(plan, lane, tenants) for lane in lanes[length]), strict=True
            )
        ),
    )


def _ranked(plan: Plan) -> list[ClassPlan]:
    return sorted(plan.classes.values(), key=lambda each: each.rank)


def _flow(
    each: ClassPlan,
    length: LengthClass,
    tenants: Mapping[str, int | None],
    always: Wait | NotPromised,
    free: Wait | NotPromised,
) -> FlowBound:
    return FlowBound(each.name, length, tenants.get(each.name, 0), each.wait_s_max[length], always, free)


def _lanes(  # noqa: PLR0917 - the facts of one engine
    plan: Plan, limits: EngineLimits, model: StepModel, length: LengthClass, context_tokens: int, bound: StepBound
) -> tuple[LaneWork | NotPromised, LaneWork | NotPromised]:
    """Return the lane with its reserve, and while sequences and KV suffice."""
    if length is LengthClass.LONG and context_tokens <= plan.short_prompt_tokens_max + 1:
        no = NotPromised("no prompt of this context length is long")
        return no, no
    free = lane_of(plan, limits, model, length, context_tokens, bound, sequences=None)
    unmet = premises.lane_unmet(plan, limits, length, context_tokens)
    if unmet is not None:
        return NotPromised(unmet), free
    kept = premises.sequences_kept(plan, limits, length, context_tokens)
    return lane_of(plan, limits, model, length, context_tokens, bound, sequences=kept), free


def _long_rate(lanes: tuple[LaneWork | NotPromised, LaneWork | NotPromised]) -> LongRate | NotPromised:
    always, free = lanes
    if isinstance(always, NotPromised):
        return always
    assert not isinstance(free, NotPromised)
    rate, at = always.tokens_per_s()
    return LongRate(rate, free.tokens_per_s()[0], at, always.outputs_max, always.full_speed_output_tokens())


def _waits(plan: Plan, lane: LaneWork | NotPromised, tenants: Mapping[str, int | None]) -> list[Wait | NotPromised]:
    """Return what each class waits at most, by rank. What a request costs is computed once for each output bound."""
    ranked = _ranked(plan)
    unordered = premises.unordered(plan)
    if isinstance(lane, NotPromised) or unordered is not None:
        no = lane if isinstance(lane, NotPromised) else NotPromised(unordered or "")
        return [no] * len(ranked)
    bounds = {each.output_tokens_max for each in ranked}
    largest, per_token = ({bound: of(bound) for bound in bounds} for of in (lane.cost_max_s, lane.cost_per_token_max_s))
    weights = sum(each.weight for each in ranked)
    of_all = sum(largest[each.output_tokens_max] for each in ranked)
    return [
        _wait(
            each,
            lane,
            tenants.get(each.name, 0),
            share=each.weight / weights,
            own=largest[each.output_tokens_max],
            per_token=per_token[each.output_tokens_max],
            of_all=of_all,
        )
        for each in ranked
    ]


def _wait(
    each: ClassPlan, lane: LaneWork, count: int | None, *, share: float, own: float, per_token: float, of_all: float
) -> Wait | NotPromised:
    """Bound one class's wait. own, per_token: its largest request's cost, in all and a prompt token; of_all: summed."""
    if count is None:
        return NotPromised("the number of tenants is open: only wait_s_max bounds the wait")
    count = max(1, count)
    of_others = 2 * (count - 1) * own / share + (1 / share - 1) * own + of_all - own
    empty_line_s = lane.start_s + lane.work_per_cost * of_others
    per_cost_ahead = lane.work_per_cost * count / share
    spare = (each.wait_s_max[lane.length_class] - empty_line_s) / per_cost_ahead
    queued = min(each.queue.requests_max, each.tenant.queued_requests_max or each.queue.requests_max)
    ahead = min(max(0, queued - 1) * own, each.queue.prompt_tokens_max * per_token)
    return Wait(
        wait_s=empty_line_s + per_cost_ahead * ahead,
        empty_line_s=empty_line_s,
        safe_requests=0 if spare < 0 else floor(spare / own) + 1,
        safe_prompt_tokens=0 if spare < 0 else floor(spare / per_token) + lane.shortest_prompt_tokens,
    )
