"""How soon a client that leaves is no load any more: its place in line, its place at the engine, the engine's own work.

`python -m tests.benchmark.client_departures --engine URL --model M` from the repository's root, before a real engine
that has nothing else to do. The gateway has one place at the engine. Clients leave in line, in prefill, inside a stream
and while an answer that is none is made, by closing, by a reset or by closing their sending half; each at a drawn
moment. Timed from the departure until the gateway has forgotten the request, until its place is free (it is held for
the steps that the engine has begun), and until the engine says that nothing runs, asked every few milliseconds; and
the last once more for clients that ask the engine itself, since it ends a request at a border of its steps. Exit status
1 where any of it took over a second.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.parse import urlsplit

import aiohttp
import structlog
import uvloop

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.server.tasks import spawn
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import Running, running
from gateway.testing.raw_client import RawClient

PATH = "/v1/completions"
SHORT_TOKENS, LONG_TOKENS, OUTPUT_TOKENS = 16, 8_000, 4_000
WAYS = ("leave", "reset", "half_close")
FREED_S_MAX = 1.0
LOOK_S = 0.005
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


@dataclass(slots=True)
class Freed:
    """Seconds from each departure until the gateway had no request, until it had no place taken, until the engine stopped.

    direct_s: until the engine had stopped where its client asked it without a gateway.
    """

    request_s: list[float] = field(default_factory=list)
    place_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)
    direct_s: list[float] = field(default_factory=list)


class Scene:
    """One gateway with one place before one engine, and the callers that come and leave."""

    def __init__(self, gateway: Running, engine: str, model: str, session: aiohttp.ClientSession) -> None:
        self._gateway = gateway
        self._engine_port = urlsplit(engine).port or 80
        self._engine, self._model, self._session = engine, model, session
        self._random = Random(5)
        self._number = count()

    # ── what a client has come to when it leaves ──

    async def in_prefill(self, client: RawClient) -> None:
        await self._ask(client, LONG_TOKENS)
        await self._until_engine(1)

    async def mid_stream(self, client: RawClient) -> None:
        await self._ask(client, SHORT_TOKENS)
        await client.read_head()
        await client.read_chunk()

    async def not_streamed(self, client: RawClient) -> None:
        await self._ask(client, SHORT_TOKENS, stream=False)
        await self._until_engine(1)

    # ── departures ──

    async def in_line(self, way: str, freed: Freed) -> None:
        async with self._gateway.client() as first, self._gateway.client() as leaving:
            await self.mid_stream(first)
            await self._ask(leaving, SHORT_TOKENS)
            await self._gateway.until(lambda: self._queued == 1)
            await self._a_moment()
            left_at = perf_counter()
            getattr(leaving, way)()
            await self._gateway.until(lambda: self._queued == 0)
            freed.request_s.append(perf_counter() - left_at)
            assert await self._engine_has() == 1, "the engine heard of who only waited, or lost who did not"
            first.reset()
        await self._at_rest()

    async def at_engine(self, phase: Callable[[RawClient], Awaitable[None]], way: str, freed: Freed) -> None:
        async with self._gateway.client() as client:
            await phase(client)
            await self._a_moment()
            assert len(self._gateway.exchanges) == 1, "it was answered before its client left"
            stops = spawn(self._engine_stops(), name="engine")
            left_at = perf_counter()
            getattr(client, way)()
            await self._gateway.until(lambda: not self._gateway.exchanges)
            freed.request_s.append(perf_counter() - left_at)
            await self._gateway.until(lambda: self._places_taken == 0)
            freed.place_s.append(perf_counter() - left_at)
            freed.engine_s.append(await stops)
        await self._at_rest()
        async with RawClient(self._engine_port) as client:
            await phase(client)
            await self._a_moment()
            getattr(client, way)()
            freed.direct_s.append(await self._engine_stops())

    # ── steps ──

    async def _ask(self, client: RawClient, tokens: int, *, stream: bool = True) -> None:
        salt = next(self._number)
        ids = [64 + (salt * 7919 + index * (salt + 3)) % 128 for index in range(tokens)]
        body = {"model": self._model, "prompt": ids, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": stream}
        await client.post(PATH, body)

    async def _a_moment(self) -> None:
        """Leave anywhere inside a step or two, not always at one border."""
        await asyncio.sleep(self._random.uniform(0.0, 0.15))

    @property
    def _queued(self) -> int:
        (gate,) = self._gateway.gateway.rooms.gates.values()
        return sum(line.requests for line in gate.snapshot().lines.values())

    @property
    def _places_taken(self) -> int:
        (gate,) = self._gateway.gateway.rooms.gates.values()
        return sum(engine.slots for engine in gate.snapshot().engines.values())

    async def _engine_stops(self) -> float:
        began_at = perf_counter()
        await self._until_engine(0)
        return perf_counter() - began_at

    async def _engine_has(self) -> int:
        """Requests that run or wait inside the engine, as it says."""
        async with self._session.get(f"{self._engine}/metrics/?name[]={RUNNING}&name[]={WAITING}") as answer:
            page = (await answer.read()).decode()
        lines = (line for line in page.splitlines() if line.startswith((RUNNING, WAITING)))
        return int(sum(float(line.rpartition(" ")[2]) for line in lines))

    async def _until_engine(self, requests: int) -> None:
        async with asyncio.timeout(60):
            while await self._engine_has() != requests:  # noqa: ASYNC110 - another process, seen by scraping
                await asyncio.sleep(LOOK_S)

    async def _at_rest(self) -> None:
        await self._gateway.until(lambda: not self._gateway.exchanges and self._places_taken == 0)
        await self._until_engine(0)


@asynccontextmanager
async def a_scene(engine: str, model: str) -> AsyncIterator[Scene]:
    plan = a_plan(
        a_class("interactive", wait_s_max=(60, 60)),
        a_class("batch", rank=1, weight=1),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )
    pools = {"chat": {"models": [model], "tokenizer": {"kind": "estimate"}}}
    with TemporaryDirectory() as folder:
        async with (
            running(Path(folder), engine, plan=plan, pools=pools) as gateway,
            aiohttp.ClientSession() as session,
        ):
            yield Scene(gateway, engine, model, session)


def lines(freed: Freed) -> list[str]:
    told = {
        "request": freed.request_s,
        "place": freed.place_s,
        "engine": freed.engine_s,
        "engine, asked itself": freed.direct_s,
    }
    return [f"{name:<21}{1000 * median(each):5.0f} / {1000 * max(each):.0f}" for name, each in told.items() if each]


async def run(engine: str, model: str, tries: int) -> float:
    """Return the longest of all that the gateway has a part in, seconds."""
    worst = 0.0
    async with a_scene(engine, model) as scene:
        await scene.at_engine(scene.mid_stream, "leave", Freed())  # an engine compiles a kernel at its first token
        for name, leave in (
            ("in line", scene.in_line),
            ("in prefill", partial(scene.at_engine, scene.in_prefill)),
            ("inside a stream", partial(scene.at_engine, scene.mid_stream)),
            ("not streamed", partial(scene.at_engine, scene.not_streamed)),
        ):
            freed = Freed()
            for way in islice(cycle(WAYS), tries):
                await leave(way, freed)
            print(f"{name}, {tries} times, ms p50 / max", *lines(freed), sep="\n  ")
            worst = max(worst, *freed.request_s, *freed.place_s, *freed.engine_s)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--engine", required=True, help="http://host:port of a real vLLM")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--tries", type=int, default=21, help="of each phase; the ways of leaving take turns")
    asked = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    sys.exit(uvloop.run(run(asked.engine, asked.model, asked.tries)) > FREED_S_MAX)


if __name__ == "__main__":
    main()
