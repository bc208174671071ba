"""The lanes of one pool under the plan in force: which lane a ticket waits in, who is next in each, who is passed over.

Owns the choice of lanes and who is set aside in them. Under token budgets there are two, one a length class; without
them one holds both lengths. Of budgets it asks one thing, whether an engine has a slot left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.core.fleet import Fleet
from gateway.core.lane import Lane
from gateway.core.orders import order_of
from gateway.core.plan import AdmissionKind, Plan
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket


class Lanes:
    """by_length: the lane in which shorts wait and that of the longs, which may be one."""

    def __init__(self, plan: Plan) -> None:
        lane = Lane(order_of(plan.order))
        self.by_length = (lane, Lane(order_of(plan.order)) if _has_two(plan) else lane)
        self._passed_over: list[Ticket] = []

    def __iter__(self) -> Iterator[Lane]:
        short, long = self.by_length
        yield short
        if long is not short:
            yield long

    @property
    def short(self) -> Lane:
        return self.by_length[0]

    @property
    def long(self) -> Lane:
        return self.by_length[1]

    def reconfigure(self, plan: Plan) -> None:
        """Empty all lanes and put a new plan in force; how much each class and tenant was served is remembered."""
        short, long = self.by_length
        order = order_of(plan.order)
        lane = short.emptied(order, plan.classes)
        self.by_length = (lane, long.emptied(order, plan.classes) if _has_two(plan) else lane)

    def heads(self, now: float, fleet: Fleet) -> Sequence[Ticket]:
        """Return who is next in each lane, the oldest first.

        Where nothing of a length can go at all its head is left out: no other is behind it in what they share, since it
        may be passed for want of what is its own.
        """
        short_lane, long_lane = self.by_length
        short = short_lane.head(now) if short_lane.requests and fleet.has_slot(0) else None
        if long_lane is short_lane or not long_lane.requests or not fleet.has_slot(1):
            return () if short is None else (short,)
        long = long_lane.head(now)
        if short is None or long is None:
            head = short or long
            return () if head is None else (head,)
        return (short, long) if short.id < long.id else (long, short)

    def pass_over_bound(self, heads: Sequence[Ticket]) -> bool:
        """Pass over the heads that one engine alone can serve, until `resume`; False: there are none.

        Whoever waits for its own engine holds up its own flow and no other.
        """
        bound = [head for head in heads if head.assignment.engine is not None]
        for head in bound:
            self.by_length[head.is_long].set_aside(head.tenant)
        self._passed_over += bound
        return bool(bound)

    def resume(self) -> None:
        """Bring those back who were passed over."""
        for head in self._passed_over:
            self.by_length[head.is_long].bring_back(head.tenant)  # one that is at its bound stays aside
        self._passed_over.clear()

    def hold(self, tenant: Tenant) -> None:
        """Pass a tenant over in every lane while it runs as much as it may."""
        at_bound = tenant.running >= tenant.running_max
        if at_bound is tenant.is_set_aside:
            return
        tenant.is_set_aside = at_bound
        for lane in self:
            if at_bound:
                lane.set_aside(tenant)
            else:
                lane.bring_back(tenant)


def _has_two(plan: Plan) -> bool:
    return plan.admission.kind is AdmissionKind.TOKEN_BUDGET
