"""In what two policies differ over the same requests, counted by class.

Owns the comparison of two fates. A request is compared once, when both policies have decided on it, and counts as one
disagreement at most: the gravest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gateway.core.types import LengthClass, Reason


class Disagreement(StrEnum):
    """What the shadow would have done that was not done. Gravest first.

    WOULD_REFUSE: what was sent to an engine. WOULD_ADMIT: what was refused. WOULD_WAIT: what went at once.
    WOULD_NOT_WAIT: what waited. WOULD_REORDER: a younger request passed it in one of the two alone.
    """

    WOULD_REFUSE = "would_refuse"
    WOULD_ADMIT = "would_admit"
    WOULD_WAIT = "would_wait"
    WOULD_NOT_WAIT = "would_not_wait"
    WOULD_REORDER = "would_reorder"


class Fate(NamedTuple):
    """What one policy did with one request. reason: of its refusal; None: it was sent to an engine.

    waited_s: in line, until either. passed: a younger request of the pool was sent before it.
    """

    reason: Reason | None
    waited_s: float = 0.0
    passed: bool = False


class Line(NamedTuple):
    """Whose requests are counted together."""

    service_class: str
    length_class: LengthClass


@dataclass(slots=True)
class LineCount:
    """One line's comparisons. both_sent: requests that both sent to an engine, and how long these waited in each.

    refusals: why the shadow would refuse what was served. admitted: why what it would admit was refused.
    """

    compared: int = 0
    by_kind: Counter[Disagreement] = field(default_factory=Counter)
    refusals: Counter[Reason] = field(default_factory=Counter)
    admitted: Counter[Reason] = field(default_factory=Counter)
    both_sent: int = 0
    waited_s: float = 0.0
    shadow_waited_s: float = 0.0

    def compare(self, real: Fate, shadow: Fate) -> Disagreement | None:
        """Count one request, and return in what the two differ."""
        kind = disagreement(real, shadow)
        self.compared += 1
        if kind is not None:
            self.by_kind[kind] += 1
        if kind is Disagreement.WOULD_REFUSE and shadow.reason is not None:
            self.refusals[shadow.reason] += 1
        elif kind is Disagreement.WOULD_ADMIT and real.reason is not None:
            self.admitted[real.reason] += 1
        if real.reason is None and shadow.reason is None:
            self.both_sent += 1
            self.waited_s += real.waited_s
            self.shadow_waited_s += shadow.waited_s
        return kind


def disagreement(real: Fate, shadow: Fate) -> Disagreement | None:
    """Return the gravest difference; two refusals agree, whatever their reasons."""
    if real.reason is not None or shadow.reason is not None:
        if real.reason is None:
            return Disagreement.WOULD_REFUSE
        return Disagreement.WOULD_ADMIT if shadow.reason is None else None
    if (real.waited_s > 0.0) is not (shadow.waited_s > 0.0):
        return Disagreement.WOULD_WAIT if shadow.waited_s > 0.0 else Disagreement.WOULD_NOT_WAIT
    return Disagreement.WOULD_REORDER if real.passed is not shadow.passed else None
