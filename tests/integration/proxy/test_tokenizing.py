"""Text to tokens and back: asked of an engine of the model's pool, outside of admission."""

from __future__ import annotations

import json

import pytest

from gateway.testing import answers
from gateway.testing.harness import MODEL, running
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
