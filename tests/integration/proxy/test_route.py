"""Weights of a pool's engines, shifted while it serves, and rolled back."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from gateway.testing import answers, raw_client
from gateway.testing.harness import a_chat, running, settings_text
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"


async def route(gateway, body):
    return await raw_client.request(gateway.ops_port, "/api/route", body, key=None)


async def test_an_engine_is_drained_shown_so_and_rolled_back(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as one,
        ScriptedEngine(answers.completion()) as two,
        running(tmp_path, one, two) as gateway,
    ):
        answer = await route(gateway, {"pool": "chat", "weights": {"a": 0}})
        assert answer.json() == {"pool": "chat", "weights": {"a": 0.0, "b": 1.0}, "shifted": True}
        for _ in range(4):
            assert (await gateway.chat()).status == 200
        assert (len(one.posts), len(two.posts)) == (0, 4)
        assert await gateway.metric("gateway_engine_weight", engine="a") == 0
        pool = (await gateway.ops("/api/state")).json()["pools"]["chat"]
        assert (pool["shifted"], pool["engines"]["a"]["weight"]) == (True, 0)
        value = settings_text({"a": one.url, "b": two.url})
        assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)).status == 200
        assert await gateway.metric("gateway_engine_weight", engine="a") == 0, "a reload of the same weights keeps it"
        assert (await route(gateway, {"pool": "chat", "rollback": True})).json()["shifted"] is False
        assert await gateway.metric("gateway_engine_weight", engine="a") == 1
        await route(gateway, {"pool": "chat", "weights": {"a": 0}})
        value["engines"][0]["weight"] = 7
        await asyncio.to_thread((tmp_path / "gateway.yaml").write_text, yaml.safe_dump(value))
        assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)).status == 200
        assert await gateway.metric("gateway_engine_weight", engine="a") == 7, "other weights in the file take over"


@pytest.mark.parametrize(
    ("body", "problem", "fix"),
    [
        (b"{", "no JSON", "Send"),
        ({"weights": {"a": 1}}, "names no pool", "Send"),
        ({"pool": "chat"}, "either weights, a rollback, or an end", "Send"),
        ({"pool": "chat", "weights": {"a": 1}, "rollback": True}, "either weights, a rollback", "Send"),
        ({"pool": "chat", "rollback": True, "end": ["a"]}, "either weights, a rollback", "Send"),
        ({"pool": "chat", "rollback": False}, "either weights, a rollback", "Send"),
        ({"pool": "chat", "end": []}, "end names no engine", "Send"),
        ({"pool": "chat", "end": "a"}, "end names no engine", "Send"),
        ({"pool": "chat", "end": ["a"]}, "a gets new requests", "weight 0 first"),
        ({"pool": "chat", "weights": {}}, "names no engine", "Send"),
        ({"pool": "chat", "weight": {}}, "mean nothing here: weight", "Send"),
        ({"pool": "chat", "weights": {"a": -1}}, "weight of a is no number", "0 drains"),
        ({"pool": "chat", "weights": {"a": 10**400}}, "weight of a is no number", "0 drains"),
        ({"pool": "chat", "weights": {"a": float("nan")}}, "weight of a is no number", "0 drains"),
        ({"pool": "chat", "weights": {"a": True}}, "weight of a is no number", "0 drains"),
        ({"pool": "chat", "weights": {"x": 1}}, "has no engine x", "Use a"),
        ({"pool": "chat", "weights": {"a": 0}}, "without an engine", "above 0"),
        ({"pool": "hat", "weights": {"a": 1}}, "no pool hat", "Use chat"),
    ],
)
async def test_a_wish_that_cannot_be_met_names_the_fix_and_changes_nothing(tmp_path, body, problem, fix):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await route(gateway, body)
        assert answer.status == 400
        error = answer.json()["error"]
        assert problem in error["message"]
        assert fix in error["fix"]
        assert not (await gateway.ops("/api/state")).json()["pools"]["chat"]["shifted"]


@pytest.mark.parametrize("how", ["weight 0", "not in the file"])
async def test_what_an_engine_that_gets_nothing_new_still_has_is_ended_in_words_and_counted(tmp_path, how):
    begun = answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello")))
    silent = answers.hanging()
    by_stream = answers.by_request(lambda asked: begun if asked.json().get("stream") else silent)
    async with (
        ScriptedEngine(by_stream) as one,
        ScriptedEngine(answers.completion()) as two,
        running(tmp_path, one, two) as gateway,
        gateway.client() as streaming,
        gateway.client() as waiting,
        gateway.client() as other,
    ):
        await route(gateway, {"pool": "chat", "weights": {"b": 0}})
        await streaming.post(CHAT, a_chat(stream=True))
        await waiting.post(CHAT, a_chat(stream=False))
        await one.until(lambda: len(one.posts) == 2)
        await gateway.until(lambda: any(each.first_token_at is not None for each in gateway.exchanges))
        if how == "weight 0":
            await route(gateway, {"pool": "chat", "weights": {"a": 0, "b": 1}})
        else:
            value = settings_text({"b": two.url})
            await asyncio.to_thread((tmp_path / "gateway.yaml").write_text, yaml.safe_dump(value))
            assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)).status == 200
        await other.post(CHAT, a_chat())
        assert (await other.read_answer()).status == 200
        assert (await route(gateway, {"pool": "elsewhere", "end": ["a"]})).json()["ended"] == 0
        assert (await route(gateway, {"pool": "chat", "end": ["a"]})).json() == {"pool": "chat", "ended": 2}
        with pytest.raises(BrokenAnswer) as broken:
            await streaming.read_answer()
        refused = await waiting.read_answer()
        assert (refused.status, refused.header("x-gateway-reason")) == (503, "draining")
        assert b"send it again" in refused.body and b"send it again" in broken.value.body
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 2
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1
        assert not gateway.exchanges


async def test_what_an_engine_still_has_of_the_pool_that_it_left_is_ended_though_another_pool_uses_it(tmp_path):
    begun = answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(begun) as one,
        ScriptedEngine(answers.completion()) as two,
        running(tmp_path, one, two) as gateway,
        gateway.client() as streaming,
    ):
        await route(gateway, {"pool": "chat", "weights": {"b": 0}})
        await streaming.post(CHAT, a_chat(stream=True))
        await gateway.until(lambda: any(each.first_token_at is not None for each in gateway.exchanges))
        value = settings_text({"a": one.url, "b": two.url}, pool_of={"a": "other"})
        value["pools"]["other"] = {"models": ["another"], "tokenizer": {"kind": "estimate"}}
        await asyncio.to_thread((tmp_path / "gateway.yaml").write_text, yaml.safe_dump(value))
        assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)).status == 200
        assert (await route(gateway, {"pool": "other", "end": ["a"]})).status == 400
        assert (await route(gateway, {"pool": "chat", "end": ["a"]})).json() == {"pool": "chat", "ended": 1}
        with pytest.raises(BrokenAnswer):
            await streaming.read_answer()


async def test_other_pages_may_not_shift_weights(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await raw_client.request(
            gateway.ops_port, "/api/route", {}, key=None, headers={"Origin": "http://elsewhere.example"}
        )
    assert answer.status == 403
