"""A crowd before a gateway: callers that read, read slowly, leave in every phase or send nonsense, drawn from seeds.

Owns what one caller does in one visit, and how often each thing was done. Expects nothing of the answers: what has to
hold afterwards is the test's to say.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.testing.raw_client import BrokenAnswer, RawClient

SMALL_BUFFER_BYTES = 4096
PAUSE_S = 0.01
_ENDS_OF_A_CONNECTION = (ConnectionError, asyncio.IncompleteReadError, BrokenAnswer)
_NONSENSE = (
    b"nonsense\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000,
)

Bodies = Mapping[str, Sequence[Mapping[str, Any]]]
Step = Callable[[RawClient, random.Random], Awaitable[None]]


class Crowd:
    """bodies: by path, what may be sent there. keys: whom the callers are taken for. done: how often what was done."""

    def __init__(self, port: int, bodies: Bodies, keys: Sequence[str], *, seed: int) -> None:
        self._port = port
        self._bodies = bodies
        self._keys = keys
        self._seeds = random.Random(seed)  # noqa: S311 - a drawn course, not a secret
        self.done: Counter[str] = Counter()

    async def come(self, callers: int, until: asyncio.Event) -> None:
        """Have so many callers visit again and again; return when all have left."""
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._caller(random.Random(self._seeds.random()), until))  # noqa: S311 - as above

    async def _caller(self, rng: random.Random, until: asyncio.Event) -> None:
        visits: Sequence[tuple[Step, int]] = (
            (self._stay, 8),
            (self._read_slowly, 2),
            (self._leave_inside_the_body, 1),
            (self._leave_after_the_body, 2),
            (self._leave_after_the_head, 2),
            (self._leave_inside_the_answer, 2),
            (self._talk_nonsense, 1),
        )
        steps, weights = zip(*visits, strict=True)
        while not until.is_set():
            (visit,) = rng.choices(steps, weights)
            slow = visit == self._read_slowly
            client = RawClient(
                self._port, key=rng.choice(self._keys), receive_buffer_bytes=SMALL_BUFFER_BYTES if slow else None
            )
            self.done[visit.__name__.strip("_")] += 1
            try:
                async with client:
                    await visit(client, rng)
            except _ENDS_OF_A_CONNECTION:
                self.done["connection ended by the gateway"] += 1
            await asyncio.sleep(rng.random() * PAUSE_S)

    async def _stay(self, client: RawClient, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, 4)):
            await self._ask(client, rng)
            answer = await client.read_answer()
            self.done[str(answer.status)] += 1
            if answer.header("connection") == "close":
                return

    async def _read_slowly(self, client: RawClient, rng: random.Random) -> None:
        await self._ask(client, rng, {"Connection": "close"})
        await asyncio.sleep(rng.random() * 20 * PAUSE_S)
        while await client.reader.read(SMALL_BUFFER_BYTES):
            await asyncio.sleep(0)
            if rng.random() < PAUSE_S:
                return

    async def _leave_inside_the_body(self, client: RawClient, rng: random.Random) -> None:
        head, body = self._a_request(client, rng)
        await client.send(head + body[: rng.randrange(len(body))])
        self._go(client, rng)

    async def _leave_after_the_body(self, client: RawClient, rng: random.Random) -> None:
        await self._ask(client, rng)
        await asyncio.sleep(rng.random() * PAUSE_S)
        self._go(client, rng)

    async def _leave_after_the_head(self, client: RawClient, rng: random.Random) -> None:
        await self._ask(client, rng)
        await client.read_head()
        self._go(client, rng)

    async def _leave_inside_the_answer(self, client: RawClient, rng: random.Random) -> None:
        await self._ask(client, rng)
        await client.read_head()
        await client.reader.read(rng.randrange(1, 400))
        self._go(client, rng)

    async def _talk_nonsense(self, client: RawClient, rng: random.Random) -> None:
        await client.send(rng.choice(_NONSENSE))
        self._go(client, rng)

    async def _ask(
        self, client: RawClient, rng: random.Random, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        head, body = self._a_request(client, rng, headers)
        await client.send(head + body)

    def _a_request(
        self, client: RawClient, rng: random.Random, headers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[bytes, bytes]:
        path = rng.choice(list(self._bodies))
        body = json.dumps(rng.choice(self._bodies[path])).encode()
        return client.head("POST", path, {"Content-Length": str(len(body)), **headers}), body

    def _go(self, client: RawClient, rng: random.Random) -> None:
        if rng.random() < 0.5:
            client.reset()
        else:
            client.leave()
