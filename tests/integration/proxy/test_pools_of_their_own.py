"""Several pools behind one gateway: what befalls one is not told of the others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

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
