"""Which engine keeps a response, and for whom.

Owns a bounded map from the ids that engines gave out to their engine and tenant; the oldest go first. A response is
there for its own tenant alone: to others it does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.types import Reason, Refusal
from gateway.engines.target import Target
from gateway.server.refusing import Refusing

KEPT_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class _Place:
    engine: Target
    tenant: str


class KeptResponses:
    """Knows the last KEPT_MAX responses."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    def made(self, response_id: str, *, engine: Target, tenant: str) -> None:
        """Take in that an engine has begun this response for this tenant."""
        # Whoever had the id first keeps it: an engine that repeats one must not hand a response to another tenant.
        self._places.setdefault(response_id, _Place(engine, tenant))
        while len(self._places) > KEPT_MAX:
            del self._places[next(iter(self._places))]

    def engine_of(self, response_id: str, tenant: str, *, param: str = "response_id") -> Target:
        """Return the engine, as it was then, that keeps the tenant's response. Raises Refusing."""
        place = self._places.get(response_id)
        if place is None or place.tenant != tenant:
            message = "There is no such response of yours here."
            raise Refusing(Refusal(Reason.UNKNOWN_ROUTE, message, code="response_not_found", param=param))
        return place.engine
