"""What waits of one (service class, length class): in sums, how fast it drains, how well its waits were predicted.

Owns these measures; `Waiting` alone changes them, and a ticket keeps the one it counts in. Knows no ticket, no bound.
"""

from __future__ import annotations

from gateway.core.estimate import DrainRate, Quantile


class Share:
    """work_s: predicted engine seconds of all that waits. ratios: of real waits to predicted ones."""

    __slots__ = ("body_bytes", "drain", "prompt_tokens", "ratios", "requests", "work_s")

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.body_bytes = 0
        self.work_s = 0.0
        self.drain = DrainRate()
        self.ratios = Quantile()

    def work_per_s(self, now: float) -> float | None:
        """Return how much work leaves per second of backlog, or None where too little was seen."""
        self.drain.advance(now, backlogged=self.requests > 0)
        return self.drain.work_per_s()

    def predict_wait_s(self, now: float) -> float | None:
        """Predict the wait behind what stands in line now, uncalibrated; None where nothing waits or drains."""
        if not self.requests:
            return None
        rate = self.work_per_s(now)
        return None if rate is None else self.work_s / rate

    def wait_ratio(self, exceeded_by: float) -> float | None:
        """Return the ratio of real to predicted waits that a share `exceeded_by` of them exceeded, or None if cold.

        A wait that ended at its deadline counts as what it was by then: at least as long, so the ratio is cautious.
        """
        return self.ratios.at(1.0 - exceeded_by)
