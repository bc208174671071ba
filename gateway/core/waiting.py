"""Everything that waits in one pool: the sums that bounds are held against, who expires first, and who goes next.

Owns the sums and the deadlines, and keeps the lanes, which own the order of dispatch, in step with them: a ticket joins
and leaves all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf

from gateway.core.backlog import ClassBacklog
from gateway.core.lanes import Lanes
from gateway.core.plan import ClassPlan, Plan
from gateway.core.tenants import Tenants
from gateway.core.ticket import WAITING, Ticket
from gateway.core.types import LengthClass, LineSnapshot, Reason, Refusal, Resource

_LEFT_ALLOWED = 64


class Waiting:
    """The waiting tickets of one pool, their sums and their deadlines.

    A ticket that left stays among the deadlines until it comes first there, or until those who left outnumber those
    who wait; one that was sent back may be there twice. Its state says whether it waits.

    lanes: the same tickets in the order of dispatch. tenants: who has any, here or at an engine.
    expires_at: nobody's deadline comes before. Perhaps nobody's comes then either, but that of one who left.
    """

    def __init__(self, plan: Plan) -> None:
        self.lanes = Lanes(plan)
        self.tenants = Tenants(plan)
        self.expires_at = inf
        self._left = 0
        self._by_deadline: list[tuple[float, int, Ticket]] = []

    def tickets(self) -> list[Ticket]:
        """Return every waiting ticket, the oldest first."""
        return sorted(self._all(), key=lambda ticket: ticket.id)

    def _all(self) -> set[Ticket]:
        return {ticket for _, _, ticket in self._by_deadline if ticket.state is WAITING}

    def join(self, ticket: Ticket, now: float, *, sent_back: bool = False) -> bool:
        """Put a ticket in line, at the head of its flow where its engine sent it back.

        Returns False where it goes behind what was there in any case.
        """
        assignment, of_class, cost_s, deadline = ticket.assignment, ticket.class_backlog, ticket.cost_s, ticket.deadline
        of_class.join(cost_s, deadline, now)
        ticket.backlog.join(cost_s, deadline, now)
        of_class.prompt_tokens += assignment.prompt_tokens
        of_class.body_bytes += assignment.body_bytes
        heappush(self._by_deadline, (deadline, ticket.id, ticket))
        if deadline < self.expires_at:
            self.expires_at = deadline
        lane = self.lanes.by_length[ticket.is_long]
        return lane.put_back(ticket) if sent_back else lane.append(ticket)

    def leave(self, ticket: Ticket, now: float, *, served: bool, moved: bool) -> None:
        """Take out a ticket whose state says that it waits no more.

        served: it goes to an engine, which is what the drain rate measures. moved: false where it was refused or
        expired.
        """
        lane = self.lanes.by_length[ticket.is_long]
        if served:
            lane.serve(ticket)
        else:
            lane.remove(ticket)
        assignment, of_class, backlog, cost_s = ticket.assignment, ticket.class_backlog, ticket.backlog, ticket.cost_s
        if ticket.forecast is not None and (served or ticket.deadline <= now) and not ticket.requeues:
            of_class.ratios.add(ticket.forecast.ratio(now - ticket.offered_at, backlog.moved_s, cost_s))
        drained = served and ticket.offered_at < now
        of_class.leave(cost_s, now, drained=drained, moved=moved)
        backlog.leave(cost_s, now, drained=drained, moved=moved)
        of_class.prompt_tokens -= assignment.prompt_tokens
        of_class.body_bytes -= assignment.body_bytes
        self._left += 1
        if 2 * self._left > len(self._by_deadline) + _LEFT_ALLOWED:
            self._by_deadline = [(waits.deadline, waits.id, waits) for waits in self._all()]
            heapify(self._by_deadline)
            self._left = 0

    def over_bound(self, ticket: Ticket) -> Refusal | None:
        """Return why the class or the tenant holds more than it may, this ticket's plan being the measure."""
        class_plan = ticket.assignment.class_plan
        queue, (short, long) = class_plan.queue, ticket.tenant.class_backlogs
        requests = short.requests + long.requests
        prompt_tokens = short.prompt_tokens + long.prompt_tokens
        body_bytes = short.body_bytes + long.body_bytes
        if (
            requests <= queue.requests_max
            and prompt_tokens <= queue.prompt_tokens_max
            and body_bytes <= queue.bytes_max
        ):
            limit = class_plan.tenant.queued_requests_max
            if limit is None or (queued := ticket.tenant.queued()) <= limit:
                return None
            return _tenant_queue_full(class_plan, limit, queued)
        held = (
            (Resource.REQUESTS, requests, queue.requests_max),
            (Resource.PROMPT_TOKENS, prompt_tokens, queue.prompt_tokens_max),
            (Resource.BYTES, body_bytes, queue.bytes_max),
        )
        resource, observed, limit = next(bound for bound in held if bound[1] > bound[2])
        return Refusal(
            Reason.QUEUE_FULL,
            f"The queue of service class {class_plan.name} is full ({resource.value}: {limit}).",
            resource=resource,
            limit=limit,
            observed=observed,
        )

    def first_to_expire(self) -> Ticket | None:
        """Return the ticket whose deadline comes first; None: nothing waits."""
        by_deadline = self._by_deadline
        while by_deadline:
            self.expires_at, _, ticket = by_deadline[0]
            if ticket.state is WAITING:
                return ticket
            heappop(by_deadline)
            self._left -= 1
        self.expires_at = inf
        return None

    def reconfigure(self, plan: Plan) -> None:
        """Put a new plan in force; all who wait keep their place in its lanes, and what was served is remembered."""
        waiting = self.tickets()
        self.lanes.reconfigure(plan)
        self.tenants.reconfigure(plan)
        for ticket in waiting:
            self.lanes.by_length[ticket.is_long].append(ticket)
        for tenant in self.tenants:
            self.lanes.hold(tenant)

    def lines(self) -> Mapping[tuple[str, LengthClass], LineSnapshot]:
        """Return what waits by (service class, length class); the oldest is looked for among all."""
        oldest: dict[ClassBacklog, float] = {}
        for ticket in self._all():
            oldest[ticket.class_backlog] = min(ticket.offered_at, oldest.get(ticket.class_backlog, inf))
        return {
            (name, length): _snapshot(backlog, oldest.get(backlog))
            for name, backlogs in self.tenants.by_class.items()
            for length, backlog in zip(LengthClass, backlogs, strict=True)
        }


def _tenant_queue_full(class_plan: ClassPlan, limit: int, queued: int) -> Refusal:
    return Refusal(
        Reason.TENANT_QUEUE_FULL,
        f"Your own queue in service class {class_plan.name} is full ({limit} requests).",
        resource=Resource.REQUESTS,
        limit=limit,
        observed=queued,
    )


def _snapshot(backlog: ClassBacklog, oldest_offered_at: float | None) -> LineSnapshot:
    return LineSnapshot(
        requests=backlog.requests,
        prompt_tokens=backlog.prompt_tokens,
        body_bytes=backlog.body_bytes,
        oldest_offered_at=oldest_offered_at,
    )
