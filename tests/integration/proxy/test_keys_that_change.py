"""keys.yaml while the gateway serves: a change is in force soon, a mistake changes nothing, and a signal ends nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
from datetime import UTC, datetime

import pytest
import yaml

from gateway.server import keys_watch, wiring
from gateway.strict_yaml import ConfigError
from gateway.testing import answers, raw_client
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, running, settings_text, write_configuration
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
NEW_KEY = "gw-another-0123456789-0123456789-012345678"
WAIT_S_MAX = 30.0


def keys_text(key, service_class="batch", **members):
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    entry = {"id": "another", "sha256": sha256, "service_class": service_class, "tenant": "acme", **members}
    return yaml.safe_dump({"keys": [entry]})


async def until_status(gateway, key, status):
    async with asyncio.timeout(WAIT_S_MAX):
        while (await gateway.chat(key=key)).status != status:  # noqa: ASYNC110 - seen from outside, by asking
            await asyncio.sleep(0.01)


@pytest.fixture
def looking_often(monkeypatch):
    """Return what is added to with every reading of the file: once at the start, once at the first look."""
    readings, read = [], wiring.keyring

    def noted(*args):
        readings.append(args)
        return read(*args)

    monkeypatch.setattr(keys_watch, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(wiring, "keyring", noted)
    return readings


async def test_a_changed_file_is_in_force_without_a_restart(tmp_path, looking_often):
    go_on, under_way = asyncio.Event(), []

    async def script(request, wire):
        if request.json().get("stream"):
            await go_on.wait()
        await answers.stream_or_whole("a", "b")(request, wire)

    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway, asyncio.TaskGroup() as group:
        await until_status(gateway, INTERACTIVE_KEY, 200)
        under_way += [group.create_task(gateway.chat(stream=True)) for _ in range(5)]
        await engine.until(lambda: sum(bool(post.json().get("stream")) for post in engine.posts) == len(under_way))
        assert (await gateway.chat(key=NEW_KEY)).status == 401
        await asyncio.to_thread((tmp_path / "keys.yaml").write_text, keys_text(NEW_KEY))
        await until_status(gateway, NEW_KEY, 200)
        assert (await gateway.chat(key=INTERACTIVE_KEY)).status == 401
        await gateway.until_metric("gateway_reloads_total", 1, result="applied")
        go_on.set()
    assert [(each.result().status, each.result().body.endswith(b"[DONE]\n\n")) for each in under_way] == [
        (200, True)
    ] * 5


async def test_only_keys_that_changed_are_told_of(tmp_path, looking_often, logged):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.until(lambda: len(looking_often) > 1)
        other = tmp_path / "other.yaml"
        await asyncio.to_thread(other.write_text, keys_text(NEW_KEY))
        await asyncio.to_thread(other.replace, tmp_path / "keys.yaml")
        await until_status(gateway, NEW_KEY, 200)
    assert [json.loads(line)["event"] for line in logged().splitlines()].count("keys_in_force") == 1


@pytest.mark.parametrize(
    "bad",
    [
        ("keys: [{id: a}]", "keys[0].sha256"),
        ("keys: {", ""),
        (keys_text(NEW_KEY, service_class="nobody"), "keys[0].service_class"),
        (None, ""),
    ],
)
async def test_a_bad_file_is_told_and_the_last_good_one_stays_in_force(
    tmp_path, looking_often, monkeypatch, logged, bad
):
    text, key_path = bad
    refused, reload, loop = asyncio.Event(), wiring.keyring, asyncio.get_running_loop()

    def noting(*args):
        try:
            return reload(*args)
        except ConfigError:
            loop.call_soon_threadsafe(refused.set)
            raise

    monkeypatch.setattr(wiring, "keyring", noting)
    path = tmp_path / "keys.yaml"
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.until(lambda: len(looking_often) > 1)
        await asyncio.to_thread(path.unlink if text is None else lambda: path.write_text(text))
        async with asyncio.timeout(WAIT_S_MAX):
            await refused.wait()
        await gateway.until_metric("gateway_reloads_total", 1, result="refused")
        assert (await gateway.chat()).status == 200
        await asyncio.to_thread(path.write_text, keys_text(NEW_KEY))
        await until_status(gateway, NEW_KEY, 200)
    lines = [json.loads(line) for line in logged().splitlines()]
    (line, *_) = [line for line in lines if line["event"] == "keys_refused"]
    assert line["file"] == str(path)
    assert line["key_path"].startswith(key_path)
    assert line["problem"]
    assert line["fix"]


@pytest.mark.asyncio(loop_factories=["uvloop"])  # the process has a loop of its own
async def test_sighup_reloads_and_ends_nothing(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine:
        value = settings_text({"a": engine.url}, policy="passthrough", drain={"settle_s": 0, "deadline_s": 5})
        path = await asyncio.to_thread(write_configuration, tmp_path, value)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(path), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                while (line := json.loads(await child.stdout.readline()))["event"] != "listening":
                    pass
                port = line["port"]
                child.send_signal(signal.SIGHUP)
                while json.loads(await child.stdout.readline())["event"] != "reload_applied":
                    pass
                while (await raw_client.request(port, CHAT, a_chat(), key=INTERACTIVE_KEY)).status != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
                child.send_signal(signal.SIGTERM)
                await child.communicate()
            assert child.returncode == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.communicate()


async def test_a_crash_is_logged_under_the_id_that_the_caller_is_told(tmp_path, logged, monkeypatch):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:

        def crash(*_args, **_kwargs):
            raise RuntimeError

        monkeypatch.setattr(gateway.gateway.rooms.counters["chat"], "count", crash)
        answer = await gateway.chat()
    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
    lines = {line["event"]: line for line in map(json.loads, logged().splitlines())}
    told = answer.header("x-request-id")
    assert told == lines["handler_crashed"]["request_id"] == lines["request"]["request_id"]


async def test_a_key_ends_by_the_wall_clock_as_it_is_now(tmp_path, looking_often, wall_clock):
    not_after = datetime.fromtimestamp(wall_clock.now + 3600, UTC).isoformat()
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await asyncio.to_thread((tmp_path / "keys.yaml").write_text, keys_text(NEW_KEY, not_after=not_after))
        await until_status(gateway, NEW_KEY, 200)
        wall_clock.now += 7200  # the machine slept
        assert (await gateway.chat(key=NEW_KEY)).status == 401
        wall_clock.now -= 7200
        assert (await gateway.chat(key=NEW_KEY)).status == 200
