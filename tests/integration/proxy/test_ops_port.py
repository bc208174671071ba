"""The ops port: what an operator and a scrape see, also under load."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import pytest

from gateway.core.plan import AdmissionKind, KvBudget, OrderKind, SlotBudget
from gateway.core.steptime import PrefillSample
from gateway.observe.exposition import CONTENT_TYPE
from gateway.server.promises import Promises
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
FITTING = {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 640, "max_num_seqs": 128}


def two_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30), requests_max=4),
        a_class("batch", rank=1, weight=1, wait_s_max=(0.05, 0.05)),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)),
        order=OrderKind.WEIGHTED_FAIR,
    )


async def test_health_readiness_and_state_say_what_is(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        assert (await gateway.ops("/healthz")).status == 200
        assert (await gateway.ops("/readyz")).json() == {
            "ready": True,
            "stage": "serving",
            "pools_without_engine": [],
        }
        state = (await gateway.ops("/api/state")).json()
        without = (await gateway.ops("/api/state?promises=off")).json()
    (pool,) = state["pools"].values()
    assert pool["engines"]["a"]["up"]
    assert without["pools"]["chat"]["engines"]["a"].keys() == pool["engines"]["a"].keys() - {"guarantee"}
    assert pool["engines"]["a"]["version"] == "0.32.0"
    promised = pool["engines"]["a"]["guarantee"]
    assert {"model_fitted", "model_spread", "short_entry", "long_rate", "flows"} == promised.keys()
    assert {(line["service_class"], line["length_class"]) for line in pool["lines"]} == {
        (name, length) for name in ("interactive", "standard", "batch") for length in ("short", "long")
    }


async def test_a_promise_is_what_the_core_computes_and_follows_what_is_learnt_of_the_engine(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine, engine={"limits": FITTING}) as gateway:
        rooms = gateway.gateway.rooms

        async def shown():
            return (await gateway.ops("/api/state")).json()["pools"]["chat"]["engines"]["a"]["guarantee"]

        def computed():
            return json.loads(json.dumps(asdict(Promises(rooms).bases()["a"].promised())))

        before = await shown()
        assert before == computed()
        assert before["short_entry"]["ttft_s"] > 0
        rooms.gates["chat"].calibrated("a", [PrefillSample(640 * n, n, 0.5 * n) for n in (1, 2, 8)])
        after = await shown()
        assert after == computed()
        assert after["short_entry"]["ttft_s"] > before["short_entry"]["ttft_s"]


async def test_the_public_port_has_nothing_of_it(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path in ("/metrics", "/healthz", "/readyz", "/api/state"):
            assert (await gateway.ask(path)).status == 404


async def test_a_page_that_is_read_by_a_name_which_only_resolves_here_is_not_told_anything(tmp_path):
    paths = ("/", "/metrics", "/healthz", "/readyz", "/api/state", "/api/explain/r", "/nowhere")
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path in paths:
            refused = await raw_client.request(gateway.ops_port, path, headers={"Host": "rebound.example:9090"})
            assert (refused.status, "localhost" in refused.json()["error"]["fix"]) == (403, True)
        for host in ("localhost:9090", "127.0.0.2", "[::1]:9090"):
            answer = await raw_client.request(gateway.ops_port, "/healthz", headers={"Host": host})
            assert answer.status == 200
        async with raw_client.RawClient(gateway.ops_port) as probe:  # of HTTP/1.0: no browser
            await probe.send(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert (await probe.read_head()).status == 200


async def test_beyond_loopback_any_name_may_be_the_ports(tmp_path):
    ops = {"host": "0.0.0.0", "port": 0}  # noqa: S104 - it is the case
    async with ScriptedEngine() as engine, running(tmp_path, engine, ops=ops) as gateway:
        answer = await raw_client.request(gateway.ops_port, "/metrics", headers={"Host": "gateway.internal:9090"})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("accept", "is_open_metrics"),
    [
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text", True),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.1", True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", False),
        ("application/openmetrics-text; version=newest", False),
        ("*/*", False),
    ],
)
async def test_openmetrics_is_for_whoever_asks_for_it(tmp_path, accept, is_open_metrics):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await raw_client.request(gateway.ops_port, "/metrics", headers={"Accept": accept})
    assert answer.body.endswith(b"# EOF\n") is is_open_metrics
    expected = "application/openmetrics-text; version=1.0.0; charset=utf-8" if is_open_metrics else CONTENT_TYPE
    assert answer.header("content-type") == expected


async def test_what_the_engine_says_is_shown_and_a_restart_is_counted(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        engine.metrics |= {"running": 3, "waiting": 2, "kv_usage": 0.25, "preemptions": 7}
        await gateway.until_metric("gateway_engine_running", 3, engine="a")
        assert await gateway.metric("gateway_engine_waiting", engine="a") == 2
        assert await gateway.metric("gateway_engine_kv_usage", engine="a") == 0.25
        assert await gateway.metric("gateway_engine_preemptions_total", engine="a") == 7
        engine.metrics["started"] = 2
        await gateway.until_metric("gateway_engine_restarts_total", 1, engine="a")


async def test_metrics_that_stop_coming_go_stale_and_nothing_else_happens(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        engine.gets["/metrics"] = answers.error(500)
        watch = gateway.gateway.rooms.watches["a"]
        read_at = watch.known.load_at
        await engine.until(lambda: len([r for r in engine.requests if r.path.startswith("/metrics")]) >= 4)
        assert watch.known.load_at == read_at
        assert await gateway.metric("gateway_engine_metrics_age_seconds", engine="a") > 0
        assert (await gateway.chat()).status == 200


async def test_conservation_holds_at_every_scrape_under_load_with_clients_that_leave(tmp_path):
    turns = iter(range(10_000))

    async def script(request, wire):
        turn = next(turns)
        whole = answers.stream_or_whole("a", "b")
        if turn % 7 == 0:
            whole = answers.error(500)
        elif turn % 11 == 0:
            whole = answers.busy()
        elif turn % 13 == 0:
            wire.reset()
            return
        await asyncio.sleep(0.005)
        await whole(request, wire)

    async def caller(gateway, number):
        for turn in range(6):
            key = BATCH_KEY if (number + turn) % 3 == 0 else INTERACTIVE_KEY
            async with gateway.client(key) as client:
                await client.post(CHAT, a_chat(stream=turn % 2 == 0) if turn != 3 else b"no json")
                if (number + turn) % 5 == 0:
                    client.reset()
                else:
                    await client.read_answer()

    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, plan=two_at_a_time()) as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(caller(gateway, number)) for number in range(12)]
            scrapes = 0
            while not all(task.done() for task in callers):
                await conserved(gateway)
                scrapes += 1
        assert scrapes > 10
        await gateway.until(lambda: not gateway.exchanges)
        assert await gateway.metric("gateway_offered_total") == 72
        assert await gateway.metric("gateway_requests_total") == 72


async def conserved(gateway):
    page = (await gateway.ops("/metrics")).body.decode()
    sums = dict.fromkeys(
        (
            "gateway_offered_total",
            "gateway_requests_total",
            "gateway_receiving_requests",
            "gateway_queue_requests",
            "gateway_running_requests",
        ),
        0.0,
    )
    for line in page.splitlines():
        name = line.partition("{")[0]
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    offered, *parts = sums.values()
    assert offered == sum(parts), sums


async def test_the_kv_cache_that_the_engine_tells_of_becomes_a_budget(tmp_path):
    plan = a_plan(admission=an_admission(kv=KvBudget(short_reserve_tokens=1024)))
    async with ScriptedEngine() as engine, running(tmp_path, engine, plan=plan) as gateway:
        await gateway.until_metric("gateway_budget", 65536, engine="a", resource="kv_tokens")
