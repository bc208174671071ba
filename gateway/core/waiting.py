"""Everything that waits in one pool, seen by bound instead of by order: per class, per tenant, oldest, deadline.

Owns the sums that queue bounds are held against. The lanes own the order of dispatch; both hold the same tickets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gateway.core.estimate import DrainRate, Quantile
from gateway.core.lazy_heap import LazyHeap
from gateway.core.line import Line
from gateway.core.ticket import Assignment, Ticket
from gateway.core.types import LengthClass, LineSnapshot, Reason, Refusal, Resource


class _Share:
    """What waits of one (service class, length class): its tickets, their sums, how fast they drain."""

    __slots__ = ("body_bytes", "drain", "prompt_tokens", "ratios", "tickets")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.body_bytes = 0
        self.tickets = Line()
        self.drain = DrainRate()
        self.ratios = Quantile()

    def advance(self, now: float) -> None:
        self.drain.advance(now, backlogged=len(self.tickets) > 0)


class Waiting:
    """The waiting tickets of one pool, their sums and their deadlines."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, LengthClass], _Share] = {}
        self._tenants: Counter[tuple[str, str]] = Counter()
        self._deadlines: LazyHeap[Ticket] = LazyHeap()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._deadlines

    def tickets(self) -> Iterator[Ticket]:
        """Yield every waiting ticket, in no order."""
        return iter(self._deadlines)

    def join(self, ticket: Ticket, now: float) -> None:
        assignment = ticket.assignment
        share = self._share(assignment)
        share.advance(now)
        share.prompt_tokens += assignment.prompt_tokens
        share.body_bytes += assignment.body_bytes
        if ticket.requeues:
            share.tickets.put_back(ticket)
        else:
            share.tickets.append(ticket)
        self._tenants[assignment.service_class, assignment.tenant] += 1
        self._deadlines.push(ticket, ticket.deadline)

    def leave(self, ticket: Ticket, now: float, *, served: bool) -> None:
        """Take the ticket out; `served`: it goes to an engine, which is what the drain rate measures."""
        assignment = ticket.assignment
        share = self._share(assignment)
        share.advance(now)
        if served and ticket.offered_at < now:
            share.drain.served(assignment.prompt_tokens)
        if ticket.predicted_wait_s and (served or ticket.deadline <= now):
            share.ratios.add((now - ticket.offered_at) / ticket.predicted_wait_s)
        share.prompt_tokens -= assignment.prompt_tokens
        share.body_bytes -= assignment.body_bytes
        share.tickets.remove(ticket)
        tenant = (assignment.service_class, assignment.tenant)
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        self._deadlines.discard(ticket)

    def over_bound(self, assignment: Assignment) -> Refusal | None:
        """Return why the class or the tenant holds more than it may, this assignment's plan being the measure."""
        name, queue = assignment.service_class, assignment.class_plan.queue
        requests = prompt_tokens = body_bytes = 0
        for length_class in LengthClass:
            share = self._shares.get((name, length_class))
            if share is not None:
                requests += len(share.tickets)
                prompt_tokens += share.prompt_tokens
                body_bytes += share.body_bytes
        held = (
            (Resource.REQUESTS, requests, queue.requests_max),
            (Resource.PROMPT_TOKENS, prompt_tokens, queue.prompt_tokens_max),
            (Resource.BYTES, body_bytes, queue.bytes_max),
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
        return self._over_tenant_bound(assignment)

    def _over_tenant_bound(self, assignment: Assignment) -> Refusal | None:
        limit = assignment.class_plan.tenant.queued_requests_max
        observed = self._tenants[assignment.service_class, assignment.tenant]
        if limit is None or observed <= limit:
            return None
        return Refusal(
            Reason.TENANT_QUEUE_FULL,
            f"Your own queue in service class {assignment.service_class} is full ({limit} requests).",
            resource=Resource.REQUESTS,
            limit=limit,
            observed=observed,
        )

    def next_deadline(self) -> tuple[Ticket, float] | None:
        return self._deadlines.peek()

    def drain_of(self, assignment: Assignment, now: float) -> tuple[int, float | None]:
        """Return the prompt tokens that wait in the assignment's class and length, and their rate per second."""
        share = self._share(assignment)
        share.advance(now)
        return share.prompt_tokens, share.drain.tokens_per_s()

    def predict_wait_s(self, assignment: Assignment, now: float) -> float | None:
        """Predict the wait behind what stands in line now, uncalibrated; None where nothing waits or drains."""
        share = self._share(assignment)
        if not len(share.tickets):
            return None
        share.advance(now)
        rate = share.drain.tokens_per_s()
        return None if rate is None else share.prompt_tokens / rate

    def wait_ratio(self, assignment: Assignment, exceeded_by: float) -> float | None:
        """Return the ratio of real to predicted waits that a share `exceeded_by` of them exceeded, or None if cold.

        A wait that ended at its deadline counts as what it was by then: at least as long, so the ratio is cautious.
        """
        return self._share(assignment).ratios.at(1.0 - exceeded_by)

    def lines(self) -> Mapping[tuple[str, LengthClass], LineSnapshot]:
        return {name: _snapshot(share) for name, share in self._shares.items()}

    def _share(self, assignment: Assignment) -> _Share:
        name = (assignment.service_class, assignment.length_class)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _Share()
        return share


def _snapshot(share: _Share) -> LineSnapshot:
    return LineSnapshot(
        requests=len(share.tickets),
        prompt_tokens=share.prompt_tokens,
        body_bytes=share.body_bytes,
        oldest_offered_at=share.tickets.head.offered_at if len(share.tickets) else None,
    )
