"""How much of the plan's slice is computed at once: all of it where long prompts queue, a part where one is alone.

A slice costs a step and a round trip. Where others wait for the engine that is throughput; where nobody does, it is the
long prompt's own time, and a short one that comes waits a quarter as long. Owns what tells them apart; sends nothing.
"""

from __future__ import annotations

from math import inf

_ALONE = 0.25
_SHORTS_WITHIN_S = 10.0
"""Shorts come while the last one came within this time; for nobody no slice is made small."""
_PROMPTS_ALONE = 3
"""So many in a row were waited for by no other: one is alone then. Where they have just queued they soon will again."""


class SliceShare:
    """The share at one engine: by who waits for its long prompts, and when a short one came last."""

    __slots__ = ("_alone", "_short_at")

    def __init__(self) -> None:
        self._alone = 0
        self._short_at = -inf

    def short_came(self, now: float) -> None:
        self._short_at = now

    def long_waits(self) -> None:
        """Note that a long prompt waits for another's end."""
        self._alone = 0

    def long_ended(self) -> None:
        """Note the end of a long prompt that was divided."""
        self._alone += 1

    def at(self, now: float) -> float:
        is_small = self._alone >= _PROMPTS_ALONE and now - self._short_at <= _SHORTS_WITHIN_S
        return _ALONE if is_small else 1.0
