"""A lane: all waiting requests that contend for the same budgets, as flows in the policy's order.

Owns the flows and their virtual times. Under token budgets the short and the long lane are
two, each with its own virtual time; without them one lane holds everything. Never looks at budgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from gateway.core.lazy_heap import LazyHeap
from gateway.core.line import Flow
from gateway.core.orders import Order, flow_kind
from gateway.core.plan import ClassPlan
from gateway.core.tenants import Tenant
from gateway.core.ticket import Ticket

_IDLE_KEPT = 1024


class _ClassLines:
    """The flows of one service class in one lane, and the class's own tags.

    A flow in which nobody waits is kept for its tag. key: the class's place among the others, least first; None:
    nothing of it is ready.
    """

    __slots__ = ("_idle", "flow_kind", "flows", "key", "plan", "ready", "start_tag", "virtual_time")

    def __init__(self, plan: ClassPlan, kind: type[Flow]) -> None:
        self.plan = plan
        self.flow_kind = kind
        self.key: Any = None
        self.start_tag = 0.0
        self.virtual_time = 0.0
        self.flows: dict[str, Flow] = {}
        self.ready: LazyHeap[Flow] = LazyHeap()
        self._idle = 0

    def flow_of(self, tenant: Tenant) -> Flow:
        """Return the flow that the tenant joins: one that begins or returns does so at the virtual time.

        Or at its own tag, where that lies ahead: what it took before is not forgotten.
        """
        flow = self.flows.get(tenant.name)
        if flow is None:
            flow = self.flows[tenant.name] = self.flow_kind(tenant, self.virtual_time)
        elif flow.head is None:
            self._idle -= 1
            flow.tenant = tenant
            if flow.start_tag < self.virtual_time:
                flow.start_tag = self.virtual_time
        return flow

    def keep_idle(self, tenant: Tenant, start_tag: float) -> None:
        """Remember a tenant of whom nobody waits yet."""
        self.flows[tenant.name] = self.flow_kind(tenant, start_tag)
        self._idle += 1

    def rests(self) -> None:
        """Note that nobody waits in one more flow.

        Where each of ever more tenants comes once, half of those that rest are kept, of those who took most; a tag
        behind the virtual time says nothing.
        """
        self._idle += 1
        if self._idle > _IDLE_KEPT:
            ahead = (flow for flow in self.flows.values() if flow.head is None and flow.start_tag > self.virtual_time)
            kept = nlargest(_IDLE_KEPT // 2, ahead, key=lambda flow: flow.start_tag)
            busy = {name: flow for name, flow in self.flows.items() if flow.head is not None}
            self.flows = busy | {flow.tenant.name: flow for flow in kept}
            self._idle = len(kept)


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
            for flow in lines.flows.values():
                kept.keep_idle(flow.tenant, flow.start_tag)
        return lane

    def append(self, ticket: Ticket) -> bool:
        """Let the ticket join the line of its tenant; False: it goes behind what was there in any case."""
        class_plan, tenant = ticket.assignment.class_plan, ticket.tenant
        lines = self._classes.get(class_plan.name) or self._new_lines(class_plan)
        flow = lines.flow_of(tenant)
        self.requests += 1
        if not flow.append(ticket):
            return False
        self._lift(lines)
        self._refile(lines, flow)
        return True

    def put_back(self, ticket: Ticket) -> bool:
        """Return a ticket to the head of its flow and give its cost back to flow and class; True, as `append` says."""
        class_plan, tenant = ticket.assignment.class_plan, ticket.tenant
        lines = self._classes.get(class_plan.name) or self._new_lines(class_plan)
        flow = lines.flow_of(tenant)
        self.requests += 1
        self._lift(lines)
        flow.put_back(ticket)
        flow.start_tag -= ticket.cost_s
        lines.start_tag -= ticket.cost_s / lines.plan.weight
        self._refile(lines, flow)
        return True

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket that ends without being served."""
        lines = self._classes[ticket.assignment.class_plan.name]
        flow = lines.flows[ticket.tenant.name]
        flow.remove(ticket)
        self.requests -= 1
        self._refile(lines, flow)

    def oldest_of_flow(self, ticket: Ticket) -> Ticket:
        """Return the oldest that waits of the ticket's own tenant and class; the ticket itself waits."""
        head = self._classes[ticket.assignment.class_plan.name].flows[ticket.tenant.name].head
        assert head is not None, "the ticket itself waits there"
        return head

    def serve(self, ticket: Ticket) -> None:
        """Take out a ticket for dispatch and charge its cost to flow and class."""
        lines = self._classes[ticket.assignment.class_plan.name]
        flow = lines.flows[ticket.tenant.name]
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
        self._rank(lines)
        flow = lines.flows.get(ticket.assignment.tenant)
        if flow is None:
            return
        if flow.head is None:
            flow.start_tag -= cost_s
        else:
            flow.start_tag = _refunded(flow.start_tag, cost_s, lines.virtual_time)
            self._refile(lines, flow)

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
            self._rank(lines)

    def bring_back(self, tenant: Tenant) -> None:
        """Serve a tenant again; the service it missed while it was at its own bound is not paid back."""
        lines = self._classes.get(tenant.class_plan.name)
        flow = None if lines is None else lines.flows.get(tenant.name)
        if lines is not None and flow is not None and flow.head is not None:
            self._lift(lines)
            flow.start_tag = max(flow.start_tag, lines.virtual_time)
            self._refile(lines, flow)

    def _find_first(self) -> Flow | None:
        best: _ClassLines | None = None
        for lines in self._classes.values():
            if lines.key is not None and (best is None or lines.key < best.key):
                best = lines
        return None if best is None or best.ready.first is None else best.ready.first[2]

    def _new_lines(self, class_plan: ClassPlan) -> _ClassLines:
        lines = self._classes[class_plan.name] = _ClassLines(class_plan, flow_kind(self._order, class_plan))
        return lines

    def _lift(self, lines: _ClassLines) -> None:
        """A class that had nothing to serve starts at the virtual time: it saved up no credit."""
        if lines.ready.first is None:
            lines.start_tag = max(self._virtual_time, lines.start_tag)

    def _refile(self, lines: _ClassLines, flow: Flow) -> None:
        """Put a flow whose head or tag changed in its place; nobody's is where nobody waits."""
        if flow.head is None:
            lines.ready.discard(flow)
            lines.rests()
        elif not flow.tenant.is_set_aside:
            lines.ready.push(flow, self._order.flow_key(flow))
        self._rank(lines)

    def _rank(self, lines: _ClassLines) -> None:
        """Put a class whose first flow or tag changed in its place."""
        self._first_is_known = False
        first = lines.ready.first
        lines.key = None if first is None else self._order.class_key(lines.plan, lines.start_tag, first[2])


def _refunded(tag: float, amount: float, virtual_time: float) -> float:
    """Lower a tag, but not below the virtual time: what was forgiven when a flow came back is not paid out later."""
    return max(tag - amount, min(tag, virtual_time))
