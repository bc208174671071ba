"""Refusing early what would be late anyway: a quick no is worth more than a slow one, and engine time more than both.

Owns the judgements, at arrival (the wait limit) and at dispatch (the objective for the first token), and the probes.
The prediction at arrival is of the tenant's own line, so that nobody is refused for what others have in theirs: the
work ahead over how fast such work goes, corrected by how long it really took while others waited. Whoever expires ahead
does not make it faster, though that lets the next one in: a line that is too long is held at its limit by expiry,
whatever its length, and waits alone would then say that all is well. It refuses nothing without measurements, nor where
nothing waits, and lets one in a hundred through, so that a wrong prediction corrects itself.
"""

from __future__ import annotations

from gateway.core.plan import OrderKind, Plan
from gateway.core.ticket import Forecast, Ticket
from gateway.core.types import LengthClass, Reason, Refusal

_PROBE_EACH = 100
_LONG_WAIT = 0.5
"""Of its limit: shorter waits say little of those that are judged, and nobody is refused for them."""


class EarlyRejection:
    """The judgement over one pool's tickets."""

    def __init__(self) -> None:
        self._misses = 0

    def at_arrival(self, ticket: Ticket, plan: Plan, now: float) -> Refusal | None:
        """Refuse a ticket behind more work than goes within its limit, at the plan's confidence; notes its forecast."""
        assignment, backlog = ticket.assignment, ticket.backlog
        early, limit_s = plan.early_rejection, assignment.wait_s_max
        if early is None or _overtakes(ticket, plan):
            return None
        work_per_s = backlog.work_per_s(now)
        if work_per_s is None or (predicted_s := backlog.work_s / work_per_s) < _LONG_WAIT * limit_s:
            return None
        ticket.forecast = Forecast(work_per_s, backlog.moved_s)
        if (ratio := ticket.class_backlog.ratios.at(1.0 - early.confidence)) is None:
            return None
        predicted_s *= ratio
        if predicted_s <= limit_s:
            return None
        self._misses += 1
        if self._misses % _PROBE_EACH == 0:
            return None
        return Refusal(
            Reason.PREDICTED_MISS,
            f"The wait is predicted to pass its deadline of {limit_s:g} s.",
            limit=limit_s,
            observed=round(predicted_s, 3),
        )


def _overtakes(ticket: Ticket, plan: Plan) -> bool:
    """Tell whether the ticket may go before others of its own line: then what stands there is not ahead of it."""
    if plan.order is OrderKind.EARLIEST_DEADLINE:
        return ticket.deadline < ticket.backlog.last_deadline
    return ticket.assignment.class_plan.queue.newest_first_in_overload


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
