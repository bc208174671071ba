"""An engine that shuts down as vLLM does: it ends what it has, refuses new text by a 500, and no caller hears of it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engines.health import State
from gateway.testing import answers
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
LEAVING = answers.error(500, "cannot schedule new futures after shutdown", "InternalServerError")
ANSWER = answers.stream_or_whole("Hello")
COUNT = answers.json_answer({"count": 20, "max_model_len": 12288})
SERVING = answers.by_request(lambda request: COUNT if request.path == "/tokenize" else ANSWER)
SHUTTING_DOWN = answers.by_request(
    lambda request: ANSWER if isinstance(request.json().get("prompt"), list) else LEAVING
)
ESTIMATED = {"kind": "estimate"}


@pytest.mark.parametrize("tokenizer", [ESTIMATED, {"kind": "engine"}], ids=["estimated", "counted by the engine"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_leaving_engine_refuses_is_served_by_another(tmp_path, tokenizer, stream):
    pools = {"chat": {"models": [MODEL], "tokenizer": tokenizer}}
    async with (
        ScriptedEngine(SERVING) as leaving,
        ScriptedEngine(SERVING) as other,
        running(tmp_path, leaving, other, pools=pools) as gateway,
    ):
        health = gateway.gateway.rooms.watches["a"].health
        leaving.script = SHUTTING_DOWN
        while health.is_up:
            assert (await gateway.chat(stream=stream)).status == 200
        assert health.state is State.LEAVING
        refused = len(leaving.posts)
        await leaving.until(lambda: len(leaving.posts) > refused)
        assert (await gateway.chat(stream=stream)).status == 200
        assert health.state is State.LEAVING, "it would still take ids, and is asked with text"
        leaving.script = SERVING
        await gateway.until(lambda: health.is_up)
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 0


async def test_what_runs_on_it_ends_well_and_who_comes_then_waits(tmp_path):
    steps = asyncio.Queue()
    steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await client.read_head()
        engine.script = SHUTTING_DOWN
        late = await gateway.chat(headers={"x-gateway-wait-ms": "200"})
        assert late.status in {429, 503}
        assert late.header("x-gateway-reason") in {"wait_deadline", "no_engine"}
        steps.put_nowait(answers.chunk(answers.token(" world")) + answers.chunk(answers.DONE) + answers.CHUNKS_END)
        steps.put_nowait(None)
        body = b""
        while chunk := await client.read_chunk():
            body += chunk
        assert body == answers.token("Hello") + answers.token(" world") + answers.DONE
        await gateway.until(lambda: not gateway.exchanges)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


async def test_a_question_without_engine_time_is_answered_by_another_too(tmp_path):
    question = {"model": MODEL, "prompt": "Hi"}
    async with (
        ScriptedEngine(SERVING) as leaving,
        ScriptedEngine(SERVING) as other,
        running(tmp_path, leaving, other) as gateway,
    ):
        leaving.script = LEAVING
        answered = [await gateway.ask("/tokenize", question) for _ in range(2)]
        assert [(answer.status, answer.json()["count"]) for answer in answered] == [(200, 20)] * 2
        assert gateway.gateway.rooms.watches["a"].health.state is State.LEAVING
        other.script = LEAVING
        last = await gateway.ask("/tokenize", question)
    assert (last.status, last.header("x-gateway-reason")) == (503, "no_engine")
