"""One request on the public port, as every step of its walk sees it: what is learned of it is filled in as it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.core.types import Identity
from gateway.observe.exchange import Aside, Exchange
from gateway.server.downstream import Downstream
from gateway.server.ending import Service
from gateway.wire.dialects import Dialect

if TYPE_CHECKING:
    from gateway.observe.tracing import Trace


@dataclass(slots=True)
class Visit:
    """identity: None until it is known who asks. exchange: None outside the generation routes, aside: None on them.

    trace: None where tracing is off.
    """

    request: web.BaseRequest
    request_id: str
    dialect: Dialect
    client: Downstream
    service: Service
    identity: Identity | None = None
    exchange: Exchange | None = None
    trace: Trace | None = None
    aside: Aside | None = None
