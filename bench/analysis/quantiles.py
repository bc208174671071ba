"""Quantiles with distribution-free intervals from order statistics. Pure.

The q-quantile of n values is the one of rank ⌈q·n⌉. Between the order statistics of ranks l and u lies the true
quantile with probability P(l ≤ B < u), B binomial(n, q): no assumption on the distribution, and no interval where n is
too small for one (95 %: 72 values for p95, 368 for p99).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile and its interval; low and high are None where there is none.

    needs: how many values an interval takes where the sample is too small; None where values are not independent.
    """

    value: float
    low: float | None
    high: float | None
    needs: int | None

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"value": number(self.value)}
        if self.low is None or self.high is None:
            return said if self.needs is None else {**said, "interval_needs": self.needs}
        return {**said, "low": number(self.low), "high": number(self.high)}


def quantile(ordered: Sequence[float], q: float, *, independent: bool = True) -> Quantile | None:
    """The q-quantile of ascending values, infinite ones included; None of none.

    Values that depend on each other, as the gaps of one stream do, get no interval.
    """
    n = len(ordered)
    if n == 0:
        return None
    value = ordered[min(n - 1, max(0, math.ceil(q * n) - 1))]
    ranks = interval_ranks(n, q) if independent else None
    if ranks is None:
        return Quantile(value, None, None, values_needed(q) if independent else None)
    low, high = ranks
    return Quantile(value, ordered[low - 1], ordered[high - 1], values_needed(q))


@lru_cache(maxsize=256)
def interval_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (from 1) of the narrowest equal-tailed interval that covers `confidence` at least; None: n too small."""
    tail = (1 - confidence) / 2
    if q**n > tail or (1 - q) ** n > tail:
        return None
    low = high = 0
    # Ten standard deviations under the mean there is nothing left to add up.
    first = max(1, math.floor(n * q - 10 * math.sqrt(n * q * (1 - q))))
    below = 0.0 if first == 1 else _binomial(n, q, first - 2)  # P(B < rank - 1)
    for rank in range(first, n + 1):
        below += _binomial(n, q, rank - 1)
        if below <= tail:
            low = rank
        if below >= 1 - tail:
            high = rank
            break
    return (low, high) if low and high else None


@lru_cache(maxsize=64)
def values_needed(q: float, confidence: float = CONFIDENCE) -> int:
    """How many values an interval takes at least."""
    tail = (1 - confidence) / 2
    return math.ceil(math.log(tail) / math.log(max(q, 1 - q)))


def share_interval(part: int, whole: int) -> tuple[float, float]:
    """Wilson's interval of a share of `whole` independent trials, one at least."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = part / whole
    centre = (share + z * z / (2 * whole)) / (1 + z * z / whole)
    half = z / (1 + z * z / whole) * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole * whole))
    # At either end centre and half cancel out but for their rounding.
    return (max(0.0, centre - half) if part else 0.0, min(1.0, centre + half) if part < whole else 1.0)


def number(value: float) -> float | str:
    """As it stands in a record: JSON knows no infinity, the word `inf` is what readers look for."""
    return "inf" if math.isinf(value) else round(value, 3)


def _binomial(n: int, q: float, k: int) -> float:
    log_choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_choose + k * math.log(q) + (n - k) * math.log1p(-q))
