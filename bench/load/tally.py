"""What a run has come to so far, by class, for whoever looks while it runs. Counts as requests end; decides nothing.

Written on the event loop, read from another thread: a figure is one number or a copy, so no reader sees one half done.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.load.flight import Flight
from bench.load.pacing import Clock
from bench.records.request import Outcome

RECENT = 200


@dataclass(slots=True)
class ClassTally:
    """planned: of the whole run. recent_ttft_ms: of the last requests that ended with a token."""

    planned: int = 0
    sent: int = 0
    ended: Counter[Outcome] = field(default_factory=Counter)
    recent_ttft_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def open(self) -> int:
        return self.sent - sum(self.ended.values())

    def recent_p95_ms(self) -> float | None:
        ordered = sorted(self.recent_ttft_ms.copy())
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None


class Tally:
    """Of one run; `span_s` is how long requests are sent."""

    def __init__(self, flights: Sequence[Flight], span_s: float, clock: Clock) -> None:
        self.classes: dict[str, ClassTally] = {}
        self.span_s = span_s
        self._clock = clock
        self._first_at: float | None = None
        for flight in flights:
            self.classes.setdefault(flight.request.arrival.class_name, ClassTally()).planned += 1

    def sent(self, flight: Flight) -> None:
        if self._first_at is None:
            self._first_at = flight.planned_at - flight.request.arrival.at_s
        self.classes[flight.request.arrival.class_name].sent += 1

    def ended(self, flight: Flight) -> None:
        """One that was told as sent before has its ending."""
        own = self.classes[flight.request.arrival.class_name]
        if flight.ending is not None:
            own.ended[flight.ending.outcome] += 1
        first_at = flight.reading.first_token_at
        if first_at is not None:
            own.recent_ttft_ms.append((first_at - flight.planned_at) * 1000)

    def elapsed_s(self) -> float:
        """Since the run's start; 0 before the first request."""
        return 0.0 if self._first_at is None else max(0.0, self._clock() - self._first_at)
