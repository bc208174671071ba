"""The lanes of one pool under the plan in force: which lane a ticket waits in, who is next in each, who is passed over.

Owns the choice of lanes and who is set aside in them. Under token budgets there are two, one a length class; without
them one holds both lengths. Never looks at budgets.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.lane import Lane
from gateway.core.orders import order_of
from gateway.core.plan import AdmissionKind, Plan
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket
from gateway.core.types import LONG, SHORT, LengthClass


class Lanes:
    """by_length: the lane of the shorts, then that of the longs where they have one."""

    def __init__(self, plan: Plan) -> None:
        self.by_length = [Lane(order_of(plan.order)) for _ in range(_lanes_of(plan))]
        self._passed_over: list[Ticket] = []

    def __getitem__(self, length_class: LengthClass) -> Lane:
        """Return the lane in which requests of this length wait."""
        return self.by_length[-1 if length_class is LONG else 0]

    def reconfigure(self, plan: Plan) -> None:
        """Empty all lanes and put a new plan in force; how much each class and tenant was served is remembered."""
        lengths = (SHORT, LONG)[: _lanes_of(plan)]
        order = order_of(plan.order)
        self.by_length = [self[length].emptied(order, plan.classes) for length in lengths]

    def heads(self, now: float) -> list[Ticket]:
        """Return who is next in each lane, the oldest first."""
        heads = [head for lane in self.by_length if lane.requests and (head := lane.head(now)) is not None]
        if len(heads) == 2 and heads[1].id < heads[0].id:
            heads.reverse()
        return heads

    def pass_over_bound(self, heads: Sequence[Ticket]) -> bool:
        """Pass over the heads that one engine alone can serve, until `resume`; False: there are none.

        Whoever waits for its own engine holds up its own flow and no other.
        """
        bound = [head for head in heads if head.assignment.engine is not None]
        for head in bound:
            self[head.assignment.length_class].set_aside(head.tenant)
        self._passed_over += bound
        return bool(bound)

    def resume(self) -> None:
        """Bring those back who were passed over."""
        for head in self._passed_over:
            self[head.assignment.length_class].bring_back(head.tenant)  # one that is at its bound stays aside
        self._passed_over.clear()

    def hold(self, tenant: Tenant) -> None:
        """Pass a tenant over in every lane while it runs as much as it may."""
        at_bound = tenant.running >= tenant.running_max
        if at_bound is tenant.is_set_aside:
            return
        tenant.is_set_aside = at_bound
        for lane in self.by_length:
            if at_bound:
                lane.set_aside(tenant)
            else:
                lane.bring_back(tenant)


def _lanes_of(plan: Plan) -> int:
    return 2 if plan.admission.kind is AdmissionKind.TOKEN_BUDGET else 1
