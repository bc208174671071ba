"""One request to one engine: send it, yield its answer, or throw it away.

Owns the connection from dispatch until the whole answer has come or it is aborted; leaving `open` before that closes
the engine's connection at once, which is how vLLM learns that its client is gone. Once the whole answer has come, read
or not, the connection may carry another request and is left alone. Sends again, on a new connection, only where a kept
one turned out closed at once and before a byte came back. Knows no queue and no client.
"""

from __future__ import annotations

import asyncio
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
from gateway.server.reply import Reply
from gateway.server.watchdog import TimeIsUp, Watchdog

if TYPE_CHECKING:
    from aiohttp.http_parser import RawResponseMessage

STALE_S_MAX = 1.0  # a connection that was closed says so within a round trip; one that breaks later had the request

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request as it goes to an engine: path and headers complete but for what the engine's address decides."""

    method: str
    path: str
    headers: Headers
    body: bytes

    def head(self, host: str, api_key: str | None) -> bytes:
        """Write the head. Raises ValueError where a value would be more than one line."""
        # What passes is read on its way; to who says nothing here, a proxy in between may send it compressed.
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        if self.method == "POST":
            lines.append(f"Content-Length: {len(self.body)}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
            raise ValueError("a header holds a line end")
        return f"{head}\r\n\r\n".encode()


class Upstream:
    """Sends requests to engines. resent: told the engine's name whenever a request goes twice."""

    def __init__(self, connections: EngineConnections, resent: Callable[[str], None]) -> None:
        self._connections = connections
        self._resent = resent

    @asynccontextmanager
    async def open(self, target: Target, outgoing: Outgoing) -> AsyncIterator[Reply]:
        """Send, and yield the answer once its head is here. Raises EngineFailure."""
        watchdog = Watchdog(target.timeouts.first_byte_s)
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
        self, target: Target, outgoing: Outgoing, watchdog: Watchdog
    ) -> tuple[Attempt, RawResponseMessage, aiohttp.StreamReader]:
        origin = origin_of(target.url)
        head = outgoing.head(origin.host_header, target.api_key)
        for may_resend in (True, False):
            # Where one kept connection turned out closed, others likely are: the engine went away.
            attempt = self._connections.kept(origin) if may_resend else None
            if attempt is None:
                attempt = await self._connected(target, origin, watchdog.at)
            try:
                watchdog.time_is_up = partial(attempt.handler.set_exception, TimeIsUp())
                watchdog.until(watchdog.at)
                return attempt, *await attempt.send(head, outgoing.body)
            except TimeIsUp:
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
