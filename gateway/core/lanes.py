"""The lanes of one pool under the plan in force: which lane a ticket waits in, who is next in each, who is passed over.

Owns the choice of lanes and who is set aside in them. Under token budgets there are two, one a length class; without
them one holds both lengths. Never looks at budgets.
"""

from __future__ import annotations

from gateway.core.lane import Lane
from gateway.core.orders import order_of
from gateway.core.plan import AdmissionKind, ClassPlan, Plan
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket
from gateway.core.types import LONG, SHORT, LengthClass


class Lanes:
    """Short before long, or one lane for all."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lanes = [Lane(order_of(plan.order)) for _ in range(_lanes_of(plan))]

    def __getitem__(self, length_class: LengthClass) -> Lane:
        """Return the lane in which requests of this length wait."""
        return self._lanes[-1 if length_class is LONG else 0]

    def reconfigure(self, plan: Plan) -> None:
        """Empty all lanes and put a new plan in force; how much each class and tenant was served is remembered."""
        lengths = (SHORT, LONG)[: _lanes_of(plan)]
        order = order_of(plan.order)
        self._lanes = [self[length].emptied(order, plan.classes) for length in lengths]
        self._plan = plan

    def heads(self, now: float) -> list[Ticket]:
        """Return who is next in each lane, the oldest first."""
        heads = [head for lane in self._lanes if (head := lane.head(now)) is not None]
        if len(heads) == 2 and heads[1].id < heads[0].id:
            heads.reverse()
        return heads

    def hold(self, tenant: Tenant, class_plan: ClassPlan) -> None:
        """Set a tenant aside in every lane while it runs as much as its class allows, by the plan in force.

        class_plan: the class as the tenant's ticket knows it, where the plan in force has it no more.
        """
        bounds = self._plan.classes.get(tenant.service_class, class_plan).tenant
        at_bound = bounds.running_max is not None and tenant.running >= bounds.running_max
        if at_bound and self._plan.admission.kind is AdmissionKind.NONE:
            at_bound = False
        if at_bound is tenant.is_set_aside:
            return
        tenant.is_set_aside = at_bound
        for lane in self._lanes:
            if at_bound:
                lane.set_aside(tenant)
            else:
                lane.bring_back(tenant)


def _lanes_of(plan: Plan) -> int:
    return 2 if plan.admission.kind is AdmissionKind.TOKEN_BUDGET else 1
