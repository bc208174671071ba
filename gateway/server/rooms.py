"""Everything that the walk of a request needs, wired once.

Owns nothing but the references, and what is asked of two parts in a row; each part owns itself. `plan` is replaced as
a whole when a policy is put in force: a request pins the one it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.core.plan import Plan
from gateway.core.types import Reason, Refusal
from gateway.counting.counter import TokenCounter
from gateway.engines.canary import Canary
from gateway.engines.pool import ModelPools, Pool, Pools
from gateway.engines.watch import EngineWatch
from gateway.identity.keyring import Keyring
from gateway.identity.tokens import Tokens
from gateway.observe.metrics import Observer
from gateway.server.clock import LoopClock
from gateway.server.ending import Ending
from gateway.server.gate import Gate
from gateway.server.intake import IntakeBounds
from gateway.server.kept_responses import KeptResponses
from gateway.server.refusing import Refusing
from gateway.server.shadows import Shadows
from gateway.server.upstream import Upstream

if TYPE_CHECKING:
    from gateway.observe.tracing import Tracing


@dataclass(slots=True)
class Rooms:
    """gates and counters are by pool, watches by engine. tokens: None where no issuer is configured. tracing:
    None while it is off.

    A pool or an engine that left the configuration stays here until its last request has ended.
    """

    plan: Plan
    keyring: Keyring
    tokens: Tokens | None
    pools: Pools
    counters: Mapping[str, TokenCounter]
    gates: dict[str, Gate]
    canary: Canary
    watches: dict[str, EngineWatch]
    upstream: Upstream
    observer: Observer
    clock: LoopClock
    ending: Ending
    kept_responses: KeptResponses
    shadows: Shadows
    intake: IntakeBounds
    allowed_engine_fields: frozenset[str]
    client_stall_s: float
    one_request_a_connection: bool
    tracing: Tracing | None = None

    def answering(self, pools: ModelPools) -> Pool:
        """Return the pool to ask about a model where length does not matter: one with an engine up, if there is one."""
        up = {watch.target.pool for watch in self.watches.values() if watch.health.is_up}
        return next((pool for pool in pools if pool.name in up), pools.short)

    def keeper_of(self, response_id: str, tenant: str, pools: ModelPools | None = None) -> EngineWatch:
        """Return the engine that keeps a tenant's response. Raises Refusing.

        pools: those of which one is to go on from it; None: it is only asked about.
        """
        param = "response_id" if pools is None else "previous_response_id"
        kept_by = self.kept_responses.engine_of(response_id, tenant, param=param)
        watch = self.watches.get(kept_by.name)  # none, or another's name by now, after a reload
        if watch is None or watch.target.url != kept_by.url or not watch.health.is_up:
            raise Refusing(Refusal(Reason.NO_ENGINE, "The engine that made this response is not there now."))
        if pools is not None and watch.target.pool not in {pool.name for pool in pools}:
            message = "The response was made by another pool of engines than serves this model."
            raise Refusing(Refusal(Reason.BAD_REQUEST, message, code="invalid_value", param=param))
        return watch
