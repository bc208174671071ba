"""Two floods against a gateway before a real engine, held against what `/api/state` promises for it.

`python -m tests.benchmark.real_floods --gateway URL --ops URL --model M --short-key ENV --long-key ENV` from the
repository's root; the keys of an interactive and of a batch class are read from the environment. First shorts at 1.5
times what the engine serves while longs of the batch class wait: do the longs proceed at the promised rate, and does
nobody wait past a limit? Then longs beyond capacity while a short comes now and then: does each enter as promised?
Every prompt is its own, so no cache helps. Prints figures and ratios to the promises.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

SHORT_TOKENS, LONG_TOKENS, OUTPUT_TOKENS = 512, 8_000, 16
LONGS_WAITING = 3
PROBE_S, PROBE_WIDTH = 8.0, 32
_OLDEST = re.compile(rb"^gateway_queue_oldest_age_seconds\{(.*?)\} (\S+)", re.MULTILINE)
_LIMIT = re.compile(rb"^gateway_queue_wait_limit_seconds\{(.*?)\} (\S+)", re.MULTILINE)


@dataclass(slots=True)
class Told:
    """What became of the requests of one kind. ttft_s: of those that were answered, as their caller saw it."""

    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    engine_ttft_s: list[float] = field(default_factory=list)


class Caller:
    """Sends prompts of exact length as token ids, each unlike all others."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, key: str) -> None:
        self._session, self._url, self._model = session, url, model
        self._headers = {"Authorization": f"Bearer {key}"}
        self._random = Random(key)
        self.told = Told()

    async def send(self, tokens: int) -> None:
        ids = [self._random.randrange(64, 192) for _ in range(tokens)]
        body = {"model": self._model, "prompt": ids, "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True}
        began = perf_counter()
        async with self._session.post(self._url, json=body, headers=self._headers) as answer:
            self.told.statuses[answer.status] += 1
            if answer.status != 200:
                self.told.reasons[answer.headers.get("x-gateway-reason", "?")] += 1
                await answer.read()
                return
            await answer.content.readany()
            ttft_s = perf_counter() - began
            self.told.ttft_s.append(ttft_s)
            self.told.engine_ttft_s.append(ttft_s - int(answer.headers.get("x-gateway-queue-ms", 0)) / 1000)
            async for _ in answer.content.iter_any():
                pass


class Ages:
    """The oldest waiting request of every line, watched; worst: the largest age over its line's limit."""

    def __init__(self, session: aiohttp.ClientSession, ops: str) -> None:
        self._session, self._ops = session, ops
        self.worst = 0.0

    async def watch(self) -> None:
        while True:
            async with self._session.get(f"{self._ops}/metrics") as answer:
                page = await answer.read()
            limits = {labels: float(value) for labels, value in _LIMIT.findall(page)}
            for labels, value in _OLDEST.findall(page):
                if limits.get(labels):
                    self.worst = max(self.worst, float(value) / limits[labels])
            await asyncio.sleep(0.25)


async def at_rate(per_s: float, seconds: float, send: Callable[[], Awaitable[None]]) -> None:
    """Call `send` at evenly spaced moments, open loop, and wait for all that was sent."""
    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for index in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, began + index / per_s - perf_counter()))
            group.create_task(send())  # type: ignore[arg-type]


async def capacity(caller: Caller) -> float:
    """Measure how many shorts a second the engine serves when there are always some to serve."""
    began, served = perf_counter(), 0

    async def keep_on() -> None:
        nonlocal served
        while perf_counter() - began < PROBE_S:
            await caller.send(SHORT_TOKENS)
            served += 1

    await asyncio.gather(*(keep_on() for _ in range(PROBE_WIDTH)))
    return served / (perf_counter() - began)


async def short_flood(shorts: Caller, longs: Caller, per_s: float, seconds: float) -> float:
    """Flood with shorts while longs always wait; return the longs' prompt tokens a second, first token to last."""
    firsts: list[float] = []
    over = asyncio.Event()

    async def keep_waiting() -> None:
        while not over.is_set():
            await longs.send(LONG_TOKENS)
            firsts.append(perf_counter())

    waiting = asyncio.gather(*(keep_waiting() for _ in range(LONGS_WAITING)))
    await at_rate(per_s, seconds, lambda: shorts.send(SHORT_TOKENS))
    over.set()
    until = perf_counter()
    await waiting
    inside = [at for at in firsts if at <= until]
    return (len(inside) - 1) * LONG_TOKENS / (inside[-1] - inside[0]) if len(inside) > 1 else 0.0


async def long_flood(shorts: Caller, longs: Caller, longs_per_s: float, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(at_rate(longs_per_s, seconds, lambda: longs.send(LONG_TOKENS)))  # type: ignore[arg-type]
        group.create_task(at_rate(2.0, seconds, lambda: shorts.send(SHORT_TOKENS)))  # type: ignore[arg-type]


def promised(state: dict[str, Any]) -> dict[str, Any]:
    (engine,) = (engine for pool in state["pools"].values() for engine in pool["engines"].values())
    return dict(engine["guarantee"])


def show(name: str, told: Told) -> None:
    ttft = sorted(told.ttft_s) or [float("nan")]
    print(
        f"  {name:<7} answers {dict(told.statuses)} refusals {dict(told.reasons)}  TTFT p50 {median(ttft):.3f} s"
        f" p95 {ttft[int(0.95 * (len(ttft) - 1))]:.3f} s max {ttft[-1]:.3f} s"
    )


async def run(asked: argparse.Namespace) -> None:
    url = f"{asked.gateway}/v1/completions"
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        def caller(env: str) -> Caller:
            return Caller(session, url, asked.model, os.environ[env])

        per_s = await capacity(caller(asked.short_key))
        async with session.get(f"{asked.ops}/api/state") as answer:
            promise = promised(json.loads(await answer.read()))
        print(
            f"capacity {per_s:.1f} shorts/s; promised: {json.dumps({k: promise[k] for k in ('short_entry', 'long_rate')})}"
        )

        ages, shorts, longs = Ages(session, asked.ops), caller(asked.short_key), caller(asked.long_key)
        watch = asyncio.gather(ages.watch())
        tokens_per_s = await short_flood(shorts, longs, 1.5 * per_s, asked.seconds)
        print(f"flood of shorts at {1.5 * per_s:.1f}/s for {asked.seconds} s: longs {tokens_per_s:,.0f} tokens/s")
        show("shorts", shorts.told)
        show("longs", longs.told)
        print(f"  oldest age over its limit, at most: {ages.worst:.2f}")

        ages.worst = 0.0
        shorts, longs = caller(asked.short_key), caller(asked.long_key)
        await long_flood(shorts, longs, asked.longs_per_s, asked.seconds)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        print(f"flood of longs at {asked.longs_per_s}/s for {asked.seconds} s")
        show("shorts", shorts.told)
        show("longs", longs.told)
        worst = max(shorts.told.engine_ttft_s, default=float("nan"))
        print(f"  shorts' engine TTFT: p50 {median(shorts.told.engine_ttft_s):.3f} s, max {worst:.3f} s")
        print(f"  oldest age over its limit, at most: {ages.worst:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--ops", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--short-key", default="SHORT_KEY", help="environment variable with the interactive key")
    parser.add_argument("--long-key", default="LONG_KEY", help="environment variable with the batch key")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--longs-per-s", type=float, default=1.0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
