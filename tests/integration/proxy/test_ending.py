"""The process as a user starts and ends it: `gateway serve`, SIGTERM, exit status."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from gateway.testing import answers, raw_client
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, settings_text, write_configuration
from gateway.testing.raw_client import BrokenAnswer, RawClient
from gateway.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # the process has a loop of its own, whatever the test's is

CHAT = "/v1/chat/completions"
READY_S_MAX = 90.0
POLICY = """
version: 1
name: one-at-a-time
service_classes:
  interactive: {weight: 2, wait_s_max: {short: 30, long: 30}}
  batch: {weight: 1, wait_s_max: {short: 1, long: 1}}
admission: {kind: slots, slots: {total: 1}}
order: {kind: arrival}
"""


class Process:
    """A `gateway serve` and what it logged so far."""

    def __init__(self, child):
        self.child = child
        self.lines = []

    async def line(self, event):
        """Read the log up to the next line about an event."""
        async with asyncio.timeout(READY_S_MAX):
            while True:
                raw = await self.child.stdout.readline()
                assert raw, f"the process ended before {event}: {self.lines}"
                self.lines.append(json.loads(raw))
                if self.lines[-1]["event"] == event:
                    return self.lines[-1]

    async def until_ready(self):
        listening = await self.line("listening")
        self.port, self.ops_port = listening["port"], listening["ops_port"]
        await self.until_ops("/readyz", 200)

    async def until_ops(self, path, status):
        async with asyncio.timeout(READY_S_MAX):
            while (await raw_client.request(self.ops_port, path)).status != status:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

    async def ask(self, path, value=None, **kwargs):
        return await raw_client.request(self.port, path, value, key=INTERACTIVE_KEY, **kwargs)

    def client(self):
        return RawClient(self.port, key=INTERACTIVE_KEY)

    async def exit_status(self):
        async with asyncio.timeout(READY_S_MAX):
            await self.child.communicate()
        return self.child.returncode


@asynccontextmanager
async def serving(folder, engine, *, settle_s=0.0, deadline_s=20.0, **sections):
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    drain = {"settle_s": settle_s, "deadline_s": deadline_s}
    value = settings_text({"a": engine.url}, policy="./policy.yaml", drain=drain, **sections)
    path = write_configuration(folder, value)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--config", str(path), stdout=asyncio.subprocess.PIPE
    )
    process = Process(child)
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


async def test_sigterm_lets_running_streams_end_and_exits_clean(tmp_path):
    steps = asyncio.Queue()
    async with ScriptedEngine(answers.step_by_step(steps)) as engine, serving(tmp_path, engine) as process:
        await process.until_ready()
        async with process.client() as client:
            await client.post(CHAT, a_chat(stream=True))
            steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("Hello")))
            await client.read_head()
            await client.read_chunk()
            process.child.send_signal(signal.SIGTERM)
            begun = await process.line("draining")
            assert (begun["open_requests"], begun["settle_s"], begun["deadline_s"]) == (1, 0.0, 20.0)
            await process.until_ops("/readyz", 503)
            steps.put_nowait(answers.chunk(answers.DONE) + answers.CHUNKS_END)
            steps.put_nowait(None)
            assert await client.read_chunk() == answers.DONE
            assert await client.read_chunk() == b""
            assert await client.read_end() == b""
        assert await process.exit_status() == 0


async def test_after_settling_new_requests_are_503_and_told_to_reconnect_elsewhere(tmp_path):
    steps = asyncio.Queue()
    async with ScriptedEngine(answers.step_by_step(steps)) as engine, serving(tmp_path, engine) as process:
        await process.until_ready()
        async with process.client() as holding:
            await holding.post(CHAT, a_chat(stream=True))
            await engine.until(lambda: len(engine.posts) == 1)
            process.child.send_signal(signal.SIGTERM)
            await process.until_ops("/readyz", 503)
            async with asyncio.timeout(READY_S_MAX):
                while (answer := await process.ask("/v1/models")).status == 200:
                    assert answer.header("connection") == "close"
            for refused in (answer, await process.ask(CHAT, a_chat())):
                assert (refused.status, refused.header("x-gateway-reason")) == (503, "draining")
                assert refused.header("connection") == "close"
                assert refused.header("retry-after") is not None
                assert refused.header("x-gateway-service-class") == "interactive"
            steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.DONE) + answers.CHUNKS_END)
            steps.put_nowait(None)
            assert (await holding.read_answer()).status == 200
        assert await process.exit_status() == 0


async def test_while_settling_new_requests_are_served_and_idle_connections_are_closed(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        serving(tmp_path, engine, settle_s=20.0) as process,
    ):
        await process.until_ready()
        async with process.client() as idle:
            await idle.post(CHAT, a_chat())
            assert (await idle.read_answer()).header("connection") is None
            process.child.send_signal(signal.SIGTERM)
            assert await idle.read_end() == b""
        answer = await process.ask(CHAT, a_chat())
        assert (answer.status, answer.header("connection")) == (200, "close")
        process.child.send_signal(signal.SIGTERM)  # nothing is left to be cut
        assert await process.exit_status() == 0


async def test_an_end_is_not_taken_back_as_a_drain_is(tmp_path):
    steps = asyncio.Queue()
    async with ScriptedEngine(answers.step_by_step(steps)) as engine, serving(tmp_path, engine) as process:
        await process.until_ready()
        async with process.client() as holding:
            await holding.post(CHAT, a_chat(stream=True))
            await engine.until(lambda: len(engine.posts) == 1)
            process.child.send_signal(signal.SIGTERM)
            await process.until_ops("/readyz", 503)
            undone = await raw_client.request(process.ops_port, "/api/drain?off=1", b"")
            assert undone.json() != {"stage": "serving"}
            assert (await process.ask(CHAT, a_chat())).status == 503
            steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.DONE) + answers.CHUNKS_END)
            steps.put_nowait(None)
            assert (await holding.read_answer()).status == 200
        assert await process.exit_status() == 0


@pytest.mark.parametrize("how", ["deadline", "second signal"])
async def test_what_has_not_ended_in_time_is_cut_with_an_error_event(tmp_path, how):
    script = answers.hanging(answers.STREAM_HEAD, answers.chunk(answers.token("Hello")))
    async with (
        ScriptedEngine(script) as engine,
        serving(tmp_path, engine, deadline_s=0.3 if how == "deadline" else 20.0) as process,
    ):
        await process.until_ready()
        async with process.client() as client:
            await client.post(CHAT, a_chat(stream=True))
            await engine.until(lambda: len(engine.posts) == 1)
            process.child.send_signal(signal.SIGTERM)
            if how == "second signal":
                await process.until_ops("/readyz", 503)
                process.child.send_signal(signal.SIGTERM)
            with pytest.raises(BrokenAnswer) as broken:
                await client.read_answer()
        assert await process.exit_status() == 1
    assert broken.value.body.startswith(answers.token("Hello") + b'data: {"error":')
    assert b'"draining"' in broken.value.body


async def test_a_waiting_request_keeps_its_place_only_while_its_deadline_lies_inside_the_drain(tmp_path):
    release = asyncio.Event()
    script = answers.held(answers.completion(), release)
    async with (
        ScriptedEngine(script) as engine,
        serving(tmp_path, engine, deadline_s=10.0) as process,
        asyncio.TaskGroup() as group,
    ):
        await process.until_ready()
        running = group.create_task(process.ask(CHAT, a_chat()))
        await engine.until(lambda: len(engine.posts) == 1)
        long = group.create_task(process.ask(CHAT, a_chat()))
        soon = group.create_task(process.ask(CHAT, a_chat(), headers={"x-gateway-wait-ms": "9000"}))
        async with asyncio.timeout(READY_S_MAX):
            while True:
                (pool,) = (await raw_client.request(process.ops_port, "/api/state")).json()["pools"].values()
                if sum(line["requests"] for line in pool["lines"]) == 2:
                    break
        process.child.send_signal(signal.SIGTERM)
        refused = await long
        assert (refused.status, refused.header("x-gateway-reason")) == (503, "draining")
        release.set()
        assert [(await task).status for task in (running, soon)] == [200, 200]
        assert await process.exit_status() == 0


@pytest.mark.parametrize("section", ["listen", "ops"])
async def test_a_taken_port_is_said_with_its_file_and_setting_and_the_exit_status_is_2(tmp_path, section):
    async with ScriptedEngine() as engine:
        taken = {section: {"host": "127.0.0.1", "port": engine.port}}
        async with serving(tmp_path, engine, **taken) as process:
            line = await process.line("cannot_start")
            assert "in use" in line["problem"]
            assert line["setting"] == f"{section}.port"
            assert line["file"].endswith(".yaml")
            assert await process.exit_status() == 2


async def test_without_the_compiled_parser_it_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setenv("AIOHTTP_NO_EXTENSIONS", "1")
    async with ScriptedEngine() as engine, serving(tmp_path, engine) as process:
        line = await process.line("cannot_start")
        assert "compiled" in line["problem"]
        assert await process.exit_status() == 1


async def test_the_log_has_one_line_for_each_request_and_no_secret(tmp_path):
    async with ScriptedEngine(answers.completion("the answer")) as engine, serving(tmp_path, engine) as process:
        await process.until_ready()
        await process.ask(CHAT, a_chat(messages=[{"role": "user", "content": "the prompt"}]))
        line = await process.line("request")
        process.child.send_signal(signal.SIGTERM)
        assert await process.exit_status() == 0
    assert (line["outcome"], line["status"], line["engine"]) == ("completed", 200, "a")
    text = json.dumps(process.lines)
    for secret in ("the prompt", "the answer", INTERACTIVE_KEY):
        assert secret not in text
