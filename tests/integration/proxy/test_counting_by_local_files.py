"""Pools counted by the model's own files: huge prompts, prompts of many sequences, and files that are not the engine's.

The model here has one token for each byte and a template that adds nothing, so that every count is plain to see.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from gateway.core.plan import AdmissionKind, RequestBounds, SlotBudget
from gateway.counting.drift import ANSWERS_MIN
from gateway.server.tasks import spawn
from gateway.testing import answers
from gateway.testing.builders import a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CONTEXT_TOKENS = 12_288
STREAMS = 100
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def pools(tmp_path):
    """A pool that is counted by files."""
    folder = tmp_path / "model"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return {"chat": {"models": [MODEL], "tokenizer": {"kind": "local", "path": str(folder)}}}


def said(text):
    return {"messages": [{"role": "user", "content": text}]}


async def asked(gateway, body):
    async with gateway.client() as client:
        await client.post(CHAT, body)
        return await client.read_answer()


@pytest.mark.parametrize("prompt_bytes", [5_400_000, 27_000_000])
async def test_a_huge_prompt_is_refused_by_its_size_while_health_is_answered_and_streams_go_on(
    tmp_path, pools, prompt_bytes
):
    huge = json.dumps(a_chat(**said("a" * prompt_bytes))).encode()
    goes_on = asyncio.Event()
    slots = an_admission(AdmissionKind.SLOTS, slots=SlotBudget(STREAMS, 0, 0))
    async with (
        ScriptedEngine(answers.streaming("hello")) as engine,
        running(tmp_path, engine, plan=a_plan(admission=slots), pools=pools) as gateway,
        AsyncExitStack() as open_streams,
    ):
        engine.script = answers.held(answers.streaming("hello"), goes_on)
        clients = [await open_streams.enter_async_context(gateway.client()) for _ in range(STREAMS)]
        for client in clients:
            await client.post(CHAT, a_chat(stream=True))
        await gateway.until(lambda: len(engine.posts) == STREAMS)
        refusal = spawn(asked(gateway, huge), name="huge prompt")
        healthy = 0
        while not refusal.done():
            healthy += (await gateway.ops("/healthz")).status == 200
        refused = await refusal
        goes_on.set()
        whole = [await client.read_answer() for client in clients]
        assert await gateway.metric("gateway_tokenize_seconds_count", method="local") == STREAMS
        assert await gateway.metric("gateway_event_loop_lag_seconds_count") > 0
    details = refused.json()["error"]["details"]
    assert (refused.status, refused.header("x-gateway-reason")) == (400, "context_length")
    assert (details["limit"], details["observed"]) == (CONTEXT_TOKENS, prompt_bytes)
    assert healthy > 0
    assert {answer.status for answer in whole} == {200}
    assert all(answer.body.endswith(answers.DONE) for answer in whole)
    assert len(engine.posts) == STREAMS


PROMPTS = {
    "strings": (["a" * (1 + index % 7) for index in range(1000)], sum(1 + index % 7 for index in range(1000)), "short"),
    "one of them long": (["a"] * 999 + ["a" * 700], 999 + 700, "long"),
    "token ids": (
        [[5] * (1 + index % 3) for index in range(1000)],
        sum(1 + index % 3 for index in range(1000)),
        "short",
    ),
}


def taking_many(**kwargs):
    return replace(a_plan(**kwargs), request=RequestBounds(sequences_max=1024, stop_max=64, list_items_max=1024))


@pytest.mark.parametrize("name", PROMPTS)
async def test_a_thousand_prompts_are_classed_by_the_longest_and_charged_as_their_sum(tmp_path, pools, name):
    prompt, tokens, length_class = PROMPTS[name]
    released = asyncio.Event()
    script = answers.held(answers.completion(prompt_tokens=tokens), released)
    room = an_admission(short_prefill_tokens_max=10_000, slots=SlotBudget(1024, 8, 8))
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, plan=taking_many(admission=room), pools=pools) as gateway,
        gateway.client() as client,
    ):
        await client.post(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 1})
        await gateway.until(lambda: len(engine.posts) == 1)
        assert await gateway.metric("gateway_prefill_tokens", length_class=length_class) == tokens
        assert gateway.gateway.rooms.gates["chat"].snapshot().engines["a"].slots == 1000
        released.set()
        answer = await client.read_answer()
        assert (answer.status, answer.header("x-gateway-length-class")) == (200, length_class)
        assert await gateway.metric("gateway_token_count_error_ratio_count", method="local", sign="equal") == 1


@pytest.mark.parametrize(
    ("plan", "prompts"), [(taking_many(), 2000), (a_plan(), 1000), (a_plan(), 17)]
)  # beyond the engine's own bound, and beyond the policy's
@pytest.mark.parametrize("prompt", ["a", [5]])
async def test_more_prompts_than_the_policy_takes_are_refused_and_none_is_counted(
    tmp_path, pools, plan, prompts, prompt
):
    async with ScriptedEngine() as engine, running(tmp_path, engine, plan=plan, pools=pools) as gateway:
        answer = await gateway.ask(COMPLETIONS, {"model": MODEL, "prompt": [prompt] * prompts})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "too_many_sequences")
        assert await gateway.metric("gateway_tokenize_seconds_count") == 0
    assert engine.posts == []


async def test_an_engine_with_another_template_is_noticed_and_counts_for_itself_from_then_on(tmp_path, pools, logged):
    text = "a" * 600
    theirs = answers.completion(prompt_tokens=660)
    counts = answers.json_answer({"count": 660})
    script = answers.by_request(lambda request: counts if request.path == "/tokenize" else theirs)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, pools=pools) as gateway:
        ours = [await gateway.chat(**said(text)) for _ in range(ANSWERS_MIN)]
        assert await gateway.metric("gateway_token_count_drifted", pool="chat") == 1
        seen = {"method": "local", "sign": "under"}
        assert await gateway.metric("gateway_token_count_error_ratio_count", **seen) == ANSWERS_MIN
        assert await gateway.metric("gateway_token_count_error_ratio_bucket", **seen, le="0.05") == 0
        after = await gateway.chat(**said(text))
        assert await gateway.metric("gateway_tokenizer_info", pool="chat", method="engine") == 1
        assert await gateway.metric("gateway_token_count_error_ratio_count", method="engine", sign="equal") == 1
    assert {(answer.status, answer.header("x-gateway-length-class")) for answer in ours} == {(200, "short")}
    assert (after.status, after.header("x-gateway-length-class")) == (200, "long")
    assert [post.path for post in engine.posts].count("/tokenize") == 1
    assert logged().count("token_count_drifted") == 1


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_where_that_engine_has_no_route_that_counts_the_local_count_goes_on(tmp_path, pools, status):
    no_route, theirs = answers.error(status), answers.completion(prompt_tokens=660)
    script = answers.by_request(lambda request: no_route if request.path == "/tokenize" else theirs)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, pools=pools) as gateway:
        seen = [await gateway.chat(**said("a" * 600)) for _ in range(ANSWERS_MIN + 2)]
        assert await gateway.metric("gateway_tokenizer_info", pool="chat", method="estimate") == 1
    assert {(answer.status, answer.header("x-gateway-length-class")) for answer in seen} == {(200, "short")}
    assert [post.path for post in engine.posts].count("/tokenize") == 1
