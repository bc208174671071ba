"""A long prompt in slices, as its engine sees it: growing prefixes, then the caller's own bytes."""

from __future__ import annotations

import asyncio
import json

from gateway.core.plan import LongPrefill, LongPrefillMode, SlotBudget
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.005, hold_max_s=1.0, recalls_max=8)
PROMPT = list(range(100, 12_100))
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 7, "cache_salt": "theirs", "user": "kept as it is"}


def plan():
    admission = an_admission(slots=SlotBudget(8, 2, 2), long_prefill=SLICED)
    classes = (a_class(wait_s_max=(30, 30)), a_class("batch", rank=1, weight=1))
    return a_plan(*classes, admission=admission)


def is_slice(request):
    return json.loads(request.body)["max_tokens"] == 1


def engine_that(slices):
    """Answers the caller's request at once, and slices as the script says."""
    whole = answers.completion()
    return ScriptedEngine(answers.by_request(lambda request: slices if is_slice(request) else whole))


async def test_slices_are_growing_prefixes_and_the_callers_own_bytes_come_last(tmp_path):
    async with engine_that(answers.completion()) as engine, running(tmp_path, engine, plan=plan()) as gateway:
        assert (await gateway.ask("/v1/completions", BODY)).status == 200
        *slices, last = [json.loads(request.body) for request in engine.posts]
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


async def test_a_slice_that_fails_sends_the_request_whole_and_the_caller_sees_nothing_of_it(tmp_path):
    async with engine_that(answers.error(500)) as engine, running(tmp_path, engine, plan=plan()) as gateway:
        assert (await gateway.ask("/v1/completions", BODY)).status == 200
        assert [is_slice(request) for request in engine.posts] == [True, False]
        assert await gateway.metric("gateway_slices_total", result="failed") == 1


async def test_after_three_failures_in_a_row_prompts_go_whole(tmp_path):
    async with engine_that(answers.error(500)) as engine, running(tmp_path, engine, plan=plan()) as gateway:
        for _ in range(5):
            assert (await gateway.ask("/v1/completions", BODY)).status == 200
        assert sum(is_slice(request) for request in engine.posts) == 3
        assert await gateway.metric("gateway_slices_total", result="failed") == 3
        assert await gateway.metric("gateway_slices_total", result="fallback") == 2


async def test_a_caller_that_leaves_takes_its_slice_along(tmp_path):
    held = answers.held(answers.completion(), asyncio.Event())
    async with engine_that(held) as engine, running(tmp_path, engine, plan=plan()) as gateway:
        async with gateway.client() as client:
            await client.post("/v1/completions", BODY)
            await engine.until(lambda: len(engine.posts) == 1)
            client.reset()
        await engine.until(lambda: len(engine.aborted) == 1)
        await gateway.until_metric("gateway_slices_total", 1, result="cancelled")
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")
        assert await gateway.metric("gateway_long_prefills") == 0


async def test_what_may_not_be_divided_is_sent_at_once(tmp_path):
    async with engine_that(answers.completion()) as engine, running(tmp_path, engine, plan=plan()) as gateway:
        for member in ({"echo": True}, {"prompt_logprobs": 1}, {"truncate_prompt_tokens": 9000}):
            assert (await gateway.ask("/v1/completions", {**BODY, **member})).status == 200
        assert not any(map(is_slice, engine.posts))
