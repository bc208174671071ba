"""Whether somebody answers at a target at all, looked at before and after a load. Judges nothing else."""

from __future__ import annotations

import aiohttp

from bench.engine.metrics import Unreadable
from bench.engine.watch import page
from bench.errors import TargetUnreachableError
from bench.load.target import Target


async def reach(session: aiohttp.ClientSession, target: Target) -> None:
    """Raises TargetUnreachableError where nobody answers."""
    if not await answers(session, target):
        raise TargetUnreachableError(f"{target.name}: nothing answers at {target.base_url}. Is it started?")


async def answers(session: aiohttp.ClientSession, target: Target) -> bool:
    """Whether HTTP comes back. Any status will do: records say what requests got."""
    headers = target.headers(next(iter(target.keys), ""))
    said = await page(session, f"{target.base_url}/v1/models", headers)
    return not isinstance(said, Unreadable) or said.reason.startswith("http_")
