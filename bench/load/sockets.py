"""Connections to one address, each with one request at a time, and those that wait to be used again.

Owns their making, use and end. Any number may be open: nothing here waits for another.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from bench.load.answer import AnswerReader, MalformedAnswerError
from bench.load.exchange import Exchange
from bench.load.outcomes import Ending
from bench.load.pacing import Clock
from bench.load.sse import EventTooLargeError
from bench.records.request import NO_SOCKET, NOBODY_LISTENS, Outcome

CONNECT_S_MAX = 10.0
# vLLM closes an idle connection after 5 s: a socket is used again for less than that, and than what the server says.
IDLE_SOCKET_S_MAX = 4.0
IDLE_SHARE = 0.8
_TIMEOUT = re.compile(r"timeout=([0-9]{1,6})", re.IGNORECASE)
WARM_SOCKETS_MAX = 64
# This machine's own limits, of which no server knows: open files, local ports, memory for sockets.
_OUT_OF_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a base URL leads. path: its prefix, without a closing slash."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str


def address(base_url: str) -> Address:
    parts = urlsplit(base_url)
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    return Address(parts.hostname or "", port, tls, parts.netloc, parts.path.rstrip("/"))


class Sockets:
    """after_read: called after each network read with the time of it, for what must not wait for many of them."""

    def __init__(self, where: Address, clock: Clock) -> None:
        self.clock = clock
        self.after_read: Callable[[float], None] = _nothing
        self._where = where
        self._host = where.host
        self._tls = ssl.create_default_context() if where.tls else None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    def send(self, exchange: Exchange, request: list[bytes]) -> None:
        """On a socket that waits, at once; else on a new one, as soon as it is there."""
        now = self.clock()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable(now):
                exchange.on_waiting = True
                connection.send(exchange, request)
                return
            connection.abort()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._connect(exchange, request), name="connect")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def warm(self, number: int) -> int:
        """Open up to `number` connections that wait; returns how many could be opened."""
        opened = await asyncio.gather(
            *(self._connected() for _ in range(min(number, WARM_SOCKETS_MAX))), return_exceptions=True
        )
        found = [each for each in opened if isinstance(each, Connection)]
        for connection in found:
            connection.wait()
        return len(found)

    async def close(self) -> None:
        """Give up what is open: such flights have no ending."""
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        now = self.clock()
        for connection in list(self._open):
            connection.give_up(now)

    async def _connect(self, exchange: Exchange, request: list[bytes]) -> None:
        flight = exchange.flight
        flight.connect_began_at = self.clock()
        try:
            connection = await self._connected()
        except TimeoutError:
            exchange.end(Ending(Outcome.TIMED_OUT, "connect"), self.clock())
        except OSError as error:
            reason = NO_SOCKET if error.errno in _OUT_OF_SOCKETS else NOBODY_LISTENS
            exchange.end(Ending(Outcome.FAILED, reason), self.clock())
        except asyncio.CancelledError:
            exchange.end(None, self.clock())
            raise
        else:
            flight.connect_s = self.clock() - flight.connect_began_at
            if exchange.open:
                connection.send(exchange, request)
            else:
                connection.abort()

    async def _connected(self) -> Connection:
        options: dict[str, Any] = {} if self._tls is None else {"server_hostname": self._where.host}
        async with asyncio.timeout(CONNECT_S_MAX):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self._host, self._where.port, ssl=self._tls, **options
            )
        # Names are looked up once: the next one goes to where this one found somebody.
        self._host = connection.peer()
        return connection

    def opened(self, connection: Connection) -> None:
        self._open.add(connection)

    def freed(self, connection: Connection) -> None:
        self._idle.append(connection)

    def gone(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def _waits_s(keep_alive: str) -> float:
    said = _TIMEOUT.search(keep_alive)
    return IDLE_SOCKET_S_MAX if said is None else min(IDLE_SOCKET_S_MAX, IDLE_SHARE * int(said[1]))


def _nothing(_now: float) -> None:
    """Where nothing is due."""


class Connection(asyncio.Protocol):
    """One socket. It is used again after an answer that ended well and whose head allows that."""

    __slots__ = ("_answer", "_exchange", "_sockets", "_transport", "_usable_until")

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._exchange: Exchange | None = None
        self._answer = AnswerReader()
        self._usable_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass, and has its methods
        # Nothing waits for the end of the loop's turn: what is sent leaves when it is sent.
        self._transport.set_write_buffer_limits(high=0)
        self._sockets.opened(self)

    def peer(self) -> str:
        return str(self._transport.get_extra_info("peername")[0])

    def usable(self, now: float) -> bool:
        return not self._transport.is_closing() and now < self._usable_until

    def send(self, exchange: Exchange, request: list[bytes]) -> None:
        self._exchange = exchange
        self._answer = AnswerReader()
        exchange.leave = self.abort
        self._transport.writelines(request)

    def wait(self) -> None:
        """For the next request, where the answer before allows one."""
        self._exchange = None
        self._usable_until = self._sockets.clock() + _waits_s(self._answer.headers.get("keep-alive", ""))
        if self._answer.keeps_alive and not self._transport.is_closing():
            self._sockets.freed(self)
        else:
            self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def give_up(self, now: float) -> None:
        if self._exchange is not None:
            self._exchange.end(None, now)
        self.abort()

    def data_received(self, data: bytes) -> None:
        now = self._sockets.clock()
        if self._exchange is None:
            self.abort()  # nobody asked
        else:
            self._take(self._exchange, data, now)
        self._sockets.after_read(now)

    def connection_lost(self, error: Exception | None) -> None:
        self._sockets.gone(self)
        exchange, now = self._exchange, self._sockets.clock()
        if exchange is None or not exchange.open:
            return
        if error is None and self._answer.closed():
            exchange.whole(now)
        else:
            exchange.lost(now)

    def _take(self, exchange: Exchange, data: bytes, now: float) -> None:
        answer = self._answer
        headless = answer.status is None
        try:
            body = answer.feed(data)
            if headless and answer.status is not None:
                exchange.head(answer.status, answer.headers, now)
            if body and exchange.open:
                exchange.body(body, now)
        except MalformedAnswerError:
            exchange.lost(now)
        except EventTooLargeError:
            exchange.end(Ending(Outcome.FAILED, "event_too_large"), now)
        if answer.whole and exchange.open:
            exchange.whole(now)
            self.wait()
        elif not exchange.open:
            self.abort()
