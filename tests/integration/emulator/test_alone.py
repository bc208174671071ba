"""The embedded engine by itself: streams, limits, times, faults. In this process, on its own loop's time."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.simulation.emulator import flags, live_engine
from bench.simulation.emulator.serving import Emulator
from gateway.testing import raw_client
from gateway.testing.harness import running
from gateway.testing.raw_client import BrokenAnswer, RawClient

pytestmark = pytest.mark.timeout(180, func_only=True)

UNTIL_S_MAX = 60.0
# vLLM 0.32's families, as a server with default flags shows them, without the process's own.
FAMILIES = """
vllm:admission_rejections vllm:cache_config_info vllm:e2e_request_latency_seconds vllm:engine_sleep_state
vllm:estimated_flops_per_gpu vllm:estimated_read_bytes_per_gpu vllm:estimated_write_bytes_per_gpu
vllm:external_prefix_cache_hits vllm:external_prefix_cache_queries vllm:generation_tokens
vllm:inter_token_latency_seconds vllm:iteration_tokens_total vllm:kv_cache_usage_perc vllm:mm_cache_hits
vllm:mm_cache_queries vllm:num_preemptions vllm:num_requests_running vllm:num_requests_waiting
vllm:num_requests_waiting_by_reason vllm:prefix_cache_hits vllm:prefix_cache_queries vllm:prompt_tokens
vllm:prompt_tokens_by_source vllm:prompt_tokens_cached vllm:prompt_tokens_cached_by_source
vllm:request_decode_time_seconds vllm:request_generation_tokens vllm:request_inference_time_seconds
vllm:request_max_num_generation_tokens vllm:request_num_preemptions vllm:request_params_max_tokens
vllm:request_params_n vllm:request_prefill_kv_computed_tokens vllm:request_prefill_time_seconds
vllm:request_prompt_tokens vllm:request_queue_time_seconds vllm:request_success
vllm:request_time_per_output_token_seconds vllm:time_to_first_token_seconds
""".split()  # noqa: SIM905 - a page of names is read more easily than a list of them


class Served:
    """A running emulator. said: what it told people; urls: one for each life."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.ports: asyncio.Queue[int] = asyncio.Queue()
        self.port = 0

    async def ask(self, path, value=None, **members):
        return await raw_client.request(self.port, path, value, **members)

    async def complete(self, prompt="x", **members):
        return await self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **members})

    async def samples(self, path="/metrics"):
        page = (await self.ask(path)).body.decode()
        return [sample for family in text_string_to_metric_families(page) for sample in family.samples]

    async def metric(self, name, **labels):
        return sum(
            sample.value
            for sample in await self.samples(f"/metrics/?name[]={name}")
            if sample.name == name and all(sample.labels[key] == value for key, value in labels.items())
        )

    async def until_metric(self, name, value):
        async with asyncio.timeout(UNTIL_S_MAX):
            while await self.metric(name) != value:  # noqa: ASYNC110 - seen from outside, by scraping
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(*words: str) -> AsyncIterator[Served]:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    served = Served()
    emulator = Emulator(
        flags.settings(parser.parse_args(["--port", "0", *words])),
        served.said.append,
        lambda url: served.ports.put_nowait(int(url.rpartition(":")[2])),
    )
    task = asyncio.get_running_loop().create_task(emulator.run())
    served.port = await served.ports.get()
    try:
        yield served
    finally:
        emulator.stop()
        await task


def events(answer):
    return [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]


async def test_a_stream_is_one_event_a_token_and_usage_counts_them():
    async with serving("--enable-prompt-tokens-details") as engine:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await engine.complete(max_tokens=9, stream=True, stream_options=options)
        *tokens, last = events(answer)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert [event["usage"]["completion_tokens"] for event in tokens] == list(range(1, 10))
        assert last["usage"] == {
            "prompt_tokens": 2,
            "total_tokens": 11,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 8 + ["length"]


async def test_whole_and_streamed_answers_say_the_same_on_every_route():
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    asked = {
        "/v1/chat/completions": {**chat, "max_tokens": 20, "n": 2},
        "/v1/completions": {"prompt": ["one", "two"], "max_tokens": 20, "echo": True},
        "/v1/messages": {**chat, "model": flags.MODEL, "max_tokens": 20},
        "/v1/responses": {"input": "Hello", "max_output_tokens": 20},
    }
    async with serving() as engine:
        for path, body in asked.items():
            whole = (await engine.ask(path, body)).json()
            streamed = events(await engine.ask(path, {**body, "stream": True}))
            assert _said(whole) == _said_in(streamed), path


def _said(body):
    if "choices" in body:
        return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    return [part["text"] for part in body.get("content") or body["output"][0]["content"]]


def _said_in(streamed):
    texts: dict[int, str] = {}
    for event in streamed:
        for choice in event.get("choices", ()):
            piece = choice.get("text") or choice.get("delta", {}).get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
        delta = event.get("delta")
        said = delta.get("text", "") if isinstance(delta, dict) else delta
        if said:
            texts[0] = texts.get(0, "") + said
    return [text for _, text in sorted(texts.items())]


async def test_a_repeated_prompt_is_found_in_the_cache_and_with_another_salt_it_is_not():
    async with serving("--enable-prompt-tokens-details", "--block-size", "16") as engine:
        prompt, cached = list(range(100, 180)), []
        for salt in ("a", "a", "b"):
            usage = (await engine.complete(prompt, cache_salt=salt)).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 64, 0]
        assert await engine.metric("vllm:prefix_cache_queries_total") == 240
        assert await engine.metric("vllm:prefix_cache_hits_total") == 64
        assert await engine.metric("vllm:prompt_tokens_by_source_total", source="local_compute") == 176


async def test_the_metrics_are_vllms_families_and_add_up():
    async with serving() as engine:
        for _ in range(3):
            await engine.complete(max_tokens=5)
        page = (await engine.ask("/metrics")).body.decode()
        found = {family.name for family in text_string_to_metric_families(page)}
        assert {name for name in found if name.startswith("vllm:") and not name.endswith("_created")} == set(FAMILIES)
        assert {"process_start_time_seconds", "process_resident_memory_bytes", "python_info", "http_requests"} <= found
        values = {sample.name: sample.value for sample in await engine.samples()}
        assert (values["vllm:generation_tokens_total"], values["vllm:prompt_tokens_total"]) == (15, 6)
        assert values["vllm:inter_token_latency_seconds_count"] == 12
        assert await engine.metric("vllm:request_success_total", finished_reason="length") == 3
        filtered = await engine.samples("/metrics/?name[]=vllm:num_requests_running&name[]=process_start_time_seconds")
        assert len(filtered) == 2


async def test_times_in_the_metrics_are_the_models_own(monkeypatch):
    monkeypatch.setattr(live_engine, "LAG_S_MAX", float("inf"))
    async with serving("--profile", "cpu") as engine:
        await engine.complete(list(range(100, 200)), max_tokens=6)
        step_time = flags.PROFILES["cpu"].step_time
        decode_s = sum(step_time.base_s + step_time.chunk_s(1, 100 + done) for done in range(5))
        prefill_s = step_time.base_s + step_time.chunk_s(100, 0)
        assert await engine.metric("vllm:request_decode_time_seconds_sum") == pytest.approx(decode_s)
        assert await engine.metric("vllm:request_prefill_time_seconds_sum") == pytest.approx(prefill_s)
        assert await engine.metric("emulator:lost_seconds_total") == 0


@pytest.mark.parametrize("scheduling", ["--async-scheduling", "--no-async-scheduling"])
async def test_being_late_is_counted_once_and_told(monkeypatch, scheduling):
    monkeypatch.setattr(live_engine, "LAG_S_MAX", 0.0)
    async with serving(scheduling) as engine:
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.complete(max_tokens=50))
            await engine.until_metric("vllm:num_requests_running", 1)
            time.sleep(0.3)  # noqa: ASYNC251 - what makes it late
        passed_s = time.perf_counter() - began_at
        assert 0 < await engine.metric("emulator:lost_seconds_total") < passed_s
        assert await engine.metric("emulator:step_lag_seconds_count") == 50
        assert [text for text in engine.said if text.startswith("late by")]


@pytest.mark.parametrize("scheduling", ["--async-scheduling", "--no-async-scheduling"])
async def test_prompts_of_many_steps_come_to_their_end(scheduling):
    async with serving(scheduling, "--max-num-batched-tokens", "256", "--profile", "h200") as engine:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(engine.complete([100 + salt] * 1500, max_tokens=3)) for salt in range(4)]
        assert [task.result().json()["usage"]["completion_tokens"] for task in asked] == [3] * 4
        assert await engine.metric("vllm:num_requests_running") == 0


async def test_a_client_that_leaves_is_aborted_running_or_waiting():
    async with serving("--max-num-seqs", "1") as engine:
        async with RawClient(engine.port) as first, RawClient(engine.port) as second:
            for client in (first, second):
                await client.post("/v1/completions", {"prompt": "x", "max_tokens": 9000, "ignore_eos": True})
            await engine.until_metric("vllm:num_requests_waiting", 1)
            second.leave()
            await engine.until_metric("vllm:num_requests_waiting", 0)
            assert await engine.metric("vllm:num_requests_running") == 1
            first.leave()
        await engine.until_metric("vllm:num_requests_running", 0)
        assert await engine.metric("vllm:request_success_total") == 0


async def test_priority_by_header_goes_before_the_body_and_before_who_waits():
    async with serving("--max-num-seqs", "1", "--scheduling-policy", "priority") as engine:
        order: list[str] = []

        async def ask(name, headers, **members):
            assert (await engine.ask("/v1/completions", {"prompt": name, **members}, headers=headers)).status == 200
            order.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(engine.complete(max_tokens=200))
            await engine.until_metric("vllm:num_requests_running", 1)
            waiting = [("low", {}, 5), ("body", {}, -1), ("header", {"X-Vllm-Priority": "-9"}, 9)]
            for number, (name, headers, priority) in enumerate(waiting, start=1):
                group.create_task(ask(name, headers, priority=priority, max_tokens=1))
                await engine.until_metric("vllm:num_requests_waiting", number)
        assert order == ["header", "body", "low"]


async def test_the_engines_own_limit_refuses_at_once_and_late_inside_a_200():
    async with serving("--max-num-queued-reqs", "2", "--profile", "cpu") as engine:
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True}
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(engine.ask("/v1/completions", body)) for _ in range(5)]
            await engine.until_metric("vllm:num_requests_running", 2)
            at_once = await engine.complete()
        answers = [task.result() for task in asked]
        refused = [
            events(answer)[0]["error"] for answer in answers if answer.status == 200 and "error" in events(answer)[0]
        ]
        early = [answer.json()["error"] for answer in answers if answer.status == 503]
        assert len(refused) + len(early) == 3
        assert [each["code"] for each in [*refused, *early]] == [503] * 3
        assert (at_once.status, at_once.json()["error"]["type"]) == (503, "Service Unavailable")
        assert await engine.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 4


async def test_the_limit_of_tokens_counts_what_has_no_first_token():
    async with serving("--max-num-queued-tokens", "100", "--profile", "cpu") as engine:
        async with asyncio.TaskGroup() as group:
            long = group.create_task(engine.complete([100] * 8000))
            await engine.until_metric("vllm:num_requests_running", 1)
            refused = await engine.complete()
        assert (refused.status, long.result().status, (await engine.complete()).status) == (503, 200, 200)
        assert "prefill token backlog" in refused.json()["error"]["message"]


async def test_an_engine_that_dies_fails_what_is_in_flight_and_ends_with_1():
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    ports: asyncio.Queue[str] = asyncio.Queue()
    asked = flags.settings(parser.parse_args(["--port", "0", "--profile", "cpu", "--fault", "die@2req"]))
    emulator = Emulator(asked, lambda _: None, ports.put_nowait)
    task = asyncio.get_running_loop().create_task(emulator.run())
    port = int((await ports.get()).rpartition(":")[2])
    async with RawClient(port) as client:
        await client.post("/v1/completions", {"prompt": "x", "max_tokens": 9000, "ignore_eos": True, "stream": True})
        await client.read_head()
        await client.read_chunk()
        await raw_client.request(port, "/v1/completions", {"prompt": "x", "max_tokens": 1})
        rest = b""
        while piece := await client.read_chunk():
            rest += piece
    assert b"EngineCore encountered an issue" in rest
    assert await task == 1


async def test_a_restart_cuts_everything_and_forgets_everything():
    async with serving("--fault", "restart@3req+0.1s") as engine:
        started = await engine.metric("process_start_time_seconds")
        await engine.complete()
        async with RawClient(engine.port) as client:
            await client.post(
                "/v1/completions", {"prompt": "x", "max_tokens": 9000, "ignore_eos": True, "stream": True}
            )
            await client.read_head()
            with pytest.raises((BrokenAnswer, ConnectionError, asyncio.IncompleteReadError)):
                await engine.complete(max_tokens=9000)
        assert await engine.ports.get() == engine.port
        assert await engine.metric("process_start_time_seconds") > started
        assert await engine.metric("vllm:generation_tokens_total") == 0


async def test_a_hung_engine_answers_everything_but_generations():
    async with serving("--fault", "hang@1req+0.2s") as engine:
        async with asyncio.TaskGroup() as group:
            hung = group.create_task(engine.complete())
            assert (await engine.ask("/health")).status == 200
        assert hung.result().status == 200
        assert "fault: hang" in engine.said


async def test_stale_metrics_stand_still_while_requests_are_served():
    async with serving("--fault", "stale-metrics") as engine:
        async with asyncio.timeout(UNTIL_S_MAX):
            while not engine.said:  # noqa: ASYNC110 - a fault's time has no event
                await asyncio.sleep(0.005)
        assert (await engine.complete()).status == 200
        assert await engine.metric("vllm:generation_tokens_total") == 0
        assert await engine.metric("vllm:num_requests_running") == 0


async def test_an_error_inside_a_stream_reaches_the_gateway_as_a_broken_engine(tmp_path):
    words = ("--fault", "in-band-error@1req", "--served-model-name", "tiny", "--profile", "cpu")
    async with serving(*words) as engine, running(tmp_path, f"http://127.0.0.1:{engine.port}") as gateway:
        answer = await gateway.chat(max_tokens=50, stream=True)
        assert b"EngineCore encountered an issue" in answer.body
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")
        assert (await gateway.chat(max_tokens=2)).status == 200
