"""A waiting line: first in, first out, with a place at its head for those whom an engine sent back.

Owns the order of its tickets and nothing else: no budgets, no bounds, no deadlines.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.lazy_heap import LazyHeap
from gateway.core.ticket import Ticket


class Line:
    """Tickets by ascending id, which grows with each offer.

    A ticket that an engine refused was dispatched before all that still wait here: it comes back ahead of them.
    """

    __slots__ = ("_returned", "_tickets")

    def __init__(self) -> None:
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._returned: LazyHeap[Ticket] | None = None

    def __len__(self) -> int:
        return len(self._tickets) if self._returned is None else len(self._tickets) + len(self._returned)

    def append(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket

    def put_back(self, ticket: Ticket) -> None:
        if self._returned is None:
            self._returned = LazyHeap()
        self._returned.push(ticket, ticket.id)

    def remove(self, ticket: Ticket) -> None:
        if self._tickets.pop(ticket.id, None) is None and self._returned is not None:
            self._returned.discard(ticket)
            if not self._returned:
                self._returned = None

    @property
    def head(self) -> Ticket:
        """The ticket that goes next; the line must not be empty."""
        if self._returned is not None and (first := self._returned.peek()) is not None:
            return first[0]
        return next(iter(self._tickets.values()))


class Flow(Line):
    """The line of one (service class, tenant) in one lane, and the start tag of its head (fair queueing, in cost)."""

    __slots__ = ("start_tag", "tenant")

    def __init__(self, tenant: str, start_tag: float) -> None:
        super().__init__()
        self.tenant = tenant
        self.start_tag = start_tag
