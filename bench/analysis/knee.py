"""How far a target can be loaded: rates from low to high, and the last at which all classes are still served. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.analysis.classes import ClassMeasure


@dataclass(frozen=True, slots=True)
class Rung:
    """One rate that was tried. valid: whether its run may be used; one that may not counts as neither good nor bad."""

    rate_per_s: float
    valid: bool
    classes: Mapping[str, ClassMeasure]

    def good_share(self, name: str) -> float | None:
        own = self.classes[name]
        return None if own.good is None or not own.offered else own.good / own.offered

    def holds(self, share_min: float) -> bool:
        """Every class that has limits is served within them, over all that were offered of it."""
        shares = [self.good_share(name) for name in self.classes if name != "all"]
        known = [share for share in shares if share is not None]
        return bool(known) and min(known) >= share_min


def knee(rungs: Sequence[Rung], share_min: float) -> float | None:
    """The highest rate that holds and below which every valid rung does; None where the lowest already fails."""
    found = None
    for rung in sorted((each for each in rungs if each.valid), key=lambda each: each.rate_per_s):
        if not rung.holds(share_min):
            break
        found = rung.rate_per_s
    return found


def next_rate(rungs: Sequence[Rung], share_min: float) -> float | None:
    """Halfway, by ratio, between the knee and the lowest rate that fails; None where one of them is not known."""
    low = knee(rungs, share_min)
    failing = [each.rate_per_s for each in rungs if each.valid and not each.holds(share_min)]
    if low is None or not failing:
        return None
    return float(f"{(low * min(failing)) ** 0.5:.4g}")
