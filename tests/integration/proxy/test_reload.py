"""A changed configuration while requests wait and run: in force as a whole or not at all, and nothing lost."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.policy import source
from gateway.server import reload
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import running, settings_text
from gateway.testing.scripted_engine import ScriptedEngine

ESTIMATE = {"kind": "estimate"}


async def rewrite(folder, value):
    await asyncio.to_thread((folder / "gateway.yaml").write_text, yaml.safe_dump(value))


async def post(gateway, path="/api/reload"):
    return await raw_client.request(gateway.ops_port, path, {}, key=None)


def one_at_a_time():
    return a_plan(
        a_class("interactive", wait_s_max=(30, 30)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )


def engines_shown(page):
    return {line for line in page.body.decode().splitlines() if 'engine="' in line and "first_token" not in line}


def gauges_of(page):
    """Return every sample of every gauge."""
    families = text_string_to_metric_families(page.body.decode())
    return [sample for family in families if family.type == "gauge" for sample in family.samples]


async def test_engines_come_and_go_under_load_and_every_request_is_answered(tmp_path):
    async def script(request, wire):
        await asyncio.sleep(0.002)
        await answers.stream_or_whole("a", "b")(request, wire)

    done = asyncio.Event()
    statuses = []

    async def caller(gateway, number):
        while not done.is_set():
            statuses.append((await gateway.chat(stream=number % 2 == 0)).status)

    async with ScriptedEngine(script) as one, ScriptedEngine(script) as two, running(tmp_path, one) as gateway:
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(caller(gateway, number))
            for turn in range(12):
                urls = [{"a": one.url, "b": two.url}, {"b": two.url}, {"a": one.url, "b": two.url}, {"a": one.url}][
                    turn % 4
                ]
                await rewrite(tmp_path, settings_text(urls))
                assert (await post(gateway)).status == 200
                await gateway.until(lambda urls=urls: {"a", "b"} & urls.keys() <= up(gateway))
                assert [each for each in gauges_of(await gateway.ops("/metrics")) if each.value < 0] == []
            done.set()
        await gateway.until(lambda: set(gateway.gateway.rooms.watches) == {"a"})
        page = await gateway.ops("/metrics")
        assert not any('engine="b"' in line for line in engines_shown(page))
        assert await gateway.metric("gateway_running_requests") == 0
        assert await gateway.metric("gateway_long_prefills") == 0
        assert await gateway.metric("gateway_reloads_total", result="applied") >= 12
    assert set(statuses) == {200}
    assert one.posts and two.posts


def up(gateway):
    return {name for name, watch in gateway.gateway.rooms.watches.items() if watch.health.is_up}


async def test_an_engine_that_is_new_gets_nothing_before_it_has_answered(tmp_path):
    release = asyncio.Event()

    async def slow_models(request, wire):
        await release.wait()
        await answers.json_answer({"object": "list", "data": new.models})(request, wire)

    async with ScriptedEngine(answers.completion()) as old, ScriptedEngine(answers.completion()) as new:
        new.gets["/v1/models"] = slow_models
        async with running(tmp_path, old) as gateway:
            await rewrite(tmp_path, settings_text({"a": old.url, "b": new.url}))
            assert (await post(gateway)).json()["result"] == "applied"
            for _ in range(5):
                assert (await gateway.chat()).status == 200
            assert new.posts == []
            release.set()
            await gateway.until(lambda: "b" in up(gateway))


async def test_a_bad_change_is_named_refused_and_leaves_all_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.02)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        before = gateway.gateway.rooms.plan, gateway.gateway.rooms.pools, gateway.gateway.rooms.keyring
        await rewrite(tmp_path, settings_text({"a": engine.url}, engine={"pool": "nowhere"}))
        answer = await post(gateway)
        assert answer.status == 400
        told = answer.json()
        assert (told["result"], told["key_path"]) == ("refused", "engines[0].pool")
        assert told["file"] == str(tmp_path / "gateway.yaml")
        assert told["problem"] and told["fix"] and told["faults"]
        assert before == (gateway.gateway.rooms.plan, gateway.gateway.rooms.pools, gateway.gateway.rooms.keyring)
        assert (await gateway.chat()).status == 200
        assert await gateway.metric("gateway_reloads_total", result="refused") >= 1
        # What was there before the mistake is noticed by itself, though nothing else than it was ever in force.
        await rewrite(tmp_path, settings_text({"a": engine.url}))
        await gateway.until_metric("gateway_reloads_total", 1, result="applied")


async def test_files_that_are_being_written_are_read_once_they_stand_still(tmp_path, monkeypatch):
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.01)
    shown = [(1, 90, 7), (1, 90, 7), (2, 10, 7), (2, 50, 7), (2, 80, 7), *[(2, 80, 7)] * 6]
    looks = []

    def stamp_of(path):
        if path.name == "gateway.yaml":
            looks.append(path)
        return shown[min(len(looks), len(shown)) - 1]

    monkeypatch.setattr(reload, "stamp_of", stamp_of)
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.until(lambda: len(looks) > len(shown))
        assert await gateway.metric("gateway_reloads_total", result="applied") == 1


async def test_a_class_that_keys_name_cannot_be_taken_from_the_policy(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        policy = yaml.safe_load(source.text("short-first"))
        del policy["service_classes"]["batch"]
        await asyncio.to_thread((tmp_path / "mine.yaml").write_text, yaml.safe_dump(policy))
        await rewrite(tmp_path, settings_text({"a": engine.url}, policy="./mine.yaml"))
        answer = await post(gateway)
        assert (answer.status, answer.json()["key_path"]) == (400, "keys[1].service_class")


async def test_a_changed_policy_file_is_in_force_by_itself_and_who_waits_keeps_the_place(tmp_path, monkeypatch):
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.02)
    policy = yaml.safe_load(source.text("bounded-fifo"))
    path = tmp_path / "mine.yaml"
    await asyncio.to_thread(
        path.write_text, yaml.safe_dump({**policy, "admission": {"kind": "slots", "slots": {"total": 1}}})
    )
    go_on = asyncio.Event()

    async def held(request, wire):
        await go_on.wait()
        await answers.completion()(request, wire)

    async with ScriptedEngine(held) as engine, running(tmp_path, engine, policy="./mine.yaml") as gateway:
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(gateway.chat()) for _ in range(3)]
            await gateway.until_metric("gateway_queue_requests", 2)
            changed = {**policy, "name": "changed", "admission": {"kind": "slots", "slots": {"total": 2}}}
            await asyncio.to_thread(path.write_text, yaml.safe_dump(changed))
            await gateway.until_metric("gateway_queue_requests", 1)
            go_on.set()
        assert [caller.result().status for caller in callers] == [200, 200, 200]
        assert 'gateway_policy_info{name="changed"' in (await gateway.ops("/metrics")).body.decode()
        assert await gateway.metric("gateway_policy_info") == 1


async def test_a_pool_that_is_taken_away_serves_who_waits_in_it_and_then_is_gone(tmp_path):
    go_on = asyncio.Event()

    async def held(request, wire):
        await go_on.wait()
        await answers.completion()(request, wire)

    async with (
        ScriptedEngine(held) as old,
        ScriptedEngine(answers.completion(), model="other") as new,
        running(tmp_path, old, plan=one_at_a_time()) as gateway,
    ):
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(gateway.chat()) for _ in range(2)]
            await gateway.until_metric("gateway_queue_requests", 1)
            pools = {"other": {"models": ["other"], "tokenizer": ESTIMATE}}
            await rewrite(tmp_path, settings_text({"b": new.url}, engine={"pool": "other"}, pools=pools))
            assert (await post(gateway)).status == 200
            assert (await gateway.chat()).status == 404
            go_on.set()
        assert [caller.result().status for caller in callers] == [200, 200]
        await gateway.until(lambda: "a" not in gateway.gateway.rooms.watches)
        assert set(gateway.gateway.rooms.gates) == set(gateway.gateway.rooms.counters) == {"other"}
        await gateway.until(lambda: "b" in up(gateway))
        assert (await gateway.chat(model="other")).status == 200
        assert await gateway.metric("gateway_queue_requests", pool="chat") == 0
        labels = [each.labels for each in gauges_of(await gateway.ops("/metrics"))]
        assert not [each for each in labels if each.get("engine") == "a" or each.get("pool") == "chat"]
        assert (await gateway.ops("/api/state")).json()["pools"].keys() == {"other"}


async def test_an_engine_that_moves_is_asked_at_its_new_place_once_it_answered_there(tmp_path):
    async with ScriptedEngine(answers.completion()) as old, ScriptedEngine(answers.completion()) as new:
        async with running(tmp_path, old) as gateway:
            await rewrite(tmp_path, settings_text({"a": new.url}))
            assert (await post(gateway)).status == 200
            await gateway.until(lambda: "a" in up(gateway))
            assert (await gateway.chat()).status == 200
        assert (len(old.posts), len(new.posts)) == (0, 1)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"limits": {"body_read_s": 7}}, ["limits.body_read_s"]),
        ({"ops": {"host": "127.0.0.1", "port": 1}}, ["ops.port"]),
        ({"listen": {"host": "127.0.0.2", "port": 0}}, ["listen.host"]),
        ({"drain": {"settle_s": 0, "deadline_s": 1}}, []),
        ({"engine_fields": {"allow": ["logits_processors"]}}, []),
        ({"engine": {"timeouts": {"idle_s": 7}}}, []),
        ({"auth": {"keys_file": "keys.yaml", "anonymous": {"service_class": "batch", "tenant": "t"}}}, []),
    ],
)
async def test_each_setting_that_changes_is_in_force_or_named(tmp_path, sections, named):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await rewrite(tmp_path, settings_text({"a": engine.url}, **sections))
        answer = await post(gateway)
        assert (answer.status, answer.json()["needs_restart"]) == (200, named)
        again = await post(gateway)
        assert again.json()["needs_restart"] == named
        rooms = gateway.gateway.rooms
        if "engine_fields" in sections:
            assert rooms.allowed_engine_fields == {"logits_processors"}
        if "engine" in sections:
            assert rooms.watches["a"].target.timeouts.idle_s == 7
        if "auth" in sections:
            assert (await gateway.ask("/v1/models", key=None)).status == 200


async def test_many_reloads_leave_no_task_and_no_engine_behind(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await post(gateway)
        before = len(asyncio.all_tasks())
        for _ in range(10):
            assert (await post(gateway)).status == 200
        await gateway.until(lambda: len(asyncio.all_tasks()) <= before)
        assert (await gateway.chat()).status == 200
        assert (await gateway.chat(key="gw-unknown-0123456789-0123456789-0123456789")).status == 401
        assert await gateway.metric("gateway_offered_total") == 2
        assert await gateway.metric("gateway_requests_total", outcome="completed") == 1
        assert await gateway.metric("gateway_refusals_total", reason="unauthenticated") == 1
        assert set(gateway.gateway.rooms.watches) == {"a"}


# ── drain ──


async def test_a_drain_refuses_at_once_to_be_ready_then_new_requests_and_off_undoes_it(tmp_path):
    drain = {"settle_s": 0, "deadline_s": 30}
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine, drain=drain) as gateway:
        assert (await post(gateway, "/api/drain")).status == 200
        assert (await gateway.ops("/readyz")).status == 503
        await gateway.until(lambda: gateway.gateway.rooms.ending.refuses)
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-reason")) == (503, "draining")
        assert (await post(gateway, "/api/drain?off=1")).json() == {"stage": "serving"}
        assert (await gateway.ops("/readyz")).status == 200
        assert (await gateway.chat()).status == 200
        assert (await post(gateway, "/api/drain?off=maybe")).status == 400


# ── who may ──


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://[no-address]"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example:9090"},
        {"Host": "evil.example:9090", "Origin": "http://evil.example:9090"},
    ],
)
async def test_another_page_in_a_browser_can_do_nothing(tmp_path, headers):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path in ("/api/reload", "/api/drain", "/api/route"):
            answer = await raw_client.request(gateway.ops_port, path, {}, key=None, headers=headers)
            assert (answer.status, bool(answer.json()["error"]["fix"])) == (403, True)
        assert (await gateway.ops("/readyz")).status == 200


async def test_its_own_page_may(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        host = f"127.0.0.1:{gateway.ops_port}"
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        answer = await raw_client.request(gateway.ops_port, "/api/reload", {}, key=None, headers=headers)
        assert answer.status == 200


async def test_where_a_token_is_stated_only_it_opens(tmp_path):
    token = tmp_path / "token"
    await asyncio.to_thread(token.write_text, "a-long-and-random-word\n")
    ops = {"host": "127.0.0.1", "port": 0, "token_file": str(token)}
    async with ScriptedEngine() as engine, running(tmp_path, engine, ops=ops) as gateway:
        for key, status in ((None, 401), ("wrong", 401), ("a-long-and-random-word", 200)):
            assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key=key)).status == status
        await asyncio.to_thread(token.write_text, "short")
        assert (await raw_client.request(gateway.ops_port, "/api/reload", {}, key="short")).status == 403
        await asyncio.to_thread(token.unlink)
        gone = await raw_client.request(gateway.ops_port, "/api/reload", {}, key="a-long-and-random-word")
        assert (gone.status, gone.json()["error"]["fix"]) == (403, "Mend ops.token_file.")


async def test_beyond_loopback_they_are_off_without_a_token(tmp_path):
    ops = {"host": "0.0.0.0", "port": 0}  # noqa: S104 - that is the case
    async with ScriptedEngine() as engine, running(tmp_path, engine, ops=ops) as gateway:
        assert (await post(gateway)).status == 403
        assert (await gateway.ops("/metrics")).status == 200


async def test_what_became_of_a_reload_is_in_the_log(tmp_path, logged):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        await post(gateway)
        await rewrite(tmp_path, {"engines": []})
        await post(gateway)
    lines = {line["event"]: line for line in map(json.loads, logged().splitlines())}
    assert lines["reload_applied"]["policy"] == "a-plan"
    assert lines["reload_refused"]["file"] == str(tmp_path / "gateway.yaml")
    assert lines["reload_refused"]["fix"]
