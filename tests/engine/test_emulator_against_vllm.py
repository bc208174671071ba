"""The embedded engine beside the real one: the same errors for the same mistakes, the same metrics, the same shapes."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest
from engine_state import idle
from prometheus_client.parser import text_string_to_metric_families

from bench.simulation.emulator import flags
from bench.simulation.emulator.serving import Emulator
from gateway.testing import raw_client

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
TURN = {"role": "user", "content": "Hello"}
GOOD = {
    CHAT: {"messages": [TURN], "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hello", "max_tokens": 2},
    MESSAGES: {"messages": [TURN], "max_tokens": 2},
    RESPONSES: {"input": "Hello", "max_output_tokens": 2},
}
SAMPLED = (CHAT, COMPLETIONS)
# What is changed in a good body, and on which routes.
BAD = [
    *((path, {"model": "nope"}) for path in GOOD),
    *((path, {"temperature": -1}) for path in GOOD),
    *((path, {"temperature": "hot"}) for path in GOOD),
    *((path, {"top_p": 1.5}) for path in GOOD),
    *((path, {"top_k": -2}) for path in GOOD),
    *((path, {"max_tokens": 0}) for path in (*SAMPLED, MESSAGES)),
    *((path, {"max_tokens": 20_000}) for path in (*SAMPLED, MESSAGES)),
    *((path, {"max_tokens": 1.5}) for path in (*SAMPLED, MESSAGES)),
    (CHAT, {"max_completion_tokens": 20_000}),
    (RESPONSES, {"max_output_tokens": 20_000}),
    *((path, {"n": 0}) for path in SAMPLED),
    *((path, {"min_tokens": 5}) for path in SAMPLED),
    *((path, {"min_tokens": -1}) for path in SAMPLED),
    *((path, {"priority": value}) for path in SAMPLED for value in (1.5, None, 2**63, "x")),
    *((path, {"stream_options": {"include_usage": True}}) for path in SAMPLED),
    *((path, {"stop": value}) for path in SAMPLED for value in ("", [1])),
    *((path, {"frequency_penalty": 3}) for path in (*SAMPLED, RESPONSES)),
    *((path, {"repetition_penalty": 0}) for path in SAMPLED),
    *((path, {"seed": "x"}) for path in SAMPLED),
    *((path, {"stream": "maybe"}) for path in SAMPLED),
    *((path, {"messages": [{"role": "user", "content": "word " * 17_000}]}) for path in (CHAT, MESSAGES)),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 1_000_000}]}),
    *((path, {"messages": "hi"}) for path in (CHAT, MESSAGES)),
    (COMPLETIONS, {"prompt": []}),
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": [64] * 16_384}),
    (COMPLETIONS, {"prompt": [64] * 16_390}),
    (COMPLETIONS, {"prompt": [1 << 30]}),
]


@asynccontextmanager
async def emulated(*words):
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    ports: asyncio.Queue[str] = asyncio.Queue()
    settings = flags.settings(parser.parse_args(["--port", "0", "--served-model-name", "tiny", *words]))
    emulator = Emulator(settings, lambda _: None, ports.put_nowait)
    task = asyncio.get_running_loop().create_task(emulator.run())
    try:
        yield int((await ports.get()).rpartition(":")[2])
    finally:
        emulator.stop()
        await task


def shape(answer):
    """Status, type, parameter, code, and the words, whatever the numbers in them. Of a detail, all."""
    if not answer.header("content-type").startswith("application/json"):
        return answer.status, answer.body[:200]
    body = answer.json()
    error = body.get("error")
    if not isinstance(error, dict):
        return answer.status, body
    words = re.sub(r"\d+", "N", error["message"])
    return answer.status, sorted(error), error["type"], error.get("param"), error.get("code"), words


async def compared(engine, port, path, **request):
    real = await raw_client.request(engine.port, path, **request)
    made = await raw_client.request(port, path, **request)
    return shape(real), shape(made)


async def test_mistakes_are_refused_in_the_same_shape(engine):
    differing = []
    async with emulated() as port:
        for path, change in BAD:
            body = {"model": "tiny", **GOOD[path], **change}
            real, made = await compared(engine, port, path, value=body)
            if real != made:
                differing.append((path, str(change)[:80], real, made))
    assert not differing, "\n".join(map(str, differing))


async def test_bodies_and_routes_that_are_none_are_refused_in_the_same_shape(engine):
    differing = []
    asked = [
        *((path, {"value": b'{"model": "tiny", "mess'}) for path in GOOD),
        *((path, {"value": b"[]"}) for path in GOOD),
        *((path, {"value": {"model": "tiny"}}) for path in GOOD),
        *((path, {"value": GOOD[path], "headers": {"Content-Type": "text/plain"}}) for path in GOOD),
        ("/nope", {}),
        (CHAT, {}),
        ("/v1/models", {"value": {}}),
        ("/tokenize", {"value": {"model": "nope", "prompt": "x"}}),
        ("/detokenize", {"value": {"model": "tiny", "tokens": "x"}}),
        ("/v1/responses/resp_1", {}),
    ]
    async with emulated() as port:
        for path, request in asked:
            real, made = await compared(engine, port, path, **request)
            if real != made:
                differing.append((path, str(request)[:80], real, made))
    assert not differing, "\n".join(map(str, differing))


def members(value, at=""):
    """Every member's path in a JSON value, and whether it is null; of a list, its first element's."""
    if isinstance(value, dict):
        return {found for name, each in value.items() for found in members(each, f"{at}.{name}")}
    if isinstance(value, list):
        return members(value[0], f"{at}[]") if value else {at}
    return {at}


def streamed(answer):
    lines = answer.body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", SAMPLED)
async def test_whole_and_streamed_answers_have_the_same_members(engine, path):
    body = {"model": "tiny", **GOOD[path], "temperature": 0}
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with emulated("--enable-prompt-tokens-details") as port:
        for asked in (body, {**body, "stream": True}, {**body, "stream": True, "stream_options": options}):
            real = await raw_client.request(engine.port, path, asked)
            made = await raw_client.request(port, path, asked)
            if asked is body:
                # What is always null there says nothing: it is not written out here.
                assert members(made.json()) <= members(real.json())
            else:
                found = [sorted(members(event)) for event in streamed(made)]
                assert found == [sorted(members(event)) for event in streamed(real)]


async def test_the_metrics_have_the_same_names_and_labels(engine):
    await idle(engine)
    async with emulated() as port:
        pages = []
        for where in (engine.port, port):
            await raw_client.request(where, COMPLETIONS, {"model": "tiny", **GOOD[COMPLETIONS]})
            page = (await raw_client.request(where, "/metrics")).body.decode()
            families = text_string_to_metric_families(page)
            pages.append(
                {
                    (family.name, family.type): {frozenset(sample.labels) for sample in family.samples}
                    for family in families
                    if family.name.startswith("vllm:") and family.name != "vllm:cache_config_info"
                }
            )
    real, made = pages
    assert made == real
