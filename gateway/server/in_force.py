"""Which pools and engines are in force, and the one step from those to others.

Owns the watches' tasks, and what left the configuration until its last request has ended. A change is one call that
awaits nothing: no request sees half of it. What waits or runs keeps its place; an engine that is new is down until it
has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from gateway.core.plan import Plan
from gateway.core.types import EngineSpec
from gateway.engines.canary import CannotShift
from gateway.engines.pool import Pools
from gateway.engines.target import EngineHttp, Target
from gateway.engines.watch import EngineWatch
from gateway.observe.exchange import Phase
from gateway.server import wiring
from gateway.server.refusing import withdrawn
from gateway.server.rooms import Rooms
from gateway.server.route_wish import EndWish, RouteWish
from gateway.server.tasks import spawn
from gateway.server.wiring import EngineNews


class InForce:
    """Gates, watches and pools of `rooms`.

    calibrate: runs beside each watch, for as long as that. forget: told each pool that is gone for good.
    """

    def __init__(
        self,
        rooms: Rooms,
        news: EngineNews,
        http: EngineHttp,
        calibrate: Callable[[EngineWatch], Coroutine[Any, Any, None]],
        forget: Callable[[str], None],
    ) -> None:
        self._rooms = rooms
        self._news = news
        self._http = http
        self._calibrate = calibrate
        self._forget = forget
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, float] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []

    def start(self) -> None:
        for watch in self._rooms.watches.values():
            self._tend(watch)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, call in self._later:
            call()

    def put(self, plan: Plan, pools: Pools) -> None:
        """Put a plan and pools in force."""
        rooms, news = self._rooms, self._news
        targets = {target.name: target for pool in pools for target in pool.targets}
        for target in targets.values():
            self._watch(target)
        rooms.plan, rooms.pools, news.pools = plan, pools, pools
        rooms.canary.put_in_force(pools)
        before, news.specs = news.specs, {}
        now = rooms.clock.now()
        names = {pool.name for pool in pools}
        for name in rooms.gates.keys() - names:
            self._leaving.setdefault(name, now)
            kept = [spec for spec in before.values() if spec.name not in targets and self._is_of(spec, name)]
            news.specs.update((spec.name, spec) for spec in kept)
            rooms.gates[name].reconfigure(plan, kept)
        for pool in pools:
            self._leaving.pop(pool.name, None)
            watches = [rooms.watches[target.name] for target in pool.targets]
            specs = [
                EngineSpec(name, watch.limits, up=False, weight=rooms.canary.weight(pool.name, name))
                for name, watch in ((watch.target.name, watch) for watch in watches)
            ]
            news.specs.update((spec.name, spec) for spec in specs)
            if pool.name in rooms.gates:
                rooms.gates[pool.name].reconfigure(plan, specs)
            else:
                rooms.gates[pool.name] = wiring.gate(pool, plan, rooms.canary, rooms.clock, rooms.observer)
            for watch in watches:
                pools.learn(watch.target, watch.known.cards)
                rooms.gates[pool.name].set_up(watch.target.name, up=watch.health.is_up)
        rooms.observer.put_in_force(plan, names)

    def route(self, wish: RouteWish) -> None:
        """Shift a pool's weights, or roll them back; what runs stays where it is. Raises CannotShift."""
        rooms, specs = self._rooms, self._news.specs
        if wish.weights is None:
            rooms.canary.roll_back(wish.pool)
        else:
            rooms.canary.shift(wish.pool, wish.weights)
        weights = rooms.canary.weights(wish.pool)
        changed = [replace(spec, weight=weights[name]) for name, spec in specs.items() if name in weights]
        specs.update((spec.name, spec) for spec in changed)
        rooms.gates[wish.pool].reconfigure(rooms.plan, changed)

    def end(self, wish: EndWish) -> int:
        """End what engines of a pool still have that get nothing new; return how many requests. Raises CannotShift."""
        rooms = self._rooms
        # Of this pool: an engine that moved to another one may still have requests of it.
        targets = [target for pool in rooms.pools if pool.name == wish.pool for target in pool.targets]
        taking = {each.name for each in targets if rooms.canary.weight(wish.pool, each.name) > 0}
        if still := sorted(wish.engines & taking):
            raise CannotShift(f"{', '.join(still)} gets new requests.", "Give it the weight 0 first")
        running = [each for each in rooms.observer.exchanges if each.phase is Phase.RUNNING]
        left = [each for each in running if each.labels.pool == wish.pool and each.engine in wish.engines]
        for exchange in left:
            if exchange.cut is not None:
                exchange.cut(withdrawn())
        return len(left)

    def once_unused(self, call: Callable[[], None]) -> None:
        """Call once no request that arrived by now is still being counted."""
        self._later.append((self._rooms.clock.now(), call))

    def sweep(self) -> None:
        """Let go of what left the configuration and has nothing to do any more."""
        rooms = self._rooms
        received_since = min(
            (each.arrived_at for each in rooms.observer.exchanges if each.phase is Phase.RECEIVING),
            default=rooms.clock.now(),
        )
        for name, since in list(self._leaving.items()):
            if since < received_since and not rooms.gates[name].alive:
                del self._leaving[name], rooms.gates[name]
                # Another gate may still have work at an engine that had moved here: its watch stays, its news do not.
                for engine in [each for each in self._news.specs if self._is_of(self._news.specs[each], name)]:
                    del self._news.specs[engine]
                self._forget(name)
        due = [each for each in self._later if each[0] < received_since]
        self._later = [each for each in self._later if each[0] >= received_since]
        for _, call in due:
            call()
        used = {name for gate in rooms.gates.values() for name in gate.snapshot().engines}
        for name in rooms.watches.keys() - used:
            self._tasks.pop(name).cancel()
            del rooms.watches[name]
            self._news.specs.pop(name, None)

    def _is_of(self, spec: EngineSpec, pool: str) -> bool:
        return self._rooms.watches[spec.name].target.pool == pool

    def _watch(self, target: Target) -> None:
        """Watch an engine as it is stated now: by the watch it has, where it is the same engine."""
        watches = self._rooms.watches
        watch = watches.get(target.name)
        if watch is not None:
            was = watch.target
            free = {name: getattr(target, name) for name in ("limits", "timeouts", "carrier", "weight", "models")}
            same = replace(was, **free)
            if same == target:
                watch.target = target
                return
            if target.name in self._news.specs:
                self._rooms.gates[was.pool].set_up(target.name, up=False)
            self._tasks.pop(target.name).cancel()
        watch = watches[target.name] = EngineWatch(target, self._http, self._rooms.clock.now, self._news.changed)
        self._tend(watch)

    def _tend(self, watch: EngineWatch) -> None:
        async def tend() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(watch.run())
                group.create_task(self._calibrate(watch))

        self._tasks[watch.target.name] = spawn(tend(), name=f"watch {watch.target.name}")
