"""Shares of a pool's requests by weight, where an operator shifts them from one engine to another.

Owns how far each engine is in its share. Asked among engines that have room alone: a weight never makes a request wait
for one engine while another could take it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from gateway.core.engine import Engine


class Shares:
    """Start-time fair queueing over engines: whoever is furthest behind its weight goes next.

    An engine that was full or down while others served has missed that; it is not made up for.
    """

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}
        self._virtual = 0.0

    @classmethod
    def of(cls, engines: Iterable[Engine], before: Self | None) -> Self | None:
        """Return the shares of these engines; None where all that take work weigh the same: load decides then."""
        if len({engine.weight for engine in engines if engine.weight}) < 2:
            return None
        return before or cls()

    def choose(self, free: Sequence[Engine]) -> Engine:
        """Return the engine that is next; the first where several are."""
        return min(free, key=lambda engine: (self._start(engine), -engine.weight))

    def sent(self, engine: Engine) -> None:
        """Count one request to the engine's share."""
        start = self._start(engine)
        self._virtual = max(self._virtual, start)
        self._tags[engine.name] = start + 1.0 / engine.weight

    def _start(self, engine: Engine) -> float:
        return max(self._virtual, self._tags.get(engine.name, 0.0))
