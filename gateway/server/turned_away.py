"""Connections over a port's bound: told so, and closed without losing the answer.

Owns them from their first moment to their last; there are few, for a short time. A connection that is closed while
bytes of its client wait unread is reset, and the reset can overtake the answer: so it is half closed first, and what
comes is read and thrown away for a moment. Where too many are being told at once, the next ones are only cut.
"""

from __future__ import annotations

import asyncio
from typing import cast

from gateway.core.types import Reason, Refusal
from gateway.server.refusing import spread
from gateway.server.request_ids import new_request_id
from gateway.wire import refusals
from gateway.wire.dialects import Dialect

LINGER_S_MAX = 1.0
TOLD_MAX = 256
READ_BYTES_MAX = 1 << 18


class TurnedAway:
    """All of one port's."""

    def __init__(self) -> None:
        self._told: set[_Connection] = set()

    def take(self, transport: asyncio.Transport) -> None:
        """Have a connection that was just made; nothing was read of it."""
        if len(self._told) < TOLD_MAX:
            connection = _Connection(self._told)
            transport.set_protocol(connection)
            connection.connection_made(transport)
        else:
            transport.abort()

    def cut(self) -> None:
        for connection in list(self._told):
            connection.cut()


class _Connection(asyncio.Protocol):
    def __init__(self, told: set[_Connection]) -> None:
        self._told = told
        self._read_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._told.add(self)
        self._limit = asyncio.get_running_loop().call_later(LINGER_S_MAX, self.cut)
        self._transport.write(_overloaded())
        self._transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._read_bytes += len(data)
        if self._read_bytes > READ_BYTES_MAX:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it went
        self._limit.cancel()
        self._told.discard(self)

    def cut(self) -> None:
        self._transport.abort()


def _overloaded() -> bytes:
    message = "This gateway has as many connections as it may have."
    refusal = spread(Refusal(Reason.OVERLOADED, message))
    answer = refusals.render(refusal, dialect=Dialect.OPENAI, request_id=new_request_id(), close=True)
    lines = [f"{name}: {value}" for name, value in answer.headers.items()]
    lines += ["Server: gateway", f"Content-Length: {len(answer.body)}"]
    head = "\r\n".join([f"HTTP/1.1 {answer.status} Service Unavailable", *lines])
    return head.encode() + b"\r\n\r\n" + answer.body
