"""A second policy beside the one in force: counted, shown, reloaded, and of no weight for what is served."""

from __future__ import annotations

import asyncio
import json
import sys

import yaml

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.policy import source
from gateway.shadow.pool import PoolShadow
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import running, settings_text
from gateway.testing.scripted_engine import ScriptedEngine


def two_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(2)),
    )


async def write_policy(path, *, total=1, requests_max=0, name="narrow", weight=4):
    policy = yaml.safe_load(source.text("bounded-fifo"))
    for each in policy["service_classes"].values():
        each["queue"] = {"requests_max": requests_max}
        each["weight"] = weight
    policy |= {"name": name, "admission": {"kind": "slots", "slots": {"total": total}}}
    await asyncio.to_thread(path.write_text, yaml.safe_dump(policy))


async def shown(gateway):
    return (await gateway.ops("/api/state")).json()["shadow"]


async def report(gateway, *options):
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "shadow", "report", "--url", f"http://127.0.0.1:{gateway.ops_port}"),
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await child.communicate()
    return child.returncode, out.decode()


def held(go_on, began=None):
    async def script(request, wire):
        if began is not None:
            began.release()
        await go_on.wait()
        await answers.completion()(request, wire)

    return script


async def test_what_the_shadow_would_refuse_is_served_and_counted_and_told_in_words(tmp_path):
    go_on, began = asyncio.Event(), asyncio.Semaphore(0)
    await write_policy(tmp_path / "shadow.yaml")
    async with (
        ScriptedEngine(held(go_on, began)) as engine,
        running(tmp_path, engine, plan=two_at_a_time(), shadow="./shadow.yaml") as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(gateway.chat()) for _ in range(2)]
            await began.acquire()
            await began.acquire()
            go_on.set()
        assert [caller.result().status for caller in callers] == [200, 200]
        labels = {"service_class": "interactive", "length_class": "short", "pool": "chat"}
        assert await gateway.metric("gateway_shadow_comparisons_total", **labels) == 2
        assert await gateway.metric("gateway_shadow_disagreements_total", kind="would_refuse", **labels) == 1
        assert b'gateway_policy_info{name="narrow"' in (await gateway.ops("/metrics")).body
        state = await shown(gateway)
        assert state["policy"]["name"] == "narrow"
        assert state["lines"][0]["refuse_reasons"] == {"queue_full": 1}
        code, words = await report(gateway)
        assert code == 0
        assert "It would have treated 1 of 2 requests otherwise (50.0%)." in words
        assert "1 (50.0%) would be refused: they were served (queue_full 1)" in words
        _, as_json = await report(gateway, "--json")
        assert json.loads(as_json)["lines"] == state["lines"]


async def test_a_refusal_by_shape_is_judged_by_both(tmp_path):
    policy = yaml.safe_load(source.text("passthrough"))
    for each in policy["service_classes"].values():
        each["output_tokens_max"] = 7
    await asyncio.to_thread((tmp_path / "shadow.yaml").write_text, yaml.safe_dump(policy))
    plan = a_plan(a_class("interactive", output_tokens_max=100), a_class("batch", rank=1, weight=1))
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, plan=plan, shadow="./shadow.yaml") as gateway,
    ):
        assert (await gateway.chat(max_tokens=50)).status == 200
        assert (await gateway.chat(max_tokens=5)).status == 200
        assert (await gateway.chat(max_tokens=500)).status == 400
        (line,) = (await shown(gateway))["lines"]
    assert (line["compared"], line["would_refuse"], line["would_admit"]) == (3, 1, 0)


async def test_a_fault_of_the_shadow_is_logged_once_and_costs_no_request(tmp_path, monkeypatch, logged):
    def fails(self, events, now):
        raise ZeroDivisionError

    monkeypatch.setattr(PoolShadow, "events", fails)
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, shadow="bounded-fifo") as gateway,
    ):
        for _ in range(3):
            assert (await gateway.chat()).status == 200
        assert (await shown(gateway))["failed"]
        assert await gateway.metric("gateway_shadow_failures_total") == 1
        assert await gateway.metric("gateway_policy_info", mode="shadow") == 0
        assert (await report(gateway))[0] == 1
    lines = [json.loads(line) for line in logged().splitlines()]
    (told,) = [line for line in lines if line["event"] == "shadow_failed"]
    assert (told["exception"], told["pool"]) == ("ZeroDivisionError", "chat")


async def reload(gateway, folder, engine, **sections):
    value = settings_text({"a": engine.url}, **sections)
    await asyncio.to_thread((folder / "gateway.yaml").write_text, yaml.safe_dump(value))
    return await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None)


async def test_the_shadow_is_reloaded_with_the_policy_or_not_at_all(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        assert await shown(gateway) is None
        assert (await report(gateway))[0] == 1
        refused = await reload(gateway, tmp_path, engine, shadow="./none.yaml")
        assert (refused.status, refused.json()["key_path"]) == (400, "shadow")
        await write_policy(tmp_path / "none.yaml", total=9)
        assert (await reload(gateway, tmp_path, engine, shadow="./none.yaml")).status == 200
        await gateway.chat()
        first = await shown(gateway)
        assert [line["compared"] for line in first["lines"]] == [1]
        await write_policy(tmp_path / "none.yaml", name="other")
        assert (await reload(gateway, tmp_path, engine, shadow="./none.yaml")).status == 200
        second = await shown(gateway)
        assert (second["policy"]["name"], second["lines"]) == ("other", [])
        assert second["since"] > first["since"]
        await gateway.chat()
        assert (await reload(gateway, tmp_path, engine, shadow="./none.yaml")).status == 200
        assert [line["compared"] for line in (await shown(gateway))["lines"]] == [1], "the same plans count on"
        assert (await reload(gateway, tmp_path, engine)).status == 200
        assert await shown(gateway) is None
        assert await gateway.metric("gateway_policy_info", mode="shadow") == 0
        await gateway.chat()


async def test_a_shadow_that_comes_later_waits_for_what_was_there_before_it(tmp_path):
    go_on, began = asyncio.Event(), asyncio.Semaphore(0)
    async with ScriptedEngine(held(go_on, began)) as engine, running(tmp_path, engine) as gateway:
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.chat())
            await began.acquire()
            await reload(gateway, tmp_path, engine, shadow="bounded-fifo")
            assert (await shown(gateway))["older"] == 1
            go_on.set()
        await gateway.chat()
        state = await shown(gateway)
        assert (state["older"], [line["compared"] for line in state["lines"]]) == (0, [1])


async def test_a_drain_and_engines_that_go_reach_the_shadow(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, shadow="bounded-fifo", drain={"settle_s": 0, "deadline_s": 5}) as gateway,
    ):
        gate = gateway.gateway.rooms.gates["chat"]
        gate.drain(1.0)
        assert (await gateway.chat()).status == 503
        gate.undrain()
        gate.set_up("a", up=False)
        assert (await gateway.chat()).status == 503
        gate.set_up("a", up=True)
        assert (await gateway.chat()).status == 200
        (line,) = (await shown(gateway))["lines"]
    assert line["compared"] == 3
    assert not any(line[kind] for kind in line if kind.startswith("would_"))
