"""Connections to engines, each knowing what happened on it: how often it was used, and whether a byte came back.

Owns the pool's settings: no limit of its own (admission is the only queue), idle connections dropped before vLLM
closes them after 5 s. Reaches into aiohttp at three points that have no public name, all covered by tests.
"""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import BadHttpMessage

if TYPE_CHECKING:
    from aiohttp.client import ClientTimeout
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

IDLE_S_MAX = 4.0
DNS_CACHE_S = 5
_HEAD_END = b"\r\n\r\n"
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")


class Attempt:
    """One request on one connection. reused: it had carried a request before. on_new_connection: it must not have."""

    __slots__ = ("_handler", "_taken_at", "_transport", "on_new_connection", "reused")

    def __init__(self, *, on_new_connection: bool = False) -> None:
        self.on_new_connection = on_new_connection
        self._handler: NotedHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._taken_at = 0.0
        self.reused = False

    def takes(self, handler: NotedHandler) -> None:
        self._handler, self._transport = handler, handler.transport
        self.reused = handler.requests > 0
        handler.requests += 1
        handler.expect_answer()
        self._taken_at = asyncio.get_running_loop().time()

    @property
    def age_s(self) -> float:
        """Seconds since the connection was taken for this request."""
        return asyncio.get_running_loop().time() - self._taken_at

    @property
    def heard_nothing(self) -> bool:
        """Whether not one byte of an answer came."""
        return self._handler is None or self._handler.bytes_back == 0

    def abort(self) -> None:
        """Throw the connection away at once, unsent bytes and all: the engine sees its client leave.

        Only while the connection carries this request: it may carry another once the whole answer has come.
        """
        if self._transport is not None:
            self._transport.abort()


# Set by whoever sends, read where the connection is found: aiohttp hands nothing through.
current_attempt: ContextVar[Attempt] = ContextVar("current_attempt")


class NotedHandler(ResponseHandler):
    """An engine connection that counts its requests and the bytes that came back for the last one.

    Stricter than aiohttp, whose parser takes an answer's head with bare line feeds, and to which an answer that ends
    with its connection is complete however the connection ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests = 0
        self.bytes_back = 0
        self._head: bytes | None = None

    def expect_answer(self) -> None:
        self.bytes_back = 0
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self.bytes_back += len(data)
        if self._head is not None and not self._is_head_well(data):
            self._head = None
            self.set_exception(BadHttpMessage("a bare line feed inside the head"))
            return
        super().data_received(data)
        # aiohttp tells a parser's failure to whoever awaits the next head, and lets whoever reads this body wait for
        # ever.
        if self._exception is not None and self._payload is not None and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError("the body's framing is wrong"))

    def connection_lost(self, exc: BaseException | None) -> None:
        payload = self._payload
        if exc is not None and payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(aiohttp.ClientPayloadError("the connection was lost inside the answer"))
        super().connection_lost(exc)

    def _is_head_well(self, data: bytes) -> bool:
        """Look at the answer's head until it has ended."""
        assert self._head is not None
        head = self._head + data
        end = head.find(_HEAD_END)
        self._head = head if end < 0 else None
        return _BARE_LINE_FEED.search(head, 0, len(head) if end < 0 else end) is None


class EngineConnector(aiohttp.TCPConnector):
    """The pool of connections to engines."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=IDLE_S_MAX, ttl_dns_cache=DNS_CACHE_S)
        self._factory: Any = lambda: NotedHandler(self._loop)

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:  # noqa: ASYNC109 - aiohttp's signature
        if current_attempt.get().on_new_connection:
            self._close_kept(req)
        connection = await super().connect(req, traces, timeout)
        assert isinstance(connection.protocol, NotedHandler)
        current_attempt.get().takes(connection.protocol)
        return connection

    def _close_kept(self, req: ClientRequest) -> None:
        """Close the idle connections to this request's engine."""
        for handler, _ in self._conns.pop(req.connection_key, ()):
            handler.close()


def engine_session() -> aiohttp.ClientSession:
    """Make the one session to all engines: no total time limit, no cookies, nothing added, nothing decoded."""
    return aiohttp.ClientSession(
        connector=EngineConnector(),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


class Body(aiohttp.BytesPayload):
    """A request body that is in memory anyway: sent as it is, whatever its size."""

    def __init__(self, value: bytes) -> None:
        super().__init__(b"")
        self._value = value
        self._size = len(value)
