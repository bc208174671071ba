"""A lane: all waiting requests that contend for the same budgets, as flows in the policy's order.

Owns the flows and their virtual times. Under token budgets the short and the long lane are
two, each with its own virtual time; without them one lane holds everything. Never looks at budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest

from gateway.core.lazy_heap import LazyHeap
from gateway.core.line import Flow
from gateway.core.orders import Order, flow_kind
from gateway.core.plan import ClassPlan
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket

_IDLE_TAGS_KEPT = 1024


class _ClassLines:
    """The flows of one service class in one lane, and the class's own tags."""

    __slots__ = ("flow_kind", "flows", "idle_finish_tags", "plan", "ready", "start_tag", "virtual_time")

    def __init__(self, plan: ClassPlan, kind: type[Flow]) -> None:
        self.plan = plan
        self.flow_kind = kind
        self.start_tag = 0.0
        self.virtual_time = 0.0
        self.flows: dict[str, Flow] = {}
        self.ready: LazyHeap[Flow] = LazyHeap()
        self.idle_finish_tags: dict[str, float] = {}

    def new_flow(self, tenant: Tenant) -> Flow:
        """Begin a flow for a new or returning tenant: at the virtual time, not before its own past."""
        start_tag = max(self.virtual_time, self.idle_finish_tags.pop(tenant.name, 0.0))
        flow = self.flows[tenant.name] = self.flow_kind(tenant, start_tag)
        return flow

    def forget(self, flow: Flow) -> None:
        """Drop an empty flow; its tag is kept while it lies ahead of the virtual time.

        Where each of ever more tenants comes once, all their tags stay ahead: half are kept, of those who took most.
        """
        tenant = flow.tenant.name
        del self.flows[tenant]
        if flow.start_tag > self.virtual_time:
            self.idle_finish_tags[tenant] = flow.start_tag
        if len(self.idle_finish_tags) > _IDLE_TAGS_KEPT:
            ahead = [(tag, tenant) for tenant, tag in self.idle_finish_tags.items() if tag > self.virtual_time]
            self.idle_finish_tags = {tenant: tag for tag, tenant in nlargest(_IDLE_TAGS_KEPT // 2, ahead)}


class Lane:
    """Waiting tickets in the order of dispatch."""

    __slots__ = ("_classes", "_first", "_first_is_known", "_order", "_virtual_time", "requests")

    def __init__(self, order: Order) -> None:
        self._order = order
        self._virtual_time = 0.0
        self._classes: dict[str, _ClassLines] = {}
        self._first: Flow | None = None
        self._first_is_known = True
        self.requests = 0

    def emptied(self, order: Order, classes: Mapping[str, ClassPlan]) -> Lane:
        """Return an empty lane in a new order that remembers how much each class and tenant was served.

        A class that `classes` lacks keeps the plan it had.
        """
        lane = Lane(order)
        lane._virtual_time = self._virtual_time
        for name, lines in self._classes.items():
            kept = lane._new_lines(classes.get(name, lines.plan))
            kept.start_tag = lines.start_tag
            kept.virtual_time = lines.virtual_time
            kept.idle_finish_tags = lines.idle_finish_tags | {
                tenant: flow.start_tag for tenant, flow in lines.flows.items()
            }
        return lane

    def append(self, ticket: Ticket) -> None:
        class_plan, tenant = ticket.assignment.class_plan, ticket.tenant
        lines = self._classes.get(class_plan.name) or self._new_lines(class_plan)
        flow = lines.flows.get(tenant.name) or lines.new_flow(tenant)
        self.requests += 1
        if flow.append(ticket):
            self._lift(lines)
            self._refile(lines, flow)

    def put_back(self, ticket: Ticket) -> None:
        """Return a ticket to the head of its flow and give its cost back to the flow and the class."""
        class_plan, tenant = ticket.assignment.class_plan, ticket.tenant
        lines = self._classes.get(class_plan.name) or self._new_lines(class_plan)
        flow = lines.flows.get(tenant.name) or lines.new_flow(tenant)
        self.requests += 1
        self._lift(lines)
        flow.put_back(ticket)
        flow.start_tag -= ticket.cost_s
        lines.start_tag -= ticket.cost_s / lines.plan.weight
        self._refile(lines, flow)

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket that ends without being served."""
        lines, flow = self._found(ticket)
        flow.remove(ticket)
        self.requests -= 1
        self._refile(lines, flow)

    def oldest_of_flow(self, ticket: Ticket) -> Ticket:
        """Return the oldest that waits of the ticket's own tenant and class; the ticket itself waits."""
        _, flow = self._found(ticket)
        assert flow.head is not None, "the ticket itself waits there"
        return flow.head

    def serve(self, ticket: Ticket) -> None:
        """Take out a ticket for dispatch and charge its cost to flow and class."""
        lines, flow = self._found(ticket)
        flow.remove(ticket)
        self.requests -= 1
        cost_s = ticket.cost_s
        if lines.virtual_time < flow.start_tag:
            lines.virtual_time = flow.start_tag
        flow.start_tag += cost_s
        if self._virtual_time < lines.start_tag:
            self._virtual_time = lines.start_tag
        lines.start_tag += cost_s / lines.plan.weight
        self._refile(lines, flow)

    def refund(self, ticket: Ticket, cost_s: float) -> None:
        """Give back what a served ticket was charged and did not take."""
        lines = self._classes.get(ticket.assignment.class_plan.name)
        if lines is None:
            return
        lines.start_tag = _refunded(lines.start_tag, cost_s / lines.plan.weight, self._virtual_time)
        self._first_is_known = False
        tenant = ticket.assignment.tenant
        flow = lines.flows.get(tenant)
        if flow is not None:
            flow.start_tag = _refunded(flow.start_tag, cost_s, lines.virtual_time)
            self._refile(lines, flow)
        elif tenant in lines.idle_finish_tags:
            lines.idle_finish_tags[tenant] -= cost_s

    def head(self, now: float) -> Ticket | None:
        """Return the ticket that goes next, or None where none waits or all who wait are set aside."""
        if not self._first_is_known:
            self._first = self._find_first()
            self._first_is_known = True
        first = self._first
        return None if first is None else first.head_at(now)

    def set_aside(self, tenant: Tenant) -> None:
        """Pass over a tenant that was set aside."""
        lines = self._classes.get(tenant.class_plan.name)
        if lines is not None and tenant.name in lines.flows:
            lines.ready.discard(lines.flows[tenant.name])
            self._first_is_known = False

    def bring_back(self, tenant: Tenant) -> None:
        """Serve a tenant again; the service it missed while it was at its own bound is not paid back."""
        lines = self._classes.get(tenant.class_plan.name)
        flow = None if lines is None else lines.flows.get(tenant.name)
        if lines is not None and flow is not None:
            self._lift(lines)
            flow.start_tag = max(flow.start_tag, lines.virtual_time)
            self._refile(lines, flow)

    def _find_first(self) -> Flow | None:
        best: Flow | None = None
        best_key = None
        class_key = self._order.class_key
        for lines in self._classes.values():
            first = lines.ready.first
            if first is None:
                continue
            flow = first[2]
            key = class_key(lines.plan, lines.start_tag, flow)
            if best is None or key < best_key:
                best, best_key = flow, key
        return best

    def _new_lines(self, class_plan: ClassPlan) -> _ClassLines:
        lines = self._classes[class_plan.name] = _ClassLines(class_plan, flow_kind(self._order, class_plan))
        return lines

    def _found(self, ticket: Ticket) -> tuple[_ClassLines, Flow]:
        tenant = ticket.tenant
        lines = self._classes[tenant.class_plan.name]
        return lines, lines.flows[tenant.name]

    def _lift(self, lines: _ClassLines) -> None:
        """A class that had nothing to serve starts at the virtual time: it saved up no credit."""
        if lines.ready.first is None:
            lines.start_tag = max(self._virtual_time, lines.start_tag)

    def _refile(self, lines: _ClassLines, flow: Flow) -> None:
        """Put a flow whose head or tag changed in its place, or drop it once it is empty."""
        self._first_is_known = False
        if flow.head is None:
            lines.ready.discard(flow)
            lines.forget(flow)
        elif not flow.tenant.is_set_aside:
            lines.ready.push(flow, self._order.flow_key(flow))


def _refunded(tag: float, amount: float, virtual_time: float) -> float:
    """Lower a tag, but not below the virtual time: what was forgiven when a flow came back is not paid out later."""
    return max(tag - amount, min(tag, virtual_time))
