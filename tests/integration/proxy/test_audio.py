"""Audio: a form goes on byte for byte, and waits in line as every other request does."""

from __future__ import annotations

import pytest

from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan
from gateway.testing.forms import FORM_TYPE, an_audio_form, field
from gateway.testing.harness import running
from gateway.testing.scripted_engine import ScriptedEngine

PATHS = ["/v1/audio/transcriptions", "/v1/audio/translations"]
FORM = {"Content-Type": FORM_TYPE}
TEXT = {"text": "Say hello."}


@pytest.mark.parametrize("path", PATHS)
async def test_a_form_passes_byte_for_byte(tmp_path, path):
    body = an_audio_form(field("max_completion_tokens", "40"), content=bytes(range(256)) * 4000)
    priority = {"scheduling": "priority", "priority_carrier": "body"}
    async with (
        ScriptedEngine(answers.json_answer(TEXT)) as engine,
        running(tmp_path, engine, engine=priority) as gateway,
    ):
        answer = await gateway.ask(path, body, headers=FORM)
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed", length_class="long")
        assert await gateway.metric("gateway_offered_total") == 1
        assert await gateway.metric("gateway_http_requests_total", route=path, status="200") == 1
    assert (answer.status, answer.json()) == (200, TEXT)
    (post,) = engine.posts
    assert (post.path, post.body) == (path, body)
    assert post.header("content-type") == [FORM_TYPE]
    assert post.header("x-vllm-priority") == []


async def test_a_streamed_transcription_passes_as_it_comes(tmp_path):
    events = answers.events_of("Say", " hello.")
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(PATHS[0], an_audio_form(field("stream", "true")), headers=FORM)
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")
    assert (answer.status, answer.body) == (200, b"".join(events))


async def test_an_output_without_a_limit_is_given_the_classs(tmp_path):
    plan = a_plan(a_class("interactive", output_tokens_max=20), a_class("batch", rank=1, weight=1))
    async with (
        ScriptedEngine(answers.json_answer(TEXT)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
    ):
        await gateway.ask(PATHS[0], an_audio_form(), headers=FORM)
        refused = await gateway.ask(PATHS[0], an_audio_form(field("max_completion_tokens", "21")), headers=FORM)
    assert [post.body for post in engine.posts] == [an_audio_form(field("max_completion_tokens", "20"))]
    assert (refused.status, refused.json()["error"]["code"]) == (400, "output_tokens_too_large")


@pytest.mark.parametrize(
    ("body", "headers", "refusal"),
    [
        (an_audio_form(model="nope"), FORM, (404, "model_not_found")),
        (an_audio_form(field("priority", "1")), FORM, (400, "unsupported_parameter")),
        (an_audio_form(), {}, (415, "unsupported_content_type")),
        (an_audio_form(), {"Content-Type": "multipart/form-data"}, (400, "invalid_content_type")),
    ],
)
async def test_a_form_that_cannot_be_served_reaches_no_engine(tmp_path, body, headers, refusal):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(PATHS[0], body, headers=headers)
    assert (answer.status, answer.json()["error"]["code"]) == refusal
    assert not engine.posts
