"""A gateway that has much to show: many classes and engines, lines, refusals, slices under way, a shadow, engines in trouble."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import AsyncExitStack, asynccontextmanager

import yaml

from gateway.core.plan import KvBudget, LongPrefill, LongPrefillMode, SlotBudget, TenantBounds
from gateway.policy import source
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import MODEL, a_chat, engine_name, running
from gateway.testing.scripted_engine import ScriptedEngine

LONG = list(range(100, 6_100))
SLICED = LongPrefill(LongPrefillMode.SLICED, slice_s=0.005, hold_max_s=1.0, recalls_max=8)


def class_name(number):
    return f"class-{number:02}"


def key_of(number):
    return f"gw-class-{number:02}-0123456789-0123456789-0123456789"


def plan_of(classes):
    """Each tenant runs one request at a time, so that its next ones wait; the bounds differ from class to class."""
    return a_plan(
        *(
            a_class(
                class_name(number),
                rank=number,
                weight=classes - number,
                requests_max=4,
                wait_s_max=(90 + 30 * (number % 9), 300),
                tenant=TenantBounds(running_max=1),
            )
            for number in range(classes)
        ),
        admission=an_admission(slots=SlotBudget(8, 2, 2), kv=KvBudget(), long_prefill=SLICED),
        name="many",
    )


def write_files(folder, classes):
    """Write a key for each class, and a shadow policy that lets nobody wait."""
    keys = [
        {
            "id": class_name(number),
            "sha256": hashlib.sha256(key_of(number).encode()).hexdigest(),
            "service_class": class_name(number),
            "tenant": f"tenant-{number}",
        }
        for number in range(classes)
    ]
    (folder / "classes.yaml").write_text(yaml.safe_dump({"keys": keys}))
    policy = yaml.safe_load(source.text("bounded-fifo")) | {"name": "narrow"}
    entry = next(iter(policy["service_classes"].values())) | {"queue": {"requests_max": 0}}
    policy["service_classes"] = {class_name(number): entry | {"weight": 60 - number} for number in range(classes)}
    policy["admission"] = {"kind": "slots", "slots": {"total": 1}}
    (folder / "narrow.yaml").write_text(yaml.safe_dump(policy))


class Scene:
    """What a test may still change: the load goes on until `release` is set."""

    def __init__(self, gateway, engines, release):
        self.gateway = gateway
        self._engines = engines
        self.url = f"http://127.0.0.1:{gateway.ops_port}/"
        self.release = release
        self._callers = []

    def send(self, number, path="/v1/chat/completions", **members):
        body = members if "prompt" in members else a_chat(**members)
        asked = self.gateway.ask(path, body, key=key_of(number))
        self._callers.append(asyncio.get_running_loop().create_task(asked))

    async def load(self, busy):
        """Have `busy` classes wait, every third full and refusing; long prompts in parts; and what is refused at once."""
        gateway = self.gateway
        assert (await gateway.ask("/v1/chat/completions", a_chat(user="at once"), key=key_of(0))).status == 200
        for number in range(busy):
            for _ in range(6 if number % 3 == 0 else 1 + number % 4):
                self.send(number)
        for number in range(busy, busy + 2):
            self.send(number, "/v1/completions", model=MODEL, prompt=LONG, max_tokens=7)
        await gateway.ask("/v1/elsewhere")
        await gateway.chat(key="gw-unknown-0123456789-0123456789-0123456789")
        await gateway.until(lambda: sum(slot for slot, _ in map(self._waiting, range(busy))) > 0)
        await gateway.until(lambda: sum(len(each.courses) for each in self._dividing()) == min(2, len(self._engines)))

    def _waiting(self, number):
        lines = self.gateway.gateway.rooms.gates["chat"].snapshot().lines
        found = [line for (name, _), line in lines.items() if name == class_name(number)]
        return sum(line.requests for line in found), found

    def _dividing(self):
        engines = self.gateway.gateway.rooms.gates["chat"].snapshot().engines.values()
        return [engine.dividing for engine in engines if engine.dividing is not None]

    async def trouble(self):
        """One engine goes down, one is drained."""
        down = self.gateway.gateway.rooms.watches[engine_name(len(self._engines) - 1)]
        await self._engines[-1].aclose()
        down.refused()
        body = {"pool": "chat", "weights": {engine_name(len(self._engines) - 2): 0}}
        answer = await raw_client.request(self.gateway.ops_port, "/api/route", body, key=None)
        assert answer.status == 200, answer.body

    async def end(self):
        self.release.set()
        await asyncio.gather(*self._callers)


@asynccontextmanager
async def scene(folder, *, classes, engines):
    """Run a gateway with these many classes and engines. Nothing is asked of it yet."""
    release = asyncio.Event()
    held, whole = answers.held(answers.completion(), release), answers.completion()

    def choose(request):
        body = json.loads(request.body)
        is_question = request.header("x-request-id")[0].endswith("-twin")
        return whole if is_question or body.get("user") == "at once" else held

    await asyncio.to_thread(write_files, folder, classes)
    async with AsyncExitStack() as all_of_them:
        served = [await all_of_them.enter_async_context(AsyncExitStack()) for _ in range(engines)]
        scripted = [await each.enter_async_context(ScriptedEngine(answers.by_request(choose))) for each in served]
        policy = {"plan": plan_of(classes), "auth": {"keys_file": "classes.yaml"}, "shadow": "./narrow.yaml"}
        async with running(folder, *scripted, **policy) as gateway:
            shown = Scene(gateway, served, release)
            yield shown
            await shown.end()
