"""Whose turn it is among a pool's engines, for what waits in no line: counts, and requests without engine time.

Owns the turn. Chooses only among engines that are up; what takes engine time is given its engine by admission.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from gateway.engines.watch import EngineWatch


class EngineTurns:
    """Gives each of a pool's engines its turn."""

    def __init__(self, watches: Mapping[str, EngineWatch]) -> None:
        self._watches = watches
        self._turns = itertools.count()

    def next_of(self, pool: str) -> EngineWatch | None:
        """Return the next engine of the pool that is up; None: there is none."""
        up = [watch for watch in self._watches.values() if watch.target.pool == pool and watch.health.is_up]
        return up[next(self._turns) % len(up)] if up else None
