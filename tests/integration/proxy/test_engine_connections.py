"""Which request an engine's connection belongs to, and when it is kept, thrown away or made anew."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import aiohttp.connector
import pytest

from gateway.core.types import EngineLimits
from gateway.engines.target import Carrier, EngineUnreachable, Scheduling, Target, Timeouts
from gateway.server import connector, dispatch, reply, upstream
from gateway.server.connector import EngineConnections
from gateway.server.gate import Lease
from gateway.server.questions import Questions
from gateway.testing import answers
from gateway.testing.dialect_answers import a_response, response_events
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine, Wire

CHAT = "/v1/chat/completions"
OTHERS_MAX = 20
VLLM_KEEPS_S = 5.0
COMMENT = b": on and on\n\n"
BUSY_HEAD = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"


def until_its_client_is_full(gateway):
    """Stream until the gateway waits for the client, then end the answer: the rest of it waits in the gateway."""
    event = answers.chunk(answers.token("x" * 30_000))

    async def script(_request, wire):
        await wire.send(answers.STREAM_HEAD)
        while not any(connection.writing_paused for connection in gateway().gateway._front.connections):
            await wire.send(event)
            await asyncio.sleep(0.001)
        await wire.send(answers.chunk(answers.DONE) + answers.CHUNKS_END)

    return script


async def test_a_client_that_leaves_before_a_buffered_tail_harms_no_request_on_the_same_connection(tmp_path):
    async with ScriptedEngine() as engine, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running(tmp_path, engine))
        slow = await stack.enter_async_context(gateway.client(receive_buffer_bytes=4096))
        engine.scripts.append(until_its_client_is_full(lambda: gateway))
        await slow.post(CHAT, a_chat(stream=True))
        await engine.until(lambda: any(request.method == "POST" for request in engine.finished))
        others = []
        while not others or engine.posts[-1].connection != engine.posts[0].connection:
            assert len(others) < OTHERS_MAX
            steps = asyncio.Queue()
            engine.scripts.append(answers.step_by_step(steps))
            steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("Hello")))
            client = await stack.enter_async_context(gateway.client())
            await client.post(CHAT, a_chat(stream=True))
            await client.read_head()
            await client.read_chunk()
            others.append((client, steps))
        slow.reset()
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        for client, steps in others:
            steps.put_nowait(answers.chunk(answers.DONE) + answers.CHUNKS_END)
            steps.put_nowait(None)
            assert await client.read_chunk() == answers.DONE
            assert await client.read_chunk() == b""


async def busy_in_two_pieces(_request, wire):
    await wire.send(BUSY_HEAD + b"content-length: 2\r\n\r\n")
    await asyncio.sleep(0.01)
    await wire.send(b"{}")


async def late_in_two_pieces(_request, wire):
    await wire.send(answers.STREAM_HEAD + answers.chunk(answers.event(answers.BUSY)))
    await asyncio.sleep(0.01)
    await wire.send(answers.chunk(answers.DONE) + answers.CHUNKS_END)


async def test_a_busy_answer_leaves_the_connection_for_the_next_try(tmp_path, monkeypatch):
    pauses, requeue = [], Lease.requeue

    async def noting(lease, pause_s):
        pauses.append(pause_s)
        await requeue(lease, pause_s)

    monkeypatch.setattr(Lease, "requeue", noting)
    monkeypatch.setattr(dispatch, "BUSY_PAUSE_S", 0.01)
    async with ScriptedEngine(answers.streaming("a")) as engine, running(tmp_path, engine) as gateway:
        engine.scripts += [busy_in_two_pieces, late_in_two_pieces] * 4
        assert (await gateway.chat(stream=True)).status == 200
        assert len(engine.posts) == 9
    # The watch's own connection is among those that are kept.
    assert len({post.connection for post in engine.posts}) <= 3
    # The pause is the whole engine's: one request's tries do not make the others wait longer.
    assert pauses == [0.01] * 8


async def test_a_busy_answer_that_does_not_end_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(reply, "END_S_MAX", 0.05)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        engine.scripts.append(answers.hanging(BUSY_HEAD + b"content-length: 50\r\n\r\n{"))
        engine.scripts.append(answers.raw(BUSY_HEAD + b"content-length: 50\r\n\r\n{", then=Wire.reset))
        assert (await gateway.chat()).status == 200
        assert len(engine.posts) == 3


@pytest.mark.parametrize("goes_on", [False, True])
async def test_after_the_streams_own_end_the_engine_is_not_waited_for(tmp_path, monkeypatch, goes_on):
    monkeypatch.setattr(reply, "END_S_MAX", 0.05)
    events = answers.events_of("Hello")

    async def script(_request, wire):
        await wire.send(answers.STREAM_HEAD, *map(answers.chunk, events))
        while goes_on:
            await wire.send(answers.chunk(COMMENT * 1000))
        await asyncio.Event().wait()

    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        whole = b"".join(events)
        assert answer.body.startswith(whole)
        rest = answer.body.removeprefix(whole)
        assert bool(rest) == goes_on
        assert (COMMENT * len(rest)).startswith(rest)
        await engine.until(lambda: len(engine.aborted) == 1)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


async def test_nor_after_the_end_of_a_kept_response_that_is_told_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reply, "END_S_MAX", 0.05)
    events = response_events("Hello")
    async with ScriptedEngine(answers.json_answer(a_response())) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask("/v1/responses", {"model": MODEL, "input": "Hello"})
        engine.gets["/v1/responses/resp_1"] = answers.hanging(answers.STREAM_HEAD, *map(answers.chunk, events))
        told = await gateway.ask("/v1/responses/resp_1?stream=true")
        assert (told.status, told.body) == (200, b"".join(events))
        await engine.until(lambda: len(engine.aborted) == 1)


@pytest.mark.parametrize("idle_s", [connector.IDLE_S_MAX - 0.5, connector.IDLE_S_MAX + 0.5])
async def test_a_connection_is_dropped_before_vllm_would_close_it_for_being_idle(tmp_path, monkeypatch, idle_s):
    assert connector.IDLE_S_MAX < VLLM_KEEPS_S
    ahead_s = 0.0
    for keeps in (connector, aiohttp.connector):
        monkeypatch.setattr(keeps, "monotonic", lambda: time.monotonic() + ahead_s)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.chat()
        opened, ahead_s = engine.connections_opened, idle_s
        assert (await gateway.chat()).status == 200
        assert (engine.posts[-1].connection > opened) == (idle_s > connector.IDLE_S_MAX)
        assert await gateway.metric("gateway_engine_resends_total", engine="a") == 0


async def test_what_is_sent_again_goes_out_on_a_new_connection(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine) as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(gateway.chat())
            await engine.until(lambda: len(engine.posts) == 4)
            release.set()
        kept = {request.connection for request in engine.requests}
        engine.scripts.append(answers.raw(then=Wire.close))
        assert (await gateway.chat()).status == 200
        first, again = engine.posts[-2:]
        assert first.connection in kept
        assert again.connection not in kept


async def test_a_question_that_finds_nobody_says_so_in_the_systems_own_words():
    engine = ScriptedEngine()
    await engine.listen()
    await engine.refuse_connections()
    target = Target("a", engine.url, "chat", Scheduling.FCFS, Carrier.AUTO, EngineLimits(), Timeouts(5, 5, 5))
    async with EngineConnections() as connections:
        questions = Questions(upstream.Upstream(connections, lambda _engine: None))
        with pytest.raises(EngineUnreachable, match=f"Cannot connect to host 127.0.0.1:{engine.port}"):
            await questions.get(target, "/version", timeout_s=5)
