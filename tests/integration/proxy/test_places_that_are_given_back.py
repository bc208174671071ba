"""Places at the engine and in line: never more than there are, and each given back whatever becomes of its request."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import aiohttp
import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine, Wire
from gateway.testing.skipping_loop import skip

CHAT = "/v1/chat/completions"
PATIENCE_S = 30
PATIENT = {"timeouts": dict.fromkeys(("connect_s", "first_byte_s", "idle_s"), PATIENCE_S)}
SILENT = (answers.hanging(), answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("a"))))


def places(total, **of_class):
    return a_plan(
        a_class("interactive", **{"wait_s_max": (30, 30), **of_class}),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(total)),
        order=OrderKind.ARRIVAL,
    )


async def the_place_is_free(gateway, engine):
    await gateway.until(lambda: not gateway.exchanges)
    assert await gateway.metric("gateway_running_requests") == 0
    engine.script = answers.completion()
    assert (await gateway.chat()).status == 200


async def test_whatever_fails_the_only_place_is_free_again(tmp_path):
    refused = ({"messages": None}, {"model": "nope"}, {"n": 99}, {"max_tokens": 10**6}, {"messages": [1]})
    broken = (
        answers.raw(then=Wire.reset),
        answers.raw(answers.STREAM_HEAD, then=Wire.reset),
        answers.raw(answers.STREAM_HEAD, answers.chunk(answers.token("a")), then=Wire.reset),
        answers.error(400),
        answers.error(500),
        answers.error(504),
        answers.raw(b"no HTTP\r\n\r\n"),
        answers.plain(307, b""),
        answers.stream_of(answers.event({"error": {"code": 500}}), answers.DONE),
    )
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, plan=places(1), engine=PATIENT) as gateway,
    ):
        for leaves in (True, False):
            for members in refused:
                assert (await gateway.chat(**members)).status in (400, 404)
            for script in broken + (SILENT if leaves else ()):
                engine.script, seen = script, len(engine.posts)
                async with gateway.client() as client:
                    await client.post(CHAT, a_chat(stream=True))
                    await engine.until(lambda seen=seen: len(engine.posts) > seen)
                    if leaves:
                        client.reset()
                    else:
                        with suppress(BrokenAnswer):
                            await client.read_answer()
                await the_place_is_free(gateway, engine)
        ended = await gateway.metric("gateway_requests_total")
        assert ended == await gateway.metric("gateway_offered_total")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_an_engine_that_falls_silent_gives_the_only_place_back_when_its_time_is_up(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, plan=places(1), engine=PATIENT) as gateway,
    ):
        for number, script in enumerate(SILENT, start=1):
            engine.script, seen = script, len(engine.posts)
            async with gateway.client() as client:
                await client.post(CHAT, a_chat(stream=True))
                await engine.until(lambda seen=seen: len(engine.posts) > seen)
                assert await gateway.metric("gateway_running_requests") == 1
                skip(PATIENCE_S)
                with suppress(BrokenAnswer):
                    await client.read_answer()
            await the_place_is_free(gateway, engine)
            assert await gateway.metric("gateway_requests_total", outcome="timed_out") == number


async def test_a_burst_never_has_more_at_the_engine_than_it_has_places_for(tmp_path):
    now = most = 0

    async def script(request, wire):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        await answers.completion()(request, wire)

    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, plan=places(4)) as gateway,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(gateway.chat()) for _ in range(100)]
        assert {(await task).status for task in tasks} == {200}
    assert most <= 4


async def test_a_line_holds_what_it_may_and_a_newcomer_passes_nobody(tmp_path):
    turns = [asyncio.Event() for _ in range(5)]
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, plan=places(1, requests_max=3)) as gateway,
        asyncio.TaskGroup() as group,
    ):
        engine.scripts += [answers.held(answers.completion(), turn) for turn in turns]
        tasks = []
        for index in range(4):
            tasks.append(group.create_task(gateway.chat(user=str(index))))
            await gateway.until(lambda index=index: len(gateway.exchanges) == index + 1)
            await gateway.until_metric("gateway_receiving_requests", 0)
        for stream in (False, True, False):
            refused = await gateway.chat(stream=stream)
            assert (refused.status, refused.header("content-type")) == (429, "application/json")
            assert refused.json()["error"]["details"]["limit"] == 3
        turns[0].set()
        tasks.append(group.create_task(gateway.chat(user="newcomer")))
        for done, turn in enumerate(turns[1:], start=2):
            await engine.until(lambda done=done: len(engine.posts) >= done)
            turn.set()
        assert {(await task).status for task in tasks} == {200}
    assert [post.json()["user"] for post in engine.posts] == ["0", "1", "2", "3", "newcomer"]


async def test_those_who_leave_the_line_are_no_part_of_it_at_once(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=places(1)) as gateway,
        asyncio.TaskGroup() as group,
    ):
        first = group.create_task(gateway.chat(user="first"))
        await engine.until(lambda: engine.posts)
        leaving = [gateway.client() for _ in range(10)]
        for index, client in enumerate(leaving):
            await client.__aenter__()
            await client.post(CHAT, a_chat(user=f"leaving {index}"))
            await gateway.until_metric("gateway_queue_requests", index + 1)
        staying = [group.create_task(gateway.chat(user=f"staying {index}")) for index in range(2)]
        await gateway.until_metric("gateway_queue_requests", 12)
        oldest_s = await gateway.metric("gateway_queue_oldest_age_seconds")
        for index, client in enumerate(leaving):
            client.leave() if index % 2 else client.reset()
        await gateway.until_metric("gateway_queue_requests", 2)
        assert await gateway.metric("gateway_queue_oldest_age_seconds") < oldest_s + 1
        assert await gateway.metric("gateway_queue_prompt_tokens") > 0
        release.set()
        assert {(await task).status for task in (first, *staying)} == {200}
        assert await gateway.metric("gateway_queue_prompt_tokens") == 0
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == len(leaving)
    assert sorted(post.json()["user"] for post in engine.posts) == ["first", "staying 0", "staying 1"]


async def test_a_client_that_leaves_while_its_prompt_is_counted_is_gone_and_no_failure(tmp_path):
    pools = {"chat": {"models": [MODEL], "tokenizer": {"kind": "engine"}}}
    async with (
        ScriptedEngine(answers.hanging()) as engine,
        running(tmp_path, engine, pools=pools) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat())
        await engine.until(lambda: engine.posts)
        assert engine.posts[0].path == "/tokenize"
        client.reset()
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        await engine.until(lambda: engine.aborted)
        assert await gateway.metric("gateway_requests_total") == 1


async def test_clients_that_leave_before_an_answer_leave_no_connection_at_the_engine(tmp_path):
    plan = a_plan(admission=an_admission(AdmissionKind.NONE))
    async with ScriptedEngine(answers.hanging()) as engine, running(tmp_path, engine, plan=plan) as gateway:
        clients = [gateway.client() for _ in range(50)]
        for client in clients:
            await client.__aenter__()
            await client.post(CHAT, a_chat())
        await engine.until(lambda: len(engine.posts) == len(clients))
        for client in clients:
            client.reset()
        await engine.until(lambda: len(engine.aborted) == len(clients))
        # What is left is the gateway's own connection, over which it looks after the engine.
        await engine.until(lambda: engine.connections_open <= 2)
        await gateway.until_metric("gateway_requests_total", len(clients), outcome="client_gone")


async def test_broken_answers_leave_no_object_behind(tmp_path):
    """A traceback that is kept would hold its answer, and that its connection."""
    script = answers.stream_of(answers.token("a"), then=Wire.reset)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        for _ in range(30):
            async with gateway.client() as client:
                await client.post(CHAT, a_chat(stream=True))
                await client.read_head()
                await client.read_end()
        await gateway.until(lambda: not gateway.exchanges)
        gc.collect()
        alive = [each for each in gc.get_objects() if isinstance(each, aiohttp.ClientResponse)]
        # The watch's own questions may be under way.
        assert len(alive) <= 2
