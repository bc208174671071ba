"""The gateway before the embedded engine: all that it does before a real one, it can do and prove here."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.plan import AdmissionKind, LongPrefill, LongPrefillMode, SlotBudget
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, running

pytestmark = pytest.mark.timeout(180, func_only=True)

LIMITS = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 640, "max_num_seqs": 128}
CALIBRATION = """
version: 1
model: tiny
made_at: the profile itself
max_num_batched_tokens: 2048
base_s: {value: 0.0075, low: 0.0075, high: 0.0075}
per_token_s: {value: 8.5e-05, low: 8.5e-05, high: 8.5e-05}
per_token_context_s: {value: 3.84e-08, low: 3.84e-08, high: 3.84e-08}
request_s: {value: 0.005, low: 0.005, high: 0.005}
error: {median: 0.01, p95: 0.05}
requests: 10
"""
SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.15, hold_max_s=None, recalls_max=8)


def a_patient_plan(**admission):
    classes = (
        a_class("interactive", wait_s_max=(60, 60)),
        a_class("batch", rank=1, weight=1, wait_s_max=(60, 60)),
    )
    return a_plan(*classes, admission=an_admission(**admission))


def before(folder, engine, *, plan=None, tokenizer=None, limits=LIMITS, **members):
    counting = tokenizer or {"kind": "local", "path": str(engine.tokenizer_path)}
    pools = {"chat": {"models": [engine.model], "tokenizer": counting}}
    members = {"priority_carrier": "auto", "limits": limits, **members}
    chosen = plan or a_patient_plan(kind=AdmissionKind.NONE)
    return running(folder, engine.base_url, plan=chosen, engine=members, pools=pools)


def text(salt, words):
    return " ".join(f"{salt} {word} step" for word in range(words))


@pytest.mark.parametrize(("flags", "effective"), [("priority", 1), ("fcfs", 0)])
async def test_the_priority_probe_tells_priority_from_fcfs(engine, stock, tmp_path, flags, effective):
    chosen = engine if flags == "priority" else stock
    await chosen.idle()
    limits = LIMITS if flags == "priority" else {"max_num_batched_tokens": 2048, "max_num_seqs": 128}
    async with before(tmp_path, chosen, scheduling="probe", limits=limits) as gateway:
        assert gateway.gateway.rooms.watches["a"].known.proofs_tried >= 1
        assert await gateway.metric("gateway_priority_effective", engine="a") == effective


async def test_a_class_of_higher_rank_overtakes_inside_the_engine(engine, tmp_path):
    await engine.idle()
    order = []

    async def contend(gateway, key, salt):
        body = {"model": engine.model, "prompt": text(salt, 100), "max_tokens": 1}
        answer = await gateway.ask("/v1/completions", body, key=key)
        order.append(answer.header("x-gateway-service-class"))

    async with before(tmp_path, engine, scheduling="priority") as gateway, asyncio.TaskGroup() as group:
        for salt in range(5):
            body = {"model": engine.model, "prompt": text(salt, 400), "max_tokens": 1}
            group.create_task(gateway.ask("/v1/completions", body, key=BATCH_KEY))
        await engine.until_metric("vllm:num_requests_running", lambda value: value > 0)
        for salt, key in enumerate((BATCH_KEY, BATCH_KEY, INTERACTIVE_KEY)):
            group.create_task(contend(gateway, key, 100 + salt))
            await gateway.until(lambda: all(exchange.engine for exchange in gateway.exchanges))
    assert order == ["interactive", "batch", "batch"]


async def test_a_calibration_at_start_finds_the_models_own_step_times(engine, tmp_path):
    await engine.idle()
    async with before(tmp_path, engine, scheduling="priority", calibration="probe") as gateway:
        await gateway.until(lambda: gateway.gateway.rooms.gates["chat"].step_models()["a"].fitted)
        probing = gateway.gateway._calibrations.probing["a"]
        await gateway.until(lambda: probing.is_done)
        found = gateway.gateway.rooms.gates["chat"].step_models()["a"]
    # The profile's are 85 µs a token; whatever else this machine does only makes a prefill longer.
    assert 60e-6 < found.per_token_s < 1e-3


@pytest.mark.parametrize("kind", ["local", "engine"])
async def test_the_gateways_count_is_the_engines_usage(engine, tmp_path, kind):
    tokenizer = {"kind": "engine"} if kind == "engine" else None
    asked = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who was Ada Lovelace?"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<|user|> Größe 漢字 😀"}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "developer", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                ],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
                "tool_choice": "none",
            },
        ),
        ("/v1/completions", {"prompt": "a few words " * 300}),
        ("/v1/messages", {"system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/responses", {"instructions": "Be brief.", "input": "Hello"}),
    ]
    async with before(tmp_path, engine, tokenizer=tokenizer) as gateway:
        for path, body in asked:
            most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
            answer = await gateway.ask(path, {"model": engine.model, most: 2, **body})
            assert answer.status == 200, answer.body
        count = "gateway_token_count_error_ratio_count"
        assert await gateway.metric(count, sign="equal") == await gateway.metric(count) == len(asked)


async def test_long_prompts_go_in_slices_that_the_prefix_cache_keeps(stock, tmp_path):
    await stock.idle()
    plan = a_patient_plan(slots=SlotBudget(64, 16, 16), long_prefill=SLICED)
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 128}
    known = tmp_path / "known.yaml"
    known.write_text(CALIBRATION)
    async with before(tmp_path, stock, plan=plan, scheduling="fcfs", calibration=str(known), limits=limits) as gateway:
        hits = await stock.metric("vllm:prefix_cache_hits_total")
        body = {"model": stock.model, "prompt": text(300, 600), "max_tokens": 12}
        sliced = await gateway.ask("/v1/completions", body)
        assert await gateway.metric("gateway_slices_total", result="computed") >= 1
        assert await gateway.metric("gateway_slice_cached_ratio_count") >= 1
        assert await stock.metric("vllm:prefix_cache_hits_total") - hits >= 1024
        whole = await stock.ask("/v1/completions", body)
    assert sliced.json()["choices"] == whole.json()["choices"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_engine_lets_go_of_a_client_that_leaves(engine, tmp_path, stream):
    await engine.idle()
    async with before(tmp_path, engine) as gateway:
        async with gateway.client() as client:
            body = {"model": engine.model, "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
            await client.post("/v1/completions", body)
            await engine.until_metric("vllm:num_requests_running", lambda value: value == 1)
            client.reset()
        await engine.idle()
        await gateway.until_metric("gateway_requests_total", 1, outcome="client_gone")


async def test_what_the_engines_own_limits_refuse_goes_back_to_the_line(emulator, tmp_path):
    limited = emulator(*("--profile", "cpu", "--max-num-queued-reqs", "2"))
    async with before(tmp_path, limited) as gateway, asyncio.TaskGroup() as group:
        body = {"model": limited.model, "prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True}
        asked = [group.create_task(gateway.ask("/v1/completions", body)) for _ in range(6)]
    assert [task.result().status for task in asked] == [200] * 6
    assert await limited.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") > 0
