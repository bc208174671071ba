"""Refusing at arrival what would wait past its deadline anyway: a short no is worth more than a long one.

Owns the judgement and its probes. The prediction is the line's own: what stands ahead over how fast it drains,
corrected by how long others really waited against their prediction. Refuses nothing without measurements, nor where
nothing waits; and lets one in a hundred through, so that a wrong prediction corrects itself.
"""

from __future__ import annotations

from gateway.core.ticket import Ticket
from gateway.core.types import Reason, Refusal
from gateway.core.waiting import Waiting

_PROBE_EACH = 100


class EarlyRejection:
    """The judgement over one pool's waiting tickets."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._misses = 0

    def judge(self, ticket: Ticket, confidence: float | None, now: float) -> Refusal | None:
        """Refuse a ticket that misses its deadline with `confidence`; None there: never. Notes its prediction."""
        if confidence is None:
            return None
        assignment = ticket.assignment
        ticket.predicted_wait_s = self._waiting.predict_wait_s(assignment, now)
        ratio = self._waiting.wait_ratio(assignment, confidence)
        if ticket.predicted_wait_s is None or ratio is None:
            return None
        predicted_s = ticket.predicted_wait_s * ratio
        if predicted_s <= assignment.wait_s_max:
            return None
        self._misses += 1
        if self._misses % _PROBE_EACH == 0:
            return None
        return Refusal(
            Reason.PREDICTED_MISS,
            f"The wait is predicted to pass its deadline of {assignment.wait_s_max:g} s.",
            limit=assignment.wait_s_max,
            observed=round(predicted_s, 3),
        )
