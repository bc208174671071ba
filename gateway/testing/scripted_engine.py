"""A scripted upstream that looks like vLLM from outside: raw bytes over TCP, exactly when a test says so.

Owns a record of every request, connection and abort it saw. Knows no HTTP library: what a script writes is what the
gateway reads, malformed or not. Loopback only; never used in production.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from gateway.testing import answers
from gateway.testing.loopback_server import LoopbackServer, reset


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as it arrived: headers in order, names in lower case, and the number of its connection."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: int

    def header(self, name: str) -> list[str]:
        """Return every value of a header, in order."""
        return [value for key, value in self.headers if key == name.lower()]

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The engine's end of one connection, for one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Write each piece in a segment of its own, waiting while the gateway does not read."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()

    def close(self) -> None:
        """End the connection after what was written (FIN)."""
        self._writer.close()

    def reset(self) -> None:
        """Throw the connection away (RST)."""
        reset(self._writer)

    @property
    def is_closing(self) -> bool:
        return self._writer.is_closing()


Script = Callable[[SeenRequest, Wire], Awaitable[None]]


class ScriptedEngine(LoopbackServer):
    """Serves `/v1/models`, `/version`, `/health`, `/metrics` from its fields, and every POST from its scripts.

    script: answers a POST when `scripts` is empty; `scripts`: one for each of the next POSTs. A client that leaves
    cancels the running script, as vLLM aborts, and is recorded in `aborted`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        model: str = "tiny",
        max_model_len: int = 12288,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(host, tls)
        self.script: Script = script or answers.streaming("Hello", " world")
        self.scripts: deque[Script] = deque()
        self.models: list[dict[str, Any]] = [answers.model_card(model, max_model_len)]
        self.gets: dict[str, Script] = {}
        self.metrics: dict[str, float] = {"running": 0, "waiting": 0, "kv_usage": 0, "started": 1}
        self.requests: list[SeenRequest] = []
        self.aborted: list[SeenRequest] = []
        self.finished: list[SeenRequest] = []
        self._busy: set[asyncio.StreamWriter] = set()

    async def cut_connections(self) -> None:
        """Close every connection once no request is being answered, as a process that ends does."""
        await self.until(lambda: not self._busy)
        for writer in self._writers:
            writer.close()

    @property
    def posts(self) -> list[SeenRequest]:
        """Return the POST requests seen, in order of arrival."""
        return [request for request in self.requests if request.method == "POST"]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections_opened
        head = _Head(reader)
        try:
            while not writer.is_closing() and (request := await head.next(number)) is not None:
                self._busy.add(writer)
                await self._note(lambda request=request: self.requests.append(request))  # type: ignore[misc]
                await self._serve(request, Wire(writer), head)
                await self._note(lambda: self._busy.discard(writer))
        finally:
            self._busy.discard(writer)

    async def _serve(self, request: SeenRequest, wire: Wire, head: _Head) -> None:
        """Run the script while watching for the client's end of the connection."""
        loop = asyncio.get_running_loop()
        answer = loop.create_task(_call(self._script_for(request), request, wire))
        watch = loop.create_task(head.client_gone())
        try:
            await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() or isinstance(answer.exception(), ConnectionError):
                await self._note(lambda: self.aborted.append(request))
                wire.close()
            else:
                await self._note(lambda: self.finished.append(request))
        finally:
            for task in (answer, watch):
                task.cancel()
            results = await asyncio.gather(answer, watch, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionError):
                raise result

    def _script_for(self, request: SeenRequest) -> Script:
        if request.method == "POST":
            return self.scripts.popleft() if self.scripts else self.script
        written, _, query = request.path.partition("?")
        path = written.rstrip("/")
        if path in self.gets:
            return self.gets[path]
        metrics = answers.metrics_text(self.metrics)
        names = parse_qs(query).get("name[]", ())
        if written != path and names:
            metrics = answers.metrics_of(metrics, names)
        own = {
            "/v1/models": answers.json_answer({"object": "list", "data": self.models}),
            "/version": answers.json_answer({"version": "0.32.0"}),
            "/health": answers.plain(200, b""),
            "/metrics": answers.plain(200, metrics, "text/plain; version=1.0.0"),
        }
        return own.get(path, answers.json_answer({"detail": "Not Found"}, status=404))


async def _call(script: Script, request: SeenRequest, wire: Wire) -> None:
    await script(request, wire)


@dataclass(slots=True)
class _Head:
    """Reads one request after the other from a connection."""

    reader: asyncio.StreamReader
    ahead: bytes = field(default=b"")

    async def next(self, connection: int) -> SeenRequest | None:
        try:
            block = self.ahead + await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        self.ahead = b""
        start, *lines = block.decode("latin-1").split("\r\n")[:-2]
        method, path, _ = start.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        return SeenRequest(method, path, headers, await self._body(dict(headers)), connection)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
            return body
        return await self.reader.readexactly(int(headers.get("content-length", "0")))

    async def client_gone(self) -> None:
        """Return when the client closes or resets; a byte of its next request is kept for `next`."""
        try:
            self.ahead = await self.reader.read(1)
        except ConnectionError:
            return
        if self.ahead:
            await asyncio.Event().wait()
