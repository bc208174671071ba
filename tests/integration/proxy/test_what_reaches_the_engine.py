"""What is sent upstream: the gateway's key, order and id, and nothing of the caller's that would steer the engine."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
STEERING = {"X-Vllm-Priority": "-99", "X-data-parallel-rank": "3", "X-Session-ID": "s", "x-gateway-class": "vip"}


def engine_of(**members):
    return {"scheduling": "priority", **members}


async def test_the_priority_is_the_gateways_own_and_the_callers_is_gone(tmp_path):
    body = a_chat(max_tokens=7, priority=-5, request_id="mine", data_parallel_rank=1)
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, engine=engine_of(priority_carrier="header")) as gateway,
    ):
        await gateway.ask(CHAT, body, headers=STEERING)
        await gateway.ask(CHAT, body, headers=STEERING, key=BATCH_KEY)
        assert await gateway.metric("gateway_priority_effective", engine="a") == 1
    interactive, batch = engine.posts
    assert 0 <= int(*interactive.header("x-vllm-priority")) < int(*batch.header("x-vllm-priority")) < 2**63
    assert interactive.json() == a_chat(max_tokens=7)
    for name in ("x-data-parallel-rank", "x-session-id", "x-gateway-class"):
        assert interactive.header(name) == []


async def test_an_older_engine_gets_the_priority_in_the_body(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, engine=engine_of(priority_carrier="body")) as gateway,
    ):
        await gateway.ask(CHAT, a_chat(max_tokens=7, priority=-5), headers=STEERING)
    (post,) = engine.posts
    assert post.header("x-vllm-priority") == []
    sent = post.json()
    assert sent.pop("priority") >= 0
    assert sent == a_chat(max_tokens=7)


async def test_the_carrier_follows_the_engines_version(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine:
        engine.gets["/version"] = answers.json_answer({"version": "0.11.0"})
        async with running(tmp_path, engine, engine=engine_of(priority_carrier="auto")) as gateway:
            await gateway.chat()
    (post,) = engine.posts
    assert post.header("x-vllm-priority") == []
    assert "priority" in post.json()


async def test_nothing_is_sent_to_an_engine_that_does_not_order_by_priority(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, engine={"scheduling": "fcfs"}) as gateway,
    ):
        await gateway.ask(CHAT, a_chat(max_tokens=7, priority=-5), headers=STEERING)
        assert await gateway.metric("gateway_priority_effective", engine="a") == 0
    (post,) = engine.posts
    assert post.header("x-vllm-priority") == []
    assert post.json() == a_chat(max_tokens=7)


async def test_the_engines_key_replaces_the_callers(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_A_KEY", "engine-secret")
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, engine={"api_key_env": "ENGINE_A_KEY"}) as gateway,
    ):
        await gateway.ask(CHAT, a_chat(), headers={"x-api-key": INTERACTIVE_KEY})
    assert {tuple(request.header("authorization")) for request in engine.requests} == {("Bearer engine-secret",)}
    assert all(INTERACTIVE_KEY not in str(request) for request in engine.requests)


async def test_hop_by_hop_headers_and_what_connection_names_stay_here(tmp_path):
    headers = {
        "Connection": "keep-alive, traceparent",
        "traceparent": "00-0-0-00",
        "Keep-Alive": "5",
        "TE": "trailers",
        "Cookie": "a=b",
        "X-Forwarded-For": "10.0.0.1",
        "Accept": "text/event-stream",
    }
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(CHAT, a_chat(), headers=headers)
    (post,) = engine.posts
    names = {name for name, _ in post.headers}
    assert names == {"host", "content-type", "accept", "accept-encoding", "x-request-id", "content-length"}


async def test_an_unstated_output_is_set_where_the_engines_default_is_over_the_classs(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(CHAT, a_chat())
        await gateway.ask("/v1/completions", {"model": MODEL, "prompt": "Hi"})
    chat, completion = engine.posts
    assert chat.json() == a_chat(max_tokens=4096)
    assert completion.json() == {"model": MODEL, "prompt": "Hi"}


async def test_requests_go_in_the_order_of_admission_and_no_more_than_fit(tmp_path):
    plan = a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1, wait_s_max=(30, 30)),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)),
        order=OrderKind.STRICT_PRIORITY,
    )
    turns = [asyncio.Event() for _ in range(6)]
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        asyncio.TaskGroup() as group,
    ):
        engine.scripts += [answers.held(answers.completion(), turn) for turn in turns]
        for index, key in enumerate([BATCH_KEY] * 4 + [INTERACTIVE_KEY] * 2):
            group.create_task(gateway.chat(key=key, user=str(index), max_tokens=1))
            await gateway.until(lambda index=index: len(gateway.exchanges) == index + 1)
            await gateway.until_metric("gateway_receiving_requests", 0)
        assert len(engine.posts) == 2
        for done, turn in enumerate(turns, start=1):
            turn.set()
            await engine.until(lambda done=done: len(engine.finished) >= done and len(engine.posts) == min(6, done + 2))
    assert [post.json()["user"] for post in engine.posts] == ["0", "1", "4", "5", "2", "3"]


async def test_three_hundred_streams_are_open_at_the_engine_at_once(tmp_path):
    plan = a_plan(admission=an_admission(AdmissionKind.NONE))
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.streaming("a"), release)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(gateway.chat(stream=True)) for _ in range(300)]
        await engine.until(lambda: len(engine.posts) == 300)
        release.set()
        assert {(await task).status for task in tasks} == {200}


@pytest.mark.parametrize("size", [1 << 20, 3 << 20])
async def test_a_large_body_passes_whole(tmp_path, size):
    ids = [[7] * 4000]
    body = json.dumps({"model": MODEL, "prompt": ids, "max_tokens": 1, "user": "u" * size}).encode()
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask("/v1/completions", body)
    assert answer.status == 200
    assert engine.posts[0].body == body
