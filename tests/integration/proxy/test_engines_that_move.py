"""Reloads that move, drop or rename engines while something is under way at them."""

from __future__ import annotations

import asyncio
import json

import yaml

from gateway.core.plan import LongPrefill, LongPrefillMode, SlotBudget
from gateway.server.tasks import spawn
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, running, settings_text
from gateway.testing.scripted_engine import ScriptedEngine

ESTIMATE = {"kind": "estimate"}


async def reload(gateway, folder, engines, pools):
    """Put engines (name, URL, pool) and pools (name → model) in the file and have it read; return the answer."""
    value = settings_text({name: url for name, url, _ in engines})
    value["pools"] = {pool: {"models": [model], "tokenizer": ESTIMATE} for pool, model in pools.items()}
    for entry, (_, _, pool) in zip(value["engines"], engines, strict=True):
        entry["pool"] = pool
    text = yaml.safe_dump(value)
    await asyncio.to_thread((folder / "gateway.yaml").write_text, text)
    return await raw_client.request(gateway.ops_port, "/api/reload", {})


def in_parts(mode):
    way = LongPrefill(mode, slice_s=0.005, hold_max_s=1.0, recalls_max=8)
    admission = an_admission(slots=SlotBudget(8, 2, 2), long_prefill=way)
    return a_plan(a_class(wait_s_max=(30, 30)), a_class("batch", rank=1, weight=1), admission=admission)


async def test_slices_and_their_request_stay_at_the_engine_whose_name_a_reload_gave_to_another_pool(tmp_path):
    first_slice = asyncio.Event()
    held = answers.held(answers.completion(), first_slice)
    body = {"model": MODEL, "prompt": list(range(12_000)), "max_tokens": 7}
    async with ScriptedEngine(held) as old, ScriptedEngine(model="other") as other, ScriptedEngine() as third:
        async with running(tmp_path, old, plan=in_parts(LongPrefillMode.SLICED)) as gateway:
            asked = spawn(gateway.ask("/v1/completions", body), name="caller")
            await old.until(lambda: len(old.posts) == 1)
            engines = [("a", other.url, "second"), ("b", third.url, "chat")]
            assert (await reload(gateway, tmp_path, engines, {"chat": MODEL, "second": "other"})).status == 200
            first_slice.set()
            answer = await asked
        assert answer.status == 200
        assert json.loads(old.posts[-1].body) == body
        assert not other.posts


async def test_a_pool_that_leaves_while_its_engines_name_has_work_elsewhere_stops_no_later_reload(tmp_path, logged):
    release = asyncio.Event()
    held = answers.held(answers.completion(), release)
    async with (
        ScriptedEngine(held) as first,
        ScriptedEngine() as second,
        ScriptedEngine(model="other") as other,
        running(tmp_path, first) as gateway,
    ):
        rooms = gateway.gateway.rooms
        asked = spawn(gateway.chat(), name="caller")
        await first.until(lambda: len(first.posts) == 1)
        moved = [("a", other.url, "second"), ("b", second.url, "chat")]
        assert (await reload(gateway, tmp_path, moved, {"chat": MODEL, "second": "other"})).status == 200
        await gateway.until(lambda: rooms.watches["a"].health.is_up)
        assert (await reload(gateway, tmp_path, moved[1:], {"chat": MODEL})).status == 200
        await gateway.until(lambda: set(rooms.gates) == {"chat"})
        assert (await gateway.ops("/api/state")).status == 200
        back = [("a", first.url, "chat"), ("b", second.url, "chat")]
        assert (await reload(gateway, tmp_path, back, {"chat": MODEL})).status == 200
        release.set()
        assert (await asked).status == 200
    assert "crashed" not in logged()


async def test_a_response_whose_engine_has_left_or_lost_its_name_is_not_asked_of_another(tmp_path):
    made = answers.json_answer({"id": "resp_1", "object": "response", "status": "completed", "output": []})
    async with ScriptedEngine(made) as first, ScriptedEngine(made) as second:
        async with running(tmp_path, first) as gateway:
            body = {"model": MODEL, "input": "hello", "max_output_tokens": 3}
            assert (await gateway.ask("/v1/responses", body)).status == 200
            for name in ("a", "b"):  # its name with another behind it, then no such name
                engines = [(name, second.url, "chat")]
                assert (await reload(gateway, tmp_path, engines, {"chat": MODEL})).status == 200
                await gateway.until(lambda name=name: set(gateway.gateway.rooms.watches) == {name})
                await gateway.until(lambda name=name: gateway.gateway.rooms.watches[name].health.is_up)
                asked = await gateway.ask("/v1/responses/resp_1")
                assert (asked.status, asked.header("x-gateway-reason")) == (503, "no_engine")
        assert not second.posts


async def test_an_error_that_is_on_its_way_to_the_caller_is_not_taken_back(tmp_path):
    error = b'{"error": {"message": "' + b"x" * (2 << 20) + b'"}}'
    head_sent, rest = asyncio.Event(), asyncio.Event()

    async def slow_error(request, wire):
        lines = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(error)}\r\n\r\n"
        await wire.send(lines.encode() + error[:-100])
        head_sent.set()
        await rest.wait()
        await wire.send(error[-100:])

    whole = answers.completion()
    script = answers.by_request(lambda request: slow_error if len(request.json()["prompt"]) > 640 else whole)
    async with ScriptedEngine(script) as engine:
        async with running(tmp_path, engine, plan=in_parts(LongPrefillMode.RECALLED)) as gateway:
            body = {"model": MODEL, "prompt": list(range(12_000)), "max_tokens": 7}
            asked = spawn(gateway.ask("/v1/completions", body), name="caller")
            await head_sent.wait()
            await gateway.until(lambda: any(exchange.engine for exchange in gateway.exchanges))
            short = {"model": MODEL, "prompt": [1] * 20, "max_tokens": 7}
            await gateway.until_metric("gateway_http_requests_total", 0, status="400")
            assert (await gateway.ask("/v1/completions", short)).status == 200
            rest.set()
            answer = await asked
        assert (answer.status, answer.body) == (400, error)
        assert sum(len(post.json()["prompt"]) > 640 for post in engine.posts) == 1
