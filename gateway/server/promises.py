"""What the plan promises of every line on every engine, as JSON text that is ready to be put into a state.

Owns the texts, one an engine, each with what it rests on: it is written anew only where that has changed. With fifty
classes and a hundred engines they are two megabytes, so the loop goes on after each step of one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.guarantee import Guarantee, guarantee
from gateway.core.plan import Plan
from gateway.core.steptime import StepModel
from gateway.core.types import EngineLimits
from gateway.engines.reading import longest_context_tokens
from gateway.identity.keyring import tenants
from gateway.server.rooms import Rooms


@dataclass(frozen=True, slots=True)
class Basis:
    """All that one engine's bounds are computed from. tenants: by service class."""

    plan: Plan
    limits: EngineLimits
    model: StepModel
    context_tokens: int | None
    tenants: Mapping[str, int | None]
    orders_by_priority: bool

    def promised(self) -> Guarantee | None:
        """Compute the bounds, by the limits in force; None where nothing is gated."""
        return guarantee(
            self.plan,
            self.limits,
            self.model,
            context_tokens=self.context_tokens,
            tenants=self.tenants,
            orders_by_priority=self.orders_by_priority,
        )


class Promises:
    """The texts of a gateway's engines as they were last asked for."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._kept: dict[str, tuple[Basis, str]] = {}

    def bases(self) -> dict[str, Basis]:
        """Return what each engine's promise rests on at this instant."""
        rooms = self._rooms
        plan, senders = rooms.plan, tenants(rooms.keyring, rooms.plan.classes, takes_tokens=rooms.tokens is not None)
        models = {name: model for gate in rooms.gates.values() for name, model in gate.step_models().items()}
        return {
            name: Basis(
                plan,
                watch.limits,
                models[name],
                longest_context_tokens(watch.known.cards),
                senders,
                watch.priority_effective,
            )
            for name, watch in rooms.watches.items()
            if name in models
        }

    async def texts(self, bases: Mapping[str, Basis]) -> dict[str, str]:
        """Return what is promised, by engine; a bound that is not promised is {"why": …}."""
        kept = {name: each for name, each in self._kept.items() if bases.get(name) == each[0]}
        for name, basis in bases.items():
            if name not in kept:
                promised = basis.promised()
                await asyncio.sleep(0)
                kept[name] = basis, json.dumps(promised, default=_members)
                await asyncio.sleep(0)
        self._kept = kept
        return {name: text for name, (_, text) in kept.items()}


def _members(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
