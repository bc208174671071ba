"""A flow: the waiting line of one tenant of a class in one lane, with a place at its head for whom an engine sent back.

Owns the order of its tickets and nothing else: no budgets, no bounds, no deadlines.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from gateway.core.lazy_heap import LazyHeap
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket


class Flow:
    """First in, first out: tickets by ascending id, which grows with each offer.

    A ticket that an engine refused was dispatched before all that still wait here: it comes back ahead of them.
    head: who goes next, or None where nobody waits. start_tag: of the head (fair queueing, in cost).
    """

    __slots__ = ("_ahead", "_tickets", "head", "start_tag", "tenant")

    def __init__(self, tenant: Tenant, start_tag: float) -> None:
        self.tenant = tenant
        self.start_tag = start_tag
        self.head: Ticket | None = None
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._ahead: LazyHeap[Ticket] | None = None

    def append(self, ticket: Ticket) -> bool:
        """Let the ticket join; True where it may go before those who were there: it is the head, for one."""
        self._tickets[ticket.id] = ticket
        if self.head is not None:
            return False
        self.head = ticket
        return True

    def put_back(self, ticket: Ticket) -> None:
        self._sort_in(ticket, ticket.id)

    def remove(self, ticket: Ticket) -> None:
        if self._tickets.pop(ticket.id, None) is None and self._ahead is not None:
            self._ahead.discard(ticket)
            if self._ahead.first is None:
                self._ahead = None
        if ticket is self.head:
            self.head = self._least()

    def head_at(self, now: float) -> Ticket | None:  # noqa: ARG002 - the kinds of flow differ in it
        """Return the ticket that goes next at this moment."""
        return self.head

    def _sort_in(self, ticket: Ticket, key: Any) -> None:
        if self._ahead is None:
            self._ahead = LazyHeap()
        self._ahead.push(ticket, key)
        self.head = self._least()

    def _least(self) -> Ticket | None:
        if self._ahead is not None and self._ahead.first is not None:
            return self._ahead.first[2]
        for ticket in self._tickets.values():
            return ticket
        return None


class NewestFirstFlow(Flow):
    """First in, first out, until the head has waited half its limit: then the newest goes first (adaptive LIFO).

    A line in which half the limit passes is longer than what drains in time. Taken in order everybody would be served
    late; from its end, those who come now are served in time and the backlog goes as fast as before.
    """

    __slots__ = ()

    def append(self, ticket: Ticket) -> bool:
        super().append(ticket)
        return True

    def head_at(self, now: float) -> Ticket | None:
        head = self.head
        if head is None or self._ahead is not None or not is_half_late(head, now):
            return head
        return next(reversed(self._tickets.values()))


class EarliestDeadlineFlow(Flow):
    """The earliest wait deadline first; of equal ones the first offered."""

    __slots__ = ()

    def append(self, ticket: Ticket) -> bool:
        self._sort_in(ticket, (ticket.deadline, ticket.id))
        return self.head is ticket

    def put_back(self, ticket: Ticket) -> None:
        self.append(ticket)


def is_half_late(ticket: Ticket, now: float) -> bool:
    """Tell whether the ticket has waited more than half of what it may."""
    return now - ticket.offered_at > (ticket.deadline - ticket.offered_at) / 2
