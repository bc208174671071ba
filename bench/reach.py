"""Whether somebody answers at a target at all, looked at before a load is sent to it. Judges nothing else."""

from __future__ import annotations

import aiohttp

from bench.engine.watch import Unreadable, page
from bench.errors import TargetUnreachableError
from bench.load.target import Target


async def reach(session: aiohttp.ClientSession, target: Target) -> None:
    """Raises TargetUnreachableError where no HTTP comes back. Any status will do: records say what requests got."""
    headers = target.headers(next(iter(target.keys), ""))
    said = await page(session, f"{target.base_url}/v1/models", headers)
    if isinstance(said, Unreadable) and not said.reason.startswith("http_"):
        raise TargetUnreachableError(f"{target.name}: nothing answers at {target.base_url}. Is it started?")
