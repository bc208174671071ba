"""What waits of one (service class, length class), and of one tenant of it: in sums, and how fast it goes.

Owns these measures; `Waiting` alone changes them, and a ticket keeps the ones it counts in. Knows no ticket, no bound.
"""

from __future__ import annotations

from math import inf

from gateway.core.estimate import DrainRate, Quantile


class Backlog:
    """work_s: predicted engine seconds of all that waits. last_deadline: the latest that joined since it was empty.

    moved_s: work that ever left for an engine, or with its client. What expired or was refused is not in it: whoever
    stood behind that did not wait for it to be done.
    """

    __slots__ = ("drain", "last_deadline", "moved_s", "requests", "work_s")

    def __init__(self) -> None:
        self.requests = 0
        self.work_s = 0.0
        self.moved_s = 0.0
        self.last_deadline = -inf
        self.drain = DrainRate()

    def join(self, cost_s: float, deadline: float, now: float) -> None:
        self.drain.advance(now, backlogged=self.requests > 0)
        if not self.requests or deadline > self.last_deadline:
            self.last_deadline = deadline
        self.requests += 1
        self.work_s += cost_s

    def leave(self, cost_s: float, now: float, *, served: bool, moved: bool) -> None:
        """Take out what it joined with.

        served: it waited, and goes to an engine now. moved: it goes to an engine, or its client left.
        """
        self.drain.advance(now, backlogged=True)
        if served:
            self.drain.served(cost_s)
        if moved:
            self.moved_s += cost_s
        self.requests -= 1
        # Sums of seconds drift by rounding; an empty line is exactly nothing.
        self.work_s = self.work_s - cost_s if self.requests else 0.0

    def work_per_s(self, now: float) -> float | None:
        """Return how much work leaves per second of backlog, or None where too little was seen."""
        self.drain.advance(now, backlogged=self.requests > 0)
        return self.drain.work_per_s()


class Share(Backlog):
    """All tenants of one class and length. ratios: of the time that work took to go, to the time that it was given."""

    __slots__ = ("body_bytes", "prompt_tokens", "ratios")

    def __init__(self) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.body_bytes = 0
        self.ratios = Quantile()
