"""Who has anything in one pool: service classes and their tenants, with what of each waits and what is at engines.

Owns these records, one each, found once for a ticket and kept by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gateway.core.backlog import Backlog, ClassBacklog
from gateway.core.plan import AdmissionKind, ClassPlan, Plan

ClassBacklogs = tuple[ClassBacklog, ClassBacklog]
"""What waits of one service class: shorts, longs."""


class Tenant:
    """class_plan: by the plan in force, or the last one that had the class; running_max: by that.

    backlogs: what waits of it, shorts and longs; class_backlogs: what waits of its whole class.
    is_set_aside: the lanes pass it over, because it runs as much as it may.
    """

    __slots__ = (
        "backlogs",
        "class_backlogs",
        "class_plan",
        "is_set_aside",
        "name",
        "running",
        "running_max",
    )

    def __init__(self, class_plan: ClassPlan, name: str, class_backlogs: ClassBacklogs) -> None:
        self.class_plan = class_plan
        self.name = name
        self.class_backlogs = class_backlogs
        self.backlogs = (Backlog(), Backlog())
        self.running = 0
        self.running_max = inf
        self.is_set_aside = False

    def queued(self) -> int:
        """Return how many of its requests wait."""
        short, long = self.backlogs
        return short.requests + long.requests

    def bound_by(self, plan: Plan) -> None:
        self.class_plan = plan.classes.get(self.class_plan.name, self.class_plan)
        bound = self.class_plan.tenant.running_max
        self.running_max = inf if bound is None or plan.admission.kind is AdmissionKind.NONE else bound


class Tenants:
    """Everybody who has a ticket in line or at an engine; no other tenant is remembered.

    by_class: what waits of each service class that was ever seen, and how fast that goes.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[tuple[str, str], Tenant] = {}
        self.by_class: dict[str, ClassBacklogs] = {}

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._known.values())

    def named(self, class_plan: ClassPlan, name: str) -> Tenant:
        """Return a tenant of the class, which the plan in force need not have any more."""
        key = class_plan.name, name
        tenant = self._known.get(key)
        if tenant is None:
            tenant = self._known[key] = Tenant(class_plan, name, self._of_class(class_plan.name))
            tenant.bound_by(self._plan)
        return tenant

    def _of_class(self, name: str) -> ClassBacklogs:
        backlogs = self.by_class.get(name)
        if backlogs is None:
            backlogs = self.by_class[name] = (ClassBacklog(), ClassBacklog())
        return backlogs

    def forget_if_idle(self, tenant: Tenant) -> None:
        if not tenant.running and not tenant.queued():
            self._known.pop((tenant.class_plan.name, tenant.name), None)

    def reconfigure(self, plan: Plan) -> None:
        """Put a new plan in force; nobody is set aside until that is found anew."""
        self._plan = plan
        for tenant in self._known.values():
            tenant.is_set_aside = False
            tenant.bound_by(plan)
