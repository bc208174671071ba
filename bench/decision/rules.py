"""The rules of acceptance, as data: of which requests a share must be good, and how large it must be. Pure.

Each is judged for one arm, load and class, over all its runs together and in each run that can show such a share: the
spread of the repeats counts, not the fastest of them. A request that its client left is none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.analysis.limits import Limits, is_good
from bench.analysis.scores import BROKEN
from bench.decision.terms import Terms
from bench.records.request import Outcome, RequestRecord

Good = Callable[[RequestRecord, Limits], bool | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """good: None for a request of which it says nothing. metric: whose p95 is its figure, an attribute of a request."""

    name: str
    wants: str
    good: Good
    at_least: Callable[[Terms], float]
    metric: str | None = None


def _within(metric: str) -> Good:
    def good(record: RequestRecord, limits: Limits) -> bool | None:
        own = [limit for limit in limits.get(record.class_name, ()) if limit.metric == metric]
        return all(limit.met(record) for limit in own) if own else None

    return good


def _whole(record: RequestRecord, _limits: Limits) -> bool | None:
    """In a stream that could be read to its end. That it was as long as asked for is in its run's own verdict."""
    return record.malformed_events == 0 if record.outcome is Outcome.COMPLETED else None


def _most(terms: Terms) -> float:
    return terms.good_share


def _all_but_errors(terms: Terms) -> float:
    return 1 - terms.error_share_max


RULES = (
    Rule("first token", "first token within its limit", _within("ttft_ms"), _most, "ttft_ms"),
    Rule("streaming", "no longer stall than its limit", _within("longest_stall_ms"), _most, "longest_stall_ms"),
    Rule("time per token", "time per token within its limit", _within("tpot_ms"), _most, "tpot_ms"),
    Rule("end to end", "whole answer within its limit", _within("e2e_ms"), _most, "e2e_ms"),
    Rule("all limits", "completed within all limits of its class", is_good, _most),
    Rule("completion", "completed", lambda record, _: record.outcome is Outcome.COMPLETED, _most),
    Rule("errors", "no error, time-out or open end", lambda record, _: record.outcome not in BROKEN, _all_but_errors),
    Rule("quality", "answers whole, in streams that could be read", _whole, _all_but_errors),
)

# Of run.json. A record that differs in one of these was not of the same thing.
SAME_EVERYWHERE = (
    "model", "endpoint", "load", "output_length", "cache_salt", "tokenizer_sha256", "tokenizer_revision",
    "model_revision", "engine_version", "hardware_id", "warmup_seconds", "drain_deadline_seconds", "tolerances",
)  # fmt: skip
SAME_IN_TRACE = ("trace_sha256", "corpus_sha256", "observation_seconds")
SAME_IN_ARM = ("policy_sha256", "image_digest", "effective_args")
# Without these nobody can say that all runs were of one thing; by what would say it.
NEEDED: Mapping[str, str] = {
    "hardware_id": "measure from the engine's machine, or state it: --metadata hardware_id=NAME",
    "engine_version": "have the engines read: --engine-url, engine_metrics_url",
}
# What the embedded engine's version ends with: it has no model, and its steps cost what it was told.
EMBEDDED = "+emulator"
# What an engine measures of itself at its start is no setting.
MEASURED_ARGS = ("num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency", "kv_cache_memory_bytes")


def identity(run: Mapping[str, Any], name: str) -> Any:
    """Of a run.json: what was seen, else what the user stated; None: nobody says."""
    value = run.get(name, run.get("metadata", {}).get(name))
    if name == "effective_args" and isinstance(value, Mapping):
        return {key: each for key, each in value.items() if key not in MEASURED_ARGS}
    return value
