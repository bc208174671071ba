"""The shadow policy beside the gates: told what they do, counted, switched off at its first fault.

Owns the shadow plan in force and the comparisons. Nothing of a shadow reaches a request: what it raises is logged once
and ends it, until another plan is put in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from gateway.core.plan import Plan
from gateway.core.ticket import Assignment, Event
from gateway.core.types import EngineSpec, Refusal
from gateway.observe.metrics import Observer
from gateway.server.gate import Gate
from gateway.shadow.counts import Disagreement, Fate, Line, LineCount
from gateway.shadow.pool import PoolShadow

Judge = Callable[[Plan], Assignment | Refusal]


class GateShadow:
    """One gate's shadow. Every call is safe to make: a fault switches all shadows off."""

    def __init__(self, pool: str, shadow: PoolShadow, shadows: Shadows) -> None:
        self._pool = pool
        self.shadow = shadow
        self._shadows = shadows

    def events(self, events: Sequence[Event], now: float) -> None:
        self._do(lambda: self.shadow.events(events, now))

    def set_up(self, engine: str, *, up: bool, now: float) -> None:
        self._do(lambda: self.shadow.set_up(engine, up=up, now=now))

    def reconfigure(self, engines: Sequence[EngineSpec], now: float) -> None:
        plan = self._shadows.plan
        if plan is not None:
            self._do(lambda: self.shadow.reconfigure(plan, engines, now))

    def drain(self, deadline_at: float, now: float) -> None:
        self._do(lambda: self.shadow.drain(deadline_at, now))

    def undrain(self, now: float) -> None:
        self._do(lambda: self.shadow.undrain(now))

    def judge(self, judge: Judge, judged: Assignment | Refusal, line: Line, now: float) -> None:
        """Have the shadow's plan judge a request that the plan in force has just judged."""
        self._do(lambda: self._judge(judge, judged, line, now))

    def catch_up(self, now: float) -> None:
        self._do(lambda: self.shadow.advance(now))

    def _judge(self, judge: Judge, judged: Assignment | Refusal, line: Line, now: float) -> None:
        assert self._shadows.plan is not None, "a shadow has a plan"
        by_shadow = judge(self._shadows.plan)
        if isinstance(judged, Assignment):
            self.shadow.judged(judged, by_shadow)
        else:
            self.shadow.refused_unoffered(line, judged.reason, by_shadow, now)

    def _do(self, step: Callable[[], None]) -> None:
        if self._shadows.plan is None:
            return
        try:
            step()
        except Exception as fault:  # noqa: BLE001 - a shadow may cost a log line, never a request
            self._shadows.failed(self._pool, fault)


class Shadows:
    """plan: what decides in the shadow; None: nothing does, or it has failed."""

    def __init__(self, observer: Observer) -> None:
        self.plan: Plan | None = None
        self.has_failed = False
        self.since = 0.0
        self._plans: tuple[str, str | None] | None = None
        self._observer = observer
        self._gates: dict[str, GateShadow] = {}
        self._lines: dict[tuple[str, Line], LineCount] = {}

    def of(self, pool: str) -> GateShadow | None:
        return None if self.plan is None else self._gates.get(pool)

    def put(self, active: Plan, plan: Plan | None, gates: Mapping[str, Gate], now: float) -> None:
        """Put a plan in force in the shadow of the plan `active`, beside every gate.

        What waits and runs in the shadow stays. Comparisons begin anew where either plan is another.
        """
        plans = (active.sha256, None if plan is None else plan.sha256)
        is_new = plans != self._plans
        if is_new:
            self._plans, self.since, self.has_failed = plans, now, False
            self._lines.clear()
        if plan is None or self.has_failed:
            self.plan = None
            self._gates.clear()
            return
        self.plan = plan
        for name in self._gates.keys() - gates.keys():
            del self._gates[name]
        for name, gate in gates.items():
            beside = self._gates.get(name)
            if beside is None:
                shadow = PoolShadow(plan, gate.admission, self._counter(name), now, older=gate.alive)
                gate.follower = self._gates[name] = GateShadow(name, shadow, self)
            elif is_new:
                beside.reconfigure(gate.admission.fleet.specs(), now)
                beside.shadow.compare_anew()

    def failed(self, pool: str, fault: Exception) -> None:
        """Switch the shadow off for good."""
        plan, self.plan, self.has_failed = self.plan, None, True
        self._gates.clear()
        self._observer.families.shadow_failures.at().inc()
        structlog.get_logger().error(
            "shadow_failed", policy=None if plan is None else plan.name, pool=pool, exc_info=fault
        )

    def state(self, now: float) -> dict[str, Any] | None:
        """Return what `/api/state` shows; None where no shadow is configured."""
        if self._plans is None or self._plans[1] is None:
            return None
        for gate in list(self._gates.values()):
            gate.catch_up(now)
        shadows = [gate.shadow for gate in self._gates.values()]
        plan = self.plan
        return {
            "policy": None if plan is None else {"name": plan.name, "sha256": plan.sha256},
            "failed": self.has_failed,
            "since": self.since,
            "older": sum(shadow.older for shadow in shadows),
            "assumed": sum(shadow.assumed for shadow in shadows),
            "left": sum(shadow.left for shadow in shadows),
            "unfollowed": sum(shadow.unfollowed for shadow in shadows),
            "lines": [_line(pool, line, count) for (pool, line), count in sorted(self._lines.items())],
        }

    def _counter(self, pool: str) -> Callable[[Line, Fate, Fate], None]:
        families = self._observer.families

        def compared(line: Line, real: Fate, shadow: Fate) -> None:
            labels = (line.service_class, line.length_class.value, pool)
            kind = self._lines.setdefault((pool, line), LineCount()).compare(real, shadow)
            families.shadow_comparisons.at(*labels).inc()
            if kind is not None:
                families.shadow_disagreements.at(*labels, kind.value).inc()

        return compared


def _line(pool: str, line: Line, count: LineCount) -> dict[str, Any]:
    both = count.both_sent
    return {
        "service_class": line.service_class,
        "length_class": line.length_class.value,
        "pool": pool,
        "compared": count.compared,
        **{kind.value: count.by_kind[kind] for kind in Disagreement},
        "refuse_reasons": {reason.value: seen for reason, seen in count.refusals.items()},
        "admit_reasons": {reason.value: seen for reason, seen in count.admitted.items()},
        "both_sent": both,
        "mean_wait_s": count.waited_s / both if both else None,
        "shadow_mean_wait_s": count.shadow_waited_s / both if both else None,
    }
