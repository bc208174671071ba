"""The SDKs at the gateway and at the engine itself, side by side on the real engine: the same answers and errors.

Ids, times, and the headers that the gateway sets may differ. Greedy, so that an answer is the same each time.
"""

from __future__ import annotations

import asyncio
import re

import anthropic
import openai
import pytest

from gateway.core.plan import AdmissionKind
from gateway.testing import raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import INTERACTIVE_KEY, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

ADA = [{"role": "user", "content": "Who was Ada Lovelace?"}]
WEATHER = {
    "name": "weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
TOOL = {"type": "function", "function": WEATHER}
SHORT = {"max_tokens": 6, "temperature": 0}
CHATS = {
    "plain": {},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "two choices": {"n": 2, "temperature": 0.7, "seed": 7},
    "a stop": {"stop": ["e", "\n"], "max_tokens": 20},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"70": -100}},
    "a named tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "a tool not to be used": {"tools": [TOOL], "tool_choice": "none"},
    "a tool that the engine has no parser for": {"tools": [TOOL], "tool_choice": "auto"},
    "json": {"response_format": {"type": "json_object"}},
    "the engine's own members": {"extra_body": {"min_tokens": 6, "ignore_eos": True, "return_token_ids": True}},
    "a bad temperature": {"temperature": -1},
}
COMPLETIONS = {
    "plain": {"prompt": "Ada"},
    "token ids": {"prompt": [65, 66, 67]},
    "two prompts": {"prompt": ["Ada", "Bob"]},
    "logprobs and echo": {"prompt": "Ada", "logprobs": 2, "echo": True},
    "an unknown token": {"prompt": [1 << 30]},
}
USAGE = {"stream_options": {"include_usage": True}}
VARIABLE = {"id", "created", "created_at", "completed_at", "item_id", "request_id", "_request_id"}


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """An engine on a busy CPU takes its time, and compiles a kernel at its first sampled token."""
    monkeypatch.setattr(raw_client, "READ_S_MAX", 120.0)


def before(folder, engine):
    """Run a gateway that lets everything through at once: what is compared is what passes."""
    classes = (a_class("interactive", wait_s_max=(60, 60)), a_class("batch", rank=1, weight=1))
    plan = a_plan(*classes, admission=an_admission(AdmissionKind.NONE))
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "local", "path": str(engine.tokenizer_path)}}}
    return running(folder, engine.base_url, plan=plan, engine={"scheduling": "fcfs"}, pools=pools)


def plain(value):
    """Leave out what differs from one answer to the next."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items() if name not in VARIABLE}
    return [plain(item) for item in value] if isinstance(value, list) else value


async def result_of(asking):
    """Return an answer, the events of a stream, or an error, each without what differs."""
    try:
        answer = await asking
        if hasattr(answer, "model_dump"):
            return plain(answer.model_dump())
        # What is sampled at once comes in any order; each choice's own order is the engine's.
        events = [plain(event.model_dump()) async for event in answer]
        return sorted(events, key=lambda event: [choice["index"] for choice in event.get("choices") or ()])
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return type(error).__name__, error.status_code, plain(error.body)


async def both(clients, ask):
    """Ask the engine and the gateway; return what each came to."""
    return [await result_of(ask(client)) for client in clients]


async def test_openai_sees_the_engines_own_chats_and_completions(engine, tmp_path, openai_at):
    async with before(tmp_path, engine) as gateway:
        clients = openai_at(engine.port), openai_at(gateway.port)
        seen = {}
        for stream in ({}, {"stream": True}, {"stream": True, **USAGE}):
            for name, members in CHATS.items() if stream != {"stream": True} else [("plain", {})]:
                asked = {"model": engine.model, "messages": ADA, **SHORT, **members, **stream}
                direct, through = await both(
                    clients, lambda client, asked=asked: client.chat.completions.create(**asked)
                )
                assert through == direct, (name, stream)
                seen[name] = direct
            for name, members in COMPLETIONS.items():
                asked = {"model": engine.model, **SHORT, **members, **stream}
                direct, through = await both(clients, lambda client, asked=asked: client.completions.create(**asked))
                # An error that the engine says inside a 200 has its real status behind the gateway.
                if name != "an unknown token" or not stream:
                    assert through == direct, (name, stream)
    assert seen["a bad temperature"][:2] == ("BadRequestError", 400)
    assert {choice["index"] for event in seen["two choices"] for choice in event["choices"]} == {0, 1}


async def test_openai_sees_the_engines_own_responses_and_models(engine, tmp_path, openai_at):
    async with before(tmp_path, engine) as gateway:
        clients = openai_at(engine.port), openai_at(gateway.port)
        asked = {"model": engine.model, "input": "Ada?", "max_output_tokens": 6, "temperature": 0}
        for members in ({}, {"instructions": "Be brief."}, {"stream": True}, {"temperature": -1}):
            direct, through = await both(clients, lambda client, m=members: client.responses.create(**{**asked, **m}))
            assert through == direct, members
        made = [await client.responses.create(**asked) for client in clients]
        for act in ("retrieve", "cancel"):
            errors = [
                await result_of(getattr(client.responses, act)(response.id))
                for client, response in zip(clients, made, strict=True)
            ]
            direct, through = [(*error[:2], error[2]["code"]) for error in errors]
            assert through == direct == ("NotFoundError", 404, 404), act
        for ask in (
            lambda client: client.models.retrieve(engine.model),
            lambda client: client.embeddings.create(model=engine.model, input="Ada"),
            lambda client: client.chat.completions.create(model="nope", messages=ADA),
        ):
            direct, through = await both(clients, ask)
            if isinstance(direct, tuple):
                assert through[:2] == direct[:2]
            else:
                assert through["max_model_len"] == direct["max_model_len"]


async def test_anthropic_sees_the_engines_own_messages_and_counts(engine, tmp_path, anthropic_at):
    tool = {"name": "weather", "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
    async with before(tmp_path, engine) as gateway:
        clients = anthropic_at(engine.port), anthropic_at(gateway.port)
        asked = {"model": engine.model, "messages": ADA, **SHORT}
        for members in (
            {},
            {"system": "Be brief."},
            {"stop_sequences": ["e"], "max_tokens": 20},
            {"tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}},
            {"temperature": -1},
        ):
            for stream in (False, True):
                direct, through = await both(
                    clients, lambda client, m=members, s=stream: client.messages.create(**{**asked, **m}, stream=s)
                )
                assert through == direct, (members, stream)
        direct, through = await both(
            clients, lambda client: client.messages.count_tokens(model=engine.model, messages=ADA, tools=[tool])
        )
        assert through == direct
        assert through["input_tokens"] > 0
        message = await clients[1].messages.create(**asked)
        assert message._request_id.startswith("req-")


STREAMED = {
    "/v1/chat/completions": {"messages": ADA, **SHORT, **USAGE},
    "/v1/completions": {"prompt": "Ada", **SHORT},
    "/v1/messages": {"messages": ADA, **SHORT},
    "/v1/responses": {"input": "Ada?", "max_output_tokens": 6, "temperature": 0},
}
_DIFFERS = re.compile(
    rb'"(id|item_id)":\s?"[^"]*"|"(created|created_at|completed_at)":\s?[0-9.]+|\b(chatcmpl|cmpl|resp|msg)[-_][\w-]+'
)


async def test_a_streams_bytes_are_the_engines_but_for_ids_and_times(engine, tmp_path):
    async with before(tmp_path, engine) as gateway:
        for path, members in STREAMED.items():
            body = {"model": engine.model, **members, "stream": True}
            direct, through = await asyncio.gather(
                raw_client.request(engine.port, path, body),
                raw_client.request(gateway.port, path, body, key=INTERACTIVE_KEY),
            )
            assert _DIFFERS.sub(b"", through.body) == _DIFFERS.sub(b"", direct.body), path
            assert through.header("content-type") == direct.header("content-type")
            added = {name for name, _ in through.headers} - {name for name, _ in direct.headers}
            removed = {name for name, _ in direct.headers} - {name for name, _ in through.headers}
            assert removed == set()
            own = {"cache-control", "x-accel-buffering", "x-request-id"}
            assert {name for name in added - {"request-id"} if not name.startswith("x-gateway-")} == own
