"""One flow's waiting line: the waiting requests of one (service class, tenant) in one lane, first in, first out.

Owns their order and the flow's place in fair queueing. Knows nothing of budgets, bounds or deadlines.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.lazy_heap import LazyHeap
from gateway.core.types import Ticket


class Flow:
    """A line and the start tag of its head (start-time fair queueing, in cost).

    Ticket ids grow with each offer, so first in, first out is ascending id. A ticket that an engine refused was
    dispatched before all that still wait here: it comes back ahead of them.
    """

    __slots__ = ("_returned", "_tickets", "service_class", "start_tag", "tenant")

    def __init__(self, service_class: str, tenant: str) -> None:
        self.service_class = service_class
        self.tenant = tenant
        self.start_tag = 0.0
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._returned: LazyHeap[Ticket] = LazyHeap()

    def __len__(self) -> int:
        return len(self._tickets) + len(self._returned)

    def append(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket

    def put_back(self, ticket: Ticket) -> None:
        self._returned.push(ticket, ticket.id)

    def remove(self, ticket: Ticket) -> None:
        if self._tickets.pop(ticket.id, None) is None:
            self._returned.discard(ticket)

    @property
    def head(self) -> Ticket:
        """The ticket that goes next; the line must not be empty."""
        returned = self._returned.peek()
        if returned is not None:
            return returned[0]
        return next(iter(self._tickets.values()))
