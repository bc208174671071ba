"""One run as text: a table by class, what was not completed and why, the client's lag, the verdict."""

from __future__ import annotations

from bench.analysis.classes import ClassMeasure
from bench.analysis.measurements import Measurements
from bench.analysis.validity import Verdict
from bench.records.request import Outcome
from bench.tables import NOTHING, milliseconds, rate, table

_HEAD = (
    "class", "offered", "completed", "in time", "refused", "expired", "timed out", "cancelled", "failed", "unfinished",
    "TTFT p50 ms", "p95", "p99", "e2e p50 ms", "p95", "p99", "stall p95 ms", "wait p95 ms", "goodput/s",
)  # fmt: skip
_ENDS = (
    Outcome.REFUSED,
    Outcome.EXPIRED,
    Outcome.TIMED_OUT,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.UNFINISHED,
)


def describe(measured: Measurements, verdict: Verdict) -> str:
    """Everything that a person needs at the end of `gateway bench run`, in Markdown."""
    parts = [table(_HEAD, [_row(name, each) for name, each in measured.classes.items()])]
    said = [f"offered {measured.offered_per_s:.3g} requests/s over {measured.window_s:g} s"]
    if measured.throughput is not None:
        flow = measured.throughput
        flows = [f"{flow.completed_per_s:.3g} completed/s"]
        if flow.output_tokens_per_s is not None:
            flows.append(f"{flow.output_tokens_per_s:.4g} output tokens/s")
        if flow.total_tokens_per_s is not None:
            flows.append(f"{flow.total_tokens_per_s:.5g} tokens/s in all")
        said.append(f"whole run {flow.seconds:.1f} s: {', '.join(flows)}")
    said.append(
        f"client lag at most {milliseconds(measured.dispatch_lag_ms_max)} ms at dispatch, "
        f"{milliseconds(measured.loop_lag_ms_max)} ms in the event loop; "
        f"{measured.connect_ms.count} connections opened during the run"
    )
    said += [f"{reason}: {number}" for reason, number in measured.classes["all"].reasons.items()]
    if unsent := measured.classes["all"].outcomes[Outcome.UNSENT]:
        said.append(f"never sent: {unsent}")
    said += [f"note: {note}" for note in verdict.notes]
    parts.append("\n".join(f"- {each}" for each in said))
    parts.append("VALID" if verdict.valid else "INVALID: " + "; ".join(verdict.reasons))
    return "\n\n".join(parts)


def _row(name: str, measured: ClassMeasure) -> list[str]:
    def quantiles(metric: str) -> list[str]:
        return [milliseconds(measured.samples[metric].value(q)) for q in ("p50", "p95", "p99")]

    return [
        name,
        str(measured.offered),
        str(measured.outcomes[Outcome.COMPLETED]),
        NOTHING if measured.good is None else str(measured.good),
        *(str(measured.outcomes[outcome]) for outcome in _ENDS),
        *quantiles("ttft_ms"),
        *quantiles("e2e_ms"),
        milliseconds(measured.samples["longest_stall_ms"].value("p95")),
        milliseconds(measured.samples["gateway_queue_ms"].value("p95")),
        rate(measured.goodput_per_s),
    ]
