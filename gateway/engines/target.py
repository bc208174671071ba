"""One engine as the gateway reaches it, and the HTTP that this room needs, as a protocol.

Owns no connection: gateway.server implements `EngineHttp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gateway.core.types import EngineLimits


class Scheduling(StrEnum):
    """How the engine orders its own queue: as stated, or to be proved by its behaviour."""

    PRIORITY = "priority"
    FCFS = "fcfs"
    PROBE = "probe"


class Carrier(StrEnum):
    """Where a priority is written: X-Vllm-Priority, the body's `priority`, or by the engine's version."""

    HEADER = "header"
    BODY = "body"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect; from dispatch to the first byte of an answer; between two chunks. No total."""

    connect_s: float
    first_byte_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Target:
    """One engine. api_key is sent upstream and shown nowhere. weight: as the file states its share of requests.

    models: those of its pool, as the file states them.
    """

    name: str
    url: str
    pool: str
    scheduling: Scheduling
    carrier: Carrier
    limits: EngineLimits
    timeouts: Timeouts
    api_key: str | None = field(default=None, repr=False)
    weight: float = 1.0
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer to one of the gateway's own questions."""

    status: int
    body: bytes


class EngineUnreachable(Exception):  # noqa: N818 - the domain's word
    """The engine refused the connection, or none came about in time."""


class EngineSilent(Exception):  # noqa: N818 - the domain's word
    """The engine took the connection and gave no whole answer in time."""


class EngineNotAsked(EngineSilent):
    """The gateway had no socket left to ask with: there is no answer, and it says nothing of the engine."""


class EngineHttp(Protocol):
    """The gateway's own questions to an engine, with the engine's key. Raises EngineUnreachable or EngineSilent."""

    async def get(self, target: Target, path: str, *, timeout_s: float) -> Answer: ...

    async def post_json(
        self, target: Target, path: str, value: Any, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Answer: ...
