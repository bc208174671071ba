"""What comes due by itself at an engine, and the first tokens that are expected of answers which do not show theirs.

Owns the kinds of it, and how long prefills take against what is predicted. The heap of what is due is the fleet's.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.estimate import Quantile
from gateway.core.lazy_heap import LazyHeap
from gateway.core.plan import NonStreamRelease
from gateway.core.ticket import Ticket
from gateway.core.types import LengthClass

_RELEASE_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class LongPause:
    """The end of a pause between two longs at an engine."""

    engine: str


@dataclass(frozen=True, slots=True)
class HoldEnd:
    """The moment at which a part of a long prompt goes though shorts wait, or may be taken back again."""

    engine: str


Due = Ticket | LongPause | HoldEnd
"""What comes due by itself; each says its engine."""


class FirstTokens:
    """When prefills end at one engine, by the model and by how it has erred: for answers that come as a whole."""

    __slots__ = ("_due", "_ratios", "_release")

    def __init__(self, due: LazyHeap[Due]) -> None:
        self._due = due
        self._release = NonStreamRelease.LAST_BYTE
        self.forget()

    def configure(self, release: NonStreamRelease) -> None:
        self._release = release

    def forget(self) -> None:
        """Begin anew: ratios to another model say nothing of this one."""
        self._ratios = {length: Quantile() for length in LengthClass}

    def seen(self, ticket: Ticket, engine_ttft_s: float) -> None:
        """Learn from a stream, whose first token shows."""
        self._ratios[ticket.assignment.length_class].add(engine_ttft_s / ticket.prefill_s)

    def expect(self, ticket: Ticket, prefill_s: float, now: float) -> None:
        """Let a prefill charge come due by estimate, where the answer will not show when its prefill has ended."""
        if ticket.assignment.stream or self._release is NonStreamRelease.LAST_BYTE:
            return
        ratio = self._ratios[ticket.assignment.length_class].at(_RELEASE_CONFIDENCE)
        if ratio is not None:
            self._due.push(ticket, now + ratio * prefill_s)
