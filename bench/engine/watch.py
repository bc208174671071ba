"""Reads what engines and a gateway say of themselves around a run: metrics, version, policy. Changes nothing there."""

from __future__ import annotations

import asyncio
import json
import re
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
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")


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
    version = (await _object(session, metrics_url.removesuffix("/metrics") + "/version")).get("version")
    return version if isinstance(version, str) else None


async def model_revision(session: aiohttp.ClientSession, metrics_url: str) -> str | None:
    """The commit of the served model, where the engine has it from a snapshot of the hub; None: it does not say."""
    cards = (await _object(session, metrics_url.removesuffix("/metrics") + "/v1/models")).get("data")
    first = cards[0] if isinstance(cards, list) and cards else None
    return revision_in(str(first.get("root", ""))) if isinstance(first, dict) else None


def revision_in(path: str) -> str | None:
    """The commit in the path of a snapshot as the hub's cache lays it out; None where it is another path."""
    found = _SNAPSHOT.search(path)
    return None if found is None else found[1]


async def policy_sha256(session: aiohttp.ClientSession, ops_url: str) -> str | None:
    """The hash of the policy that a gateway has in force, by its ops port; None where that does not say."""
    policy = (await _object(session, f"{ops_url}/api/state?promises=off")).get("policy")
    digest = policy.get("sha256") if isinstance(policy, dict) else None
    return digest if isinstance(digest, str) else None


async def _object(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any]:
    """A page's JSON object; empty where it brings none."""
    body = await page(session, url)
    if isinstance(body, Unreadable):
        return {}
    try:
        said: Any = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


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
