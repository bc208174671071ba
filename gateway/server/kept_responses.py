"""Which engine keeps a response, and for whom.

Owns a bounded map from the ids that engines gave out to their engine and tenant; the oldest go first, and where a
tenant has its share its own oldest. A response is there for its own tenant alone: to others it does not exist.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gateway.core.types import Reason, Refusal
from gateway.engines.target import Target
from gateway.server.refusing import Refusing

KEPT_MAX = 1 << 16
KEPT_OF_TENANT_MAX = KEPT_MAX // 8


@dataclass(frozen=True, slots=True)
class _Place:
    engine: Target
    tenant: str


class KeptResponses:
    """Knows the last KEPT_MAX responses, of one tenant the last KEPT_OF_TENANT_MAX."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._ids: defaultdict[str, dict[str, None]] = defaultdict(dict)  # by tenant, the oldest first

    def made(self, response_id: str, *, engine: Target, tenant: str) -> None:
        """Take in that an engine has begun this response for this tenant."""
        # Whoever had the id first keeps it: an engine that repeats one must not hand a response to another tenant.
        if response_id in self._places:
            return
        self._places[response_id] = _Place(engine, tenant)
        self._ids[tenant][response_id] = None
        if len(self._ids[tenant]) > KEPT_OF_TENANT_MAX:
            self._forget(next(iter(self._ids[tenant])))
        if len(self._places) > KEPT_MAX:
            self._forget(next(iter(self._places)))

    def engine_of(self, response_id: str, tenant: str, *, param: str = "response_id") -> Target:
        """Return the engine, as it was then, that keeps the tenant's response. Raises Refusing."""
        place = self._places.get(response_id)
        if place is None or place.tenant != tenant:
            message = "There is no such response of yours here."
            raise Refusing(Refusal(Reason.UNKNOWN_ROUTE, message, code="response_not_found", param=param))
        return place.engine

    def _forget(self, response_id: str) -> None:
        tenant = self._places.pop(response_id).tenant
        del self._ids[tenant][response_id]
        if not self._ids[tenant]:
            del self._ids[tenant]
