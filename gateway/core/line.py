"""A waiting line: first in, first out, with a place at its head for those whom an engine sent back.

Owns the order of its tickets and nothing else: no budgets, no bounds, no deadlines.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from gateway.core.lazy_heap import LazyHeap
from gateway.core.ticket import Ticket


class Line:
    """Tickets by ascending id, which grows with each offer.

    A ticket that an engine refused was dispatched before all that still wait here: it comes back ahead of them.
    """

    __slots__ = ("_ahead", "_tickets")

    def __init__(self) -> None:
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._ahead: LazyHeap[Ticket] | None = None

    def __len__(self) -> int:
        return len(self._tickets) if self._ahead is None else len(self._tickets) + len(self._ahead)

    def append(self, ticket: Ticket) -> bool:
        """Let the ticket join; True where it is the head now."""
        tickets = self._tickets
        tickets[ticket.id] = ticket
        return len(tickets) == 1 and self._ahead is None

    def put_back(self, ticket: Ticket) -> None:
        self._sort_in(ticket, ticket.id)

    def remove(self, ticket: Ticket) -> None:
        if self._tickets.pop(ticket.id, None) is None and self._ahead is not None:
            self._ahead.discard(ticket)
            if not self._ahead:
                self._ahead = None

    @property
    def head(self) -> Ticket:
        """The ticket that goes next; the line must not be empty."""
        if self._ahead is not None and (first := self._ahead.peek()) is not None:
            return first[2]
        return next(iter(self._tickets.values()))

    def _sort_in(self, ticket: Ticket, key: Any) -> None:
        if self._ahead is None:
            self._ahead = LazyHeap()
        self._ahead.push(ticket, key)


class Flow(Line):
    """The line of one (service class, tenant) in one lane, and the start tag of its head (fair queueing, in cost)."""

    __slots__ = ("start_tag", "tenant")

    def __init__(self, tenant: str, start_tag: float) -> None:
        super().__init__()
        self.tenant = tenant
        self.start_tag = start_tag

    def head_at(self, now: float) -> Ticket:  # noqa: ARG002 - the kinds of flow differ in it
        """Return the ticket that goes next at this moment."""
        return self.head


class NewestFirstFlow(Flow):
    """First in, first out, until the head has waited half its limit: then the newest goes first (adaptive LIFO).

    A line in which half the limit passes is longer than what drains in time. Taken in order everybody would be served
    late; from its end, those who come now are served in time and the backlog goes as fast as before.
    """

    __slots__ = ()

    def head_at(self, now: float) -> Ticket:
        head = self.head
        if self._ahead is not None or not is_half_late(head, now):
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
