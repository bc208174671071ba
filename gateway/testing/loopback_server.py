"""A listening socket on loopback whose every byte the test kit decides, and a condition on what was seen over it.

Owns the socket, its connections and their end. Says nothing of its own; loopback only, never used in production.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self


class LoopbackServer(ABC):
    """`async with` serves at `url`, each connection by `_connection`; leaving cuts them and waits for their ends."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self._tls = tls
        self.port = 0
        self.connections_opened = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Condition()

    @abstractmethod
    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end, which may be a break."""

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}"

    @property
    def connections_open(self) -> int:
        return len(self._writers)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse_connections()
        self.abort_connections()
        await self.until(lambda: not self._writers)

    async def listen(self) -> None:
        """Accept connections, again on the same port after `refuse_connections`."""
        self._server = await asyncio.start_server(self._accepted, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse_connections(self) -> None:
        """Stop listening: new connections are refused; open ones live on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def abort_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is looked at when something is noted or a connection comes or ends."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _note(self, change: Callable[[], object]) -> None:
        async with self._changed:
            change()
            self._changed.notify_all()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_opened += 1
        await self._note(lambda: self._writers.add(writer))
        try:
            await self._connection(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            await self._note(lambda: self._writers.discard(writer))


def reset(writer: asyncio.StreamWriter) -> None:
    """Throw a connection away (RST)."""
    linger_none = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
    writer.transport.abort()
