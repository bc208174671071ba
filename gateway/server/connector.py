"""Connections to engines, each knowing what happened on it: how often it was used, and whether a byte came back.

Owns the pool's settings: no limit of its own (admission is the only queue), idle connections dropped before vLLM
closes them after 5 s. aiohttp resolves, connects, keeps and parses; its session is left out, because what it does for
each request costs more than all the gateway does. Reaches into aiohttp where there is no public name, all covered by
tests.
"""

from __future__ import annotations

import asyncio
import math
import re
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http_exceptions import BadHttpMessage
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.http_parser import RawResponseMessage

IDLE_S_MAX = 4.0
DNS_CACHE_S = 5
_ORIGINS_MAX = 1024
_HEAD_END = b"\r\n\r\n"
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")


class NotedHandler(ResponseHandler):
    """An engine connection that counts its requests and the bytes that came back for the last one.

    listener: called whenever something came of an answer's body: bytes, its end, a failure.

    Stricter than aiohttp, whose parser takes an answer's head with bare line feeds, and to which an answer that ends
    with its connection is complete however the connection ended. What comes unasked ends the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests = 0
        self.bytes_back = 0
        self.listener: Callable[[], None] | None = None
        self._head: bytes | None = None
        self._is_asked = False
        self._was_paused = False

    def expect_answer(self) -> None:
        self.requests += 1
        self.bytes_back = 0
        self._head = b""
        self._is_asked, self._was_paused = True, False
        self._payload = self.listener = None  # the last answer may still be read
        # A parser of its own for each answer: what the last one left in it, a trailer or half a head, would be in this.
        self.set_response_params(read_until_eof=True, auto_decompress=False)

    def has_answered(self) -> None:
        self._is_asked = False

    def data_received(self, data: bytes) -> None:
        if data and not self._is_asked:
            self.abort()
            return
        self.bytes_back += len(data)
        if self._head is not None and not self._is_head_well(data):
            self._head = None
            self.set_exception(BadHttpMessage("a bare line feed inside the head"))
            return
        super().data_received(data)
        # aiohttp tells a parser's failure to whoever awaits the next head, and lets whoever reads this body wait for
        # ever.
        if self._exception is not None:
            self._break_off("the body's framing is wrong")
        if self.listener is not None:
            self.listener()

    def pause_reading(self) -> None:
        self._was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on where reading was paused: aiohttp asks for it after every read.

        What the parser had put aside comes at once, in the middle of that read, and is told after it. A parser that was
        paused between two chunks puts aside what comes after it was resumed, too: from the first pause on every read
        has it go on.
        """
        if self._was_paused:
            listener, self.listener = self.listener, None
            super().resume_reading(resume_parser)
            self.listener = listener
            if listener is not None:
                self._loop.call_soon(listener)

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:
            self._break_off("the connection was lost inside the answer")
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener()

    def _break_off(self, why: str) -> None:
        """Tell whoever reads a body that has not ended."""
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError(why))

    def _is_head_well(self, data: bytes) -> bool:
        """Look at the answer's head until it has ended."""
        assert self._head is not None
        head = self._head + data
        end = head.find(_HEAD_END)
        self._head = head if end < 0 else None
        return _BARE_LINE_FEED.search(head, 0, len(head) if end < 0 else end) is None


class Attempt:
    """One request on one connection, from when that is taken until the whole answer has come or it is thrown away.

    reused: the connection had carried a request before.
    """

    __slots__ = ("_connection", "_taken_at", "_transport", "handler", "reused")

    def __init__(self, connection: Connection) -> None:
        handler = connection.protocol
        assert isinstance(handler, NotedHandler)
        assert handler.transport is not None, "it was connected an instant ago"
        self._connection: Connection | None = connection
        self._transport = handler.transport
        self._taken_at = asyncio.get_running_loop().time()
        self.handler = handler
        self.reused = handler.requests > 0

    async def send(self, head: bytes, body: bytes) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        """Send a request; return the answer's head and its body as it comes. Raises what aiohttp's parser does."""
        handler = self.handler
        handler.expect_answer()
        self._transport.writelines((head, body))
        while True:
            message, payload = await handler.read()
            if not 100 <= message.code < 200 or message.code == 101:
                break
        payload.on_eof(self._has_ended)
        return message, payload

    @property
    def age_s(self) -> float:
        """Seconds since the connection was taken for this request."""
        return asyncio.get_running_loop().time() - self._taken_at

    @property
    def heard_nothing(self) -> bool:
        """Whether not one byte of an answer came."""
        return self.handler.bytes_back == 0

    def abort(self) -> None:
        """Throw the connection away at once, unsent bytes and all: the engine sees its client leave.

        Does nothing once the whole answer has come: the connection may carry another request then.
        """
        if self._connection is not None:
            self._transport.abort()
            self._connection.close()
            self._connection = None

    def _has_ended(self) -> None:
        if self._connection is None:
            return
        if self._transport.get_write_buffer_size():
            self.abort()  # it answered before it had the whole request, and may never take the rest
            return
        self.handler.has_answered()
        self._connection.release()
        self._connection = None


class Origin:
    """An engine's address as aiohttp's connector asks a request for it, and as a Host header states it."""

    proxy = proxy_headers = server_hostname = None
    ssl = True

    def __init__(self, url: str) -> None:
        self.url = URL(url)
        host, port = self.url.raw_host, self.url.port
        assert host is not None
        assert port is not None
        self.host, self.port = host, port
        self.connection_key = ConnectionKey(host, port, self.is_ssl(), self.ssl, None, None, None)
        self.host_header = self.url.host_port_subcomponent or host

    def is_ssl(self) -> bool:
        return self.url.scheme == "https"


@lru_cache(_ORIGINS_MAX)
def origin_of(url: str) -> Origin:
    return Origin(url)


class EngineConnections(aiohttp.TCPConnector):
    """The pool of connections to engines."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=IDLE_S_MAX, ttl_dns_cache=DNS_CACHE_S)
        self._factory: Any = lambda: NotedHandler(self._loop)

    async def __aenter__(self) -> Self:
        return self

    def kept(self, origin: Origin) -> Attempt | None:
        """Take a connection that is open already; None: there is none."""
        kept = self._conns.get(origin.connection_key)
        while kept:
            handler, since = kept.pop()
            if monotonic() - since <= IDLE_S_MAX and handler.is_connected() and not handler.should_close:
                self._acquired.add(handler)
                return Attempt(Connection(self, origin.connection_key, handler, self._loop))
            handler.close()
        return None

    async def made(self, origin: Origin, *, connect_s: float) -> Attempt:
        """Make a connection; the idle ones are closed before. Raises what aiohttp's connector does."""
        for handler, _ in self._conns.pop(origin.connection_key, ()):
            handler.close()
        timeout = aiohttp.ClientTimeout(connect=connect_s, ceil_threshold=math.inf)
        return Attempt(await self.connect(cast("ClientRequest", origin), [], timeout))
