"""A calibration as text: what was measured against what the model says, and the model's terms."""

from __future__ import annotations

from collections.abc import Sequence

from bench.analysis.step_model import Estimate, Sample, StepModel, decode, prefill
from bench.calibration import DECODE_PROMPT_TOKENS, DECODE_TOKENS, TOGETHER, Measured
from bench.tables import milliseconds, table

_TERMS = {
    "request_s": ("a request, beside its steps", 1e3, "ms"),
    "base_s": ("a: a step", 1e3, "ms"),
    "per_token_s": ("1/R: a token", 1e6, "µs"),
    "per_token_context_s": ("q: a token and token of a step before", 1e9, "ns"),
    "per_sequence_s": ("a request in a step", 1e6, "µs"),
    "per_token_chunk_s": ("q': a token and token of the same step", 1e9, "ns"),
}


def describe(fitted: StepModel, measured: Measured, step_tokens: int) -> str:
    """Both tables in Markdown, and the error."""
    rows = []
    for length, times in sorted(measured.ttft_s.items()):
        predicted_s = fitted.seconds(prefill(length, step_tokens, 1.0))
        rows.append([f"prefill of {length}", *_compared(times, predicted_s)])
    steps = DECODE_TOKENS - 1
    predicted_s = fitted.seconds(decode(DECODE_PROMPT_TOKENS, steps, 1.0)) / steps
    rows.append(["decode step", *_compared(_of_a_step(measured.decode), predicted_s)])
    if measured.together:
        predicted_s = fitted.seconds(decode(DECODE_PROMPT_TOKENS, steps, 1.0, sequences=TOGETHER)) / steps
        rows.append([f"decode step of {TOGETHER}", *_compared(_of_a_step(measured.together), predicted_s)])
    error = f"median {fitted.error_median:.1%}, p95 {fitted.error_p95:.1%}"
    return "\n\n".join(
        [
            table(["", "times", "median ms", "fastest ms", "predicted ms", "off by"], rows),
            table(["", "value", "95 % interval"], [_term(name, each) for name, each in fitted.terms.items()]),
            f"error of one time: {error}; {measured.requests} requests",
        ]
    )


def _of_a_step(decoded: Sequence[Sample]) -> list[float]:
    return [sample.seconds / (DECODE_TOKENS - 1) for sample in decoded]


def _compared(times: list[float], predicted_s: float) -> list[str]:
    median_s = sorted(times)[len(times) // 2]
    seconds = (median_s, min(times), predicted_s)
    return [str(len(times)), *(milliseconds(value * 1000) for value in seconds), f"{predicted_s / median_s - 1:+.1%}"]


def _term(name: str, estimate: Estimate) -> list[str]:
    meaning, factor, unit = _TERMS[name]
    value, low, high = (f"{each * factor:.3g}" for each in (estimate.value, estimate.low, estimate.high))
    rate = f" ({1 / estimate.value:,.0f} tokens/s)" if name == "per_token_s" and estimate.value > 0 else ""
    return [meaning, f"{value} {unit}{rate}", f"{low} to {high}"]
