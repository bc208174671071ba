"""How the rate of arrivals changes over time: steady, in bursts, along a ramp. Pure.

A process of rate 1 is laid along the area under the rate: where the rate is high, arrivals are close. So a seed has the
same arrivals under every shape but for their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from math import sqrt
from typing import Any

from bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Segment:
    """From `begins_s` on for `seconds`, the rate goes in a straight line from one value to the other, per second."""

    begins_s: float
    seconds: float
    rate_from: float
    rate_to: float

    @property
    def area(self) -> float:
        return (self.rate_from + self.rate_to) / 2 * self.seconds

    def time_at(self, area: float) -> float:
        """When so much of this segment's area has passed."""
        slope = (self.rate_to - self.rate_from) / self.seconds
        if slope == 0:
            return self.begins_s + area / self.rate_from
        # The root of rate_from·t + slope·t²/2 = area, in the form that loses no digits.
        return self.begins_s + 2 * area / (self.rate_from + sqrt(max(0.0, self.rate_from**2 + 2 * slope * area)))


@dataclass(frozen=True, slots=True)
class Burst:
    """Every `every_s` seconds, for `length_s` seconds, `factor` times as many arrivals."""

    every_s: float
    length_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Intensity:
    """The rate over time: `rate_per_s`, in bursts of it, or along a straight line to `rate_to_per_s`."""

    rate_per_s: float
    burst: Burst | None = None
    rate_to_per_s: float | None = None

    def segments(self, span_s: float) -> Iterator[Segment]:
        if self.rate_to_per_s is not None:
            yield Segment(0.0, span_s, self.rate_per_s, self.rate_to_per_s)
        elif self.burst is None:
            yield Segment(0.0, span_s, self.rate_per_s, self.rate_per_s)
        else:
            yield from self._bursts(self.burst, span_s)

    def mean_per_s(self, span_s: float) -> float:
        return sum(segment.area for segment in self.segments(span_s)) / span_s

    def said(self) -> dict[str, Any]:
        """As it stands in a trace's origin."""
        said: dict[str, Any] = {"rate_per_s": self.rate_per_s}
        if self.burst is not None:
            said["bursts"] = asdict(self.burst)
        if self.rate_to_per_s is not None:
            said["rate_to_per_s"] = self.rate_to_per_s
        return said

    def _bursts(self, burst: Burst, span_s: float) -> Iterator[Segment]:
        # The quiet part comes first: a run that begins in a burst has no measure of what it disturbs.
        quiet_s = burst.every_s - burst.length_s
        high = self.rate_per_s * burst.factor
        for number in count():
            begins_s = number * burst.every_s
            if begins_s >= span_s:
                return
            yield Segment(begins_s, min(quiet_s, span_s - begins_s), self.rate_per_s, self.rate_per_s)
            if begins_s + quiet_s < span_s:
                length_s = min(burst.length_s, span_s - begins_s - quiet_s)
                yield Segment(begins_s + quiet_s, length_s, high, high)


def laid_along(units: Iterator[float], intensity: Intensity, span_s: float) -> Iterator[float]:
    """`units`: ascending times of a process of rate 1. Its arrivals until `span_s`."""
    passed = 0.0
    unit = next(units)
    for segment in intensity.segments(span_s):
        while unit < passed + segment.area:
            yield segment.time_at(unit - passed)
            unit = next(units)
        passed += segment.area


def parse_burst(text: str, where: str) -> Burst:
    """`60:5:8`: every 60 s, 5 s of 8 times the rate. Raises UsageError."""
    try:
        every_s, length_s, factor = (float(part) for part in text.split(":"))
    except ValueError:
        every_s = length_s = factor = 0.0
    if not (0 < length_s < every_s < 1e6 and 0 < factor < 1e6):
        raise UsageError(
            f"{where}: {text!r} is not EVERY_S:LENGTH_S:FACTOR, as 60:5:8 for 5 s of eightfold each minute."
        )
    return Burst(every_s, length_s, factor)
