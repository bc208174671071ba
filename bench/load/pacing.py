"""When each request is to be sent, and which part of the run it belongs to. Pure: seconds in, seconds out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.records.request import Phase

Clock = Callable[[], float]  # seconds of a clock that never goes back, the same for all processes of a machine


@dataclass(frozen=True, slots=True)
class Windows:
    """Warm-up, measurement window and drain, one after another, in seconds."""

    warmup_s: float
    observation_s: float
    drain_deadline_s: float

    @property
    def span_s(self) -> float:
        """How long requests are sent."""
        return self.warmup_s + self.observation_s

    @property
    def cut_s(self) -> float:
        """When what is still open is given up, from the start of the run."""
        return self.span_s + self.drain_deadline_s

    def phase(self, at_s: float) -> Phase:
        """A request belongs where its planned arrival lies, whenever it ends."""
        return Phase.WARMUP if at_s < self.warmup_s else Phase.WINDOW


def wait_s(*, planned_at: float, now: float) -> float:
    """How long to sleep before a planned time; 0 when it is due or past, and the lateness shows in the record."""
    return max(0.0, planned_at - now)
