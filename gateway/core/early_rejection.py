"""Refusing early what would be late anyway: a quick no is worth more than a slow one, and engine time more than both.

Owns the judgements, at arrival (the wait limit) and at dispatch (the objective for the first token), and the probes.
The prediction at arrival is the line's own: what stands ahead over how fast it drains, corrected by how long others
really waited against their prediction. It refuses nothing without measurements, nor where nothing waits, and lets one
in a hundred through, so that a wrong prediction corrects itself.
"""

from __future__ import annotations

from gateway.core.ticket import Ticket
from gateway.core.types import LengthClass, Reason, Refusal

_PROBE_EACH = 100


class EarlyRejection:
    """The judgement over one pool's tickets."""

    def __init__(self) -> None:
        self._misses = 0

    def at_arrival(self, ticket: Ticket, confidence: float, now: float) -> Refusal | None:
        """Refuse a ticket that misses its wait deadline with this confidence; notes its prediction."""
        assignment = ticket.assignment
        predicted_s = ticket.predicted_wait_s = ticket.share.predict_wait_s(now)
        if predicted_s is None or (ratio := ticket.share.wait_ratio(confidence)) is None:
            return None
        predicted_s *= ratio
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


def at_dispatch(ticket: Ticket, engine_ttft_s: float | None, now: float) -> Refusal | None:
    """Refuse a short that misses its objective for the first token even if it is sent now.

    engine_ttft_s: what the engine takes, at the policy's confidence, in the state it is in; None: not known, or nobody
    waits behind the ticket. Who goes alone is never refused: such a request is what keeps the estimate true, and an
    estimate that has gone wrong can then never keep an engine idle before a line.
    """
    assignment = ticket.assignment
    ttft_ms = assignment.class_plan.slo[LengthClass.SHORT].ttft_ms
    if assignment.length_class is LengthClass.LONG or ttft_ms is None or engine_ttft_s is None:
        return None
    predicted_s = now - ticket.offered_at + engine_ttft_s
    if predicted_s <= ttft_ms / 1000:
        return None
    return Refusal(
        Reason.PREDICTED_MISS,
        f"The first token is predicted to come after its objective of {ttft_ms:g} ms.",
        limit=ttft_ms / 1000,
        observed=round(predicted_s, 3),
    )
