"""Which flow goes next: arrival, strict priority, weighted fair, earliest deadline.

An order is two keys, least first: one among the service classes of a lane, one among the tenants of a class; and the
kind of flow that a tenant's line is. It never sees budgets. Weighted fair is start-time fair queueing (Goyal, Vin,
Cheng 1997) in two levels; its tags are kept by the lane for every order, so that a reload from one order to another
keeps the fairness state.
"""

from __future__ import annotations

from typing import Any, Protocol, assert_never

from gateway.core.line import EarliestDeadlineFlow, Flow, NewestFirstFlow
from gateway.core.plan import ClassPlan, OrderKind
from gateway.core.ticket import Ticket


class Order(Protocol):
    """Keys of one order must compare with each other; flows of equal keys go in the order they were filed."""

    def flow_key(self, flow: Flow) -> Any:
        """Order the tenants of one service class; `flow` is not empty."""

    def class_key(self, plan: ClassPlan, start_tag: float, first: Flow) -> Any:
        """Order the service classes of one lane; `first` is the class's first tenant by `flow_key`."""


class Arrival:
    """First offered, first out, across classes and tenants."""

    def flow_key(self, flow: Flow) -> Any:
        return _head(flow).id

    def class_key(self, plan: ClassPlan, start_tag: float, first: Flow) -> Any:  # noqa: ARG002 - the protocol's
        return _head(first).id


class StrictPriority:
    """The highest class that waits goes first, always; inside a class by arrival. Lower classes may starve."""

    def flow_key(self, flow: Flow) -> Any:
        return _head(flow).id

    def class_key(self, plan: ClassPlan, start_tag: float, first: Flow) -> Any:  # noqa: ARG002 - the protocol's
        return plan.rank


class WeightedFair:
    """Each backlogged class is served in proportion to its weight, each tenant of a class alike."""

    def flow_key(self, flow: Flow) -> Any:
        return flow.start_tag

    def class_key(self, plan: ClassPlan, start_tag: float, first: Flow) -> Any:  # noqa: ARG002 - the protocol's
        return (start_tag, plan.rank)


class EarliestDeadline:
    """The head whose wait deadline comes first."""

    def flow_key(self, flow: Flow) -> Any:
        return _head(flow).deadline

    def class_key(self, plan: ClassPlan, start_tag: float, first: Flow) -> Any:  # noqa: ARG002 - the protocol's
        return _head(first).deadline


def _head(flow: Flow) -> Ticket:
    assert flow.head is not None, "a flow in order is not empty"
    return flow.head


def flow_kind(order: Order, plan: ClassPlan) -> type[Flow]:
    """Return how one tenant's requests stand behind each other: as they came, unless order or class say otherwise."""
    if isinstance(order, EarliestDeadline):
        return EarliestDeadlineFlow
    return NewestFirstFlow if plan.queue.newest_first_in_overload else Flow


def order_of(kind: OrderKind) -> Order:
    match kind:
        case OrderKind.ARRIVAL:
            return Arrival()
        case OrderKind.STRICT_PRIORITY:
            return StrictPriority()
        case OrderKind.WEIGHTED_FAIR:
            return WeightedFair()
        case OrderKind.EARLIEST_DEADLINE:
            return EarliestDeadline()
        case _:
            assert_never(kind)
