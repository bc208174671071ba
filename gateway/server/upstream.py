"""One request to one engine: open it, read its answer, or throw it away.

Owns the connection from dispatch until the whole answer has come or it is aborted; leaving `open` before that closes
the engine's connection at once, which is how vLLM learns that its client is gone. Once the whole answer has come, read
or not, the connection may carry another request and is left alone. Sends again, on a new connection, only where a kept
one turned out closed at once and before a byte came back. Knows no queue and no client. One module, because an answer
is read by the clock that began with its sending.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from gateway.engines.target import Target
from gateway.server import engine_failure
from gateway.server.connector import Attempt, EngineConnections, Origin, origin_of
from gateway.server.engine_failure import EngineFailure

if TYPE_CHECKING:
    from aiohttp.http_parser import RawResponseMessage

KEY_REFUSED = frozenset({401, 403, 407})
END_S_MAX = 1.0
LEFTOVER_BYTES_MAX = 1 << 16
STALE_S_MAX = 1.0  # a connection that was closed says so within a round trip; one that breaks later had the request
_NO_END = "did not end its answer"

Headers = Sequence[tuple[str, str]]
Take = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request as it goes to an engine: path and headers complete but for what the engine's address decides."""

    method: str
    path: str
    headers: Headers
    body: bytes

    def head(self, host: str, api_key: str | None) -> bytes:
        """Write the head. Raises ValueError where a value would be more than one line."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        if self.method == "POST":
            lines.append(f"Content-Length: {len(self.body)}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
            raise ValueError("a header holds a line end")
        return f"{head}\r\n\r\n".encode()


class Reply:
    """An engine's answer. `read` and `pour` raise EngineFailure."""

    def __init__(
        self, message: RawResponseMessage, content: aiohttp.StreamReader, target: Target, watchdog: _Watchdog
    ) -> None:
        self._message = message
        self._content = content
        self._idle_s = target.timeouts.idle_s
        self._first_byte_s = target.timeouts.first_byte_s
        self._loop = asyncio.get_running_loop()
        self._watchdog = watchdog
        self._first_byte_at: float | None = watchdog.at
        self._end_at = math.inf
        self._waiter: asyncio.Future[bool] | None = None
        self._take: Take | None = None
        self.status = message.code

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Every header as the engine wrote it, in order."""
        return [(_text(name), _text(value)) for name, value in self._message.raw_headers]

    def require_for_caller(self) -> None:
        """Raise EngineFailure for a status that is no answer to a caller: interim, a redirect, or none that there is.

        Nor is one that refuses a credential: the caller's own never goes to an engine, only the gateway's.
        """
        if self.status in KEY_REFUSED:
            raise engine_failure.broken(f"refused the gateway's own key with status {self.status}")
        if not (200 <= self.status < 300 or 400 <= self.status < 600):
            raise engine_failure.broken(f"answered with status {self.status}")

    def require_body(self, body: bytes) -> None:
        """Raise EngineFailure where the whole answer, said to be JSON, is empty: so ends one that broke off unseen."""
        if self._content_type == "application/json" and not body and self.at_end and self.status < 300:
            raise engine_failure.broken("answered with nothing")

    @property
    def is_event_stream(self) -> bool:
        return self._content_type == "text/event-stream"

    @property
    def _content_type(self) -> str:
        stated: str = self._message.headers.get("Content-Type", "")
        return stated.partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        """The length that the answer states, in bytes, or None for a chunked one."""
        stated = self._message.headers.get("Content-Length")
        return None if stated is None else int(stated)

    @property
    def at_end(self) -> bool:
        """Whether everything has been read: no further `read` is needed to know it."""
        content = self._content
        return content.at_eof() and content.exception() is None

    async def read(self) -> bytes:
        """Return the bytes that came, as soon as any come; b"" at the end of a complete answer."""
        while not (chunk := self._arrived()) and not self.at_end:
            await self._wait(None)
        return chunk

    async def pour(self, take: Take) -> None:
        """Give each chunk to `take` in the instant in which it comes, until the answer ends or `take` says no more."""
        while not self.at_end:
            chunk = self._arrived()
            if not (take(chunk) if chunk else await self._wait(take)):
                return

    def notify(self) -> None:
        """Something came: bytes, the end, or a failure."""
        waiter, take = self._waiter, self._take
        if waiter is None or waiter.done():
            return
        goes_on = True
        if take is not None:
            try:
                if chunk := self._arrived():
                    goes_on = take(chunk)
                    self._watchdog.at = min(self._loop.time() + self._idle_s, self._end_at)
            except Exception as error:  # noqa: BLE001 - it is told to whoever waits
                waiter.set_exception(error)
                return
            if goes_on and not self._content.is_eof() and self._content.exception() is None:
                return
        waiter.set_result(goes_on)

    def time_is_up(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(_TimeIsUp())

    def _arrived(self) -> bytes:
        """Return what has come and was not read. Raises EngineFailure where nothing is left before a break."""
        content = self._content
        if self.at_end:
            return b""
        if self._end_at != math.inf and self._end_at <= self._loop.time():
            raise engine_failure.broken(_NO_END)
        # What came before the break is the caller's; the break is told when it is read.
        rest: bytes = content._read_nowait(-1)  # noqa: SLF001 - a failed reader refuses its public ones
        if not rest and (error := content.exception()) is not None:
            assert isinstance(error, (aiohttp.ClientError, OSError)), "only a connection fails its answer"
            raise engine_failure.of(error) from error
        return rest

    async def _wait(self, take: Take | None) -> bool:
        """Wait until something comes, with `take` until that has had enough: False."""
        first_byte_at = self._first_byte_at
        limit_at = self._loop.time() + self._idle_s if first_byte_at is None else first_byte_at
        self._watchdog.until(min(limit_at, self._end_at))
        self._waiter, self._take = self._loop.create_future(), take
        try:
            return await self._waiter
        except _TimeIsUp:
            if self._end_at <= limit_at:
                raise engine_failure.broken(_NO_END) from None
            if first_byte_at is None:
                raise engine_failure.timed_out("idle_s", self._idle_s) from None
            raise engine_failure.timed_out("first_byte_s", self._first_byte_s) from None
        finally:
            self._waiter = None
            self._watchdog.until(math.inf)

    def began(self) -> None:
        """From here on chunks are awaited by `idle_s`: the first event, or a whole answer's first byte, is here."""
        self._first_byte_at = None

    def has_ended(self) -> None:
        """What is awaited from here on is only the end of the HTTP answer: `read` waits `END_S_MAX` for it in all."""
        self._end_at = min(self._end_at, asyncio.get_running_loop().time() + END_S_MAX)

    async def discard(self) -> None:
        """Read a small rest that nobody wants, so that the connection is kept; do not wait for a long or late one."""
        self.has_ended()
        left = LEFTOVER_BYTES_MAX
        try:
            while not self.at_end and left > 0:
                left -= len(await self.read())
        except EngineFailure:
            return


class Upstream:
    """Sends requests to engines. resent: told the engine's name whenever a request goes twice."""

    def __init__(self, connections: EngineConnections, resent: Callable[[str], None]) -> None:
        self._connections = connections
        self._resent = resent

    @asynccontextmanager
    async def open(self, target: Target, outgoing: Outgoing) -> AsyncIterator[Reply]:
        """Send, and yield the answer once its head is here. Raises EngineFailure."""
        watchdog = _Watchdog(target.timeouts.first_byte_s)
        attempt: Attempt | None = None
        try:
            attempt, message, content = await self._send(target, outgoing, watchdog)
            reply = Reply(message, content, target, watchdog)
            watchdog.time_is_up = reply.time_is_up
            attempt.handler.listener = reply.notify
            yield reply
        finally:
            watchdog.cancel()
            if attempt is not None:
                attempt.abort()

    async def _send(
        self, target: Target, outgoing: Outgoing, watchdog: _Watchdog
    ) -> tuple[Attempt, RawResponseMessage, aiohttp.StreamReader]:
        origin = origin_of(target.url)
        head = outgoing.head(origin.host_header, target.api_key)
        for may_resend in (True, False):
            # Where one kept connection turned out closed, others likely are: the engine went away.
            attempt = self._connections.kept(origin) if may_resend else None
            if attempt is None:
                attempt = await self._connected(target, origin, watchdog.at)
            try:
                watchdog.time_is_up = partial(attempt.handler.set_exception, _TimeIsUp())
                watchdog.until(watchdog.at)
                return attempt, *await attempt.send(head, outgoing.body)
            except _TimeIsUp:
                attempt.abort()
                raise engine_failure.timed_out("first_byte_s", target.timeouts.first_byte_s) from None
            except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
                attempt.abort()
                is_stale = attempt.reused and attempt.heard_nothing and attempt.age_s < STALE_S_MAX
                if may_resend and is_stale and engine_failure.is_no_answer(error):
                    self._resent(target.name)
                    continue
                raise engine_failure.of(error) from error
            except BaseException:
                attempt.abort()
                raise
        raise AssertionError("the second attempt returns or raises")

    async def _connected(self, target: Target, origin: Origin, first_byte_at: float) -> Attempt:
        limit = asyncio.timeout_at(first_byte_at)
        try:
            async with limit:
                return await self._connections.made(origin, connect_s=target.timeouts.connect_s)
        except TimeoutError:
            if limit.expired():
                raise engine_failure.timed_out("first_byte_s", target.timeouts.first_byte_s) from None
            late = aiohttp.ConnectionTimeoutError(f"Connection timeout to host {target.url}")
            raise engine_failure.of(late) from late
        except (aiohttp.ClientError, OSError) as error:
            raise engine_failure.of(error) from error


class _TimeIsUp(Exception):  # noqa: N818 - never leaves this module
    pass


class _Watchdog:
    """Says when the time is up; one timer, moved only when it fires too early.

    at: when the time is up, by the loop's clock; never: infinity. time_is_up: who is told.
    """

    __slots__ = ("_loop", "_timer", "at", "time_is_up")

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.at = self._loop.time() + limit_s
        self.time_is_up: Callable[[], object] = _nobody_waits

    def until(self, at: float) -> None:
        self.at = at
        if at != math.inf and (self._timer is None or self._timer.when() > at):
            self.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self.at:
            self.until(self.at)
        else:
            # A wrong chunk header leaves aiohttp's parser silent for ever; this wakes its reader all the same.
            self.time_is_up()


def _nobody_waits() -> None:
    pass


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
