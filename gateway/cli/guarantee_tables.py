"""What a plan promises on an engine, as text: the sentences and the table of `gateway check`.

Owns their words. Computes no bound and judges no premise.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gateway.cli.table import Cell, table
from gateway.core.guarantee import FlowBound, Guarantee, LongRate, NotPromised, ShortEntry
from gateway.core.plan import Plan
from gateway.core.types import LengthClass

_FLOWS = [
    "service class", "length", "tenants", "deadline s", "wait s", "safe requests", "safe tokens",
    "long answers s",
]  # fmt: skip

_LEGEND = (
    "  wait s         at most, for a request with none of its own tenant ahead, everybody else flooding",
    "  safe           the largest queue (either bound) from which no accepted request expires; none: the deadline",
    "                 is shorter than everybody else's largest requests",
    "                 wait s and safe: while sequences are free, so that prefill alone is what is waited for",
    "  long answers   the same wait where all other sequences are held and all answers are of full length",
    "  tenants        in the keys file, each with a line of its own; more of them make every wait longer",
)


def section(engine: str, promised: Guarantee) -> str:
    """One engine's bounds: a short's first token, the long lane's rate, and a table of every flow's wait."""
    lines = [
        f"promised by engine {engine}, at worst and under any flood ({_model(promised)})",
        f"  short prompt, dispatch to first token  {_short(promised.short_entry)}",
        f"  long prompts, together                 {_long(promised.long_rate)}",
    ]
    whys = {bound.why for each in promised.flows for bound in (each.free,) if isinstance(bound, NotPromised)}
    if whys and all(isinstance(each.free, NotPromised) for each in promised.flows):
        lines.append(f"  waits in line                          not promised: {'; '.join(sorted(whys))}")
        return "\n".join(lines)
    return "\n".join([*lines, "", table(_FLOWS, [_row(each) for each in promised.flows]), "", *_LEGEND])


def notes(promised: Guarantee, plan: Plan) -> Iterator[str]:
    """What an operator may want to change, with the setting to change, and what a number does not mean."""
    entry, rate = promised.short_entry, promised.long_rate
    stated = [(ms, name) for name, each in plan.classes.items() if (ms := each.slo[LengthClass.SHORT].ttft_ms)]
    objective_ms, name = min(stated, default=(inf, ""))
    if isinstance(entry, ShortEntry) and 1000 * entry.ttft_s > objective_ms:
        yield (
            f"the bound on a short prompt's first token ({_ms(entry.ttft_s)}) is above the objective of {name} "
            f"({objective_ms:g} ms), so that objective is not promised here. A bound is no forecast: this one is for a "
            f"short that comes when {entry.steps - 1} steps of one long prompt at the end of its context have just "
            "begun, and that shares the step after them with all that the budgets allow. Most come at a better moment: "
            "see gateway_engine_time_to_first_token_seconds. Steps with fewer tokens (long_prefill_token_threshold, "
            "max_num_batched_tokens) lower it"
        )
    if isinstance(rate, LongRate) and rate.output_tokens > rate.full_speed_output_tokens:
        yield (
            f"the sequences kept for long prompts keep up with answers of {rate.full_speed_output_tokens} tokens, and "
            f"answers may have {rate.output_tokens}: when short prompts hold all other sequences, long ones may fall "
            "to the lower rate; raise admission.slots.long_reserve or lower output_tokens_max"
        )


def _model(promised: Guarantee) -> str:
    if not promised.model_fitted:
        return "default step model, not measured here"
    if promised.model_spread is None:
        return "step model fitted to it, of a spread that is not known"
    spread = 100 * promised.model_spread
    return (
        f"step model fitted to it; prefills stray {spread:.2g} % from it, and steps count as {2 * spread:.2g} % longer"
    )


def _short(entry: ShortEntry | NotPromised) -> str:
    if isinstance(entry, NotPromised):
        return f"not promised: {entry.why}"
    return (
        f"at most {entry.steps} engine steps, {_ms(entry.ttft_s)}\n"
        f"{'':41}{_ms(entry.busy_ttft_s)} where the engine does not run one long prompt alone"
    )


def _long(rate: LongRate | NotPromised) -> str:
    if isinstance(rate, NotPromised):
        return f"not promised: {rate.why}"
    return (
        f"at least {_figure(rate.free_tokens_per_s)} prompt tokens a second while sequences are free\n"
        f"{'':41}{_figure(rate.tokens_per_s)} while only the reserve is, and answers take {rate.output_tokens} tokens"
    )


def _row(each: FlowBound) -> list[Cell]:
    start: list[Cell] = [each.service_class, each.length_class.value, "open" if each.tenants is None else each.tenants]
    free = each.free
    if isinstance(free, NotPromised):
        return [*start, each.wait_s_max, f"not promised: {free.why}", "-", "-", "-"]
    always = each.always
    return [
        *start,
        each.wait_s_max,
        _figure(free.empty_line_s),
        str(free.safe_requests) if free.safe_requests else "none",
        str(free.safe_prompt_tokens) if free.safe_requests else "none",
        f"not promised: {always.why}" if isinstance(always, NotPromised) else _figure(always.empty_line_s),
    ]


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
