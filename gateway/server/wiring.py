"""Settings and plan into rooms: what is built once at the start, and how the engines' news reach admission.

Owns the translation between rooms that do not know each other: settings into targets and limits, an engine's health
into the gate, its cards into the pools. Starts nothing and listens nowhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.core.admission import Admission
from gateway.core.plan import Plan
from gateway.core.types import EngineLoad, EngineSpec, Identity
from gateway.engines.canary import Canary
from gateway.engines.pool import Pool, Pools
from gateway.engines.target import Carrier, EngineHttp, Scheduling, Target, Timeouts
from gateway.engines.watch import EngineWatch
from gateway.identity.keyring import Keyring
from gateway.identity.keys import load_keys
from gateway.observe.metrics import Observer
from gateway.server.clock import LoopClock
from gateway.server.gate import Gate
from gateway.settings import Engine, Settings

_JITTER_BITS = 32


def keyring(settings: Settings, plan: Plan) -> Keyring:
    """Read the keys in force. Raises ConfigError."""
    auth = settings.auth
    entries = () if auth.keys_file is None else load_keys(auth.keys_file, plan.classes)
    anonymous = auth.anonymous
    return Keyring(
        entries,
        None if anonymous is None else Identity("anonymous", anonymous.service_class, anonymous.tenant),
    )


def pools(settings: Settings) -> Pools:
    return Pools(
        Pool(
            name,
            pool.models,
            tuple(_target(engine, pool.models) for engine in settings.engines_of(name)),
            context_tokens_stated=pool.max_model_len,
            length_class=pool.length_class,
        )
        for name, pool in settings.pools.items()
    )


def _target(engine: Engine, models: tuple[str, ...]) -> Target:
    timeouts = engine.timeouts
    return Target(
        name=engine.name,
        url=str(engine.url).rstrip("/"),
        pool=engine.pool,
        scheduling=Scheduling(engine.scheduling),
        carrier=Carrier(engine.priority_carrier),
        limits=engine.limits.stated(),
        timeouts=Timeouts(timeouts.connect_s, timeouts.first_byte_s, timeouts.idle_s),
        api_key=engine.api_key(),
        weight=engine.weight,
        models=models,
    )


def gate(pool: Pool, plan: Plan, canary: Canary, clock: LoopClock, observer: Observer) -> Gate:
    """Make the gate of a pool; its engines are down until they have answered."""
    admission = Admission(plan, specs_of(pool, canary), seed=secrets.randbits(_JITTER_BITS))
    return Gate(admission, clock, observer.core_event, observer.stands)


def specs_of(pool: Pool, canary: Canary) -> list[EngineSpec]:
    """Return a pool's engines as they are stated, before any has answered."""
    return [
        EngineSpec(target.name, target.limits, up=False, weight=canary.weight(pool.name, target.name))
        for target in pool.targets
    ]


@dataclass(slots=True)
class EngineNews:
    """Carries what the watches learn to pools and gates. specs, loads_told_at: what the gates were last told."""

    pools: Pools
    gates: Mapping[str, Gate]
    plan_in_force: Callable[[], Plan]
    canary: Canary
    watches: dict[str, EngineWatch]
    specs: dict[str, EngineSpec]
    loads_told_at: dict[str, float | None] = field(default_factory=dict)

    def changed(self, watch: EngineWatch) -> None:
        """Take in one engine's news: its models, its KV cache's size, whether it gets requests.

        Nothing from one that is on its way out, or that another has taken the name of.
        """
        target, limits = watch.target, watch.limits
        if self.watches.get(target.name) is not watch or target.name not in self.specs:
            return
        self.pools.learn(target, watch.known.cards)
        gate = self.gates[target.pool]
        if self.specs[target.name].limits != limits:
            weight = self.canary.weight(target.pool, target.name)
            self.specs[target.name] = EngineSpec(target.name, limits, weight=weight)
            gate.reconfigure(
                self.plan_in_force(), [spec for spec in self.specs.values() if self._is_in(spec, target.pool)]
            )
        gate.set_up(target.name, up=watch.health.is_up)
        self._tell_load(watch, gate)

    def _tell_load(self, watch: EngineWatch, gate: Gate) -> None:
        """Pass on each reading of the engine's numbers once; a page that does not come tells nothing."""
        known, name = watch.known, watch.target.name
        if known.load_at in {None, self.loads_told_at.get(name)}:
            return
        self.loads_told_at[name] = known.load_at
        load = known.load
        if load.running is not None and load.waiting is not None:
            waiting = load.waiting if load.waiting_for_room is None else load.waiting_for_room
            told = EngineLoad(int(load.running + load.waiting), int(waiting), int(load.preemptions or 0))
            gate.engine_said(name, told)

    def _is_in(self, spec: EngineSpec, pool: str) -> bool:
        return self.watches[spec.name].target.pool == pool


def engine_news(
    all_pools: Pools,
    all_gates: Mapping[str, Gate],
    plan_in_force: Callable[[], Plan],
    http: EngineHttp,
    clock: LoopClock,
    *,
    canary: Canary,
) -> EngineNews:
    """Make one watch for each engine."""
    news = EngineNews(all_pools, all_gates, plan_in_force, canary, {}, {})
    for pool in all_pools:
        for target in pool.targets:
            news.watches[target.name] = EngineWatch(target, http, clock.now, news.changed)
        news.specs.update((spec.name, spec) for spec in specs_of(pool, canary))
    return news
