"""What tests wait for at the real engine: seen by scraping, since it is another process."""

from __future__ import annotations

import asyncio

from gateway.testing import raw_client

UNTIL_S_MAX = 120.0


async def engine_gauge(engine, name):
    page = (await raw_client.request(engine.port, f"/metrics/?name[]={name}")).body.decode()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


async def until_gauge(engine, name, wanted):
    async with asyncio.timeout(UNTIL_S_MAX):
        while not wanted(await engine_gauge(engine, name)):  # noqa: ASYNC110 - another process, seen by scraping
            await asyncio.sleep(0.02)


async def idle(engine):
    await until_gauge(engine, "vllm:num_requests_running", lambda value: value == 0)
    await until_gauge(engine, "vllm:num_requests_waiting", lambda value: value == 0)
