"""Everything that the walk of a request needs, wired once.

Owns nothing but the references; each part owns itself. `plan` is replaced as a whole when a policy is put in force: a
request pins the one it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.plan import Plan
from gateway.counting.counter import TokenCounter
from gateway.engines.canary import Canary
from gateway.engines.pool import Pools
from gateway.engines.watch import EngineWatch
from gateway.identity.keyring import Keyring
from gateway.identity.tokens import Tokens
from gateway.observe.metrics import Observer
from gateway.server.clock import LoopClock
from gateway.server.ending import Ending
from gateway.server.gate import Gate
from gateway.server.intake import IntakeBounds
from gateway.server.kept_responses import KeptResponses
from gateway.server.shadows import Shadows
from gateway.server.upstream import Upstream


@dataclass(slots=True)
class Rooms:
    """gates and counters are by pool, watches by engine. tokens: None where no issuer is configured.

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
