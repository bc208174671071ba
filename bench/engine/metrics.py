"""vLLM's /metrics as numbers, and what changed between two readings. Pure.

A difference is *unknown* where the engine restarted in between, and absent where a reading lacks the counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

UNKNOWN = "unknown"
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage_max",
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
            if sample.name in _GAUGES:
                name = _GAUGES[sample.name]
                seen = gauges.get(name, 0.0)
                gauges[name] = max(seen, sample.value) if name == "kv_usage_max" else seen + sample.value
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
