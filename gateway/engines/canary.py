"""Which share of a pool's requests each of its engines gets: as the file says, or as an operator shifted it since.

Owns the weights. A weight of 0 drains an engine: it gets nothing new and finishes what it has. Sends nothing; among the
engines that have room the core chooses by weight.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.engines.pool import Pools

WEIGHT_MAX = 1_000_000


class CannotShift(Exception):  # noqa: N818 - the state that it names
    """These weights cannot be put in force."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class Canary:
    """Weights by pool and engine. What was shifted stays until it is rolled back, or the file states others."""

    def __init__(self, pools: Pools) -> None:
        self._stated: dict[str, dict[str, float]] = {}
        self._shifted: dict[str, dict[str, float]] = {}
        self.put_in_force(pools)

    def put_in_force(self, pools: Pools) -> None:
        """Take the weights that the file states. A shift stays where its pool's stated weights are as before."""
        stated = {pool.name: {target.name: target.weight for target in pool.targets} for pool in pools}
        for pool in list(self._shifted):
            if stated.get(pool) != self._stated.get(pool):
                del self._shifted[pool]
        self._stated = stated

    def weight(self, pool: str, engine: str) -> float:
        weights = self._shifted.get(pool) or self._stated.get(pool, {})
        return weights.get(engine, 1.0)

    def is_shifted(self, pool: str) -> bool:
        return pool in self._shifted

    def shift(self, pool: str, weights: Mapping[str, float]) -> None:
        """Give engines other weights; those that are not named keep theirs. Raises CannotShift."""
        known = self._known(pool)
        if strangers := sorted(weights.keys() - known):
            problem = f"The pool {pool} has no engine {', '.join(strangers)}."
            raise CannotShift(problem, f"Use {', '.join(sorted(known))}")
        shifted = {engine: self.weight(pool, engine) for engine in known} | dict(weights)
        if not any(shifted.values()):
            raise CannotShift(f"This leaves the pool {pool} without an engine.", "Give one of them a weight above 0")
        self._shifted[pool] = shifted

    def roll_back(self, pool: str) -> None:
        """Return to what the file says. Raises CannotShift."""
        self._known(pool)
        self._shifted.pop(pool, None)

    def weights(self, pool: str) -> dict[str, float]:
        return {engine: self.weight(pool, engine) for engine in self._known(pool)}

    def _known(self, pool: str) -> frozenset[str]:
        if pool not in self._stated:
            raise CannotShift(f"There is no pool {pool}.", f"Use {', '.join(sorted(self._stated))}")
        return frozenset(self._stated[pool])
