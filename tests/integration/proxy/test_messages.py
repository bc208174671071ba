"""The Messages routes: refusals in their envelope, nothing fetched for a caller, counts without admission."""

from __future__ import annotations

import pytest

from gateway.server import unadmitted
from gateway.testing import answers
from gateway.testing.dialect_answers import a_message, message_events
from gateway.testing.harness import MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Say hello."}]
IMAGE_ELSEWHERE = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}


def a_body(**members):
    return {"model": MODEL, "messages": HELLO, "max_tokens": 9, **members}


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ({"model": "nope"}, (404, "not_found_error", "unknown_model")),
        ({"messages": []}, (400, "invalid_request_error", "bad_request")),
        ({"max_tokens": None}, (400, "invalid_request_error", "bad_request")),
        ({"max_tokens": 20000}, (400, "invalid_request_error", "context_length")),
        ({"messages": [{"role": "user", "content": [IMAGE_ELSEWHERE]}]}, (400, "invalid_request_error", "bad_request")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_wears_the_envelope_of_the_route(tmp_path, members, refusal, stream):
    status, kind, reason = refusal
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(MESSAGES, a_body(stream=stream, **members))
    value = answer.json()
    assert (answer.status, value["type"], value["error"]["type"]) == (status, "error", kind)
    assert value["error"]["details"]["reason"] == answer.header("x-gateway-reason") == reason
    assert value["request_id"] == answer.header("x-request-id") == answer.header("request-id")
    assert not engine.posts


@pytest.mark.parametrize(("stream", "reason"), [(False, {}), (False, {"stop_reason": None}), (True, {})])
async def test_a_message_that_the_engine_gives_up_passes_and_counts_as_the_engines_error(tmp_path, stream, reason):
    whole = {name: value for name, value in a_message().items() if name != "stop_reason"} | reason
    events = [event.replace(b'"end_turn"', b"null") for event in message_events("Hel")]
    script = answers.stream_of(*events) if stream else answers.json_answer(whole)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(MESSAGES, a_body(stream=stream))
        assert (answer.status, b"Hel" in answer.body) == (200, True)
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 1
        assert await gateway.metric("gateway_requests_total") == 1


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_no_engine_is_told_as_an_overload(tmp_path, path):
    async with ScriptedEngine() as engine:
        await engine.refuse_connections()
        async with running(tmp_path, engine, ready=False) as gateway:
            answer = await gateway.ask(path, a_body(), headers={"x-gateway-wait-ms": "0"})
    assert (answer.status, answer.json()["error"]["type"]) == (529, "overloaded_error")
    assert answer.header("retry-after") is not None


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_who_is_not_known_is_told_so_in_the_envelope(tmp_path, path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(path, a_body(), key=None)
    assert (answer.status, answer.json()["error"]["type"]) == (401, "authentication_error")


async def test_a_count_is_asked_of_an_engine_and_is_no_offered_request(tmp_path):
    body = b'{ "model":"tiny", "messages":[{"role":"user","content":"Hi"}] }'
    async with (
        ScriptedEngine(answers.json_answer({"input_tokens": 11})) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.ask(COUNT, body)
        assert await gateway.metric("gateway_offered_total") == 0
        assert await gateway.metric("gateway_http_requests_total", route=COUNT, status="200") == 1
    assert (answer.status, answer.json()) == (200, {"input_tokens": 11})
    (post,) = engine.posts
    assert (post.path, post.body) == (COUNT, body)
    assert post.header("x-request-id") == [answer.header("x-request-id")]
    assert post.header("authorization") == []


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"model": "nope"}, 404),
        ({"messages": [{"role": "user", "content": [IMAGE_ELSEWHERE]}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE_ELSEWHERE]}]}]}, 400),
        ({"mm_processor_kwargs": {"a": 1}}, 400),
        ({"media_io_kwargs": {"video": {"num_frames": -1}}}, 400),
    ],
)
async def test_a_count_is_judged_as_the_request_itself_would_be(tmp_path, members, status):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(COUNT, {"model": MODEL, "messages": HELLO, **members})
    assert (answer.status, answer.json()["type"]) == (status, "error")
    assert not engine.posts


async def test_what_would_steer_the_engine_is_taken_out_of_a_count(tmp_path):
    async with ScriptedEngine(answers.json_answer({"input_tokens": 1})) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(COUNT, {"model": MODEL, "messages": HELLO, "priority": -3, "request_id": "mine"})
    assert engine.posts[0].json() == {"model": MODEL, "messages": HELLO}


async def test_the_engines_own_error_passes_and_a_broken_answer_is_told(tmp_path):
    async with ScriptedEngine(answers.error(400, "odd")) as engine, running(tmp_path, engine) as gateway:
        engine.scripts.append(answers.error(400, "odd"))
        engine.scripts.append(answers.raw(b"no http\r\n\r\n"))
        passed = await gateway.ask(COUNT, {"model": MODEL, "messages": HELLO})
        broken = await gateway.ask(COUNT, {"model": MODEL, "messages": HELLO})
    assert (passed.status, passed.json()["error"]["message"]) == (400, "odd")
    assert (broken.status, broken.json()["error"]["type"]) == (502, "api_error")


async def test_more_counts_than_the_bound_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(unadmitted, "OPEN_MAX", 0)
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(COUNT, {"model": MODEL, "messages": HELLO})
    assert (answer.status, answer.header("x-gateway-reason")) == (529, "overloaded")


async def test_what_the_cache_held_counts_as_prompt(tmp_path):
    events = message_events("a", prompt_tokens=40, cached_tokens=32)
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask(MESSAGES, a_body(stream=True))
        await gateway.until_metric("gateway_prompt_tokens_total", 40)
