"""A port below its handler: connections, and the answers that no handler can give. The public one and ops are two.

Owns the number of connections, what a request that is not HTTP is told, and what a crash of our own is told. Echoes
nothing of what was sent: part of a header can be part of a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import structlog
from aiohttp import HttpVersion10, HttpVersion11, http_parser, web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo

from gateway.core.types import Reason, Refusal
from gateway.server.downstream import BEGUN, AnswerBrokenOff
from gateway.server.intake import FOREIGN_VERSION
from gateway.server.request_ids import REQUEST_ID, new_request_id
from gateway.server.taking import Taking, have_absence_noticed
from gateway.server.turned_away import LINGER_S_MAX, TurnedAway
from gateway.wire import refusals
from gateway.wire.dialects import Dialect

HEADERS_MAX = 128
_PLAIN_END = b"\r\n0\r\n\r\n"  # of a chunked body without trailers: no line of theirs could be this
_SPOKEN = frozenset({HttpVersion10, HttpVersion11})
_CRASHED = (
    b'{"error":{"message":"The gateway failed on this request.","type":"api_error","param":null,'
    b'"code":"internal_error"}}'
)

# aiohttp's parser in Python reads some requests otherwise than the compiled one, and takes what that one refuses.
HAS_COMPILED_PARSER = http_parser.HttpRequestParser is not http_parser.HttpRequestParserPy

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class PortBounds:
    """keepalive_s: also how long the head of a request may take, from the connection's beginning or the last answer.

    stall_s: how long a client may take nothing of what is left for it once its connection is over.
    """

    connections_max: int
    header_bytes_max: int
    keepalive_s: float
    stall_s: float


class Front(web.Server):
    """aiohttp's low-level server with the gateway's own connections. One handler, no router.

    refused: told of each connection beyond the bound. answered: told the status of what no handler answered.
    """

    def __init__(
        self, handler: Handler, bounds: PortBounds, refused: Callable[[], None], answered: Callable[[int], None]
    ) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,  # a client that leaves cancels its request: the default is not to
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=bounds.keepalive_s,
            lingering_time=LINGER_S_MAX,
            max_line_size=bounds.header_bytes_max,
            max_field_size=bounds.header_bytes_max,
            max_headers=HEADERS_MAX,
        )
        self.refused = refused
        self.answered = answered
        self.connections_max = bounds.connections_max
        self.stall_s = bounds.stall_s
        self.turned_away = TurnedAway()

    def __call__(self) -> RequestHandler:
        return FrontConnection(self, loop=self._loop, **self._kwargs)

    def _make_request(self, message: http_parser.RawRequestMessage, *rest: Any) -> web.BaseRequest:
        request = super()._make_request(message, *rest)
        if message.version not in _SPOKEN:
            request[FOREIGN_VERSION] = True
            request._version = HttpVersion11  # noqa: SLF001 - aiohttp would answer in the version that it was asked in
        return request

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's signature
        self.turned_away.cut()
        await super().shutdown(timeout)

    def close_idle(self) -> None:
        """Close every connection on which no request is under way."""
        for connection in self.connections:
            cast("FrontConnection", connection).close_if_idle()


class FrontConnection(RequestHandler):
    """One client connection."""

    __slots__ = ("_front", "_last_bytes", "_socket", "_taking")

    def __init__(self, front: Front, **options: Any) -> None:
        super().__init__(front, **options)
        self._front = front
        self._last_bytes = b""
        self._taking: Taking | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._front.connections) < self._front.connections_max:
            self._socket = cast("asyncio.Transport", transport)
            have_absence_noticed(self._socket, self._front.stall_s)
            super().connection_made(transport)
            return
        self._front.refused()
        self._force_close = True
        self._front.turned_away.take(cast("asyncio.Transport", transport))

    async def start(self) -> None:
        """Serve one request after the other. aiohttp closes then, and waits for ever for one that does not read."""
        try:
            await super().start()
        finally:
            if self._manager is not None and self._socket.get_write_buffer_size():  # without one it is lost already
                self._taking = Taking(self._socket, self._front.stall_s, self._socket.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._taking is not None:
            self._taking.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends nothing more: it is gone, and the connection is closed.

        It might still read. But as long as nothing can be written to it, one that closed both halves looks the same,
        and would keep its place and the engine busy. vLLM's own server decides alike.
        """

    @property
    def ends_plainly(self) -> bool:
        """Whether a chunked body that has ended had no trailers, and nothing has come behind it.

        aiohttp's parser makes the last trailer a header of the connection's next request, which another caller may have
        sent by way of the same proxy.
        """
        return self._last_bytes == _PLAIN_END

    def data_received(self, data: bytes) -> None:
        self._last_bytes = (self._last_bytes + data[-len(_PLAIN_END) :])[-len(_PLAIN_END) :]
        super().data_received(data)
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._break_body_off()

    def _break_body_off(self) -> None:
        """Tell whoever reads the body under way that its framing went wrong.

        aiohttp tells it to whoever awaits the next request alone, and lets the reader of this body wait.
        """
        current = self._current_request
        body = self._messages[-2][1] if len(self._messages) > 1 else None if current is None else current.content
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(RequestPayloadError("the body's framing is wrong"))
            body.feed_eof()  # nothing of it comes any more: aiohttp is not to wait for a rest

    def pause_reading(self) -> None:
        """Stop reading for a slow request body; a connection that cannot be read cannot tell that its client left.

        So a body is held back only for the request that is being answered. One that waits behind an unanswered
        request is more than a client may send ahead.
        """
        current = self._current_request
        if current is not None and current.content.is_eof():
            self.force_close()
        else:
            super().pause_reading()

    def _pause_reading_for_buffer(self) -> None:
        """More requests were sent ahead than are kept; not reading on would hide that the client left."""
        self.force_close()

    def close_if_idle(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes what was sent
    ) -> web.StreamResponse:
        """Answer where the walk could not: a request that is not HTTP (400), or a crash of our own (500)."""
        if isinstance(exc, AnswerBrokenOff):
            raise ConnectionError("closing without an end mark") from exc
        if status < 500:
            answer = _not_http()
        else:
            request_id = request.get(REQUEST_ID) or new_request_id()
            structlog.get_logger().error("handler_crashed", request_id=request_id, exc_info=exc)
            if BEGUN in request:
                raise ConnectionError("the crash came inside an answer") from exc
            headers = {"Content-Type": "application/json", "x-request-id": request_id, "x-should-retry": "false"}
            answer = refusals.Rendered(500, headers, _CRASHED)
        self._front.answered(answer.status)
        response = web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        response.headers["Server"] = "gateway"
        response.force_close()
        return response


def _not_http() -> refusals.Rendered:
    refusal = Refusal(Reason.BAD_REQUEST, "This is not a well-formed HTTP request.", code="malformed_http")
    return refusals.render(refusal, dialect=Dialect.OPENAI, request_id=new_request_id(), close=True)
