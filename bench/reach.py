"""Whether somebody answers at a target at all, looked at before and after a load. Judges nothing else."""

from __future__ import annotations

import aiohttp

from bench.engine.metrics import Unreadable
from bench.engine.watch import NO_TLS, page
from bench.errors import TargetUnreachableError
from bench.load.target import Target


async def reach(session: aiohttp.ClientSession, target: Target) -> None:
    """Raises TargetUnreachableError where nobody answers."""
    said = await _first_page(session, target)
    if said is NO_TLS:
        fix = "SSL_CERT_FILE names a file of certificates to trust; an http:// URL is for a server without TLS"
        raise TargetUnreachableError(f"{target.name}: no TLS with who listens at {target.base_url}. {fix}.")
    if not _is_answer(said):
        raise TargetUnreachableError(f"{target.name}: nothing answers at {target.base_url}. Is it started?")


async def answers(session: aiohttp.ClientSession, target: Target) -> bool:
    """Whether HTTP comes back. Any status will do: records say what requests got."""
    return _is_answer(await _first_page(session, target))


async def _first_page(session: aiohttp.ClientSession, target: Target) -> bytes | Unreadable:
    headers = target.headers(next(iter(target.keys), ""))
    return await page(session, f"{target.base_url}/v1/models", headers)


def _is_answer(said: bytes | Unreadable) -> bool:
    return not isinstance(said, Unreadable) or said.reason.startswith("http_")
