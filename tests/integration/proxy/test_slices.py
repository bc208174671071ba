"""A long prompt in slices, as its engine sees it: growing prefixes, then the caller's own bytes."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial

import pytest

from gateway.cli.recent import Recent
from gateway.cli.status import render
from gateway.core.plan import LongPrefill, LongPrefillMode, SlotBudget
from gateway.core.steptime import PrefillSample
from gateway.engines import rank
from gateway.server.tasks import spawn
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.2, hold_max_s=1.0, recalls_max=8)
A_THOUSAND_TOKENS_A_SLICE = [PrefillSample(tokens, 1, tokens * 0.2 / 1000) for tokens in (500, 1000, 2000)]
PROMPT = list(range(100, 12_100))
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 7, "cache_salt": "theirs", "user": "kept as it is"}


def plan():
    admission = an_admission(slots=SlotBudget(8, 2, 2), long_prefill=SLICED)
    classes = (a_class(wait_s_max=(30, 30)), a_class("batch", rank=1, weight=1))
    return a_plan(*classes, admission=admission)


@asynccontextmanager
async def slicing(folder, engine, **sections):
    """A gateway that knows its engine to be slow: a script's answers come too soon to teach it another size of slices."""
    async with running(folder, engine, plan=plan(), **sections) as gateway:
        gateway.gateway.rooms.gates["chat"].calibrated("a", A_THOUSAND_TOKENS_A_SLICE)
        yield gateway


def is_twin(request):
    return request.header("x-request-id")[0].endswith("-twin")


def is_slice(request):
    return not is_twin(request) and json.loads(request.body)["max_tokens"] == 1


def engine_that(slices, *, twin=None):
    """Answers the caller's request and its twin at once, and slices as the script says."""
    whole = answers.completion()
    return ScriptedEngine(
        answers.by_request(
            lambda request: slices if is_slice(request) else twin if twin and is_twin(request) else whole
        )
    )


def keeping():
    """Say of each slice that what came before it was cached: then its time, which the machine decides, says nothing."""
    kept = 0

    def choose(request):
        nonlocal kept
        cached, kept = kept, len(request.json()["prompt"])
        return answers.completion(prompt_tokens=kept, completion_tokens=1, cached_tokens=cached)

    return answers.by_request(choose)


async def test_slices_are_growing_prefixes_and_the_callers_own_bytes_come_last(tmp_path):
    async with engine_that(keeping()) as engine, slicing(tmp_path, engine) as gateway:
        assert (await gateway.ask("/v1/completions", BODY)).status == 200
        twin, *slices, last = [json.loads(request.body) for request in engine.posts]
        assert twin == {**BODY, "prompt": [max(PROMPT)], "max_tokens": 1}
        ends = [len(each["prompt"]) for each in slices]
        assert len(ends) >= 2
        assert ends == sorted(set(ends))
        assert ends[-1] < len(PROMPT)
        assert all(end % 16 == 0 for end in ends)
        for each in slices:
            assert each["prompt"] == PROMPT[: len(each["prompt"])]
            assert (each["model"], each["cache_salt"]) == (MODEL, "theirs")
        assert last == BODY
        assert await gateway.metric("gateway_slices_total", result="computed") == len(ends)
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1


async def test_what_would_steer_the_engine_is_in_no_part_and_no_question(tmp_path):
    steering = {"priority": -5, "request_id": "mine", "data_parallel_rank": 1, "session_id": "mine"}
    async with engine_that(answers.completion()) as engine, slicing(tmp_path, engine) as gateway:
        assert (await gateway.ask("/v1/completions", {**BODY, **steering})).status == 200
        assert len(engine.posts) >= 3
        assert not any(steering.keys() & json.loads(request.body).keys() for request in engine.posts)


GIVEN_UP = answers.json_answer({"choices": [{"text": "", "finish_reason": "abort"}]})


@pytest.mark.parametrize("script", [answers.error(500), GIVEN_UP])
async def test_a_slice_that_fails_sends_the_request_whole_and_the_caller_sees_nothing_of_it(tmp_path, script):
    async with engine_that(script) as engine, slicing(tmp_path, engine) as gateway:
        assert (await gateway.ask("/v1/completions", BODY)).status == 200
        assert [is_slice(request) for request in engine.posts] == [False, True, False]
        assert await gateway.metric("gateway_slices_total", result="failed") == 1


async def test_what_the_engine_would_refuse_is_not_computed_first(tmp_path):
    """Its twin is refused, so the request goes at once, and the caller hears the engine's own words."""
    refused = answers.error(400, "the engine's own words")
    async with ScriptedEngine(refused) as engine, slicing(tmp_path, engine) as gateway:
        answer = await gateway.ask("/v1/completions", BODY)
        assert answer.status == 400
        assert "the engine's own words" in answer.body.decode()
        assert [is_twin(request) for request in engine.posts] == [True, False]
        assert json.loads(engine.posts[-1].body) == BODY
        assert await gateway.metric("gateway_slices_total") == 0


async def test_an_engine_that_breaks_when_it_is_asked_gets_the_request_whole(tmp_path):
    broken = answers.raw(b"no HTTP at all\r\n\r\n", then=lambda wire: wire.close())
    serving = engine_that(answers.completion(), twin=broken)
    async with serving as engine, slicing(tmp_path, engine) as gateway:
        assert (await gateway.ask("/v1/completions", BODY)).status == 200
        assert not any(map(is_slice, engine.posts))


def judging(request, *, text):
    """Answer as vLLM does, which tells ids, and judges all of a request before the rank that it is meant for."""
    if request.path == "/tokenize":
        return answers.json_answer({"count": len(PROMPT), "max_model_len": 16_384, "tokens": PROMPT})
    if text in request.body.decode() and '"temperature":-1' in request.body.decode():
        return answers.error(400, "temperature must be non-negative")
    if request.header(rank.HEADER[0]):
        return answers.error(400, "data_parallel_rank 2147483647 is out of range [0, 1).")
    return answers.completion()


async def test_text_is_judged_as_the_callers_own_bytes_for_a_rank_that_no_engine_has(tmp_path):
    pools = {"chat": {"models": [MODEL], "tokenizer": {"kind": "engine"}}}
    text = "a long text " * 4000
    script = answers.by_request(partial(judging, text=text))
    serving = ScriptedEngine(script, max_model_len=16_384)
    async with serving as engine, slicing(tmp_path, engine, pools=pools) as gateway:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 7}
        bad = json.dumps(body | {"temperature": -1}, separators=(",", ":")).encode()
        refused = await gateway.ask("/v1/chat/completions", bad)
        assert refused.status == 400
        assert "temperature must be non-negative" in refused.body.decode()
        proof, *posts = [post for post in engine.posts if post.path != "/tokenize"]
        assert [post.body for post in posts] == [bad, bad]
        assert text not in proof.body.decode()
        assert proof.header(rank.HEADER[0]) == [rank.HEADER[1]]
        sent = len(engine.posts)
        assert (await gateway.ask("/v1/chat/completions", body)).status == 200
        question, *slices, last = [post for post in engine.posts[sent:] if post.path != "/tokenize"]
        assert question.header(rank.HEADER[0]) == [rank.HEADER[1]]
        assert question.body == last.body == json.dumps(body).encode()
        assert slices
        assert all(map(is_slice, slices))
        assert not last.header(rank.HEADER[0])


async def test_what_becomes_of_slices_is_told_to_operators(tmp_path, logged):
    async with engine_that(answers.error(500)) as engine, slicing(tmp_path, engine) as gateway:
        for _ in range(4):
            assert (await gateway.ask("/v1/completions", BODY)).status == 200
        dividing = json.loads((await gateway.ops("/api/state")).body)["pools"]["chat"]["engines"]["a"]["dividing"]
        assert (dividing["mode"], dividing["whole_because"], dividing["prompts"]) == ("sliced", "failed", [])
        assert 0 <= dividing["whole_for_s"] <= 60
        assert 0 < dividing["tries_again_in_s"] <= 60
    lines = [json.loads(line) for line in logged().splitlines()]
    (told,) = [line for line in lines if line["event"] == "long_prompts_go_whole"]
    assert (told["engine"], told["reason"]) == ("a", "failed")


async def test_a_prompt_under_way_in_parts_is_shown_with_how_far_it_is(tmp_path):
    held = answers.held(answers.completion(), release := asyncio.Event())
    async with engine_that(held) as engine, slicing(tmp_path, engine) as gateway:
        asked = spawn(gateway.ask("/v1/completions", BODY), name="caller")
        await engine.until(lambda: any(map(is_slice, engine.posts)))
        shown = json.loads((await gateway.ops("/api/state")).body)
        (prompt,) = shown["pools"]["chat"]["engines"]["a"]["dividing"]["prompts"]
        assert (prompt["part"], prompt["done_tokens"], prompt["prompt_tokens"]) == (1, 0, len(PROMPT))
        assert prompt["parts"] >= 3
        assert prompt["held_for_s"] is None
        text = render(shown, Recent())
        assert f"1 of {prompt['parts']}" in text
        release.set()
        assert (await asked).status == 200


async def test_after_three_failures_in_a_row_prompts_go_whole(tmp_path):
    async with engine_that(answers.error(500)) as engine, slicing(tmp_path, engine) as gateway:
        for _ in range(5):
            assert (await gateway.ask("/v1/completions", BODY)).status == 200
        assert sum(is_slice(request) for request in engine.posts) == 3
        assert await gateway.metric("gateway_slices_total", result="failed") == 3
        assert await gateway.metric("gateway_slices_total", result="fallback") == 2


async def test_a_caller_that_leaves_takes_its_slice_along(tmp_path):
    held = answers.held(answers.completion(), asyncio.Event())
    async with engine_that(held) as engine, slicing(tmp_path, engine) as gateway:
        async with gateway.client() as client:
            await client.post("/v1/completions", BODY)
            await engine.until(lambda: any(map(is_slice, engine.posts)))
            client.reset()
        await engine.until(lambda: len(engine.aborted) == 1)
        await gateway.until_metric("gateway_slices_total", 1, result="cancelled")
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        await gateway.until_metric("gateway_long_prefills", 0)  # after the step that still held it


async def test_what_may_not_be_divided_is_sent_at_once(tmp_path):
    async with engine_that(answers.completion()) as engine, slicing(tmp_path, engine) as gateway:
        for member in ({"echo": True}, {"prompt_logprobs": 1}, {"truncate_prompt_tokens": 9000}):
            assert (await gateway.ask("/v1/completions", {**BODY, **member})).status == 200
        assert not any(map(is_slice, engine.posts))
