"""What is computed at the moment of a scrape: lines, ages, ledgers, budgets, engines, policy in force.

Owns no state: it reads snapshots when asked, so that nothing shown can be stale and what is gone disappears. Every
class and length of the policy is always there, also at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from gateway.core.plan import Plan
from gateway.core.types import EngineSnapshot, LengthClass, LineSnapshot, Snapshot
from gateway.observe.exchange import NO_LABELS, Exchanges, Labels, Phase
from gateway.observe.families import COMMON
from gateway.observe.release import RELEASE

_ENGINE = ("pool", "engine")


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What one engine says of itself. None: never said. age_s: since its metrics were last read."""

    pool: str
    up: bool
    waiting: float | None
    running: float | None
    kv_usage: float | None
    preemptions: float | None
    restarts: int
    age_s: float | None
    priority_effective: bool


@dataclass(frozen=True, slots=True)
class GaugeSources:
    """Where a scrape looks: all are cheap and must not wait."""

    plan: Callable[[], Plan]
    pools: Callable[[], Mapping[str, Snapshot]]
    engines: Callable[[], Mapping[str, EngineReading]]


class ScrapedGauges:
    """A prometheus_client collector."""

    def __init__(self, sources: GaugeSources, exchanges: Exchanges, now: Callable[[], float]) -> None:
        self._sources = sources
        self._exchanges = exchanges
        self._now = now

    def describe(self) -> list[Metric]:
        """Say nothing of the names in advance: a collector that is asked would have to be scraped before it can."""
        return []

    def collect(self) -> Iterator[Metric]:
        pools = self._sources.pools()
        plan = self._sources.plan()
        yield self._receiving(plan)
        yield from self._lines(pools, plan)
        yield from _ledgers(pools)
        yield from _engines(self._sources.engines())
        policy = GaugeMetricFamily("gateway_policy_info", "The policy in force.", labels=("name", "sha256", "mode"))
        policy.add_metric((plan.name, plan.sha256, "active"), 1)
        yield policy
        yield InfoMetricFamily("gateway", "The gateway.", {"version": RELEASE})

    def _receiving(self, plan: Plan) -> Metric:
        family = GaugeMetricFamily(
            "gateway_receiving_requests", "Offered and not yet decided: body, count.", labels=COMMON
        )
        counts = self._exchanges.in_phase(Phase.RECEIVING)
        always = [NO_LABELS, *(Labels(name) for name in plan.classes)]
        for labels in dict.fromkeys((*always, *counts)):
            family.add_metric(labels, counts[labels])
        return family

    def _lines(self, pools: Mapping[str, Snapshot], plan: Plan) -> Iterator[Metric]:
        requests = GaugeMetricFamily("gateway_queue_requests", "Requests that wait in line.", labels=COMMON)
        tokens = GaugeMetricFamily("gateway_queue_prompt_tokens", "Prompt tokens that wait.", labels=COMMON)
        size = GaugeMetricFamily("gateway_queue_bytes", "Body bytes that wait.", labels=COMMON)
        age = GaugeMetricFamily(
            "gateway_queue_oldest_age_seconds",
            "Age now of the oldest waiting request; 0 when none waits.",
            labels=COMMON,
        )
        limit = GaugeMetricFamily("gateway_queue_wait_limit_seconds", "The class's wait deadline.", labels=COMMON)
        now = self._now()
        for pool, snapshot in pools.items():
            for (service_class, length), line in snapshot.lines.items():
                labels = (service_class, length.value, pool)
                requests.add_metric(labels, line.requests)
                tokens.add_metric(labels, line.prompt_tokens)
                size.add_metric(labels, line.body_bytes)
                age.add_metric(labels, _age_s(line, now))
                if (class_plan := plan.classes.get(service_class)) is not None:
                    limit.add_metric(labels, class_plan.wait_s_max[length])
        yield from (requests, tokens, size, age, limit)


def _age_s(line: LineSnapshot, now: float) -> float:
    return 0.0 if line.oldest_offered_at is None else max(0.0, now - line.oldest_offered_at)


def _ledgers(pools: Mapping[str, Snapshot]) -> Iterator[Metric]:
    running = GaugeMetricFamily("gateway_running_requests", "Requests at an engine.", labels=(*COMMON, "engine"))
    prefill = GaugeMetricFamily(
        "gateway_prefill_tokens", "Prompt tokens charged, first token not seen.", labels=("length_class", *_ENGINE)
    )
    longs = GaugeMetricFamily("gateway_long_prefills", "Long prompts in prefill.", labels=_ENGINE)
    kv = GaugeMetricFamily("gateway_kv_reserved_tokens", "KV-cache tokens reserved.", labels=_ENGINE)
    budget = GaugeMetricFamily(
        "gateway_budget", "The cap that the ledger is held against.", labels=(*_ENGINE, "resource")
    )
    for pool, snapshot in pools.items():
        for name, engine in snapshot.engines.items():
            for (service_class, length), count in _all_running(snapshot, engine).items():
                running.add_metric((service_class, length.value, pool, name), count)
            for length, tokens in engine.prefill_tokens.items():
                prefill.add_metric((length.value, pool, name), tokens)
            longs.add_metric((pool, name), engine.long_prefills)
            kv.add_metric((pool, name), engine.kv_reserved_tokens)
            for resource, cap in engine.budgets.items():
                budget.add_metric((pool, name, resource), cap)
    yield from (running, prefill, longs, kv, budget)


def _all_running(snapshot: Snapshot, engine: EngineSnapshot) -> Mapping[tuple[str, LengthClass], int]:
    return dict.fromkeys(snapshot.lines, 0) | dict(engine.running)


def _engines(readings: Mapping[str, EngineReading]) -> Iterator[Metric]:
    up = GaugeMetricFamily("gateway_engine_up", "1 while the engine gets requests.", labels=_ENGINE)
    effective = GaugeMetricFamily("gateway_priority_effective", "1 where priority is sent and obeyed.", labels=_ENGINE)
    restarts = CounterMetricFamily("gateway_engine_restarts", "Restarts noticed.", labels=_ENGINE)
    said: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        "waiting": GaugeMetricFamily("gateway_engine_waiting", "Requests waiting inside.", labels=_ENGINE),
        "running": GaugeMetricFamily("gateway_engine_running", "Requests in its batch.", labels=_ENGINE),
        "kv_usage": GaugeMetricFamily("gateway_engine_kv_usage", "Share of its KV cache in use.", labels=_ENGINE),
        "preemptions": CounterMetricFamily("gateway_engine_preemptions", "Preemptions it counted.", labels=_ENGINE),
        "age_s": GaugeMetricFamily(
            "gateway_engine_metrics_age_seconds", "Since its metrics were last read.", labels=_ENGINE
        ),
    }
    for name, reading in readings.items():
        labels = (reading.pool, name)
        up.add_metric(labels, reading.up)
        effective.add_metric(labels, reading.priority_effective)
        restarts.add_metric(labels, reading.restarts)
        for field, family in said.items():
            if (value := getattr(reading, field)) is not None:
                family.add_metric(labels, value)
    yield from (up, effective, restarts, *said.values())
