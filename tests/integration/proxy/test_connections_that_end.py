"""When the gateway ends, answers say so: also those to requests that began before."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.server.ending import Stage
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine


def one_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_began_before_the_end_is_answered_with_connection_close(tmp_path, stream):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.stream_or_whole("a"), release)) as engine,
        running(tmp_path, engine) as gateway,
        asyncio.TaskGroup() as group,
    ):
        running_one = group.create_task(gateway.chat(stream=stream))
        await engine.until(lambda: len(engine.posts) == 1)
        gateway.gateway.rooms.ending.stage = Stage.SETTLING
        release.set()
        answer = await running_one
    assert (answer.status, answer.header("connection")) == (200, "close")


async def test_a_waiting_request_that_the_drain_refuses_is_told_to_connect_elsewhere(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        asyncio.TaskGroup() as group,
    ):
        running_one = group.create_task(gateway.chat())
        await engine.until(lambda: len(engine.posts) == 1)
        waiting = group.create_task(gateway.chat())
        await gateway.until_metric("gateway_queue_requests", 1)
        gateway.gateway.rooms.ending.stage = Stage.DRAINING
        for gate in gateway.gateway.rooms.gates.values():
            gate.drain(0.0)
        refused = await waiting
        release.set()
        await running_one
    assert (refused.status, refused.header("x-gateway-reason")) == (503, "draining")
    assert refused.header("connection") == "close"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/responses/resp_1"])
async def test_a_question_without_engine_time_that_is_cut_is_told_why(tmp_path, path):
    async with (
        ScriptedEngine(answers.json_answer({"id": "resp_1", "object": "response"})) as engine,
        running(tmp_path, engine) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await gateway.ask("/v1/responses", {"model": MODEL, "input": "Hello"})
        engine.script = engine.gets["/v1/responses/resp_1"] = answers.hanging()
        value = None if "resp_1" in path else a_chat(prompt="Hello") if path == "/tokenize" else a_chat()
        seen = len(engine.requests)
        cut = group.create_task(gateway.ask(path, value))
        await engine.until(lambda: any(request.path == path for request in engine.requests[seen:]))
        assert gateway.gateway.rooms.ending.cut_all() == 1
        told = await cut
    assert (told.status, told.header("x-gateway-reason")) == (529 if "messages" in path else 503, "draining")
    assert (told.header("connection"), told.header("x-should-retry")) == ("close", "true")


async def test_a_kept_response_that_is_cut_while_it_is_told_ends_with_an_error_event(tmp_path):
    async with (
        ScriptedEngine(answers.json_answer({"id": "resp_1", "object": "response"})) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await gateway.ask("/v1/responses", {"model": MODEL, "input": "Hello"})
        told = answers.event({"type": "response.output_text.delta", "sequence_number": 4, "delta": "Hello"})
        engine.gets["/v1/responses/resp_1"] = answers.hanging(answers.STREAM_HEAD, answers.chunk(told))
        await client.get("/v1/responses/resp_1?stream=true")
        await client.read_head()
        assert await client.read_chunk() == told
        gateway.gateway.rooms.ending.cut_all()
        assert b"response.failed" in (last := await client.read_chunk())
        assert b"server_is_overloaded" in last
        assert await client.read_end() == b""


async def test_those_who_are_refused_at_once_are_told_to_come_back_apart(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        gateway.gateway.rooms.ending.stage = Stage.DRAINING
        refused = [await gateway.chat() for _ in range(8)]
    waits = {answer.header("retry-after-ms") for answer in refused}
    assert len(waits) > 1
    assert all(1000 <= int(wait) <= 3000 for wait in waits)
