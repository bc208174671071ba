"""Several pools behind one gateway: what befalls one is not told of the others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from gateway.engines import watch
from gateway.server import wiring
from gateway.server.app import Gateway
from gateway.server.reload import Configured
from gateway.settings import load
from gateway.testing import answers
from gateway.testing.builders import a_plan
from gateway.testing.harness import MODEL, Running, running, settings_text, write_configuration
from gateway.testing.scripted_engine import ScriptedEngine

ESTIMATE = {"kind": "estimate"}
POOLS = {"chat": {"models": [MODEL], "tokenizer": ESTIMATE}, "code": {"models": ["coder"], "tokenizer": ESTIMATE}}


@asynccontextmanager
async def two_pools(folder, chat, code):
    value = settings_text({"a": chat.url, "b": code.url}, pools=POOLS)
    value["engines"][1]["pool"] = "code"
    settings, plan = await asyncio.to_thread(lambda: load(write_configuration(folder, value))), a_plan()
    keyring = await asyncio.to_thread(wiring.keyring, settings, plan)
    configured = Configured(folder / "gateway.yaml", settings, plan, ())
    async with Gateway(configured, keyring, lambda: configured) as gateway:
        serving = Running(gateway, gateway.port, gateway.ops_port)
        await serving.until(lambda: all(watch.health.is_up for watch in gateway.rooms.watches.values()))
        yield serving


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
        two_pools(tmp_path, chat, code) as gateway,
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
