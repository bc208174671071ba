"""Several pools behind one gateway: what befalls one is not told of the others."""

from __future__ import annotations

from gateway.engines import watch
from gateway.testing import answers
from gateway.testing.harness import MODEL, running
from gateway.testing.scripted_engine import ScriptedEngine

ESTIMATE = {"kind": "estimate"}
POOLS = {"chat": {"models": [MODEL], "tokenizer": ESTIMATE}, "code": {"models": ["coder"], "tokenizer": ESTIMATE}}


async def lose(gateway, engine, name):
    await engine.refuse_connections()
    await engine.cut_connections()
    await gateway.until(lambda: not gateway.gateway.rooms.watches[name].health.is_up)


async def readiness(gateway):
    ready = await gateway.ops("/readyz")
    state = (await gateway.ops("/api/state")).json()
    assert state["ready"] is ready.json()["ready"] is (ready.status == 200)
    return ready.status, ready.json()["pools_without_engine"]


async def test_the_gateway_is_ready_while_any_pool_can_serve_and_names_the_others(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as chat,
        ScriptedEngine(model="coder") as code,
        running(tmp_path, chat, code, pools=POOLS, pool_of={"b": "code"}) as gateway,
    ):
        assert await readiness(gateway) == (200, [])
        await lose(gateway, code, "b")
        assert await readiness(gateway) == (200, ["code"])
        assert (await gateway.chat()).status == 200
        await lose(gateway, chat, "a")
        assert await readiness(gateway) == (503, ["chat", "code"])


async def test_a_prompt_that_is_only_estimated_over_the_context_is_the_engines_to_judge(tmp_path):
    async with (
        ScriptedEngine(answers.completion(), max_model_len=100) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.chat(messages=[{"role": "user", "content": "." * 3000}])
        assert answer.status == 200


async def test_an_adapter_that_engines_load_while_they_run_is_served_under_its_own_name(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "CARDS_INTERVAL_S", 0.0)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        refused = await gateway.chat(model="lora")
        assert (refused.status, refused.json()["error"]["code"]) == (404, "model_not_found")
        engine.models.append({**answers.model_card("lora", None), "parent": MODEL, "root": "/srv/loras/x"})
        await gateway.until(lambda: gateway.gateway.rooms.pools.of_model("lora") is not None)
        assert (await gateway.chat(model="lora")).status == 200
        listed = (await gateway.ask("/v1/models")).json()["data"]
        assert [(card["id"], card["root"]) for card in listed] == [(MODEL, MODEL), ("lora", "lora")]
        assert (await gateway.chat(model="lora", max_tokens=20_000)).json()["error"][
            "code"
        ] == "context_length_exceeded"
    assert [post.json()["model"] for post in engine.posts] == ["lora"]
