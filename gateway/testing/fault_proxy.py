"""A proxy between a gateway and an engine that breaks what passes, in one way, at one place.

Owns the connections through it. A fault is for POSTs alone: what the gateway asks of its own passes, so that a test
sees what becomes of a request and not of the engine's health. Loopback only.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from gateway.testing.loopback_server import LoopbackServer, reset

PIECE_BYTES = 1 << 16
BACKLOG_FILLED_BY = 4
_NOT_SENT = -1


class Kind(StrEnum):
    """What happens at the place of the fault.

    RESET: both ends are thrown away. CLOSE: the gateway's end is closed. HALF_CLOSE: nothing more is said, and what
    the gateway says is still read. STALL: nothing more passes. DRIP: what follows passes byte by byte. NO_CHUNK: what
    follows is no chunk header. ENDLESS: a line without an end follows, in well-formed chunks; ENDLESS_HEAD: without.
    """

    RESET = "reset"
    CLOSE = "close"
    HALF_CLOSE = "half_close"
    STALL = "stall"
    DRIP = "drip"
    NO_CHUNK = "no_chunk"
    ENDLESS = "endless"
    ENDLESS_HEAD = "endless_head"


@dataclass(frozen=True, slots=True)
class Fault:
    """at: how many bytes of the engine's answer pass first; BEFORE_REQUEST: the engine never hears of the request."""

    kind: Kind
    at: int

    BEFORE_REQUEST = _NOT_SENT


class FaultProxy(LoopbackServer):
    """`async with FaultProxy(engine.port) as proxy`: serves at `proxy.url`.

    fault: of every POST from now on; None: none. faulted: how many requests met a fault. faulted_open: of these, on
    how many the gateway's end is still open.
    """

    def __init__(self, engine_port: int) -> None:
        super().__init__()
        self._engine_port = engine_port
        self.fault: Fault | None = None
        self.faulted = 0
        self.faulted_open = 0
        self._stuck: list[socket.socket] = []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stuck in self._stuck:
            stuck.close()
        await super().__aexit__(kind, error, trace)

    async def stall_connections(self) -> None:
        """Take new connections no further than into a full backlog: whoever connects hears nothing. Cut the others."""
        await self.refuse_connections()
        listener = socket.socket()
        self._stuck.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(0)
        for _ in range(BACKLOG_FILLED_BY):
            filler = socket.socket()
            self._stuck.append(filler)
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
        self.abort_connections()

    async def met(self) -> None:
        """A request has met its fault."""
        await self._note(lambda: self._count(1, 1))

    async def ended(self) -> None:
        """The gateway's end of a connection with a fault is closed, or has gone on to another request."""
        await self._note(lambda: self._count(0, -1))

    def _count(self, faulted: int, faulted_open: int) -> None:
        self.faulted += faulted
        self.faulted_open += faulted_open

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        try:
            await _Link(self, reader, writer, engine_reader, engine_writer).run()
        finally:
            engine_writer.close()


class _Link:
    """One connection of the gateway and one to the engine."""

    def __init__(
        self,
        proxy: FaultProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        engine_reader: asyncio.StreamReader,
        engine_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._engine_reader, self._engine_writer = engine_reader, engine_writer
        self._fault: Fault | None = None
        self._passed = 0
        self._is_faulted = False

    async def run(self) -> None:
        """Pass bytes both ways until one side ends."""
        loop = asyncio.get_running_loop()
        sides = [loop.create_task(side) for side in (self._requests(), self._answers())]
        try:
            done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            if self._is_faulted and sides[0] not in done:
                await asyncio.wait([sides[0]])  # the gateway's end is what has to close
        finally:
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)
            if self._is_faulted:
                await self._proxy.ended()

    async def _requests(self) -> None:
        while data := await self._reader.read(PIECE_BYTES):
            if data.startswith((b"POST ", b"GET ")):
                if self._is_faulted:
                    self._is_faulted = False
                    await self._proxy.ended()
                self._fault, self._passed = (self._proxy.fault if data.startswith(b"POST ") else None), 0
                if self._fault is not None and self._fault.at <= 0:
                    await self._meet(self._fault)
                    if self._fault.at == Fault.BEFORE_REQUEST:
                        continue
            if not (self._is_faulted and self._fault is not None and self._fault.at == Fault.BEFORE_REQUEST):
                self._engine_writer.write(data)
                await self._engine_writer.drain()

    async def _answers(self) -> None:
        while data := await self._engine_reader.read(PIECE_BYTES):
            fault = self._fault
            if fault is None:
                await self._pass(data)
                continue
            before = data[: max(0, fault.at - self._passed)]
            self._passed += len(data)
            await self._pass(before)
            if self._passed >= fault.at and not self._is_faulted:
                await self._meet(fault)
            if self._is_faulted and fault.kind is Kind.DRIP:
                await self._drip(data[len(before) :])

    async def _pass(self, data: bytes) -> None:
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def _drip(self, data: bytes) -> None:
        for at in range(len(data)):
            await self._pass(data[at : at + 1])
            await asyncio.sleep(0)

    async def _meet(self, fault: Fault) -> None:
        self._is_faulted = True
        await self._proxy.met()
        match fault.kind:
            case Kind.RESET:
                reset(self._writer)
            case Kind.CLOSE:
                self._writer.close()
            case Kind.HALF_CLOSE:
                self._writer.write_eof()
            case Kind.NO_CHUNK:
                await self._pass(b"this is no chunk size\r\n")
            case Kind.ENDLESS | Kind.ENDLESS_HEAD:
                piece = b"x" * PIECE_BYTES
                framed = piece if fault.kind is Kind.ENDLESS_HEAD else b"%x\r\n%s\r\n" % (len(piece), piece)
                while not self._writer.is_closing():
                    await self._pass(framed)
            case Kind.STALL | Kind.DRIP:
                pass
