"""An engine's connection by itself: how an answer is handed on, and what is left of one when the next comes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp.helpers import DEFAULT_CHUNK_SIZE

from gateway.core.types import EngineLimits, Reason
from gateway.engines.target import Carrier, Scheduling, Target, Timeouts
from gateway.server.connector import EngineConnections
from gateway.server.engine_failure import EngineFailure
from gateway.server.tasks import spawn
from gateway.server.upstream import Outgoing, Upstream
from gateway.testing import answers
from gateway.testing.answers import CHUNKS_END, STREAM_HEAD, chunk
from gateway.testing.loopback_server import LoopbackServer
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.testing.skipping_loop import skip

IDLE_S = 10
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 5\r\n\r\nfirst"
QUESTION = Outgoing("POST", "/v1/completions", [], b"{}")
# So many chunks that nobody has read have aiohttp pause, however small they are.
TINY_CHUNKS = DEFAULT_CHUNK_SIZE // 16 + 1
ON_ASYNCIO = pytest.mark.asyncio(loop_factories=["asyncio"])


class Ways:
    """The way to one engine. handler: of the one connection in use; None: none is."""

    def __init__(self, engine, connections):
        self.connections = connections
        self._upstream = Upstream(connections, lambda _engine: None)
        timeouts = Timeouts(IDLE_S, IDLE_S, IDLE_S)
        self._target = Target("a", engine.url, "chat", Scheduling.FCFS, Carrier.AUTO, EngineLimits(), timeouts)

    def open(self, outgoing=QUESTION):
        return self._upstream.open(self._target, outgoing)

    @property
    def handler(self):
        return next(iter(self.connections._acquired), None)

    async def asked(self, outgoing=QUESTION):
        async with self.open(outgoing) as reply:
            return reply.status, [name for name, _ in reply.headers], await rest_of(reply)


async def rest_of(reply):
    body = b""
    while piece := await reply.read():
        body += piece
    return body


async def until(condition):
    async with asyncio.timeout(IDLE_S):
        while not condition():  # noqa: ASYNC110 - state of a connection has no event for a test
            await asyncio.sleep(0.001)


@asynccontextmanager
async def way_to(engine):
    async with engine, EngineConnections() as connections:
        yield Ways(engine, connections)


async def test_what_is_poured_is_handed_on_as_it_comes_until_the_taker_has_enough():
    steps, taken = asyncio.Queue(), []

    def take(piece):
        taken.append(piece)
        steps.put_nowait({b"a": chunk(b"b"), b"b": chunk(b"c"), b"d": CHUNKS_END}[piece])
        return piece != b"b"

    async with way_to(ScriptedEngine(answers.step_by_step(steps))) as way:
        steps.put_nowait(STREAM_HEAD + chunk(b"a"))
        async with way.open() as reply:
            reply.began()
            await reply.pour(take)
            assert (taken, reply.at_end) == ([b"a", b"b"], False)
            assert await reply.read() == b"c"
            steps.put_nowait(chunk(b"d"))
            await reply.pour(take)
            assert (taken, reply.at_end) == ([b"a", b"b", b"d"], True)


async def test_what_the_taker_raises_is_raised_where_it_is_poured_and_the_connection_is_thrown_away():
    class EnoughError(Exception):
        pass

    def take(piece):
        if piece == b"b":
            raise EnoughError
        steps.put_nowait(chunk(b"b"))
        return True

    steps, engine = asyncio.Queue(), ScriptedEngine()
    engine.script = answers.step_by_step(steps)
    async with way_to(engine) as way:
        steps.put_nowait(STREAM_HEAD + chunk(b"a"))
        with pytest.raises(EnoughError):
            async with way.open() as reply:
                await reply.pour(take)
        await engine.until(lambda: engine.aborted)


@ON_ASYNCIO
async def test_an_engine_that_sends_framing_alone_is_silent():
    steps = asyncio.Queue()
    async with way_to(ScriptedEngine(answers.step_by_step(steps))) as way:
        steps.put_nowait(STREAM_HEAD + chunk(b"a"))
        async with way.open() as reply:
            reply.began()
            assert await reply.read() == b"a"
            poured = spawn(reply.pour(lambda _piece: True), name="poured")
            for piece in (b"5", b";", b"x"):
                seen = way.handler.bytes_back
                steps.put_nowait(piece)
                await until(lambda seen=seen: way.handler.bytes_back > seen)
                skip(IDLE_S * 0.45)
            with pytest.raises(EngineFailure) as failure:
                async with asyncio.timeout(IDLE_S / 2):
                    await poured
            assert failure.value.reason is Reason.ENGINE_TIMEOUT


async def test_chunks_that_nobody_reads_are_read_on_however_small_they_are():
    release, engine = asyncio.Event(), ScriptedEngine()

    async def script(_request, wire):
        await wire.send(STREAM_HEAD + chunk(b"x") * TINY_CHUNKS)
        await release.wait()
        await wire.send(chunk(b"y") + CHUNKS_END)

    engine.script = script
    async with way_to(engine) as way, way.open() as reply:
        await until(lambda: way.handler._reading_paused)
        begun = await reply.read()
        release.set()
        assert begun + await rest_of(reply) == b"x" * TINY_CHUNKS + b"y"


async def test_nor_is_the_next_answer_held_up_by_them():
    engine = ScriptedEngine(answers.raw(WHOLE))
    engine.scripts.append(answers.raw(STREAM_HEAD + chunk(b"x") * TINY_CHUNKS + CHUNKS_END))
    async with way_to(engine) as way:
        async with way.open() as reply:
            await until(lambda: way.handler is None)
            assert await rest_of(reply) == b"x" * TINY_CHUNKS
        assert await way.asked() == (200, ["content-length"], b"first")
    assert engine.connections_opened == 1


async def test_what_trails_an_answer_is_no_header_of_the_next_one():
    engine = ScriptedEngine(answers.raw(WHOLE))
    engine.scripts.append(answers.raw(STREAM_HEAD + chunk(b"a") + b"0\r\nx-trailer: of the first\r\n\r\n"))
    async with way_to(engine) as way:
        assert (await way.asked())[2] == b"a"
        assert await way.asked() == (200, ["content-length"], b"first")
    assert engine.connections_opened == 1


async def test_what_an_engine_says_unasked_is_no_answer_to_the_next_request():
    engine, release = ScriptedEngine(answers.raw(WHOLE)), asyncio.Event()
    unasked = b"HTTP/1.1 404 Not Found\r\nx-unasked: "

    async def script(_request, wire):
        await wire.send(WHOLE)
        await release.wait()
        await wire.send(unasked)

    async with way_to(engine) as way:
        engine.scripts += [answers.raw(WHOLE + unasked), script]
        for _ in range(2):
            assert await way.asked() == (200, ["content-length"], b"first")
        release.set()
        await engine.until(lambda: engine.connections_open == 0)
        assert await way.asked() == (200, ["content-length"], b"first")


async def test_what_is_no_http_behind_a_whole_answer_does_not_harm_it():
    steps = asyncio.Queue()
    async with way_to(ScriptedEngine(answers.step_by_step(steps))) as way:
        steps.put_nowait(WHOLE[:-5])
        async with way.open() as reply:
            steps.put_nowait(b"first\x00\x00")
            assert await rest_of(reply) == b"first"


class Hasty(LoopbackServer):
    """Answers once it has a request's head, and takes the body when it is told to."""

    def __init__(self):
        super().__init__()
        self.takes = asyncio.Event()
        self.taken_bytes = 0

    async def _connection(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await self.takes.wait()
        while piece := await reader.read(1 << 20):
            self.taken_bytes += len(piece)


async def test_a_connection_that_answered_before_it_had_the_request_is_thrown_away_unsent_bytes_and_all():
    engine, body = Hasty(), bytes(24 << 20)
    async with way_to(engine) as way:
        assert (await way.asked(Outgoing("POST", "/v1/completions", [], body)))[2] == b"first"
        engine.takes.set()
        await engine.until(lambda: engine.connections_open == 0)
    assert 0 < engine.taken_bytes < len(body)
