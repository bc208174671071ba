"""Pools whose tokens the engine counts: exact where it answers, a clear refusal where it does not."""

from __future__ import annotations

import pytest

from gateway.engines.health import SILENT_MAX
from gateway.testing import answers, raw_client
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
        assert await gateway.metric("gateway_token_count_error_ratio_count", sign="equal") == 1
    question = engine.posts[0]
    assert (question.path, question.json()["messages"]) == ("/tokenize", a_chat()["messages"])


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        (answers.error(400), 400, "bad_request"),
        (answers.error(422), 400, "bad_request"),
        (answers.error(401), 503, "no_engine"),
        (answers.error(404), 503, "no_engine"),
        (answers.error(429), 503, "overloaded"),
        (answers.error(503), 503, "overloaded"),
        (answers.error(500), 503, "no_engine"),
        (answers.json_answer([]), 503, "no_engine"),
        (answers.json_answer({"max_model_len": 12288}), 503, "no_engine"),
        (answers.json_answer({"error": {"code": 400}}), 400, "bad_request"),
        (answers.plain(200, b"no json"), 503, "no_engine"),
        (answers.raw(), 503, "no_engine"),
    ],
)
async def test_a_count_that_does_not_come_is_refused_and_nothing_is_dispatched(tmp_path, script, status, reason):
    first_byte_s = 0.2 if reason == "no_engine" else 30  # one of these says nothing; the others are waited for
    async with (
        ScriptedEngine(counting(script)) as engine,
        running(tmp_path, engine, pools=POOLS, engine={"timeouts": {"first_byte_s": first_byte_s}}) as gateway,
    ):
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-reason")) == (status, reason)
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    assert [post.path for post in engine.posts] == ["/tokenize"]


@pytest.mark.parametrize(
    ("path", "value", "param"),
    [("/v1/chat/completions", a_chat(), "messages"), ("/v1/completions", {"model": MODEL, "prompt": "Hi"}, "prompt")],
)
@pytest.mark.parametrize("tokenize", [answers.json_answer({"count": 12288}), answers.error(400)])
async def test_a_prompt_that_does_not_fit_or_cannot_be_read_is_named_as_the_caller_named_it(
    tmp_path, tokenize, path, value, param
):
    async with ScriptedEngine(counting(tokenize)) as engine, running(tmp_path, engine, pools=POOLS) as gateway:
        answer = await gateway.ask(path, value)
    assert (answer.status, answer.json()["error"]["param"]) == (400, param)


async def test_a_refused_key_is_named_in_the_log_once(tmp_path, logged):
    async with (
        ScriptedEngine(counting(answers.error(403))) as engine,
        running(tmp_path, engine, pools=POOLS) as gateway,
    ):
        for _ in range(3):
            assert (await gateway.chat()).status == 503
    lines = [line for line in logged().splitlines() if "engine_does_not_count" in line]
    assert len(lines) == 1
    assert "api_key_env" in lines[0]


async def test_the_pools_engines_count_in_turn(tmp_path):
    script = counting(answers.json_answer({"count": 7}))
    async with (
        ScriptedEngine(script) as one,
        ScriptedEngine(script) as other,
        running(tmp_path, one, other, pools=POOLS) as gateway,
    ):
        for _ in range(4):
            assert (await gateway.chat()).status == 200
    asked = [sum(post.path == "/tokenize" for post in engine.posts) for engine in (one, other)]
    assert asked == [2, 2]


async def test_a_drained_engine_counts_only_where_no_other_can(tmp_path):
    script = counting(answers.json_answer({"count": 7}))
    async with (
        ScriptedEngine(script) as one,
        ScriptedEngine(script) as other,
        running(tmp_path, one, other, pools=POOLS) as gateway,
    ):
        drain = {"pool": "chat", "weights": {"a": 0}}
        assert (await raw_client.request(gateway.ops_port, "/api/route", drain)).status == 200
        for _ in range(3):
            assert (await gateway.chat()).status == 200
            assert (await gateway.ask("/tokenize", {"model": MODEL, "prompt": "Hi"})).status == 200
        assert (len(one.posts), len(other.posts)) == (0, 9)
        await other.refuse_connections()
        await other.cut_connections()
        await gateway.until(lambda: not gateway.gateway.rooms.watches["b"].health.is_up)
        assert (await gateway.ask("/tokenize", {"model": MODEL, "prompt": "Hi"})).status == 200
    assert [post.path for post in one.posts] == ["/tokenize"]


async def test_an_engine_that_never_counts_is_silent_like_one_that_never_answers(tmp_path):
    async with (
        ScriptedEngine(counting(answers.hanging())) as engine,
        running(tmp_path, engine, pools=POOLS, engine={"timeouts": {"first_byte_s": 0.05}}) as gateway,
    ):
        engine.gets["/v1/models"] = answers.error(500)
        for _ in range(SILENT_MAX):
            assert (await gateway.chat()).header("x-gateway-reason") == "no_engine"
        assert not gateway.gateway.rooms.watches["a"].health.is_up
