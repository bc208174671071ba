"""Pools whose tokens the engine counts: exact where it answers, a clear refusal where it does not."""

from __future__ import annotations

import pytest

from gateway.testing import answers
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

POOLS = {"chat": {"models": [MODEL], "tokenizer": {"kind": "engine"}}}


def counting(tokenize):
    """An engine whose /tokenize is the script and whose other routes answer."""
    answer = answers.completion(prompt_tokens=700)
    return answers.by_request(lambda request: tokenize if request.path == "/tokenize" else answer)


async def test_the_engines_count_decides_the_length_class(tmp_path):
    script = counting(answers.json_answer({"count": 700, "max_model_len": 12288}))
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, pools=POOLS) as gateway:
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-length-class")) == (200, "long")
        assert await gateway.metric("gateway_tokenize_seconds_count", method="engine") == 1
        assert await gateway.metric("gateway_token_count_error_ratio_bucket", le="0.0") == 1
    question = engine.posts[0]
    assert (question.path, question.json()["messages"]) == ("/tokenize", a_chat()["messages"])


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        (answers.error(400), 400, "bad_request"),
        (answers.error(500), 503, "no_engine"),
        (answers.json_answer([]), 503, "no_engine"),
        (answers.plain(200, b"no json"), 503, "no_engine"),
        (answers.raw(), 503, "no_engine"),
    ],
)
async def test_a_count_that_does_not_come_is_refused_and_nothing_is_dispatched(tmp_path, script, status, reason):
    async with (
        ScriptedEngine(counting(script)) as engine,
        running(tmp_path, engine, pools=POOLS, engine={"timeouts": {"first_byte_s": 0.2}}) as gateway,
    ):
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-reason")) == (status, reason)
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    assert [post.path for post in engine.posts] == ["/tokenize"]
