"""What is computed at the moment of a scrape: lines, ages, ledgers, budgets, engines, policy in force.

Owns no state: it reads snapshots when asked, so that nothing shown can be stale and what is gone disappears. Every
class and length of the policy is always there, also at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.core.plan import Plan
from gateway.core.types import EngineSnapshot, LengthClass, LineSnapshot, Snapshot
from gateway.observe.exchange import NO_LABELS, Exchanges, Labels, Phase
from gateway.observe.exposition import Scraped
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
    shadow: Callable[[], Plan | None] = lambda: None


class ScrapedGauges:
    """Looks at its sources at each `collect`."""

    def __init__(self, sources: GaugeSources, exchanges: Exchanges, now: Callable[[], float]) -> None:
        self._sources = sources
        self._exchanges = exchanges
        self._now = now

    def collect(self) -> Iterator[Scraped]:
        pools = self._sources.pools()
        plan = self._sources.plan()
        yield self._receiving(plan)
        yield from self._lines(pools, plan)
        yield from _ledgers(pools)
        yield from _engines(self._sources.engines())
        policy = Scraped(
            "gateway_policy_info",
            "The policy in force, and the one that is only counted.",
            labels=("name", "sha256", "mode"),
        )
        policy.add((plan.name, plan.sha256, "active"), 1)
        if (shadow := self._sources.shadow()) is not None:
            policy.add((shadow.name, shadow.sha256, "shadow"), 1)
        yield policy
        info = Scraped("gateway_info", "The gateway.", labels=("version",))
        info.add((RELEASE,), 1)
        yield info

    def ages(self) -> Iterator[tuple[Labels, float]]:
        """Yield the age now of the oldest waiting request of every line."""
        now = self._now()
        for pool, snapshot in self._sources.pools().items():
            for (service_class, length), line in snapshot.lines.items():
                yield Labels(service_class, length.value, pool), _age_s(line, now)

    def _receiving(self, plan: Plan) -> Scraped:
        family = Scraped("gateway_receiving_requests", "Offered and not yet decided: body, count.", labels=COMMON)
        counts = self._exchanges.in_phase(Phase.RECEIVING)
        always = [NO_LABELS, *(Labels(name) for name in plan.classes)]
        for labels in dict.fromkeys((*always, *counts)):
            family.add(labels, counts[labels])
        return family

    def _lines(self, pools: Mapping[str, Snapshot], plan: Plan) -> Iterator[Scraped]:
        requests = Scraped("gateway_queue_requests", "Requests that wait in line.", labels=COMMON)
        tokens = Scraped("gateway_queue_prompt_tokens", "Prompt tokens that wait.", labels=COMMON)
        size = Scraped("gateway_queue_bytes", "Body bytes that wait.", labels=COMMON)
        age = Scraped(
            "gateway_queue_oldest_age_seconds",
            "Age now of the oldest waiting request; 0 when none waits.",
            labels=COMMON,
        )
        limit = Scraped("gateway_queue_wait_limit_seconds", "The class's wait deadline.", labels=COMMON)
        now = self._now()
        for pool, snapshot in pools.items():
            for (service_class, length), line in snapshot.lines.items():
                labels = (service_class, length.value, pool)
                requests.add(labels, line.requests)
                tokens.add(labels, line.prompt_tokens)
                size.add(labels, line.body_bytes)
                age.add(labels, _age_s(line, now))
                if (class_plan := plan.classes.get(service_class)) is not None:
                    limit.add(labels, class_plan.wait_s_max[length])
        yield from (requests, tokens, size, age, limit)


def _age_s(line: LineSnapshot, now: float) -> float:
    return 0.0 if line.oldest_offered_at is None else max(0.0, now - line.oldest_offered_at)


def _ledgers(pools: Mapping[str, Snapshot]) -> Iterator[Scraped]:
    running = Scraped("gateway_running_requests", "Requests at an engine.", labels=(*COMMON, "engine"))
    prefill = Scraped(
        "gateway_prefill_tokens", "Prompt tokens charged, first token not seen.", labels=("length_class", *_ENGINE)
    )
    longs = Scraped("gateway_long_prefills", "Long prompts in prefill.", labels=_ENGINE)
    kv = Scraped("gateway_kv_reserved_tokens", "KV-cache tokens reserved.", labels=_ENGINE)
    weight = Scraped("gateway_engine_weight", "Its share of new requests; 0: it is drained.", labels=_ENGINE)
    budget = Scraped("gateway_budget", "The cap that the ledger is held against.", labels=(*_ENGINE, "resource"))
    for pool, snapshot in pools.items():
        for name, engine in snapshot.engines.items():
            for (service_class, length), count in _all_running(snapshot, engine).items():
                running.add((service_class, length.value, pool, name), count)
            for length, tokens in engine.prefill_tokens.items():
                prefill.add((length.value, pool, name), tokens)
            longs.add((pool, name), engine.long_prefills)
            kv.add((pool, name), engine.kv_reserved_tokens)
            weight.add((pool, name), engine.weight)
            for resource, cap in engine.budgets.items():
                budget.add((pool, name, resource), cap)
    yield from (running, prefill, longs, kv, weight, budget)


def _all_running(snapshot: Snapshot, engine: EngineSnapshot) -> Mapping[tuple[str, LengthClass], int]:
    return dict.fromkeys(snapshot.lines, 0) | dict(engine.running)


def _engines(readings: Mapping[str, EngineReading]) -> Iterator[Scraped]:
    up = Scraped("gateway_engine_up", "1 while the engine gets requests.", labels=_ENGINE)
    effective = Scraped("gateway_priority_effective", "1 where priority is sent and obeyed.", labels=_ENGINE)
    restarts = Scraped("gateway_engine_restarts_total", "Restarts noticed.", labels=_ENGINE, kind="counter")
    said: dict[str, Scraped] = {
        "waiting": Scraped("gateway_engine_waiting", "Requests waiting inside.", labels=_ENGINE),
        "running": Scraped("gateway_engine_running", "Requests in its batch.", labels=_ENGINE),
        "kv_usage": Scraped("gateway_engine_kv_usage", "Share of its KV cache in use.", labels=_ENGINE),
        "preemptions": Scraped(
            "gateway_engine_preemptions_total", "Preemptions it counted.", labels=_ENGINE, kind="counter"
        ),
        "age_s": Scraped("gateway_engine_metrics_age_seconds", "Since its metrics were last read.", labels=_ENGINE),
    }
    for name, reading in readings.items():
        labels = (reading.pool, name)
        up.add(labels, reading.up)
        effective.add(labels, reading.priority_effective)
        restarts.add(labels, reading.restarts)
        for field, family in said.items():
            if (value := getattr(reading, field)) is not None:
                family.add(labels, value)
    yield from (up, effective, restarts, *said.values())
