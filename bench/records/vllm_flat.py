"""The run in the flat field names of `vllm bench serve`, so that tools made for its files read ours.

Only fields whose meaning is equal: latencies from dispatch, over completed requests. Chunk gaps are not inter-token
latencies and do not appear. What was not measured is absent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.analysis.measurements import Measurements
from bench.analysis.quantiles import quantile
from bench.records.request import Outcome, RequestRecord

_METRICS = {"ttft": "ttft_from_dispatch_ms", "tpot": "tpot_ms", "e2el": "e2e_from_dispatch_ms"}


def flat(
    records: Sequence[RequestRecord], measured: Measurements, *, model: str, tokenizer: str, run: Mapping[str, Any]
) -> dict[str, Any]:
    """`run` is run.json; the counts cover warm-up and window, as vLLM's do."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    origin = run["trace_origin"]
    # What was measured is not what somebody says of it.
    said: dict[str, Any] = {
        **dict(run["metadata"]),
        "date": str(run["run_id"]).partition("-")[0],
        "backend": "openai-chat" if run["endpoint"] == "chat" else "openai",
        "label": run["cell_id"],
        "model_id": model,
        "tokenizer_id": tokenizer,
        "num_prompts": len(records),
        "completed": len(completed),
        "failed": len(records) - len(completed),
    }
    if "rate_per_s" in origin:
        said |= {"request_rate": origin["rate_per_s"], "burstiness": origin.get("burstiness", 1.0)}
    if all(record.prompt_tokens is not None and record.output_tokens is not None for record in completed):
        said["total_input_tokens"] = sum(record.prompt_tokens or 0 for record in completed)
        said["total_output_tokens"] = sum(record.output_tokens or 0 for record in completed)
    if measured.throughput is not None:
        said["duration"] = measured.throughput.seconds
        said["request_throughput"] = measured.throughput.completed_per_s
        for name, value in (
            ("output_throughput", measured.throughput.output_tokens_per_s),
            ("total_token_throughput", measured.throughput.total_tokens_per_s),
        ):
            if value is not None:
                said[name] = value
    goodput = measured.classes["all"].goodput_per_s
    if goodput is not None:
        said["request_goodput"] = goodput
    for name, attribute in _METRICS.items():
        values = sorted(value for record in completed if (value := getattr(record, attribute)) is not None)
        said |= _spread(name, values)
    return said


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    said = {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
    }
    p99 = quantile(values, 0.99)
    if p99 is not None:
        said[f"p99_{name}_ms"] = p99.value
    return said
