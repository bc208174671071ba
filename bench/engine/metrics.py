"""vLLM's /metrics as numbers, and what changed between two readings. Pure.

A difference is *unknown* where the engine restarted in between, and absent where a reading lacks the counter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

UNKNOWN = "unknown"
_HIGHEST = "kv_usage_max"  # of the gauges that are not added
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": _HIGHEST,
}
_COUNTERS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prefix_cache_hits_total": "prefix_cache_hit_tokens",
    "vllm:request_queue_time_seconds_sum": "queue_seconds",
    "vllm:request_queue_time_seconds_count": "queue_observations",
}
_STARTED = "process_start_time_seconds"
_CONFIG = "vllm:cache_config_info"
_NAMES = (*_GAUGES, *_COUNTERS, _STARTED)


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape. Values of several engine processes are added, KV usage is the highest of them."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    started_at: float | None
    cache_config: Mapping[str, str]

    @property
    def idle(self) -> bool | None:
        """No request running or waiting; None where the engine does not say."""
        if "running" not in self.gauges or "waiting" not in self.gauges:
            return None
        return self.gauges["running"] + self.gauges["waiting"] == 0

    def to_json(self) -> dict[str, Any]:
        return {**self.gauges, **self.counters}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a scrape gave nothing."""

    reason: str


NO_ENGINE_METRICS = Unreadable("no_engine_metrics")  # a page of something else


def as_one(readings: Mapping[str, Reading | Unreadable]) -> Reading | Unreadable:
    """Of several engines, by name, as of one: added, KV usage the highest. What one does not say no sum can have."""
    mute = {name: each.reason for name, each in readings.items() if isinstance(each, Unreadable)}
    read = [each for each in readings.values() if isinstance(each, Reading)]
    if mute or not read:
        return Unreadable("; ".join(f"{name}: {reason}" for name, reason in mute.items()))
    gauges = {
        name: max(values) if name == _HIGHEST else sum(values)
        for name in read[0].gauges
        if len(values := [each.gauges[name] for each in read if name in each.gauges]) == len(read)
    }
    counters = {
        name: sum(values)
        for name in read[0].counters
        if len(values := [each.counters[name] for each in read if name in each.counters]) == len(read)
    }
    return Reading(gauges, counters, None, {})


def wanted(text: str) -> str:
    """The lines that `parse` looks at: a twentieth of what an engine says, and of the work of parsing it."""
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith(_NAMES))


def parse(text: str) -> Reading:
    """Raises ValueError where `text` is no Prometheus text."""
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    started_at: float | None = None
    cache_config: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                continue  # not measured: a ratio of nothing, and no record can hold it
            if sample.name in _GAUGES:
                name = _GAUGES[sample.name]
                seen = gauges.get(name, 0.0)
                gauges[name] = max(seen, sample.value) if name == _HIGHEST else seen + sample.value
            elif sample.name in _COUNTERS:
                name = _COUNTERS[sample.name]
                counters[name] = counters.get(name, 0.0) + sample.value
            elif sample.name == _STARTED:
                started_at = sample.value
            elif sample.name == _CONFIG:
                cache_config = {name: value for name, value in sample.labels.items() if name != "engine"}
    return Reading(gauges, counters, started_at, cache_config)


def restarted(before: Reading, after: Reading) -> bool:
    """The engine process is another one, or a counter fell or vanished, which says the same."""
    if before.started_at is not None and after.started_at is not None and before.started_at != after.started_at:
        return True
    return any(after.counters.get(name, -1.0) < value for name, value in before.counters.items())


def delta(before: Reading, after: Reading) -> dict[str, float | str]:
    """By how much each counter grew, or UNKNOWN."""
    if restarted(before, after):
        return dict.fromkeys(before.counters, UNKNOWN)
    return {name: after.counters[name] - value for name, value in before.counters.items()}
