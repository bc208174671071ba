"""A client that leaves, in any phase and in any way, frees its place and stops the engine's work."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.testing.skipping_loop import skip

CHAT = "/v1/chat/completions"
STALL_S = 60
WAYS = ["leave", "reset"]


def one_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )


async def nothing_is_held(gateway):
    await gateway.until(lambda: not gateway.exchanges)
    assert await gateway.metric("gateway_running_requests") == 0
    assert await gateway.metric("gateway_queue_requests") == 0
    assert await gateway.metric("gateway_prefill_tokens") == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_in_prefill_the_engines_connection_is_closed_and_the_place_is_free(tmp_path, way, stream):
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=stream))
        await engine.until(lambda: len(engine.posts) == 1)
        getattr(client, way)()
        await engine.until(lambda: len(engine.aborted) == 1)
        await nothing_is_held(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 1
        engine.script = answers.completion()
        assert (await gateway.chat()).status == 200


@pytest.mark.parametrize("way", WAYS)
async def test_after_the_held_200_the_engines_connection_is_closed(tmp_path, way):
    script = answers.hanging(answers.STREAM_HEAD, answers.chunk(b": keep-alive\n\n"))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await engine.until(lambda: len(engine.posts) == 1)
        getattr(client, way)()
        await engine.until(lambda: len(engine.aborted) == 1)
        await nothing_is_held(gateway)


@pytest.mark.parametrize("way", WAYS)
async def test_mid_stream_the_engines_connection_is_closed_and_not_used_again(tmp_path, way):
    script = answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await client.read_head()
        await client.read_chunk()
        getattr(client, way)()
        await engine.until(lambda: len(engine.aborted) == 1)
        await nothing_is_held(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 1
        engine.script = answers.completion()
        assert (await gateway.chat()).status == 200
        assert engine.posts[0].connection != engine.posts[1].connection


@pytest.mark.parametrize("way", WAYS)
async def test_in_line_the_place_goes_to_the_next_and_the_engine_never_hears_of_it(tmp_path, way):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        asyncio.TaskGroup() as group,
        gateway.client() as leaving,
    ):
        first = group.create_task(gateway.chat(user="first"))
        await engine.until(lambda: len(engine.posts) == 1)
        await leaving.post(CHAT, a_chat(user="leaving"))
        await gateway.until_metric("gateway_queue_requests", 1)
        last = group.create_task(gateway.chat(user="last"))
        await gateway.until_metric("gateway_queue_requests", 2)
        getattr(leaving, way)()
        await gateway.until_metric("gateway_queue_requests", 1)
        release.set()
        assert [(await task).status for task in (first, last)] == [200, 200]
        assert await gateway.metric("gateway_queue_wait_seconds_count", outcome="client_gone") == 1
    assert [post.json()["user"] for post in engine.posts] == ["first", "last"]


async def test_a_client_that_closes_its_sending_half_is_gone_in_any_phase(tmp_path):
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        gateway.client() as streaming,
        gateway.client() as waiting,
        gateway.client() as in_prefill,
    ):
        engine.scripts.append(answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello"))))
        await streaming.post(CHAT, a_chat(stream=True))
        await streaming.read_head()
        await waiting.post(CHAT, a_chat())
        await gateway.until_metric("gateway_queue_requests", 1)
        waiting.half_close()
        assert await waiting.read_end() == b""
        await gateway.until_metric("gateway_queue_requests", 0)
        streaming.half_close()
        await engine.until(lambda: len(engine.aborted) == 1)
        await in_prefill.post(CHAT, a_chat())
        await engine.until(lambda: len(engine.posts) == 2)
        in_prefill.half_close()
        assert await in_prefill.read_end() == b""
        await engine.until(lambda: len(engine.aborted) == 2)
        await nothing_is_held(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 3


@pytest.mark.parametrize("way", WAYS)
async def test_inside_its_body_the_request_ends_as_gone(tmp_path, way):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(client.head("POST", CHAT, {"Content-Length": "1000"}) + b"{")
        await gateway.until_metric("gateway_receiving_requests", 1)
        getattr(client, way)()
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        assert await gateway.metric("gateway_receiving_requests") == 0
        assert not engine.posts


async def test_after_the_last_byte_of_a_whole_answer_it_is_complete(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post("/v1/completions", {"model": MODEL, "prompt": "Hi"})
        await client.read_answer()
        client.reset()
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")


async def test_after_the_streams_end_it_is_complete_though_the_engine_has_not_closed_yet(tmp_path):
    whole = b"".join(answers.events_of("Hello"))
    script = answers.hanging(answers.STREAM_HEAD, answers.chunk(whole))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await client.read_head()
        assert await client.read_chunk() == whole
        client.leave()
        await engine.until(lambda: len(engine.aborted) == 1)
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")


async def test_a_client_that_reads_nothing_is_cut_and_what_is_held_for_it_stays_small(tmp_path):
    sent = 0
    event = answers.chunk(answers.token("x" * 60_000))

    async def flood(_request, wire):
        nonlocal sent
        await wire.send(answers.STREAM_HEAD)
        while True:
            await wire.send(event)
            sent += len(event)

    async with (
        ScriptedEngine(flood) as engine,
        running(tmp_path, engine, limits={"client_stall_s": 0.2}) as gateway,
        gateway.client(receive_buffer_bytes=4096) as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await engine.until(lambda: len(engine.aborted) == 1)
        await nothing_is_held(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 1
    # The kernel's own buffers on both sides hold the most of it.
    assert sent < 24 << 20


async def test_a_slow_reader_gets_everything_at_its_own_pace(tmp_path):
    events = [*(answers.token("x" * 50_000) for _ in range(100)), *answers.events_of("end")]
    async with (
        ScriptedEngine(answers.stream_of(*events)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client(receive_buffer_bytes=4096) as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        answer = await client.read_answer()
        assert answer.body == b"".join(events)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


@pytest.mark.asyncio(loop_factories=["uvloop"])  # its time is the system's own
async def test_a_client_that_vanishes_without_a_word_is_noticed_in_any_phase(tmp_path):
    """Its machine or its network is gone: no end of the connection comes, and nothing is acknowledged any more."""
    steps = asyncio.Queue()
    plan = a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)),
        order=OrderKind.ARRIVAL,
    )
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(tmp_path, engine, plan=plan, limits={"client_stall_s": 1}) as gateway,
        gateway.client() as in_stream,
        gateway.client() as in_prefill,
        gateway.client() as in_line,
        gateway.client() as in_its_body,
    ):
        engine.scripts.append(answers.step_by_step(steps))
        await in_stream.post(CHAT, a_chat(stream=True))
        steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("a")))
        await in_stream.read_head()
        await in_stream.read_chunk()
        await in_prefill.post(CHAT, a_chat())
        await engine.until(lambda: len(engine.posts) == 2)
        await in_line.post(CHAT, a_chat())
        await gateway.until_metric("gateway_queue_requests", 1)
        await in_its_body.send(in_its_body.head("POST", CHAT, {"Content-Length": "100"}) + b"{")
        await gateway.until_metric("gateway_receiving_requests", 1)
        for client in (in_stream, in_prefill, in_line, in_its_body):
            client.vanish()
        steps.put_nowait(answers.chunk(answers.token("b")))
        await nothing_is_held(gateway)
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 4


LARGE = answers.plain(200, b"[" + b" " * (6 << 20) + b"]", "application/json")
LONG = answers.stream_of(*(answers.token("x" * 60_000) for _ in range(100)), *answers.events_of("end"))


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("answer", ["whole", "stream", "whose connection is over"])
async def test_who_takes_an_answer_slowly_gets_all_of_it_however_long_it_takes(tmp_path, answer):
    limits = {"client_stall_s": STALL_S, "keepalive_s": 0}
    async with (
        ScriptedEngine(LARGE if answer == "whole" else LONG) as engine,
        running(tmp_path, engine, limits=limits) as gateway,
        gateway.client(receive_buffer_bytes=4096) as client,
    ):
        front = gateway.gateway._front
        await gateway.until(lambda: len(front.connections) == 1)
        (connection,) = front.connections
        if answer == "whose connection is over":
            engine.script = answers.until_some_waits(lambda: connection.transport.get_write_buffer_size() > 0)
        await client.post(CHAT, a_chat(stream=answer != "whole"))
        if answer == "whose connection is over":
            await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
        else:
            await gateway.until(lambda: connection.writing_paused)
        taken = b""
        for _ in range(3):
            taken += await client.reader.readexactly(100_000)
            skip(STALL_S)
            await gateway.ops("/healthz")
        taken += await client.read_end()
        assert taken.endswith(b"]" if answer == "whole" else answers.DONE + b"\r\n" + answers.CHUNKS_END)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


async def test_many_clients_that_leave_at_once_leave_nothing_behind(tmp_path):
    async with (
        ScriptedEngine(answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("a")))) as engine,
        running(tmp_path, engine) as gateway,
    ):
        clients = [gateway.client() for _ in range(40)]
        for client in clients:
            await client.__aenter__()
            await client.post(CHAT, a_chat(stream=True))
        await gateway.until(lambda: len(gateway.exchanges) == len(clients))
        for client in clients:
            client.reset()
        await nothing_is_held(gateway)
        await gateway.until_metric("gateway_requests_total", len(clients), outcome="client_gone")
        await engine.until(lambda: len(engine.aborted) == len(engine.posts))


def ahead(client, requests, body_bytes=0):
    """Bytes of further requests that a client sends before its first one is answered."""
    body = b" " * body_bytes
    head = client.head("POST", CHAT, {"Content-Type": "application/json", "Content-Length": str(body_bytes)})
    return (head + body) * requests


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("requests", "body_bytes"), [(10, 0), (500, 0), (2, 1_000_000)])
async def test_a_client_that_sent_more_ahead_and_leaves_is_noticed(tmp_path, way, requests, body_bytes):
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat())
        await engine.until(lambda: len(engine.posts) == 1)
        client.writer.write(ahead(client, requests, body_bytes))
        getattr(client, way)()
        await engine.until(lambda: len(engine.aborted) == 1)
        await nothing_is_held(gateway)
