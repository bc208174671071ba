"""An HTTP/1.1 client that writes and reads bytes, so that a test can be as rude as a network is.

Owns one TCP connection. Reads answers strictly: wrong framing is an error, an answer cut short says so.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from gateway.testing.loopback_server import reset

READ_S_MAX = 40.0
_SO_ATTACH_FILTER = 26
_BPF_RETURN = 6  # of a filter: how many bytes of a packet pass, here none


class BrokenAnswer(Exception):  # noqa: N818 - what a client sees
    """The connection ended inside an answer; `body` is what had come."""

    def __init__(self, body: bytes) -> None:
        super().__init__(f"broke off after {len(body)} bytes")
        self.body = body


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. headers: in order, names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the one value of a header; two are a mistake of the server."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """`async with RawClient(port) as client`. Every read gives up after `READ_S_MAX`."""

    def __init__(self, port: int, *, key: str | None = None, receive_buffer_bytes: int | None = None) -> None:
        self._port = port
        self._key = key
        self._receive_buffer_bytes = receive_buffer_bytes
        self.chunks: list[bytes] = []

    async def __aenter__(self) -> Self:
        sock = socket.socket()
        sock.setblocking(False)
        if self._receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        except OSError:
            sock.close()
            raise
        limit = 1 << 16 if self._receive_buffer_bytes is None else self._receive_buffer_bytes
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=limit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    # ── writing ──

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send one whole POST; `value`: a JSON value, or bytes as they are."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.send(self.head("POST", path, {"Content-Length": str(len(body)), **(headers or {})}) + body)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> None:
        await self.send(self.head("GET", path, headers or {}))

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        """Return a request head, with the client's key unless the headers say otherwise."""
        given = {"Host": f"127.0.0.1:{self._port}", "Content-Type": "application/json"}
        if self._key is not None:
            given["Authorization"] = f"Bearer {self._key}"
        lines = [f"{name}: {value}" for name, value in {**given, **headers}.items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()

    def leave(self) -> None:
        """Close the connection as a client that goes away does."""
        self.writer.close()

    def half_close(self) -> None:
        """Say that nothing more comes, and go on reading."""
        self.writer.write_eof()

    def reset(self) -> None:
        """Throw the connection away (RST)."""
        reset(self.writer)

    def vanish(self) -> None:
        """Be a client whose network is gone: nothing reaches it from here on, and nothing is acknowledged."""
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))
        program = struct.pack("HL", 1, ctypes.addressof(drop_all))
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    # ── reading ──

    async def read_head(self) -> Answer:
        """Read status and headers alone; the body is empty."""
        async with asyncio.timeout(READ_S_MAX):
            block = await self.reader.readuntil(b"\r\n\r\n")
        start, *lines = block.decode("latin-1").split("\r\n")[:-2]
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        return Answer(int(start.split(" ")[1]), headers, b"")

    async def read_chunk(self) -> bytes:
        """Read one chunk of a chunked body; b"" is the last."""
        async with asyncio.timeout(READ_S_MAX):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            piece = (await self.reader.readexactly(size + 2))[:-2]
        self.chunks.append(piece)
        return piece

    async def read_answer(self) -> Answer:
        """Read one whole answer. Raises BrokenAnswer where the connection ends inside it."""
        head = await self.read_head()
        length = head.header("content-length")
        body = b""
        try:
            if length is not None:
                assert head.header("transfer-encoding") is None, "two framings"
                async with asyncio.timeout(READ_S_MAX):
                    body = await self.reader.readexactly(int(length))
            elif head.header("transfer-encoding") == "chunked":
                while piece := await self.read_chunk():
                    body += piece
            else:
                async with asyncio.timeout(READ_S_MAX):
                    body = await self.reader.read()
        except asyncio.IncompleteReadError as error:
            raise BrokenAnswer(body + (error.partial if length is not None else b"")) from error
        return Answer(head.status, head.headers, body)

    async def read_end(self) -> bytes:
        """Read until the server closes; return what still came."""
        async with asyncio.timeout(READ_S_MAX):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


async def request(
    port: int, path: str, value: Any = None, *, key: str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Make one request on a connection of its own: a POST where there is a value, else a GET."""
    async with RawClient(port, key=key) as client:
        if value is None:
            await client.get(path, headers)
        else:
            await client.post(path, value, headers)
        return await client.read_answer()
