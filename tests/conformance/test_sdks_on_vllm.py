"""The SDKs at the gateway and at the engine itself, side by side on the real engine: the same answers and errors.

Ids, times, and the headers that the gateway sets may differ. Greedy, so that an answer is the same each time. An engine
puts as many tokens into one event as have come by then, so streams are compared by what they say in all; that each byte
passes as the engine sent it is looked at on the wire.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

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
VARIABLE = {*("id", "created", "created_at", "completed_at", "item_id", "request_id", "_request_id"), "sequence_number"}
TEXTS = {"content", "text", "delta", "arguments", "partial_json", "reasoning", "reasoning_content"}


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """An engine on a busy CPU takes its time, and compiles a kernel at its first sampled token."""
    monkeypatch.setattr(raw_client, "READ_S_MAX", 120.0)


def before(folder, engine, url=None):
    """Run a gateway that lets everything through at once: what is compared is what passes."""
    classes = (a_class("interactive", wait_s_max=(60, 60)), a_class("batch", rank=1, weight=1))
    plan = a_plan(*classes, admission=an_admission(AdmissionKind.NONE))
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "local", "path": str(engine.tokenizer_path)}}}
    return running(folder, url or engine.base_url, plan=plan, engine={"scheduling": "fcfs"}, pools=pools)


def plain(value):
    """Leave out what differs from one answer to the next."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items() if name not in VARIABLE}
    return [plain(item) for item in value] if isinstance(value, list) else value


def fold(value, path, into):
    """Join what the events of a stream say at one place: text and lists in their order, all else as a set."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in VARIABLE:
                fold(member, (*path, name), into)
    elif isinstance(value, list):
        if path[-1] == "choices":
            for choice in value:
                fold(choice, (*path, choice["index"]), into)
        else:
            into.setdefault(path, []).extend(plain(value))
    elif isinstance(value, str) and path[-1] in TEXTS:
        into[path] = into.get(path, "") + value
    elif value is not None:
        into.setdefault(path, set()).add(value)


async def result_of(asking):
    """Return an answer, what a stream says in all, or an error, each without what differs."""
    try:
        answer = await asking
        if hasattr(answer, "model_dump"):
            return plain(answer.model_dump())
        said = {}
        async for event in answer:
            value = event.model_dump()
            fold(value, (value.get("type"),), said)
    except (openai.APIError, anthropic.APIError) as error:
        return type(error).__name__, getattr(error, "status_code", None), plain(error.body)
    return said


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
    assert {path[2] for path in seen["two choices"] if path[1] == "choices"} == {0, 1}


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
            lambda client: client.embeddings.create(model=engine.model, input="Ada"),
            lambda client: client.chat.completions.create(model="nope", messages=ADA),
        ):
            direct, through = await both(clients, ask)
            assert through[:2] == direct[:2] == ("NotFoundError", 404)
        listed = [(await client.models.list()).data for client in clients]
        (direct,), (through,) = listed
        assert (through.id, through.max_model_len) == (direct.id, direct.max_model_len)
        # The engine lists its models alone; the gateway has each by its name too, as OpenAI has.
        assert (await clients[1].models.retrieve(engine.model)).id == through.id


async def test_anthropic_sees_the_engines_own_messages_and_counts(engine, tmp_path, anthropic_at):
    tool = {"name": "weather", "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
    async with before(tmp_path, engine) as gateway:
        clients = anthropic_at(engine.port), anthropic_at(gateway.port)
        greedy = {"extra_body": {"temperature": 0}}
        asked = {"model": engine.model, "messages": ADA, "max_tokens": 6, **greedy}
        for members in (
            {},
            {"system": "Be brief."},
            {"stop_sequences": ["e"], "max_tokens": 20},
            {"tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}},
            {"extra_body": {"temperature": -1}},
        ):
            for stream in (False, True):
                direct, through = await both(
                    clients, lambda client, m=members, s=stream: client.messages.create(**{**asked, **m}, stream=s)
                )
                assert through == direct, (members, stream)
        direct, through = await both(
            clients, lambda client: client.messages.count_tokens(model=engine.model, messages=ADA)
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


@asynccontextmanager
async def a_door_before(engine):
    """Yield a port that leads to the engine, and what the engine says behind it on each connection."""
    said = []

    async def pass_on(source, sink, noted):
        try:
            while data := await source.read(1 << 16):
                noted += data
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()

    async def connection(reader, writer):
        from_engine, to_engine = await asyncio.open_connection("127.0.0.1", engine.port)
        said.append(bytearray())
        both_ways = (pass_on(reader, to_engine, bytearray()), pass_on(from_engine, writer, said[-1]))
        await asyncio.gather(*both_ways, return_exceptions=True)

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], said


def last_answer(said):
    """Return the headers' names and the body of the last answer on a connection."""
    head, _, chunks = bytes(said[said.rfind(b"HTTP/1.1 ") :]).partition(b"\r\n\r\n")
    body = b""
    while (size := int(chunks.partition(b"\r\n")[0] or b"0", 16)) > 0:
        rest = chunks.partition(b"\r\n")[2]
        body, chunks = body + rest[:size], rest[size + 2 :]
    return {line.partition(b":")[0].decode().lower() for line in head.split(b"\r\n")[1:]}, body


async def test_a_stream_is_byte_for_byte_what_the_engine_said(engine, tmp_path):
    async with (
        a_door_before(engine) as (port, said),
        before(tmp_path, engine, url=f"http://127.0.0.1:{port}") as gateway,
    ):
        for path, members in STREAMED.items():
            answer = await raw_client.request(
                gateway.port, path, {"model": engine.model, **members, "stream": True}, key=INTERACTIVE_KEY
            )
            names = {name for name, _ in answer.headers}
            told = [last_answer(each) for each in said if b"text/event-stream" in each]
            (engines_names,) = [engines_names for engines_names, body in told if body == answer.body]
            assert answer.body
            assert engines_names <= names, path
            own = {"cache-control", "x-accel-buffering", "x-request-id"}
            added = {name for name in names - engines_names - {"request-id"} if not name.startswith("x-gateway-")}
            assert added == own, path
