"""Whose turn it is among a pool's engines, for what waits in no line: counts, and requests without engine time.

Owns the turn. Chooses among the engines that are up, and leaves drained ones alone while another is there; what takes
engine time is given its engine by admission.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from gateway.engines.canary import Canary
from gateway.engines.watch import EngineWatch


class EngineTurns:
    """Gives each of a pool's engines its turn."""

    def __init__(self, watches: Mapping[str, EngineWatch], canary: Canary) -> None:
        self._watches = watches
        self._canary = canary
        self._turns = itertools.count()

    def next_of(self, pool: str) -> EngineWatch | None:
        """Return the next engine of the pool that is up, a drained one only where all are; None: there is none."""
        up = [watch for watch in self._watches.values() if watch.target.pool == pool and watch.health.is_up]
        up = [watch for watch in up if self._canary.weight(pool, watch.target.name)] or up
        return up[next(self._turns) % len(up)] if up else None
