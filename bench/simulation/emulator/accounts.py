"""vLLM's metrics, by the names and labels of release 0.32, from what the step model does.

Owns the registry. When each is booked is vLLM's own: gauges at the end of a step, prompt tokens with the first token,
latencies of whole requests at their end alone, nothing of a request that is aborted. Beside them stands what only an
emulator has: how late it is against its own model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.registry import Collector

from bench.simulation.emulator.generation import Generation, LiveSequence

_M = TypeVar("_M", Counter, Gauge)

_LABELS = ("engine", "model_name")
_ENGINE = "0"
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)

_COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": "Cross-instance prefix cache queries; always 0 here.",
    "external_prefix_cache_hits": "Cross-instance prefix cache hits; always 0 here.",
    "mm_cache_queries": "Multi-modal cache queries; always 0 here.",
    "mm_cache_hits": "Multi-modal cache hits; always 0 here.",
    "num_preemptions": "Cumulative number of preemptions, booked when the victim has its next token.",
    "prompt_tokens": "Number of prefill tokens processed, cached ones included.",
    "prompt_tokens_cached": "Number of cached prompt tokens.",
    "generation_tokens": "Number of generation tokens processed.",
    "estimated_flops_per_gpu": "Always 0 here.",
    "estimated_read_bytes_per_gpu": "Always 0 here.",
    "estimated_write_bytes_per_gpu": "Always 0 here.",
}
_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_HISTOGRAMS: dict[str, tuple[Sequence[float], str]] = {
    "iteration_tokens_total": (_STEP_TOKENS, "Number of tokens per engine step."),
    "request_params_n": ((1, 2, 5, 10, 20), "The n request parameter."),
    "request_num_preemptions": ((1, 2, 3, 4, 5, 10, 20), "How often a request was preempted."),
    "time_to_first_token_seconds": (_TTFT_S, "Time to first token in seconds."),
    "inter_token_latency_seconds": (_TOKEN_S, "Inter-token latency in seconds."),
    "request_time_per_output_token_seconds": (_TOKEN_S, "Mean time per output token of a request."),
    "e2e_request_latency_seconds": (_REQUEST_S, "End to end request latency in seconds."),
    "request_queue_time_seconds": (_REQUEST_S, "Time spent in WAITING phase for request."),
    "request_inference_time_seconds": (_REQUEST_S, "Time spent in RUNNING phase for request."),
    "request_prefill_time_seconds": (_REQUEST_S, "Time spent in PREFILL phase for request."),
    "request_decode_time_seconds": (_REQUEST_S, "Time spent in DECODE phase for request."),
}
_TOKEN_HISTOGRAMS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "request_max_num_generation_tokens": "Maximum number of generation tokens over a request's sequences.",
    "request_params_max_tokens": "The max_tokens request parameter.",
    "request_prefill_kv_computed_tokens": "New KV tokens computed during prefill, cached ones excluded.",
}
_PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_FINISHED = ("stop", "length", "abort", "error", "repetition")
_REJECTED = ("max_num_queued_reqs", "max_num_queued_tokens")
_SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class Accounts:
    """The registry of one engine's life. cache_config: the labels of vllm:cache_config_info, without the engine's."""

    def __init__(self, model: str, *, context_tokens: int, cache_config: Mapping[str, str], started_at: float) -> None:
        # Names are what /metrics/?name[]= chooses by: also those of collectors that declare none.
        self._registry = registry = CollectorRegistry(auto_describe=True)
        registry.register(_Process(started_at))
        GCCollector(registry)
        PlatformCollector(registry)
        labels = (_ENGINE, model)
        self._counters = {
            name: Counter(f"vllm:{name}", text, _LABELS, registry=registry).labels(*labels)
            for name, text in _COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(f"vllm:{name}", text, _LABELS, registry=registry).labels(*labels)
            for name, text in _GAUGES.items()
        }
        token_buckets = tuple(_one_two_five(context_tokens))
        histograms = dict(_HISTOGRAMS)
        histograms.update((name, (token_buckets, text)) for name, text in _TOKEN_HISTOGRAMS.items())
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=registry).labels(*labels)
            for name, (buckets, text) in histograms.items()
        }
        self._waiting = _by(
            Gauge, ("num_requests_waiting_by_reason", "reason"), ("capacity", "deferred"), labels, registry
        )
        self._prompt = _by(Counter, ("prompt_tokens_by_source", "source"), _PROMPT_SOURCES, labels, registry)
        self._cached = _by(Counter, ("prompt_tokens_cached_by_source", "source"), _CACHE_SOURCES, labels, registry)
        self._finished = _by(Counter, ("request_success", "finished_reason"), _FINISHED, labels, registry)
        _by(Gauge, ("engine_sleep_state", "sleep_state"), _SLEEP_STATES, labels, registry)["awake"].set(1)
        rejections = Counter(
            "vllm:admission_rejections", "By vLLM's own limits.", ("model_name", "reason"), registry=registry
        )
        self._rejected = {reason: rejections.labels(model, reason) for reason in _REJECTED}
        config = Gauge(
            "vllm:cache_config_info", "Information of the CacheConfig.", (*cache_config, "engine"), registry=registry
        )
        config.labels(*cache_config.values(), _ENGINE).set(1)
        self._http = Counter(
            "http_requests", "Total number of requests.", ("handler", "method", "status"), registry=registry
        )
        self._lag = Histogram(
            "emulator:step_lag_seconds", "How late a step's end was handed over.", buckets=_LAG_S, registry=registry
        )
        self._lost = Counter(
            "emulator:lost_seconds", "Model time given up, because the emulator was too late.", registry=registry
        )

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()

    def page(self, names: Sequence[str] = ()) -> bytes:
        """Return the metrics in Prometheus' text form; names: of the samples wanted, none is all."""
        return generate_latest(self._registry.restricted_registry(names) if names else self._registry)

    def load(self, *, running: int, waiting: int, kv_usage: float) -> None:
        self._gauges["num_requests_running"].set(running)
        self._gauges["num_requests_waiting"].set(waiting)
        self._gauges["kv_cache_usage_perc"].set(kv_usage)
        self._waiting["capacity"].set(waiting)

    def step(self, *, prompt_tokens: int, output_tokens: int, lag_s: float) -> None:
        """Book a step that brought tokens: prompt tokens of those whose first one it is, without the cached ones."""
        self._counters["generation_tokens"].inc(output_tokens)
        self._histograms["iteration_tokens_total"].observe(prompt_tokens + output_tokens)
        self._lag.observe(lag_s)

    def lost(self, seconds: float) -> None:
        self._lost.inc(seconds)

    def looked_up(self, queried: int, found: int) -> None:
        """Book a look into the prefix cache by a request that comes in for the first time, in tokens."""
        self._counters["prefix_cache_queries"].inc(queried)
        self._counters["prefix_cache_hits"].inc(found)
        self._cached["device"].inc(found)

    def first_token(self, sequence: LiveSequence, ttft_s: float) -> None:
        cached = sequence.first_cached_tokens
        self._counters["prompt_tokens"].inc(sequence.prompt_tokens)
        self._counters["prompt_tokens_cached"].inc(cached)
        self._prompt["local_compute"].inc(sequence.prompt_tokens - cached)
        self._prompt["local_cache_hit"].inc(cached)
        self._histograms["time_to_first_token_seconds"].observe(ttft_s)

    def next_token(self, gap_s: float) -> None:
        self._histograms["inter_token_latency_seconds"].observe(gap_s)

    def preempted(self, times: int) -> None:
        self._counters["num_preemptions"].inc(times)

    def finished(self, sequence: LiveSequence, generation: Generation, at: float) -> None:
        """Book a sequence that came to its own end at `at`."""
        scheduled_at, first_at = sequence.scheduled_at, sequence.first_token_at
        assert scheduled_at is not None
        assert first_at is not None
        observe = {
            "e2e_request_latency_seconds": at - generation.arrived_at,
            "request_queue_time_seconds": max(0.0, scheduled_at - generation.arrived_at),
            "request_prefill_time_seconds": first_at - scheduled_at,
            "request_decode_time_seconds": at - first_at,
            "request_inference_time_seconds": at - scheduled_at,
            "request_time_per_output_token_seconds": (at - first_at) / max(1, sequence.told - 1),
            "request_num_preemptions": sequence.preemptions,
            "request_prompt_tokens": sequence.prompt_tokens,
            "request_generation_tokens": sequence.told,
            "request_prefill_kv_computed_tokens": sequence.prompt_tokens - sequence.first_cached_tokens,
            "request_params_max_tokens": generation.max_tokens,
        }
        for name, value in observe.items():
            if value is not None:
                self._histograms[name].observe(value)
        self._finished[str(sequence.finish)].inc()
        if sequence is generation.sequences[-1]:
            self._histograms["request_params_n"].observe(len(generation.sequences))
            self._histograms["request_max_num_generation_tokens"].observe(
                max(each.told for each in generation.sequences)
            )

    def rejected(self, reason: str) -> None:
        self._rejected[reason].inc()

    def answered(self, handler: str, method: str, status: int) -> None:
        self._http.labels(handler, method, f"{status // 100}xx").inc()


class _Process(Collector):
    """The process's own figures, with the start of this life of the engine in place of the process's."""

    def __init__(self, started_at: float) -> None:
        self._process = ProcessCollector(registry=None)
        self._started_at = started_at

    def collect(self) -> Iterator[Metric]:
        name = "process_start_time_seconds"
        yield from (family for family in self._process.collect() if family.name != name)
        yield GaugeMetricFamily(name, "Start of the engine since the epoch in seconds.", self._started_at)


def _by(
    kind: type[_M], by: tuple[str, str], values: Iterable[str], labels: Sequence[str], registry: CollectorRegistry
) -> dict[str, _M]:
    name, label = by
    metric = kind(f"vllm:{name}", f"By {label}.", (*_LABELS, label), registry=registry)
    return {value: metric.labels(*labels, value) for value in values}


def _one_two_five(highest: int) -> Iterator[float]:
    power = 1
    while power <= highest:
        yield from (step * power for step in (1, 2, 5) if step * power <= highest)
        power *= 10
