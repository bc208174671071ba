"""An engine's answer: its head, and its body as it comes.

Owns how long each part may take, by the clock that began with the request's sending, and what is no answer at all.
Knows no connection, no queue and no client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp

from gateway.engines.target import Target
from gateway.server import engine_failure
from gateway.server.engine_failure import EngineFailure
from gateway.server.watchdog import TimeIsUp, Watchdog

if TYPE_CHECKING:
    from aiohttp.http_parser import RawResponseMessage

KEY_REFUSED = frozenset({401, 403, 407})
END_S_MAX = 1.0
LEFTOVER_BYTES_MAX = 1 << 16
_NO_END = "did not end its answer"

Take = Callable[[bytes], bool]


class Reply:
    """An engine's answer. `read` and `pour` raise EngineFailure."""

    def __init__(
        self, message: RawResponseMessage, content: aiohttp.StreamReader, target: Target, watchdog: Watchdog
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
        """Raise EngineFailure for what is no answer to a caller: interim, a redirect, or of a status that there is not.

        Nor is one that refuses a credential: the caller's own never goes to an engine, only the gateway's. Nor is a
        compressed stream: neither its first token nor its end could be told.
        """
        if self.status in KEY_REFUSED:
            raise engine_failure.broken(f"refused the gateway's own key with status {self.status}")
        if not (200 <= self.status < 300 or 400 <= self.status < 600):
            raise engine_failure.broken(f"answered with status {self.status}")
        if self.is_event_stream and not self._is_plain:
            raise engine_failure.broken("answered with a stream that has a Content-Encoding, though asked for none")

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
    def _is_plain(self) -> bool:
        codings = ",".join(self._message.headers.getall("Content-Encoding", []))
        return codings.strip().lower() in ("", "identity")

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
            self._waiter.set_exception(TimeIsUp())

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
        except TimeIsUp:
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


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
