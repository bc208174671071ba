"""Everything that waits in one pool, seen by bound instead of by order: per class, per tenant, oldest, deadline.

Owns the sums that queue bounds are held against. The lanes own the order of dispatch; both hold the same tickets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gateway.core.estimate import DrainRate
from gateway.core.lazy_heap import LazyHeap
from gateway.core.types import Assignment, LengthClass, LineSnapshot, Reason, Refusal, Resource, Ticket


class _Sum:
    __slots__ = ("body_bytes", "oldest", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.body_bytes = 0
        self.oldest: LazyHeap[Ticket] = LazyHeap()


class Waiting:
    """The waiting tickets of one pool, their sums and their deadlines."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, LengthClass], _Sum] = {}
        self._tenants: Counter[tuple[str, str]] = Counter()
        self._deadlines: LazyHeap[Ticket] = LazyHeap()
        self._drain: dict[tuple[str, LengthClass], DrainRate] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._deadlines

    def join(self, ticket: Ticket, now: float) -> None:
        line = self._line(ticket.assignment)
        self._drain[line].advance(now, backlogged=bool(self._sums[line].oldest))
        total = self._sums[line]
        total.prompt_tokens += ticket.assignment.prompt_tokens
        total.body_bytes += ticket.assignment.body_bytes
        total.oldest.push(ticket, ticket.offered_at)
        self._tenants[ticket.assignment.service_class, ticket.assignment.tenant] += 1
        self._deadlines.push(ticket, ticket.deadline)

    def leave(self, ticket: Ticket, now: float, *, served: bool) -> None:
        """Take the ticket out; `served`: it goes to an engine, which is what the drain rate measures."""
        line = self._line(ticket.assignment)
        total = self._sums[line]
        self._drain[line].advance(now, backlogged=bool(total.oldest))
        if served and ticket.offered_at < now:
            self._drain[line].served(ticket.assignment.prompt_tokens)
        total.prompt_tokens -= ticket.assignment.prompt_tokens
        total.body_bytes -= ticket.assignment.body_bytes
        total.oldest.discard(ticket)
        tenant = (ticket.assignment.service_class, ticket.assignment.tenant)
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        self._deadlines.discard(ticket)

    def over_bound(self, assignment: Assignment) -> Refusal | None:
        """Return why the class or the tenant holds more than it may, this assignment's plan being the measure."""
        name, queue = assignment.service_class, assignment.class_plan.queue
        sums = [total for (service_class, _), total in self._sums.items() if service_class == name]
        held = (
            (Resource.REQUESTS, sum(len(total.oldest) for total in sums), queue.requests_max),
            (Resource.PROMPT_TOKENS, sum(total.prompt_tokens for total in sums), queue.prompt_tokens_max),
            (Resource.BYTES, sum(total.body_bytes for total in sums), queue.bytes_max),
        )
        for resource, observed, limit in held:
            if observed > limit:
                return Refusal(
                    Reason.QUEUE_FULL,
                    f"The queue of service class {name} is full ({resource.value}: {limit}).",
                    resource=resource,
                    limit=limit,
                    observed=observed,
                )
        tenant_max = assignment.class_plan.tenant.queued_requests_max
        of_tenant = self._tenants[name, assignment.tenant]
        if tenant_max is not None and of_tenant > tenant_max:
            return Refusal(
                Reason.TENANT_QUEUE_FULL,
                f"Your own queue in service class {name} is full ({tenant_max} requests).",
                resource=Resource.REQUESTS,
                limit=tenant_max,
                observed=of_tenant,
            )
        return None

    def tickets(self) -> Iterator[Ticket]:
        """Yield every waiting ticket, in no order."""
        return iter(self._deadlines)

    def next_deadline(self) -> tuple[Ticket, float] | None:
        return self._deadlines.peek()

    def drain_of(self, assignment: Assignment, now: float) -> tuple[int, float | None]:
        """Return the prompt tokens that wait in the assignment's class and length, and their rate per second."""
        line = self._line(assignment)
        self._drain[line].advance(now, backlogged=bool(self._sums[line].oldest))
        return self._sums[line].prompt_tokens, self._drain[line].tokens_per_s()

    def lines(self) -> Mapping[tuple[str, LengthClass], LineSnapshot]:
        snapshot = {}
        for line, total in self._sums.items():
            first = total.oldest.peek()
            snapshot[line] = LineSnapshot(
                requests=len(total.oldest),
                prompt_tokens=total.prompt_tokens,
                body_bytes=total.body_bytes,
                oldest_offered_at=None if first is None else first[1],
            )
        return snapshot

    def _line(self, assignment: Assignment) -> tuple[str, LengthClass]:
        line = (assignment.service_class, assignment.length_class)
        if line not in self._sums:
            self._sums[line] = _Sum()
            self._drain[line] = DrainRate()
        return line
