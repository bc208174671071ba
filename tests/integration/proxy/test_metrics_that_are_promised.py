"""docs/metrics.md against a real scrape: every name, type and label set, no more and no less; and how many series."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.plan import AdmissionKind, OrderKind, Slo, SlotBudget
from gateway.core.types import LengthClass, Outcome
from gateway.testing import answers
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

ROOT = Path(__file__).parents[3]
COMMON = {"service_class", "length_class", "pool"}
SHOWN_ONCE_IT_HAPPENED = {
    "gateway_engine_resends_total",
    "gateway_signing_key_fetches_total",
    "gateway_recalls_total",
    "gateway_repeats_total",
    "gateway_slice_cached_ratio",
    "gateway_slices_total",
    "gateway_tap_overflows_total",
    "gateway_trace_spans_total",
}
CHAT = "/v1/chat/completions"
WANT_OF_ROOM = {"queue_full", "tenant_queue_full", "wait_deadline", "predicted_miss", "no_engine", "overloaded"}


def promised():
    """Return name -> (type, labels) of the table."""
    rows = re.findall(r"^\| `(gateway_\w+)` \| (\w+) \|(.*?)\|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    return {
        name: (kind, (COMMON if "common" in labels else set()) | set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
    }


def shown(page):
    """Return name -> (type, label sets) of a scrape."""
    families = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(sample.labels.keys() - {"le"}) for sample in family.samples}
        families[name] = (family.type, labels)
    return families


def a_stream_with_usage():
    return answers.streaming("a", "b", "c", tail=[answers.usage_event(5, 3)])


def an_slo_plan(**kwargs):
    slo = dict.fromkeys(LengthClass, Slo(ttft_ms=500, stall_ms=1000, e2e_ms=20_000))
    classes = (
        a_class("interactive", wait_s_max=(30, 30), requests_max=1),
        a_class("batch", rank=1, weight=1, wait_s_max=(30, 30), requests_max=0),
    )
    return a_plan(
        *(replace(each, slo=slo) for each in classes),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
        order=OrderKind.WEIGHTED_FAIR,
        **kwargs,
    )


async def test_every_metric_has_the_type_and_the_labels_that_the_table_promises(tmp_path):
    engine = ScriptedEngine(a_stream_with_usage())
    engine.metrics |= {"preemptions": 1}
    async with engine, running(tmp_path, engine, plan=an_slo_plan(), shadow="passthrough") as gateway:
        assert (await gateway.chat(stream=True)).status == 200
        go = asyncio.Event()

        async def held(request, wire):
            first, *rest = answers.events_of("a", "b", tail=[answers.usage_event(5, 3)])
            await wire.send(answers.STREAM_HEAD, answers.chunk(first))
            await go.wait()
            await wire.send(*map(answers.chunk, rest), answers.CHUNKS_END)

        engine.scripts.append(held)
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.chat(stream=True))
            await engine.until(lambda: len(engine.posts) == 2)
            assert (await gateway.chat(key=BATCH_KEY)).status == 429
            assert (await gateway.chat(model=7)).status == 400
            await gateway.until_metric("gateway_time_to_first_token_seconds_count", 2)
            go.set()
        page = (await gateway.ops("/metrics")).body.decode()
    table, scrape = promised(), shown(page)
    assert {name for name in scrape if not name.startswith("process_")} == table.keys()
    for name, (kind, labels) in table.items():
        seen_kind, seen_labels = scrape[name]
        assert seen_kind == kind, name
        assert seen_labels == {frozenset(labels)} or (not seen_labels and name in SHOWN_ONCE_IT_HAPPENED), name
    assert any(name.startswith("process_") for name in scrape)


async def test_objectives_are_there_at_zero_and_counted_over_whatever_reached_admission(tmp_path):
    async with (
        ScriptedEngine(a_stream_with_usage()) as engine,
        running(tmp_path, engine, plan=an_slo_plan()) as gateway,
    ):
        slo = {"service_class": "interactive", "length_class": "short", "objective": "ttft"}
        assert await gateway.metric("gateway_slo_total") == 0
        await gateway.chat(stream=True)
        assert await gateway.metric("gateway_slo_total", **slo, met="true") == 1
        engine.script = answers.error(500)
        await gateway.chat(stream=True)
        await gateway.until_metric("gateway_slo_total", 1, **slo, met="false")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_refuses_for_what_it_is_meets_no_objective_and_misses_none(tmp_path, stream):
    """It is answered at once: a flood of bad requests is not to look like good service."""
    refused = {"error": {"message": "no", "type": "BadRequestError", "code": 400}}
    early, in_band = answers.json_answer(refused, status=400), answers.stream_of(answers.event(refused))
    async with ScriptedEngine() as engine, running(tmp_path, engine, plan=an_slo_plan()) as gateway:
        engine.scripts += [early, in_band if stream else answers.json_answer(refused)]
        for _ in range(2):
            assert (await gateway.chat(stream=stream)).status == 400
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 2
        assert await gateway.metric("gateway_slo_total") == 0


async def test_each_end_and_each_want_of_room_is_there_at_zero_so_that_its_first_is_an_increase(tmp_path):
    """A rate over a counter that comes into being with its first event has never seen that event."""
    async with ScriptedEngine() as engine, running(tmp_path, engine, plan=an_slo_plan()) as gateway:
        page = (await gateway.ops("/metrics")).body.decode()
        told = (await gateway.ops("/api/state")).json()["totals"]
    words = {"gateway_requests_total": set(Outcome), "gateway_refusals_total": WANT_OF_ROOM}
    shown = {name: defaultdict(set) for name in words}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in words:
                assert sample.value == 0
                line = tuple(sample.labels[label] for label in ("service_class", "length_class", "pool"))
                shown[sample.name][line].add(sample.labels.get("outcome") or sample.labels.get("reason"))
    for name, lines in shown.items():
        assert list(lines.values()) == [words[name]] * 4, name
    assert told["refusals"] == {}


async def test_what_callers_and_engines_write_makes_no_series(tmp_path):
    """Models, keys and headers that nobody knows, in every form, some far too long."""
    odd = [5, None, [], {}, "\ud800", 'a"b\nc\\', "m" * 20_000, "", True]
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        engine.script = answers.json_answer({"error": {"message": "no", "code": 418}}, status=418)
        await gateway.chat()
        for model in [*odd, "one"]:
            await gateway.chat(model=model)
        await gateway.chat(key="gw-unknown")
        await gateway.ask("/v1/one", a_chat())
        before = lines_of(await gateway.ops("/metrics"))
        for number in range(40):
            extra = {"X-Error-Code": f"e{number}"}
            engine.script = answers.json_answer({"error": {"message": "no", "code": number}}, status=418, extra=extra)
            await gateway.chat(headers={"X-Tenant": f"t{number}"})
            await gateway.chat(model=f"model-{number}", stream=number % 2 == 0)
            await gateway.chat(key=f"gw-{number}")
            await gateway.ask(f"/v1/{number}", a_chat())
        for model in odd:
            await gateway.chat(model=model)
        after = lines_of(await gateway.ops("/metrics"))
    assert after == before


def lines_of(answer):
    """Return the series of a scrape, without their values."""
    lines = answer.body.decode().splitlines()
    assert list(text_string_to_metric_families(answer.body.decode()))
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_every_gauge_is_there_also_while_everything_is_refused(tmp_path):
    plan = a_plan(
        a_class("interactive", requests_max=0),
        a_class("batch", rank=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )
    async with ScriptedEngine(answers.hanging()) as engine, running(tmp_path, engine, plan=plan) as gateway:
        gauges = (
            "gateway_queue_requests",
            "gateway_queue_oldest_age_seconds",
            "gateway_queue_wait_limit_seconds",
            "gateway_receiving_requests",
            "gateway_running_requests",
        )
        idle = {line for line in lines_of(await gateway.ops("/metrics")) if line.startswith(gauges)}
        async with gateway.client(INTERACTIVE_KEY) as client:
            await client.post(CHAT, a_chat())
            await engine.until(lambda: engine.posts)
            for _ in range(20):
                assert (await gateway.chat()).status == 429
            busy = {line for line in lines_of(await gateway.ops("/metrics")) if line.startswith(gauges)}
    assert busy >= idle
    assert all(any(line.startswith(gauge) for line in idle) for gauge in gauges)
