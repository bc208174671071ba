"""The gateway in front of the real engine: order, aborts, counts and bytes as a caller and the engine see them."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from engine_state import idle, until_gauge

from gateway.core.plan import AdmissionKind
from gateway.testing import raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300, func_only=True)]

SHORT, LONG = 512, 4000
_salts = itertools.count()


def no_gate():
    """Everything is sent at once, so that order is the engine's alone."""
    classes = (
        a_class("interactive", wait_s_max=(60, 60)),
        a_class("batch", rank=1, weight=1, wait_s_max=(60, 60)),
    )
    return a_plan(*classes, admission=an_admission(AdmissionKind.NONE))


def before(folder, engine, *, scheduling="priority", plan=None):
    names = ("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")
    limits = {name: getattr(engine.flags, name) for name in names}
    pools = {"chat": {"models": [engine.model], "tokenizer": {"kind": "local", "path": str(engine.tokenizer_path)}}}
    members = {"scheduling": scheduling, "priority_carrier": "auto", "limits": limits}
    return running(folder, engine.base_url, plan=plan or no_gate(), engine=members, pools=pools)


def prompt(tokens):
    """Token ids that no other prompt here begins with."""
    salt = next(_salts)
    return [64 + (salt * 7919 + index * (salt + 3)) % 128 for index in range(tokens)]


def completion(engine, tokens, **members):
    return {"model": engine.model, "prompt": prompt(tokens), "temperature": 0, **members}


async def test_a_class_of_higher_rank_overtakes_inside_the_engine(engine, tmp_path):
    await idle(engine)
    order = []

    async def contend(gateway, key):
        answer = await gateway.ask("/v1/completions", completion(engine, SHORT, max_tokens=1), key=key)
        assert answer.status == 200
        order.append(answer.header("x-gateway-service-class"))

    async with before(tmp_path, engine) as gateway, asyncio.TaskGroup() as group:
        for _ in range(4):
            body = completion(engine, LONG, max_tokens=1)
            group.create_task(gateway.ask("/v1/completions", body, key=BATCH_KEY))
        await until_gauge(engine, "vllm:num_requests_running", lambda value: value > 0)
        for key in (BATCH_KEY, BATCH_KEY, INTERACTIVE_KEY):
            group.create_task(contend(gateway, key))
            await gateway.until(lambda: all(exchange.engine for exchange in gateway.exchanges))
    assert order == ["interactive", "batch", "batch"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_stops_when_the_client_leaves_mid_answer(engine, tmp_path, stream):
    await idle(engine)
    body = completion(engine, 16, max_tokens=4000, ignore_eos=True, stream=stream)
    async with before(tmp_path, engine) as gateway:
        async with gateway.client() as client:
            await client.post("/v1/completions", body)
            await until_gauge(engine, "vllm:num_requests_running", lambda value: value == 1)
            client.reset()
        await idle(engine)
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        assert await gateway.metric("gateway_running_requests") == 0


async def test_the_engine_drops_what_waits_inside_it_when_the_client_leaves(engine, tmp_path):
    await idle(engine)
    async with before(tmp_path, engine) as gateway:
        clients = [gateway.client() for _ in range(8)]
        for client in clients:
            await client.__aenter__()
            await client.post("/v1/completions", completion(engine, LONG, max_tokens=1))
        await until_gauge(engine, "vllm:num_requests_waiting", lambda value: value > 0)
        for client in clients:
            client.leave()
        await idle(engine)
        await gateway.until_metric("gateway_requests_total", len(clients), outcome="client_gone")


async def test_our_count_is_the_engines_usage(engine, tmp_path):
    chats = [
        {"messages": [{"role": "user", "content": "Who was Ada Lovelace?"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe 漢字 😀"}]},
        {"messages": [{"role": "user", "content": "word " * 3000}]},
    ]
    async with before(tmp_path, engine) as gateway:
        for chat in chats:
            for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
                body = {"model": engine.model, "max_tokens": 2, **chat, **stream}
                assert (await gateway.ask("/v1/chat/completions", body)).status == 200
        count = "gateway_token_count_error_ratio_count"
        assert await gateway.metric(count, sign="equal") == await gateway.metric(count) == 2 * len(chats)


def events_of(body):
    """Each choice's events, without what differs from one answer to the next: ids, times, how choices interleave."""
    assert body.endswith(b"data: [DONE]\n\n")
    values = [json.loads(event.removeprefix(b"data: ")) for event in body.split(b"\n\n")[:-2]]
    events = [{name: member for name, member in value.items() if name not in ("id", "created")} for value in values]
    return sorted(events, key=lambda event: [choice["index"] for choice in event["choices"]])


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"n": 2, "temperature": 1, "logprobs": True, "top_logprobs": 2},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
async def test_a_stream_through_the_gateway_is_the_stream_of_the_engine(engine, tmp_path, members):
    chat = {"model": engine.model, "messages": [{"role": "user", "content": "Count to five."}]}
    body = {**chat, "max_tokens": 12, "temperature": 0, "seed": 1, "stream": True, **members}
    direct = await raw_client.request(engine.port, "/v1/chat/completions", body)
    async with before(tmp_path, engine) as gateway:
        through = await gateway.ask("/v1/chat/completions", body)
    assert (through.status, through.header("content-type")) == (direct.status, direct.header("content-type"))
    assert events_of(through.body) == events_of(direct.body)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_of_the_engine_is_the_same_through_the_gateway(engine, tmp_path, stream):
    body = {"model": engine.model, "prompt": [1 << 30], "max_tokens": 1, "stream": stream}
    direct = await raw_client.request(engine.port, "/v1/completions", {**body, "stream": False})
    async with before(tmp_path, engine) as gateway:
        through = await gateway.ask("/v1/completions", body)
    assert (through.status, through.json()["error"]["code"]) == (direct.status, direct.json()["error"]["code"])


@pytest.mark.parametrize(("policy", "effective"), [("priority", 1), ("fcfs", 0)])
async def test_the_probe_tells_whether_the_engine_obeys_priorities(engine, stock_engine, tmp_path, policy, effective):
    engine = {each.flags.scheduling_policy: each for each in (engine, stock_engine)}[policy]
    await idle(engine)
    async with before(tmp_path, engine, scheduling="probe") as gateway:
        watch = gateway.gateway.rooms.watches["a"]
        assert watch.known.proofs_tried >= 1
        assert await gateway.metric("gateway_priority_effective", engine="a") == effective
        assert (await gateway.ask("/v1/completions", completion(engine, 16, max_tokens=1))).status == 200
