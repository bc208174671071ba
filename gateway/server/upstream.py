"""One request to one engine: open it, read its answer, or throw it away.

Owns the connection from dispatch until the whole answer has come or it is aborted; leaving `open` before that closes
the engine's connection at once, which is how vLLM learns that its client is gone. Once the whole answer has come, read
or not, the connection may carry another request and is left alone. Sends again, on a new connection, only where a kept
one turned out closed at once and before a byte came back. Knows no queue and no client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from gateway.engines.target import Target
from gateway.server import engine_failure
from gateway.server.connector import Attempt, Body, current_attempt
from gateway.server.engine_failure import EngineFailure

KEY_REFUSED = frozenset({401, 403, 407})
END_S_MAX = 1.0
LEFTOVER_BYTES_MAX = 1 << 16
STALE_S_MAX = 1.0  # a connection that was closed says so within a round trip; one that breaks later had the request

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request as it goes to an engine: path and headers complete but for the engine's own key."""

    method: str
    path: str
    headers: Headers
    body: bytes


class Reply:
    """An engine's answer. `read` raises EngineFailure."""

    def __init__(self, response: aiohttp.ClientResponse, target: Target, first_byte_at: float) -> None:
        self._response = response
        self._idle_s = target.timeouts.idle_s
        self._first_byte_s = target.timeouts.first_byte_s
        self._watchdog = _Watchdog(response.content)
        self._first_byte_at: float | None = first_byte_at
        self._end_at = math.inf
        self.status = response.status

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Every header as the engine wrote it, in order."""
        return [(_text(name), _text(value)) for name, value in self._response.raw_headers]

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
        is_json = self._response.content_type == "application/json"
        if is_json and not body and self.at_end and self.status < 300:
            raise engine_failure.broken("answered with nothing")

    @property
    def is_event_stream(self) -> bool:
        return self._response.content_type == "text/event-stream"

    @property
    def content_length(self) -> int | None:
        """The length that the answer states, in bytes, or None for a chunked one."""
        return self._response.content_length

    @property
    def at_end(self) -> bool:
        """Whether everything has been read: no further `read` is needed to know it."""
        content = self._response.content
        return content.at_eof() and content.exception() is None

    async def read(self) -> bytes:
        """Return the bytes that came, as soon as any come; b"" at the end of a complete answer."""
        first_byte_at = self._first_byte_at
        loop = asyncio.get_running_loop()
        limit_at = loop.time() + self._idle_s if first_byte_at is None else first_byte_at
        self._watchdog.until(min(limit_at, self._end_at))
        try:
            return await self._response.content.readany()
        except _TimeIsUp:
            if self._end_at <= limit_at:
                raise engine_failure.broken("did not end its answer") from None
            if first_byte_at is None:
                raise engine_failure.timed_out("idle_s", self._idle_s) from None
            raise engine_failure.timed_out("first_byte_s", self._first_byte_s) from None
        except (aiohttp.ClientError, OSError) as error:
            # What came before the break is the caller's; the break is told when it is read.
            rest = self._response.content._read_nowait(-1)  # noqa: SLF001 - a failed reader refuses its public ones
            if rest:
                return rest
            raise engine_failure.of(error) from error
        finally:
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

    def close(self) -> None:
        self._watchdog.cancel()


class Upstream:
    """Sends requests to engines over one session. resent: told the engine's name whenever a request goes twice."""

    def __init__(self, session: aiohttp.ClientSession, resent: Callable[[str], None]) -> None:
        self._session = session
        self._resent = resent

    @asynccontextmanager
    async def open(self, target: Target, outgoing: Outgoing) -> AsyncIterator[Reply]:
        """Send, and yield the answer once its head is here. Raises EngineFailure."""
        first_byte_at = asyncio.get_running_loop().time() + target.timeouts.first_byte_s
        attempt, response = await self._send(target, outgoing, first_byte_at)
        reply = Reply(response, target, first_byte_at)
        try:
            yield reply
        finally:
            reply.close()
            # The response lets go of its connection when the answer's end has come, though its bytes wait to be read:
            # from then on the connection is the next request's.
            if response.connection is not None:
                attempt.abort()
            response.close()

    async def _send(
        self, target: Target, outgoing: Outgoing, first_byte_at: float
    ) -> tuple[Attempt, aiohttp.ClientResponse]:
        for may_resend in (True, False):
            # Where one kept connection turned out closed, others likely are: the engine went away.
            attempt = Attempt(on_new_connection=not may_resend)
            try:
                return attempt, await self._request(attempt, target, outgoing, first_byte_at)
            except (aiohttp.ClientError, OSError) as error:
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

    async def _request(
        self, attempt: Attempt, target: Target, outgoing: Outgoing, first_byte_at: float
    ) -> aiohttp.ClientResponse:
        headers = list(outgoing.headers)
        if target.api_key is not None:
            headers.append(("Authorization", f"Bearer {target.api_key}"))
        current_attempt.set(attempt)
        limit = asyncio.timeout_at(first_byte_at)
        try:
            async with limit:
                return await self._session.request(
                    outgoing.method,
                    target.url + outgoing.path,
                    headers=headers,
                    data=Body(outgoing.body) if outgoing.method == "POST" else None,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(connect=target.timeouts.connect_s, ceil_threshold=math.inf),
                )
        except TimeoutError:
            if limit.expired():
                raise engine_failure.timed_out("first_byte_s", target.timeouts.first_byte_s) from None
            raise


class _TimeIsUp(Exception):  # noqa: N818 - never leaves this module
    pass


class _Watchdog:
    """Fails a pending read when its time is up; one timer, moved only when it fires too early."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def until(self, at: float) -> None:
        self._at = at
        if at != math.inf and (self._timer is None or self._timer.when() > at):
            self.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self._at:
            self.until(self._at)
        else:
            # A wrong chunk header leaves aiohttp's parser silent for ever; this wakes its reader all the same.
            self._content.set_exception(_TimeIsUp())


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
