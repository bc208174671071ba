"""Reads the engine's own endpoints around a run: metrics, version, and whether it is idle. Changes nothing there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from bench.engine.metrics import NO_ENGINE_METRICS, Reading, Unreadable, parse
from bench.load.pacing import Clock

SCRAPE_S_MAX = 10.0
SCRAPE_BYTES_MAX = 16 * 1024 * 1024
IDLE_POLL_S = 0.25
NO_TLS = Unreadable("no_tls")  # somebody is there, whose certificate is not trusted or who speaks no TLS
# An engine's gauges are set at the end of a step, so one zero may be older than a request just sent.
IDLE_READINGS = 3


async def scrape(session: aiohttp.ClientSession, metrics_url: str) -> Reading | Unreadable:
    body = await page(session, metrics_url)
    if isinstance(body, Unreadable):
        return body
    try:
        reading = parse(body.decode("utf-8", errors="replace"))
    except ValueError:
        return Unreadable("not_prometheus_text")
    return reading if reading.gauges or reading.counters else NO_ENGINE_METRICS


async def engine_version(session: aiohttp.ClientSession, metrics_url: str) -> str | None:
    """What the engine's /version says; None where it has none."""
    body = await page(session, metrics_url.removesuffix("/metrics") + "/version")
    if isinstance(body, Unreadable):
        return None
    try:
        said: Any = json.loads(body)
    except ValueError:
        return None
    version = said.get("version") if isinstance(said, dict) else None
    return version if isinstance(version, str) else None


async def wait_until_idle(session: aiohttp.ClientSession, metrics_url: str, *, wait_s_max: float, clock: Clock) -> bool:
    """True when nothing runs or waits in IDLE_READINGS readings in a row; False when `wait_s_max` passed before."""
    give_up_at = clock() + wait_s_max
    quiet = 0
    while quiet < IDLE_READINGS:
        reading = await scrape(session, metrics_url)
        quiet = quiet + 1 if isinstance(reading, Reading) and reading.idle else 0
        if quiet < IDLE_READINGS:
            if clock() >= give_up_at:
                return False
            await asyncio.sleep(IDLE_POLL_S)
    return True


async def page(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> bytes | Unreadable:
    """What a GET of one of the engine's own pages brings."""
    timeout = aiohttp.ClientTimeout(total=SCRAPE_S_MAX)
    try:
        async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                return Unreadable(f"http_{response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > SCRAPE_BYTES_MAX:
                    return Unreadable("too_large")
            return bytes(body)
    except TimeoutError:
        return Unreadable("timeout")
    except aiohttp.ClientSSLError:
        return NO_TLS
    except (aiohttp.ClientError, ConnectionError):
        return Unreadable("no_connection")
