"""Everything that waits in one pool, seen by bound instead of by order: per class, per tenant, oldest, deadline.

Owns the sums that queue bounds are held against. The lanes own the order of dispatch; both hold the same tickets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

from gateway.core.lazy_heap import LazyHeap
from gateway.core.plan import ClassPlan
from gateway.core.share import Share
from gateway.core.tenants import Tenant
from gateway.core.ticket import Assignment, Ticket
from gateway.core.types import LONG, LengthClass, LineSnapshot, Reason, Refusal, Resource


class Waiting:
    """The waiting tickets of one pool, their sums and their deadlines."""

    def __init__(self) -> None:
        self._shares: dict[str, tuple[Share, Share]] = {}
        self._deadlines: LazyHeap[Ticket] = LazyHeap()

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._deadlines

    def tickets(self) -> Iterator[Ticket]:
        """Yield every waiting ticket, in no order."""
        return iter(self._deadlines)

    def share(self, assignment: Assignment) -> Share:
        """Return what a request of this class and length would count in."""
        name = assignment.class_plan.name
        shares = self._shares.get(name)
        if shares is None:
            shares = self._shares[name] = (Share(), Share())
        return shares[assignment.length_class is LONG]

    def join(self, ticket: Ticket, now: float) -> None:
        assignment, share = ticket.assignment, ticket.share
        share.join(ticket.cost_s, ticket.deadline, now)
        ticket.backlog.join(ticket.cost_s, ticket.deadline, now)
        share.prompt_tokens += assignment.prompt_tokens
        share.body_bytes += assignment.body_bytes
        ticket.tenant.queued += 1
        self._deadlines.push(ticket, ticket.deadline)

    def leave(self, ticket: Ticket, now: float, *, served: bool, moved: bool) -> None:
        """Take the ticket out. served: it goes to an engine, which is what the drain rate measures.

        moved: false where it was refused or expired.
        """
        assignment, share, cost_s = ticket.assignment, ticket.share, ticket.cost_s
        drained = served and ticket.offered_at < now
        if ticket.forecast is not None and (served or ticket.deadline <= now) and not ticket.requeues:
            share.ratios.add(ticket.forecast.ratio(now - ticket.offered_at, ticket.backlog.moved_s, cost_s))
        for backlog in (share, ticket.backlog):
            backlog.leave(cost_s, now, served=drained, moved=moved)
        share.prompt_tokens -= assignment.prompt_tokens
        share.body_bytes -= assignment.body_bytes
        ticket.tenant.queued -= 1
        self._deadlines.discard(ticket)

    def over_bound(self, ticket: Ticket) -> Refusal | None:
        """Return why the class or the tenant holds more than it may, this ticket's plan being the measure."""
        class_plan = ticket.assignment.class_plan
        name, queue = class_plan.name, class_plan.queue
        short, long = self._shares[name]
        requests = short.requests + long.requests
        prompt_tokens = short.prompt_tokens + long.prompt_tokens
        body_bytes = short.body_bytes + long.body_bytes
        if (
            requests <= queue.requests_max
            and prompt_tokens <= queue.prompt_tokens_max
            and body_bytes <= queue.bytes_max
        ):
            return _over_tenant_bound(ticket.tenant, class_plan)
        held = (
            (Resource.REQUESTS, requests, queue.requests_max),
            (Resource.PROMPT_TOKENS, prompt_tokens, queue.prompt_tokens_max),
            (Resource.BYTES, body_bytes, queue.bytes_max),
        )
        resource, observed, limit = next(bound for bound in held if bound[1] > bound[2])
        return Refusal(
            Reason.QUEUE_FULL,
            f"The queue of service class {name} is full ({resource.value}: {limit}).",
            resource=resource,
            limit=limit,
            observed=observed,
        )

    def beside(self, assignment: Assignment) -> int:
        """Return how many wait in the assignment's class and length."""
        return self.share(assignment).requests

    def next_deadline(self) -> float:
        """Return the earliest deadline; infinity: nothing waits."""
        first = self._deadlines.first
        return inf if first is None else first[0]

    def expired(self, now: float) -> Ticket | None:
        """Return a ticket whose deadline has come, the earliest first, or None."""
        first = self._deadlines.first
        return first[2] if first is not None and first[0] <= now else None

    def lines(self) -> Mapping[tuple[str, LengthClass], LineSnapshot]:
        """Return what waits by (service class, length class); the oldest is looked for among all."""
        oldest: dict[Share, float] = {}
        for ticket in self._deadlines:
            oldest[ticket.share] = min(ticket.offered_at, oldest.get(ticket.share, inf))
        return {
            (name, length): _snapshot(share, oldest.get(share))
            for name, shares in self._shares.items()
            for length, share in zip(LengthClass, shares, strict=True)
        }


def _over_tenant_bound(tenant: Tenant, class_plan: ClassPlan) -> Refusal | None:
    limit = class_plan.tenant.queued_requests_max
    if limit is None or tenant.queued <= limit:
        return None
    return Refusal(
        Reason.TENANT_QUEUE_FULL,
        f"Your own queue in service class {class_plan.name} is full ({limit} requests).",
        resource=Resource.REQUESTS,
        limit=limit,
        observed=tenant.queued,
    )


def _snapshot(share: Share, oldest_offered_at: float | None) -> LineSnapshot:
    return LineSnapshot(
        requests=share.requests,
        prompt_tokens=share.prompt_tokens,
        body_bytes=share.body_bytes,
        oldest_offered_at=oldest_offered_at,
    )
