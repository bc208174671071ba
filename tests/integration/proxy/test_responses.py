"""Responses: when one has begun, how one ends, and that what an engine keeps is its own tenant's alone."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.server import kept_responses
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.dialect_answers import a_response, named_event, response_events
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

PATH = "/v1/responses"


def a_body(**members):
    return {"model": MODEL, "input": "Say hello.", **members}


async def test_a_response_has_not_begun_before_it_is_scheduled(tmp_path):
    steps = asyncio.Queue()
    created, in_progress, *rest = response_events("Hello")
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(PATH, a_body(stream=True))
        for piece in (answers.STREAM_HEAD, answers.chunk(created), answers.chunk(in_progress)):
            steps.put_nowait(piece)
        await gateway.until_metric("gateway_running_requests", 1)
        assert await gateway.metric("gateway_engine_time_to_first_token_seconds_count") == 0
        assert await gateway.metric("gateway_prefill_tokens") > 0
        for piece in (*map(answers.chunk, rest), answers.CHUNKS_END, None):
            steps.put_nowait(piece)
        answer = await client.read_answer()
        assert await gateway.metric("gateway_engine_time_to_first_token_seconds_count") == 1
    assert answer.body == b"".join([created, in_progress, *rest])


@pytest.mark.parametrize(
    ("end", "outcome"), [("completed", "completed"), ("incomplete", "completed"), ("failed", "engine_error")]
)
async def test_each_end_of_a_response_is_one(tmp_path, end, outcome):
    events = response_events("Hello", end=end)
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(PATH, a_body(stream=True))
        await gateway.until_metric("gateway_requests_total", 1, outcome=outcome)
    assert (answer.status, answer.body) == (200, b"".join(events))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("cancelled", "engine_error"),
        ("failed", "engine_error"),
        ("incomplete", "completed"),
        ("completed", "completed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_counts_by_the_status_that_it_ends_with(tmp_path, stream, status, outcome):
    """An engine that gave it up says so there alone: its stream ends as a whole one's. Parts have a status too."""
    failed_part = {"type": "mcp_call", "status": "failed"}
    ended = {**a_response("Hel"), "metadata": {"status": "failed"}, "output": [failed_part], "status": status}
    end = named_event({"type": "response.completed", "response": ended})
    events = [*response_events("Hel")[:-1], end]
    script = answers.stream_of(*events) if stream else answers.json_answer(ended)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(PATH, a_body(stream=stream))
        assert (answer.status, answer.body) == (200, b"".join(events) if stream else json.dumps(ended).encode())
        await gateway.until_metric("gateway_requests_total", 1, outcome=outcome)


async def test_a_response_that_tells_all_of_itself_again_is_whole_and_kept(tmp_path):
    long = "x" * (3 << 20)  # its instructions, its tools, or the log probabilities of each token
    events = response_events("Hello", instructions=long)
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(PATH, a_body(stream=True))
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
        assert await gateway.metric("gateway_output_tokens_total") == 1
        engine.gets["/v1/responses/resp_1"] = answers.json_answer(a_response("kept"))
        kept = await gateway.ask("/v1/responses/resp_1")
    assert answer.body == b"".join(events)
    assert (kept.status, kept.json()) == (200, a_response("kept"))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_keeps_is_asked_of_that_engine(tmp_path, stream):
    script = answers.stream_of(*response_events("a")) if stream else answers.json_answer(a_response())
    async with (
        ScriptedEngine(script) as one,
        ScriptedEngine(script) as two,
        running(tmp_path, one, two) as gateway,
    ):
        await gateway.ask(PATH, a_body(stream=stream))
        maker, other = (one, two) if one.posts else (two, one)
        maker.gets["/v1/responses/resp_1"] = answers.json_answer(a_response("kept"))
        told = await gateway.ask("/v1/responses/resp_1?starting_after=3&evil=1&stream=false")
        maker.scripts.append(answers.json_answer(a_response("cancelled")))
        cancelled = await gateway.ask("/v1/responses/resp_1/cancel", {"ignored": True})
        assert await gateway.metric("gateway_offered_total") == 1
    assert (told.status, told.json()) == (200, a_response("kept"))
    assert (cancelled.status, cancelled.json()) == (200, a_response("cancelled"))
    asked = [(seen.method, seen.path, seen.body) for seen in maker.requests if "resp_1" in seen.path]
    assert asked == [
        ("GET", "/v1/responses/resp_1?starting_after=3&stream=false", b""),
        ("POST", "/v1/responses/resp_1/cancel", b""),
    ]
    assert not [seen for seen in other.requests if "resp" in seen.path]


async def test_a_kept_response_may_be_told_as_a_stream(tmp_path):
    events = response_events("a", "b")
    async with ScriptedEngine(answers.json_answer(a_response())) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(PATH, a_body())
        engine.gets["/v1/responses/resp_1"] = answers.stream_of(*events)
        told = await gateway.ask("/v1/responses/resp_1?stream=true")
    assert (told.status, told.body) == (200, b"".join(events))
    assert told.header("cache-control") == "no-cache, no-transform"


@pytest.mark.parametrize("key", [BATCH_KEY])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/responses/resp_1", None, "response_id"),
        ("/v1/responses/resp_1/cancel", {}, "response_id"),
        (PATH, a_body(previous_response_id="resp_1"), "previous_response_id"),
    ],
)
async def test_another_tenants_response_does_not_exist(tmp_path, key, path, body, param):
    async with ScriptedEngine(answers.json_answer(a_response())) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(PATH, a_body())
        answer = await gateway.ask(path, body, key=key)
        unknown = await gateway.ask(path.replace("resp_1", "resp_2"), body, key=key)
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["param"]) == (404, "response_not_found", param)
    assert error["message"] == unknown.json()["error"]["message"]
    assert len(engine.posts) == 1


async def test_a_tenants_own_response_may_be_continued(tmp_path):
    async with ScriptedEngine(answers.json_answer(a_response())) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(PATH, a_body())
        answer = await gateway.ask(PATH, a_body(previous_response_id="resp_1"))
    assert (answer.status, len(engine.posts)) == (200, 2)


async def test_the_oldest_response_is_forgotten_first(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_responses, "KEPT_MAX", 1)
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for number in (1, 2):
            engine.scripts.append(answers.json_answer(a_response(response_id=f"resp_{number}")))
            engine.gets[f"/v1/responses/resp_{number}"] = answers.json_answer({})
            await gateway.ask(PATH, a_body())
        found = [(await gateway.ask(f"/v1/responses/resp_{number}")).status for number in (1, 2)]
    assert found == [404, 200]


async def test_without_the_engine_that_keeps_it_a_response_cannot_be_told(tmp_path):
    async with ScriptedEngine(answers.json_answer(a_response())) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(PATH, a_body())
        await engine.refuse_connections()
        await engine.cut_connections()
        tries = [await gateway.ask("/v1/responses/resp_1") for _ in range(2)]
    assert [answer.header("x-gateway-reason") for answer in tries] == ["engine_unreachable", "no_engine"]
    assert [answer.status for answer in tries] == [502, 503]


async def test_one_tenants_responses_push_out_its_own_and_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_responses, "KEPT_OF_TENANT_MAX", 2)
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for number, key in enumerate([BATCH_KEY, *[INTERACTIVE_KEY] * 4]):
            engine.scripts.append(answers.json_answer(a_response(response_id=f"resp_{number}")))
            engine.gets[f"/v1/responses/resp_{number}"] = answers.json_answer({})
            await gateway.ask(PATH, a_body(), key=key)
        keys = [BATCH_KEY, *[INTERACTIVE_KEY] * 4]
        found = [(await gateway.ask(f"/v1/responses/resp_{number}", key=key)).status for number, key in enumerate(keys)]
    assert found == [200, 404, 404, 200, 200]


async def test_what_goes_on_from_a_response_goes_to_the_engine_that_keeps_it(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine() as one,
        ScriptedEngine() as two,
        running(tmp_path, one, two) as gateway,
        asyncio.TaskGroup() as group,
    ):
        for engine in (one, two):
            engine.script = answers.json_answer(a_response(response_id=f"resp_{engine.port}"))
            engine.scripts.append(answers.held(engine.script, release))
        group.create_task(gateway.ask(PATH, a_body()))
        await gateway.until(lambda: len(one.posts) + len(two.posts) == 1)
        # The engine that idle ones are chosen after has work now; the next response is made by the other.
        maker, other = (two, one) if one.posts else (one, two)
        maker.scripts.clear()
        await gateway.ask(PATH, a_body())
        release.set()
        await gateway.until(lambda: not gateway.exchanges)
        assert (len(maker.posts), len(other.posts)) == (1, 1)
        for _ in range(4):
            answer = await gateway.ask(PATH, a_body(previous_response_id=f"resp_{maker.port}"))
            assert (answer.status, answer.json()["id"]) == (200, f"resp_{maker.port}")
        assert (len(maker.posts), len(other.posts)) == (5, 1)
        await maker.refuse_connections()
        gateway.gateway.rooms.watches["a" if maker is one else "b"].refused()
        gone = await gateway.ask(PATH, a_body(previous_response_id=f"resp_{maker.port}"))
        assert (await gateway.ask(PATH, a_body())).status == 200
    assert (gone.status, gone.header("x-gateway-reason")) == (503, "no_engine")


@pytest.mark.parametrize("way", ["refused", "leaving"])
async def test_who_waits_for_the_engine_that_keeps_a_response_hears_at_once_that_it_is_gone(tmp_path, way):
    plan = a_plan(
        a_class("interactive", wait_s_max=(60, 60)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )
    async with (
        ScriptedEngine(answers.json_answer(a_response())) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        gateway.client() as running_on,
        gateway.client() as bound,
        gateway.client() as free,
    ):
        await gateway.ask(PATH, a_body())
        engine.script = answers.hanging()
        await running_on.post(PATH, a_body())
        await engine.until(lambda: len(engine.posts) == 2)
        for number, client in enumerate((free, bound)):
            await client.post(PATH, a_body(**({"previous_response_id": "resp_1"} if client is bound else {})))
            await gateway.until_metric("gateway_queue_requests", number + 1)
        getattr(gateway.gateway.rooms.watches["a"], way)()
        answer = await bound.read_answer()
        assert await gateway.metric("gateway_queue_requests") == 1
    assert (answer.status, answer.header("x-gateway-reason")) == (503, "no_engine")
    assert answer.header("retry-after") is not None
