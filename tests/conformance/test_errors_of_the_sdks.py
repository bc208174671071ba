"""What OpenAI's and Anthropic's SDK make of each refusal and each failure: the class, its words, and how often they try."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import anyio
import openai
import pytest

from gateway.core.plan import AdmissionKind, OrderKind, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.dialect_answers import a_message, message_error, message_events, named_event, response_events
from gateway.testing.harness import INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine, Wire

ADA = [{"role": "user", "content": "Who was Ada Lovelace?"}]
RETRIES = 2
QUICK = {"timeouts": {"connect_s": 2, "first_byte_s": 0.2, "idle_s": 0.2}}


@dataclass(frozen=True)
class Case:
    """A request that fails, and what each SDK says of it.

    occupied: another request has the only place. away: no engine is there. members: of the request; sections: of the
    configuration. statuses and errors: OpenAI's, then Anthropic's.
    """

    statuses: tuple[int, int]
    errors: tuple[type[Exception], type[Exception]]
    code: str
    anthropic_type: str
    param: str | None = None
    tried_again: bool = False
    members: dict[str, Any] = field(default_factory=dict)
    key: str = INTERACTIVE_KEY
    occupied: bool = False
    away: bool = False
    script: Any = None
    sections: dict[str, Any] = field(default_factory=dict)
    of_class: dict[str, Any] = field(default_factory=dict)


def bad_request(code, param, **more):
    errors = (openai.BadRequestError, anthropic.BadRequestError)
    return Case((400, 400), errors, code, "invalid_request_error", param, **more)


BUSY = Case(
    (429, 429), (openai.RateLimitError, anthropic.RateLimitError), "slow_down", "rate_limit_error", tried_again=True
)
CASES = {
    "an unknown key": Case(
        (401, 401),
        (openai.AuthenticationError, anthropic.AuthenticationError),
        "invalid_api_key",
        "authentication_error",
        key="gw-nobody",
    ),
    "a key for other models": Case(
        (403, 403),
        (openai.PermissionDeniedError, anthropic.PermissionDeniedError),
        "model_not_allowed",
        "permission_error",
        "model",
        sections={"key_models": {"interactive": ["other"]}},
    ),
    "an unknown model": Case(
        (404, 404),
        (openai.NotFoundError, anthropic.NotFoundError),
        "model_not_found",
        "not_found_error",
        "model",
        members={"model": "nope"},
    ),
    "too long an output": bad_request("output_tokens_too_large", "max_tokens", members={"max_tokens": 5000}),
    "an output over the context": bad_request("context_length_exceeded", "max_tokens", members={"max_tokens": 20_000}),
    "an engine's field": bad_request(
        "unsupported_parameter", "kv_transfer_params", members={"extra_body": {"kv_transfer_params": {"a": 1}}}
    ),
    "a large body": Case(
        (413, 413),
        (openai.APIStatusError, anthropic.ContentTooLargeError),
        "request_too_large",
        "request_too_large",
        members={"extra_body": {"user": "u" * 3000}},
        sections={"limits": {"body_bytes_max": 2000}},
    ),
    "a full queue": replace(BUSY, occupied=True, of_class={"requests_max": 0}),
    "a wait that ends": replace(BUSY, occupied=True, of_class={"wait_s_max": (0.05, 0.05)}),
    "no engine": Case(
        (503, 529),
        (openai.InternalServerError, anthropic.OverloadedError),
        "server_is_overloaded",
        "overloaded_error",
        tried_again=True,
        away=True,
    ),
    "an engine that breaks off": Case(
        (502, 502),
        (openai.InternalServerError, anthropic.InternalServerError),
        "engine_broken",
        "api_error",
        script=answers.raw(then=Wire.reset),
    ),
    "an engine that says nothing": Case(
        (504, 504),
        (openai.InternalServerError, anthropic.GatewayTimeoutError),
        "engine_timeout",
        "api_error",
        script=answers.hanging(),
        sections={"engine": QUICK},
    ),
}
every_case = pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))


@asynccontextmanager
async def failing(folder, case):
    """Run a gateway in which the case's request fails."""
    plan = a_plan(
        a_class("interactive", **case.of_class),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.ARRIVAL,
    )
    engine = ScriptedEngine(case.script)
    async with AsyncExitStack() as stack:
        if case.away:
            await engine.listen()
            await engine.refuse_connections()
        else:
            await stack.enter_async_context(engine)
        gateway = await stack.enter_async_context(
            running(folder, engine, plan=plan, ready=not case.away, **case.sections)
        )
        first = None
        if case.occupied:
            engine.scripts.append(answers.hanging())
            first = await stack.enter_async_context(gateway.client())
            await first.post("/v1/chat/completions", a_chat())
            await engine.until(lambda: engine.posts)
        yield gateway, engine, first


async def error_of(asking, kind):
    with pytest.raises(kind) as raised:
        await asking
    return raised.value


def trusted_again(gateway, case):
    """An engine that failed several times in a row is asked no more: here each failure is the first."""
    if case.script is not None:
        gateway.gateway.rooms.watches["a"].answered()


def check(error, case):
    """What both SDKs show of a refusal beside its words."""
    assert error.request_id == error.response.headers["x-request-id"] != ""
    assert error.response.headers["x-should-retry"] == str(case.tried_again).lower()


@every_case
async def test_openai_raises_the_class_with_code_and_param_and_tries_again_only_where_that_may_help(
    tmp_path, openai_at, pauses, case
):
    async with failing(tmp_path, case) as (gateway, *_):
        client = openai_at(gateway.port, case.key, max_retries=RETRIES)
        wanted = {"model": MODEL, "max_tokens": 5, **case.members}
        for stream in (False, True):
            for api, prompt in ((client.chat.completions, {"messages": ADA}), (client.completions, {"prompt": "Ada"})):
                error = await error_of(api.create(**prompt, stream=stream, **wanted), case.errors[0])
                trusted_again(gateway, case)
                check(error, case)
                assert (error.status_code, error.code, error.param) == (case.statuses[0], case.code, case.param)
                assert error.body["details"]["reason"] == error.response.headers["x-gateway-reason"]
            wanted["max_output_tokens"] = wanted.pop("max_tokens")
            error = await error_of(client.responses.create(input="Ada", stream=stream, **wanted), case.errors[0])
            wanted["max_tokens"] = wanted.pop("max_output_tokens")
            trusted_again(gateway, case)
            param = "max_output_tokens" if case.param == "max_tokens" else case.param
            assert (error.status_code, error.code, error.param) == (case.statuses[0], case.code, param)
        tries = await gateway.metric("gateway_offered_total") - case.occupied
    asked = 6
    assert tries == (asked * (1 + RETRIES) if case.tried_again else asked)
    assert len(pauses) == tries - asked
    assert all(1 <= pause <= 60 for pause in pauses)


@every_case
async def test_anthropic_raises_the_class_with_its_type_and_tries_again_only_where_that_may_help(
    tmp_path, anthropic_at, pauses, case
):
    async with failing(tmp_path, case) as (gateway, *_):
        client = anthropic_at(gateway.port, case.key, max_retries=RETRIES)
        wanted = {"model": MODEL, "max_tokens": 5, "messages": ADA, **case.members}
        for stream in (False, True):
            error = await error_of(client.messages.create(**wanted, stream=stream), case.errors[1])
            check(error, case)
            assert (error.status_code, error.type) == (case.statuses[1], case.anthropic_type)
            assert error.api_message == error.body["error"]["message"]
            assert error.request_id == error.body["request_id"]
        tries = await gateway.metric("gateway_offered_total") - case.occupied
    asked = 2
    assert tries == (asked * (1 + RETRIES) if case.tried_again else asked)
    assert len(pauses) == tries - asked
    assert all(1 <= pause <= 60 for pause in pauses)


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_an_sdk_waits_as_long_as_it_is_told_and_is_then_served(
    tmp_path, openai_at, anthropic_at, monkeypatch, sdk
):
    """The place becomes free while the SDK waits, so that its next try is served."""
    paused_s, told_ms = [], []
    async with failing(tmp_path, CASES["a full queue"]) as (gateway, engine, occupant):

        async def pause(delay_s):
            paused_s.append(delay_s)
            engine.script = answers.completion() if sdk == "openai" else answers.json_answer(a_message())
            occupant.leave()
            await gateway.until(lambda: not gateway.exchanges)

        async def note(response):
            told_ms.append(response.headers.get("retry-after-ms"))

        monkeypatch.setattr(anyio, "sleep", pause)
        client = (
            openai_at(gateway.port, max_retries=1) if sdk == "openai" else anthropic_at(gateway.port, max_retries=1)
        )
        client._client.event_hooks = {"response": [note]}
        api = client.chat.completions if sdk == "openai" else client.messages
        await api.create(model=MODEL, max_tokens=5, messages=ADA)
        assert await gateway.metric("gateway_repeats_total") == 1
    assert told_ms == [str(round(paused_s[0] * 1000)), None]
    assert len(paused_s) == 1


# ── streams that fail on their way ──


async def tokens_of(stream):
    """Return the events that came before the stream ended or failed, and the failure."""
    events = []
    try:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - what came before a failure is kept
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        return events, error
    return events, None


BREAKS = pytest.mark.parametrize("then", [Wire.reset, Wire.close])


@BREAKS
@pytest.mark.parametrize("route", ["chat", "completions"])
async def test_openai_raises_what_broke_after_the_tokens_that_came(tmp_path, openai_at, then, route):
    script = answers.stream_of(answers.token("Hello"), then=then)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        client = openai_at(gateway.port)
        api = client.chat.completions if route == "chat" else client.completions
        prompt = {"messages": ADA} if route == "chat" else {"prompt": "Ada"}
        events, error = await tokens_of(await api.create(model=MODEL, **prompt, stream=True))
    assert len(events) == 1
    assert (type(error), error.code, error.type) == (openai.APIError, "engine_broken", "api_error")


@BREAKS
async def test_a_response_that_broke_is_told_as_failed_and_then_raises(tmp_path, openai_at, then):
    script = answers.stream_of(*response_events("Hello")[:3], then=then)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        stream = await openai_at(gateway.port).responses.create(model=MODEL, input="Ada", stream=True)
        events, error = await tokens_of(stream)
    assert [event.type for event in events][-2:] == ["response.output_text.delta", "response.failed"]
    assert (events[-1].response.status, events[-1].response.error.code) == ("failed", "engine_broken")
    assert [event.sequence_number for event in events] == [0, 1, 2, 3]
    assert events[-1].response.id == events[0].response.id
    assert isinstance(error, openai.APIConnectionError)


@BREAKS
async def test_anthropic_raises_what_broke_after_the_tokens_that_came(tmp_path, anthropic_at, then):
    script = answers.stream_of(*message_events("Hello")[:3], then=then)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        stream = await anthropic_at(gateway.port).messages.create(model=MODEL, max_tokens=5, messages=ADA, stream=True)
        events, error = await tokens_of(stream)
    assert [event.type for event in events] == ["message_start", "content_block_start", "content_block_delta"]
    assert isinstance(error, anthropic.APIStatusError)
    assert (error.type, error.details.reason) == ("api_error", "engine_broken")
    assert error.request_id == error.body["request_id"]


async def test_an_error_before_the_first_token_is_raised_with_its_own_status(tmp_path, openai_at, anthropic_at):
    """The engine says it inside a 200; each SDK sees the class that the status has."""
    refused = {"error": {"message": "no such token", "type": "BadRequestError", "param": None, "code": 400}}
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        engine.script = answers.stream_of(answers.event(refused), answers.DONE)
        with pytest.raises(openai.BadRequestError, match="no such token"):
            await openai_at(gateway.port).chat.completions.create(model=MODEL, messages=ADA, stream=True)
        engine.script = answers.stream_of(named_event(message_error("not_found_error", "no such adapter")))
        with pytest.raises(anthropic.NotFoundError, match="no such adapter"):
            await anthropic_at(gateway.port).messages.create(model=MODEL, max_tokens=5, messages=ADA, stream=True)
