"""The client's end of one exchange: what has been told to it, and how it is told more.

Owns the one response of a request: nothing yet, committed (status and headers are out), or ended. A client that takes
nothing for `stall_s` while bytes wait is cut off, so what the gateway holds for it stays within the transport's own
buffer and one chunk. Never ends a broken answer cleanly: `break_off` closes without the end mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from aiohttp import web
from multidict import CIMultiDict

from gateway.wire.sse import StreamTap

LAST_WORDS_S_MAX = 5.0

Headers = Iterable[tuple[str, str]]


class ClientGone(Exception):  # noqa: N818 - the domain's word
    """The client closed its connection, or took nothing for too long."""


class AnswerBrokenOff(Exception):  # noqa: N818 - tells the connection to close without an end mark
    """The answer is incomplete and must look so."""


class _Response(web.StreamResponse):
    _send_headers_immediately = False  # status, headers and the first chunk go out in one segment


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
        self.response: web.StreamResponse | None = None
        self.status: int | None = None

    @property
    def is_committed(self) -> bool:
        return self.response is not None

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this answer, as far as is known before it is committed."""
        return self._is_last or self._is_last_here()

    def close_after(self) -> None:
        """End the connection with this answer."""
        self._is_last = True

    async def commit(self, status: int, headers: Headers, *, content_length: int | None = None) -> None:
        """Fix status and headers; they leave with the first bytes of the body."""
        assert self.response is None, "one request has one answer"
        response = _Response(status=status, headers=CIMultiDict(headers))
        response.headers["Server"] = "gateway"
        response.content_length = content_length
        if self.closes:
            response.force_close()
        self.response, self.status = response, status
        await response.prepare(self._request)

    async def write(self, chunk: bytes) -> None:
        """Hand one chunk to the client's socket; wait while it takes nothing."""
        try:
            await self._request.writer.write(chunk, drain=False)  # type: ignore[call-arg]
            await self._drained()
        except ConnectionError as error:
            raise ClientGone from error

    async def end(self) -> None:
        """End the answer as complete."""
        assert self.response is not None
        try:
            async with asyncio.timeout(self._stall_s):
                await self.response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            self._abort()
            raise ClientGone from error

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer; to HEAD its head alone."""
        await self.commit(status, headers, content_length=len(body))
        if body and self._request.method != "HEAD":
            await self.write(body)
        await self.end()

    async def send_continue(self) -> None:
        """Tell a client that asked first to send its body."""
        writer = self._request.writer
        try:
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except ConnectionError as error:
            raise ClientGone from error
        writer.output_size = 0

    async def break_off(self, last_words: bytes) -> None:
        """Write the event that tells of the break; the caller then raises AnswerBrokenOff."""
        try:
            async with asyncio.timeout(LAST_WORDS_S_MAX):
                await self.write(last_words)
        except (ClientGone, TimeoutError):
            self._abort()

    async def _drained(self) -> None:
        if not self._request.protocol.writing_paused:
            return
        limit = asyncio.timeout(self._stall_s)
        try:
            async with limit:
                await self._request.writer.drain()
        except TimeoutError as error:
            if not limit.expired():
                raise
            self._abort()
            raise ClientGone from error

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()
