"""The client's end of one exchange: what has been told to it, and how it is told more.

Owns the one response of a request: nothing yet, committed (status and headers are out), or ended. A client that takes
nothing for `stall_s` while bytes wait is cut off, so what the gateway holds for it stays within the transport's own
buffer and one chunk. Never ends a broken answer cleanly: `break_off` closes without the end mark.

Writes the answer itself: the bytes of an answer are known here, and aiohttp's own way to them costs several times what
they do. aiohttp is told only that there is one, and whether its connection goes on.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from gateway.server.taking import Taking
from gateway.wire.sse import StreamTap

if TYPE_CHECKING:
    from gateway.server.front import FrontConnection

LAST_WORDS_S_MAX = 5.0

Headers = Iterable[tuple[str, str]]


class ClientGone(Exception):  # noqa: N818 - the domain's word
    """The client closed its connection, or took nothing for too long."""


class AnswerBrokenOff(Exception):  # noqa: N818 - tells the connection to close without an end mark
    """The answer is incomplete and must look so."""


BEGUN = web.RequestKey("begun", bool)  # set on a request of whose answer some bytes have left
_CLOSING_RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
_CHUNKS_END = b"0\r\n\r\n"
_WITHOUT_BODY = frozenset({204, 304})
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Written(web.StreamResponse):
    """An answer that has been written: all that is left of it for aiohttp to know."""

    def __init__(self, status: int, *, keeps_alive: bool) -> None:
        super().__init__(status=status)
        self._keep_alive = keeps_alive

    async def prepare(self, _request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, _data: bytes = b"") -> None:
        """Do nothing."""


class Downstream:
    """Writes one response. Methods raise ClientGone where the client does not take it.

    is_last_here: whether connections end with their answers just now; asked when the answer is committed, which may be
    long after the request began. tap: reads a stream along, and so knows where it broke.
    """

    def __init__(self, request: web.BaseRequest, *, stall_s: float, is_last_here: Callable[[], bool]) -> None:
        self._request = request
        self._stall_s = stall_s
        self._is_last_here = is_last_here
        self._is_last = False
        self.tap: StreamTap | None = None
        self.response: Written | None = None
        self._unsent_head = b""
        self._is_chunked = False
        self._ends_with_connection = False
        self.status: int | None = None

    @property
    def is_committed(self) -> bool:
        return self.response is not None

    def close_after(self) -> None:
        """End the connection with this answer."""
        self._is_last = True

    def commit(self, status: int, headers: Headers, *, content_length: int | None = None) -> None:
        """Fix status and headers; they leave with the first bytes of the body."""
        assert self.response is None, "one request has one answer"
        request, lines = self._request, [f"{name}: {value}" for name, value in headers]
        is_current = request.version >= HttpVersion11
        keeps_alive = request.keep_alive and not self._closes()
        if status in _WITHOUT_BODY:
            pass
        elif content_length is not None:
            lines.append(f"Content-Length: {content_length}")
        else:
            self._is_chunked, self._ends_with_connection = is_current, not is_current
            keeps_alive = keeps_alive and is_current
            if is_current:
                lines.append("Transfer-Encoding: chunked")
        if keeps_alive != is_current:
            lines.append("Connection: keep-alive" if keeps_alive else "Connection: close")
        first = f"HTTP/{'1.1' if is_current else '1.0'} {status} {_PHRASES.get(status, '')}"
        head = (first, *lines, f"Date: {rfc822_formatted_time()}", "Server: gateway", "\r\n")
        self._unsent_head = "\r\n".join(head).encode()
        self.response, self.status = Written(status, keeps_alive=keeps_alive), status

    async def write(self, chunk: bytes) -> None:
        """Hand one chunk to the client's socket; wait while it takes nothing."""
        self.hand_over(chunk)
        await self.drained()

    def hand_over(self, chunk: bytes) -> None:
        """Hand one chunk to the client's socket; whoever goes on looks at `is_behind` before."""
        if chunk:
            self._to_socket(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._is_chunked else chunk)

    @property
    def is_behind(self) -> bool:
        """Whether more waits for the client to take it than should: wait until it is `drained`."""
        return self._request.protocol.writing_paused

    async def drained(self) -> None:
        """Wait while more is left for the client than should be, as long as it takes any of it."""
        transport = self._request.transport
        if not self.is_behind or transport is None:
            return
        limit = asyncio.timeout(None)
        taking = Taking(transport, self._stall_s, partial(limit.reschedule, 0))
        try:
            async with limit:
                await self._request.writer.drain()
        except ConnectionError as error:
            raise ClientGone from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._abort()
            raise ClientGone from error
        finally:
            taking.cancel()

    async def end(self) -> None:
        """End the answer as complete."""
        assert self.response is not None
        if self._is_chunked or self._unsent_head:
            self._to_socket(_CHUNKS_END if self._is_chunked else b"")
        await self.drained()

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer; to HEAD its head alone."""
        self.commit(status, headers, content_length=len(body))
        if self._request.method != "HEAD":
            await self.write(body)
        await self.end()

    def send_continue(self) -> None:
        """Tell a client that asked first to send its body."""
        self._to_socket(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def break_off(self, last_words: bytes) -> None:
        """Write the event that tells of the break; the caller then raises AnswerBrokenOff.

        Where nothing is said, and the connection's end would be the answer's, the connection is reset.
        """
        if self._ends_with_connection and not last_words:
            self._reset()
            return
        try:
            async with asyncio.timeout(LAST_WORDS_S_MAX):
                await self.write(last_words)
        except (ClientGone, TimeoutError):
            self._abort()

    def _closes(self) -> bool:
        if self._is_last or self._is_last_here():
            return True
        connection = cast("FrontConnection", self._request.protocol)
        return "Transfer-Encoding" in self._request.headers and not connection.ends_plainly

    def _to_socket(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        if self._unsent_head:
            data, self._unsent_head = self._unsent_head + data, b""
            self._request[BEGUN] = True
        transport.write(data)

    def _reset(self) -> None:
        if (transport := self._request.transport) is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSING_RESETS)
            transport.abort()

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
