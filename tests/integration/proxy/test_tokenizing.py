"""Text to tokens and back: asked of an engine of the model's pool, outside of admission."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.server.unadmitted import OPEN_OF_TENANT_MAX
from gateway.testing import answers
from gateway.testing.harness import BATCH_KEY, MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

HELLO = [{"role": "user", "content": "Say hello."}]
TOKENS = {"count": 3, "max_model_len": 12288, "tokens": [1, 2, 3]}
ASKED = [
    ("/tokenize", {"prompt": "Say hello."}),
    ("/tokenize", {"messages": HELLO, "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_a_question_passes_as_it_is_and_is_no_offered_request(tmp_path, path, body):
    sent = json.dumps({"model": MODEL, **body}, indent=2).encode()
    async with ScriptedEngine(answers.json_answer(TOKENS)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, sent)
        assert await gateway.metric("gateway_offered_total") == 0
        assert await gateway.metric("gateway_http_requests_total", route=path, status="200") == 1
    assert (answer.status, answer.json()) == (200, TOKENS)
    assert [(post.path, post.body) for post in engine.posts] == [(path, sent)]
    assert answer.header("x-request-id").startswith("req-")


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("members", "refusal"),
    [({"model": "nope"}, (404, "model_not_found")), ({"model": None}, (400, "missing_required_parameter"))],
)
async def test_a_question_that_is_refused_reaches_no_engine(tmp_path, path, members, refusal):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, {"model": MODEL, **members})
    assert (answer.status, answer.json()["error"]["code"]) == refusal
    assert not engine.posts


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_who_is_not_known_may_not_ask(tmp_path, path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, {"model": MODEL}, key=None)
    assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert not engine.posts


async def test_a_key_for_other_models_may_not_ask(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, key_models={"interactive": ["other"]}) as gateway,
    ):
        answer = await gateway.ask("/tokenize", {"model": MODEL, "prompt": "x"})
    assert (answer.status, answer.json()["error"]["code"]) == (403, "model_not_allowed")


async def test_each_engine_has_its_turn(tmp_path):
    script = answers.json_answer(TOKENS)
    async with ScriptedEngine(script) as one, ScriptedEngine(script) as two, running(tmp_path, one, two) as gateway:
        for _ in range(4):
            await gateway.ask("/tokenize", {"model": MODEL, "prompt": "x"})
    assert (len(one.posts), len(two.posts)) == (2, 2)


async def test_one_tenant_leaves_room_for_the_questions_of_others(tmp_path):
    release = asyncio.Event()
    question = {"model": MODEL, "prompt": "x"}
    async with (
        ScriptedEngine(answers.held(answers.json_answer(TOKENS), release)) as engine,
        running(tmp_path, engine) as gateway,
        asyncio.TaskGroup() as group,
    ):
        first = [group.create_task(gateway.ask("/tokenize", question)) for _ in range(OPEN_OF_TENANT_MAX)]
        await engine.until(lambda: len(engine.posts) == OPEN_OF_TENANT_MAX)
        refused = await gateway.ask("/tokenize", question)
        error = refused.json()["error"]
        assert (refused.status, refused.header("x-gateway-reason")) == (429, "tenant_queue_full")
        assert (error["details"]["limit"], error["details"]["resource"]) == (OPEN_OF_TENANT_MAX, "requests")
        other = group.create_task(gateway.ask("/tokenize", question, key=BATCH_KEY))
        await engine.until(lambda: len(engine.posts) == OPEN_OF_TENANT_MAX + 1)
        release.set()
        assert {(await task).status for task in (*first, other)} == {200}
        assert (await gateway.ask("/tokenize", question)).status == 200
