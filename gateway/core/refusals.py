"""Admission's own refusals in words and numbers: what happened, by which limit, when another try may be worth it.

Owns the wording and the Retry-After. Decides nothing and ends no ticket.
"""

from __future__ import annotations

from gateway.core.estimate import retry_after_s
from gateway.core.ticket import Ticket
from gateway.core.types import Reason, Refusal


class Refusals:
    """The refusals of one pool. seed: so that two gateways do not send their callers back at the same moments."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draining(self, ticket: Ticket) -> Refusal:
        message = "This gateway is shutting down; try again, another instance will answer."
        return Refusal(Reason.DRAINING, message, retry_after_s=1.0 + self._jitter(ticket))

    def expired(self, ticket: Ticket, now: float, *, any_engine: bool) -> Refusal:
        if any_engine:
            reason, message = Reason.WAIT_DEADLINE, "waited in line until its deadline"
        else:
            reason, message = Reason.NO_ENGINE, "waited until its deadline while no engine could be reached"
        limit = ticket.assignment.wait_s_max
        return Refusal(reason, f"The request {message} of {limit:g} s.", limit=limit, observed=now - ticket.offered_at)

    def retry_after_s(self, ticket: Ticket, now: float) -> float:
        """Return when the line that the ticket stood in, and its own work, are expected to have drained, seconds."""
        return retry_after_s(
            work_s=ticket.class_backlog.work_s + ticket.cost_s,
            work_per_s=ticket.class_backlog.work_per_s(now),
            wait_s_max=ticket.assignment.class_plan.wait_s_max[ticket.assignment.length_class],
            jitter=self._jitter(ticket),
        )

    def _jitter(self, ticket: Ticket) -> float:
        """Spread callers over [0, 1) by a fixed scramble (Knuth's multiplicative hash) of the ticket's number."""
        return ((ticket.id + self._seed) * 2654435761 & 0xFFFFFFFF) / 2**32


def no_engine() -> Refusal:
    return Refusal(Reason.NO_ENGINE, "No engine can serve this model now.")
