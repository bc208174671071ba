"""Two pools of one model, one for short prompts and one for long ones, under the policy that is made for them."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from gateway.policy import source
from gateway.testing import answers, raw_client
from gateway.testing.dialect_answers import a_response
from gateway.testing.harness import MODEL, running, settings_text
from gateway.testing.scripted_engine import ScriptedEngine

ISOLATED = source.load("isolated")
SHORT, LONG = "Say hello.", "Say hello at length. " * 400
LENGTHS = (("short", SHORT), ("long", LONG))


def two(tokenizer="estimate", names=("short", "long")):
    """Return pools, and their engines' places, of one model by length."""
    stated = zip(names, ("short", "long"), strict=True)
    pools = {name: {"models": [MODEL], "length_class": each, "tokenizer": {"kind": tokenizer}} for name, each in stated}
    return {"pools": pools, "pool_of": dict(zip("ab", names, strict=True)), "engine": {"limits": {"max_num_seqs": 1}}}


def isolated(folder, short, long, **sections):
    return running(folder, short, long, plan=ISOLATED, **(sections or two()))


def asked(path, prompt, **members):
    words = {"messages": [{"role": "user", "content": prompt}]} if path.startswith("/v1/chat") else {"prompt": prompt}
    return path, {"model": MODEL, "max_tokens": 8, **words, **members}


async def lose(gateway, engine, name):
    await engine.refuse_connections()
    await engine.cut_connections()
    await gateway.until(lambda: not gateway.gateway.rooms.watches[name].health.is_up)


@pytest.mark.parametrize("stream", [False, True])
async def test_each_length_goes_to_its_own_pool_and_is_counted_there(tmp_path, stream):
    script = answers.stream_or_whole("Hello")
    async with (
        ScriptedEngine(script) as one,
        ScriptedEngine(script) as other,
        isolated(tmp_path, one, other) as gateway,
    ):
        engines = {"short": one, "long": other}
        for path in ("/v1/chat/completions", "/v1/completions"):
            for length, prompt in LENGTHS:
                before = {name: len(engine.posts) for name, engine in engines.items()}
                answer = await gateway.ask(*asked(path, prompt, stream=stream))
                assert (answer.status, answer.header("x-gateway-length-class")) == (200, length)
                assert {n: len(e.posts) - before[n] for n, e in engines.items()} == {
                    **dict.fromkeys(engines, 0),
                    length: 1,
                }
        for length, other_length in (("short", "long"), ("long", "short")):
            own = {"pool": length, "length_class": length, "service_class": "interactive"}
            assert await gateway.metric("gateway_requests_total", **own, outcome="completed") == 2
            assert await gateway.metric("gateway_queue_wait_seconds_count", **own) == 2
            assert await gateway.metric("gateway_requests_total", **{**own, "pool": other_length}) == 0


async def test_a_line_of_long_prompts_holds_up_no_short_one(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.completion()) as one,
        ScriptedEngine(answers.held(answers.completion(), release)) as other,
        isolated(tmp_path, one, other) as gateway,
        asyncio.TaskGroup() as group,
    ):
        longs = [group.create_task(gateway.ask(*asked("/v1/completions", LONG))) for _ in range(3)]
        await gateway.until_metric("gateway_queue_requests", 2, pool="long", length_class="long")
        assert (await gateway.ask(*asked("/v1/completions", SHORT))).status == 200
        pools = (await gateway.ops("/api/state")).json()["pools"]
        assert {name: pool["length_class"] for name, pool in pools.items()} == {"short": "short", "long": "long"}
        release.set()
    assert [each.result().status for each in longs] == [200, 200, 200]


async def test_a_model_of_two_pools_is_listed_once_with_the_context_of_long_prompts(tmp_path):
    async with (
        ScriptedEngine(max_model_len=2048) as one,
        ScriptedEngine(answers.completion()) as other,
        isolated(tmp_path, one, other) as gateway,
    ):
        listed = (await gateway.ask("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in listed] == [(MODEL, 12288)]
        assert (await gateway.ask(*asked("/v1/completions", LONG, max_tokens=4000))).status == 200
        refused = await gateway.ask(*asked("/v1/completions", SHORT, max_tokens=4000))
        assert refused.json()["error"]["details"]["limit"] == 2048


async def test_either_pool_answers_what_takes_no_engine_time_and_counts_while_the_other_is_gone(tmp_path):
    def answering(request):
        if request.path != "/tokenize":
            return answers.completion()
        return answers.json_answer({"count": 2000, "max_model_len": 12288, "tokens": [1] * 2000, "token_strs": None})

    script = answers.by_request(answering)
    async with (
        ScriptedEngine(script) as one,
        ScriptedEngine(script) as other,
        isolated(tmp_path, one, other, **two("engine")) as gateway,
    ):
        await lose(gateway, one, "a")
        assert (await gateway.ask("/tokenize", {"model": MODEL, "prompt": SHORT})).json()["count"] == 2000
        assert (await gateway.ask(*asked("/v1/completions", LONG))).status == 200
        await lose(gateway, other, "b")
        assert (await gateway.ask(*asked("/v1/completions", LONG))).status == 503


async def test_what_goes_on_from_a_response_goes_where_that_is_kept_whatever_its_length(tmp_path):
    async with (
        ScriptedEngine(answers.json_answer(a_response())) as one,
        ScriptedEngine(answers.json_answer(a_response())) as other,
        isolated(tmp_path, one, other) as gateway,
    ):
        first = await gateway.ask("/v1/responses", {"model": MODEL, "input": SHORT})
        more = {"model": MODEL, "input": LONG, "previous_response_id": first.json()["id"]}
        answer = await gateway.ask("/v1/responses", more)
        assert (answer.status, answer.header("x-gateway-length-class")) == (200, "long")
        assert (len(one.posts), len(other.posts)) == (2, 0)
        assert await gateway.metric("gateway_requests_total", pool="short", length_class="long") == 1


async def test_a_pool_that_is_split_while_requests_wait_serves_them_and_later_ones_by_length(tmp_path):
    release = asyncio.Event()
    limits = {"limits": {"max_num_seqs": 1}}
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as old,
        ScriptedEngine(answers.completion()) as new,
        running(tmp_path, old, plan=ISOLATED, engine=limits) as gateway,
        asyncio.TaskGroup() as group,
    ):
        prompts = (SHORT, LONG, SHORT)
        waiting = [group.create_task(gateway.ask(*asked("/v1/completions", prompt))) for prompt in prompts]
        await gateway.until_metric("gateway_queue_requests", 2, pool="chat")
        split = settings_text({"a": old.url, "b": new.url}, **two(names=("chat", "chat-long")))
        await asyncio.to_thread((tmp_path / "gateway.yaml").write_text, yaml.safe_dump(split))
        answer = await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)
        assert (answer.status, answer.json()["result"]) == (200, "applied")
        await gateway.until(lambda: gateway.gateway.rooms.watches["b"].health.is_up)
        assert (await gateway.ask(*asked("/v1/completions", LONG))).status == 200
        assert len(new.posts) == 1
        later = group.create_task(gateway.ask(*asked("/v1/completions", SHORT)))
        await gateway.until_metric("gateway_queue_requests", 3, pool="chat")
        release.set()
    assert [each.result().status for each in (*waiting, later)] == [200] * 4
    assert (len(old.posts), len(new.posts)) == (4, 1)
