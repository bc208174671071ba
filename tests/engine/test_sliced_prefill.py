"""Long prompts in parts before the real engine: the caller's answer is the one it would have had, shorts go between."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from engine_state import engine_gauge, idle

from gateway.core.plan import LongPrefill, LongPrefillMode, SlotBudget
from gateway.testing import raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

LONG_WORDS = 1500
SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.15, hold_max_s=None, recalls_max=8)
RECALLED = replace(SLICED, mode=LongPrefillMode.RECALLED)


def before(folder, engine, way):
    """A gateway that divides long prompts; its step model starts as the real engine's roughly is."""
    plan = a_plan(
        a_class("interactive", wait_s_max=(60, 120)),
        a_class("batch", rank=1, weight=1, wait_s_max=(60, 120)),
        admission=an_admission(slots=SlotBudget(64, 16, 16), long_prefill=way),
    )
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": engine.flags.max_num_seqs}
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "local", "path": str(engine.tokenizer_path)}}}
    members = {"scheduling": "fcfs", "calibration": "probe", "limits": limits}
    return running(folder, engine.base_url, plan=plan, engine=members, pools=pools)


async def calibrated(gateway):
    await gateway.until(lambda: gateway.gateway.rooms.gates["chat"].step_models()["a"].fitted)


def text(salt):
    return " ".join(f"{salt}-{word} step" for word in range(LONG_WORDS))


def bodies(engine, salt):
    shared = {"model": engine.model, "max_tokens": 12, "temperature": 0}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": text(salt)}], **shared}
    yield "/v1/completions", {"prompt": text(salt + 1), **shared}
    yield "/v1/completions", {"prompt": text(salt + 2), "stream": True, **shared}


def words(answer):
    """The text of an answer, whole or streamed."""
    if answer.header("content-type").startswith("application/json"):
        (choice,) = json.loads(answer.body)["choices"]
        return choice.get("text") or choice["message"]["content"]
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


async def test_a_sliced_prompt_is_answered_as_the_engine_answers_it_whole(stock_engine, tmp_path):
    await idle(stock_engine)
    async with before(tmp_path, stock_engine, SLICED) as gateway:
        await calibrated(gateway)
        for path, body in bodies(stock_engine, 10):
            sliced = await gateway.ask(path, body)
            whole = await raw_client.request(stock_engine.port, path, body)
            assert (sliced.status, words(sliced)) == (200, words(whole))
        assert await gateway.metric("gateway_slices_total", result="computed") >= 3
        assert await gateway.metric("gateway_slices_total", result="failed") == 0
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 3


async def test_shorts_are_served_while_a_long_prompt_is_put_aside(stock_engine, tmp_path):
    await idle(stock_engine)
    order = []

    async def ask(gateway, name, words_):
        body = {"model": stock_engine.model, "max_tokens": 1, "prompt": words_, "temperature": 0}
        assert (await gateway.ask("/v1/completions", body)).status == 200
        order.append(name)

    async with before(tmp_path, stock_engine, SLICED) as gateway:
        await calibrated(gateway)
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(gateway, "long", text(20)))
            await gateway.until(lambda: any(exchange.sliced for exchange in gateway.exchanges))
            for salt in range(3):
                group.create_task(ask(gateway, "short", f"{salt} a few words"))
    assert order == ["short", "short", "short", "long"]


async def test_a_recalled_prompt_is_answered_as_if_it_had_never_left(stock_engine, tmp_path):
    await idle(stock_engine)
    (path, body), *_ = bodies(stock_engine, 30)
    async with before(tmp_path, stock_engine, RECALLED) as gateway:
        await calibrated(gateway)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(gateway.ask(path, body))
            await gateway.until(lambda: any(exchange.engine for exchange in gateway.exchanges))
            short = {"model": stock_engine.model, "prompt": "a few words", "max_tokens": 1}
            group.create_task(gateway.ask("/v1/completions", short))
        whole = await raw_client.request(stock_engine.port, path, body)
        assert (asked.result().status, words(asked.result())) == (200, words(whole))
        assert await gateway.metric("gateway_recalls_total") >= 1


async def test_a_caller_that_leaves_takes_its_slice_along(stock_engine, tmp_path):
    await idle(stock_engine)
    async with before(tmp_path, stock_engine, SLICED) as gateway:
        await calibrated(gateway)
        async with gateway.client() as client:
            (path, body), *_ = bodies(stock_engine, 40)
            await client.post(path, body)
            await gateway.until(lambda: any(exchange.sliced for exchange in gateway.exchanges))
            client.reset()
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        await idle(stock_engine)
        await gateway.until_metric("gateway_long_prefills", 0)  # after the steps that still held it
        assert await engine_gauge(stock_engine, "vllm:num_requests_running") == 0


async def test_what_the_engine_refuses_is_refused_in_its_own_words(stock_engine, tmp_path):
    await idle(stock_engine)
    shared = {"model": stock_engine.model, "max_tokens": 12}
    chat, prompt = {"messages": [{"role": "user", "content": text(50)}], **shared}, {"prompt": text(51), **shared}
    bad = [
        ("/v1/chat/completions", chat | {"temperature": -5}),
        ("/v1/chat/completions", chat | {"tool_choice": "required"}),
        ("/v1/chat/completions", chat | {"top_logprobs": 1000, "logprobs": True}),
        ("/v1/completions", prompt | {"logit_bias": {"99999999": 1}}),
        ("/v1/completions", prompt | {"structured_outputs": {"regex": "((("}, "stream": True}),
        ("/v1/completions", prompt | {"prompt": [5] * 6000 + [99_999_999]}),
        ("/v1/messages", chat | {"temperature": -5, "stream": True}),
        ("/v1/responses", {**shared, "input": text(52), "temperature": -5, "max_output_tokens": 12}),
    ]
    async with before(tmp_path, stock_engine, SLICED) as gateway:
        await calibrated(gateway)
        for path, body in bad:
            refused = await gateway.ask(path, body)
            assert refused.status == 400, (path, refused.body)
            if not body.get("stream"):
                whole = await raw_client.request(stock_engine.port, path, body)
                assert (whole.status, whole.body) == (400, refused.body)
        assert await gateway.metric("gateway_slices_total") == 0, "nothing is computed for what is refused"
        assert await gateway.metric("gateway_requests_total", outcome="completed") == len(bad)


async def test_a_good_request_of_every_dialect_is_accepted_and_sliced(stock_engine, tmp_path):
    await idle(stock_engine)
    shared = {"model": stock_engine.model, "max_tokens": 4, "temperature": 0}
    async with before(tmp_path, stock_engine, SLICED) as gateway:
        await calibrated(gateway)
        for number, stream in enumerate((False, True)):
            message = [{"role": "user", "content": text(70 + number)}]
            asked = [
                ("/v1/messages", {"messages": message, "stream": stream, **shared}),
                ("/v1/responses", {"input": text(80 + number), "stream": stream, "max_output_tokens": 4, **shared}),
                ("/v1/completions", {"prompt": [number + 5] * 6000, "stream": stream, **shared}),
            ]
            for path, body in asked:
                before_it = await gateway.metric("gateway_slices_total", result="computed")
                assert (await gateway.ask(path, body)).status == 200
                assert await gateway.metric("gateway_slices_total", result="computed") > before_it, path


async def test_without_prefix_caching_the_engine_gets_long_prompts_whole(engine, tmp_path):
    await idle(engine)
    async with before(tmp_path, engine, SLICED) as gateway:
        await calibrated(gateway)
        for salt in range(60, 64):
            prompt = {"model": engine.model, "prompt": text(salt), "max_tokens": 1}
            assert (await gateway.ask("/v1/completions", prompt)).status == 200
        assert await gateway.metric("gateway_slices_total", result="fallback") >= 1
