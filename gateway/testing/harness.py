"""A real gateway in the test's own event loop, started the way `gateway serve` starts it, before scripted engines.

Owns settings and a policy that suit tests: loopback, any free port, a key for each of two classes, counting by
estimate unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.plan import Plan
from gateway.observe.exchange import Exchange
from gateway.policy import source
from gateway.server import wiring
from gateway.server.app import Gateway
from gateway.server.reload import Configured
from gateway.settings import Settings, load
from gateway.strict_yaml import means_a_file
from gateway.testing import raw_client
from gateway.testing.builders import a_plan
from gateway.testing.raw_client import Answer, RawClient
from gateway.testing.scripted_engine import ScriptedEngine

INTERACTIVE_KEY = "gw-interactive-0123456789-0123456789-0123"
BATCH_KEY = "gw-batch-0123456789-0123456789-0123456789"
MODEL = "tiny"
UNTIL_S_MAX = 40.0

KEYS = {INTERACTIVE_KEY: "interactive", BATCH_KEY: "batch"}


@dataclass(slots=True)
class Running:
    """A gateway that serves."""

    gateway: Gateway
    port: int
    ops_port: int

    def client(self, key: str | None = INTERACTIVE_KEY, *, receive_buffer_bytes: int | None = None) -> RawClient:
        return RawClient(self.port, key=key, receive_buffer_bytes=receive_buffer_bytes)

    async def ask(
        self,
        path: str,
        value: Any = None,
        *,
        key: str | None = INTERACTIVE_KEY,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make one request: a POST where there is a value, else a GET."""
        return await raw_client.request(self.port, path, value, key=key, headers=headers)

    async def chat(
        self, *, key: str = INTERACTIVE_KEY, headers: Mapping[str, str] | None = None, **members: Any
    ) -> Answer:
        return await self.ask("/v1/chat/completions", a_chat(**members), key=key, headers=headers)

    async def ops(self, path: str) -> Answer:
        return await raw_client.request(self.ops_port, path)

    async def metric(self, name: str, **labels: str) -> float:
        """Scrape, and sum the samples of a name whose labels agree."""
        page = (await self.ops("/metrics")).body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until the condition holds: for what is going to be true without any event to await."""
        async with asyncio.timeout(UNTIL_S_MAX):
            while not condition():  # noqa: ASYNC110 - state of the gateway has no event for a test
                await asyncio.sleep(0.001)

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        async with asyncio.timeout(UNTIL_S_MAX):
            while await self.metric(name, **labels) != value:  # noqa: ASYNC110 - seen from outside, by scraping
                await asyncio.sleep(0.005)

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Return the requests that have not ended."""
        return list(self.gateway.rooms.observer.exchanges)


def a_chat(**members: Any) -> dict[str, Any]:
    """Return a chat completion's body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], **members}


def settings_text(engines: Mapping[str, str], **sections: Any) -> dict[str, Any]:
    """Return gateway.yaml for engines by name, as a value. `sections` replace or add top-level keys.

    `engine`: members of every engine's entry; `pool_of`: an engine's pool, where it is not that; `limits` and others as
    in the file.
    """
    pool_of = sections.pop("pool_of", {})
    quiet = {"scheduling": "fcfs", "calibration": "off"}  # no request of the gateway's own reaches a script
    engine = {"pool": "chat", **quiet, "priority_carrier": "header", **sections.pop("engine", {})}
    return {
        "listen": {"host": "127.0.0.1", "port": 0},
        "ops": {"host": "127.0.0.1", "port": 0},
        "auth": {"keys_file": "keys.yaml"},
        "engines": [
            {"name": name, "url": url, **engine, "pool": pool_of.get(name, engine["pool"])}
            for name, url in engines.items()
        ],
        "pools": {"chat": {"models": [MODEL], "tokenizer": {"kind": "estimate"}}},
        **sections,
    }


def write_configuration(
    folder: Path, value: Mapping[str, Any], key_models: Mapping[str, Sequence[str]] | None = None
) -> Path:
    """Write gateway.yaml and its keys.yaml; return the former's path. key_models: a class's key, for these alone."""
    keys = [
        {
            "id": service_class,
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
            "service_class": service_class,
            "tenant": f"tenant-{service_class}",
            **({"models": list(key_models[service_class])} if key_models and service_class in key_models else {}),
        }
        for key, service_class in KEYS.items()
    ]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(dict(value)))
    return path


def engine_name(index: int) -> str:
    """Return a to z, then e26 and on."""
    return ascii_lowercase[index] if index < len(ascii_lowercase) else f"e{index}"


def settings_for(folder: Path, *engines: ScriptedEngine | str, **sections: Any) -> Settings:
    """Return settings for engines (or their URLs), named a, b, …, read from a file as `gateway serve` reads them."""
    urls = {
        engine_name(index): engine if isinstance(engine, str) else engine.url for index, engine in enumerate(engines)
    }
    key_models = sections.pop("key_models", None)
    return load(write_configuration(folder, settings_text(urls, **sections), key_models))


@asynccontextmanager
async def running(
    folder: Path, *engines: ScriptedEngine | str, plan: Plan | None = None, ready: bool = True, **sections: Any
) -> AsyncIterator[Running]:
    """Run a gateway before the engines, or their URLs. ready: wait until all of them are up.

    The policy is `plan` while the file names none of its own: a reload reads gateway.yaml again, and a policy's file.
    """
    await asyncio.to_thread(settings_for, folder, *engines, **sections)
    path, builtin = folder / "gateway.yaml", plan or a_plan()

    def read() -> Configured:
        settings = load(path)
        shadow = None if settings.shadow is None else source.load(settings.shadow)
        files = [path, *(Path(each) for each in (settings.policy, settings.shadow) if each and means_a_file(each))]
        plan = source.load(settings.policy) if means_a_file(settings.policy) else builtin
        return Configured(path, settings, plan, tuple(files), shadow)

    configured = await asyncio.to_thread(read)
    keyring = await asyncio.to_thread(wiring.keyring, configured.settings, configured.plan)
    async with Gateway(configured, keyring, read) as gateway:
        serving = Running(gateway, gateway.port, gateway.ops_port)
        if ready:
            await serving.until(lambda: all(watch.health.is_up for watch in gateway.rooms.watches.values()))
        yield serving
