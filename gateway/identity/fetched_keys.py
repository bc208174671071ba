"""Signing keys from the issuer's address: fetched, kept, fetched anew.

Owns when they are asked for: at the start, at intervals, and once more for a token that names an unknown key, though
never more often than AGAIN_S_MIN, whatever callers send. A set that cannot be had or used changes nothing: the last
good one is believed until it is BELIEVED_S_MAX old. Speaks no HTTP itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum

import structlog

from gateway.identity.signing_keys import KeySet, KeySetUnusable, read_key_set

REFRESH_S = 300.0
AGAIN_S_MIN = 10.0  # between two fetches, also after one that failed
FETCH_S_MAX = 5.0
LOOK_S_MAX = 2 * FETCH_S_MAX  # how long a request waits for newer keys
BELIEVED_S_MAX = 86_400.0


class KeysUnreachable(Exception):  # noqa: N818 - the state that it names
    """The address did not answer with a key set. problem: why, without a full stop."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class Fetch(StrEnum):
    """What became of one fetch."""

    TAKEN = "taken"
    UNREACHABLE = "unreachable"
    UNUSABLE = "unusable"


class FetchedKeys:
    """Keeps the keys behind one address current.

    fetch: asks it, raises KeysUnreachable. put_in_force: takes a set and until when it is believed. told: what became
    of each fetch. now: the wall clock.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        put_in_force: Callable[[KeySet, float], None],
        told: Callable[[Fetch], None],
        now: Callable[[], float],
    ) -> None:
        self._fetch = fetch
        self._put_in_force = put_in_force
        self._told = told
        self._now = now
        self._log = structlog.get_logger().bind()
        self._asked = asyncio.Event()
        self._fetched = asyncio.Event()
        self._fetched_at = float("-inf")
        self._believed_until = float("-inf")
        self._key_names: frozenset[str] = frozenset()
        self._told_failure: tuple[str, int] | None = None

    async def run(self) -> None:
        """Fetch again and again until cancelled."""
        while True:
            await self._fetch_once()
            self._asked.clear()  # also of who asked meanwhile: this fetch was theirs
            self._fetched.set()
            self._fetched = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S if self._told_failure is None else AGAIN_S_MIN):
                    await self._asked.wait()

    async def look_again(self) -> bool:
        """Wait for the fetch under way, or one more; False at once where the last is too recent for another."""
        if 0 <= self._now() - self._fetched_at < AGAIN_S_MIN:  # a clock that was set back says nothing
            return False
        self._asked.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S_MAX):
                await self._fetched.wait()
        return True

    async def _fetch_once(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                raw = await self._fetch()
            key_set = await asyncio.to_thread(read_key_set, raw)
        except TimeoutError:
            self._failed(Fetch.UNREACHABLE, f"does not answer within {FETCH_S_MAX:g} s")
        except KeysUnreachable as error:
            self._failed(Fetch.UNREACHABLE, error.problem)
        except KeySetUnusable as error:
            self._failed(Fetch.UNUSABLE, error.problem)
        else:
            self._believed_until = self._now() + BELIEVED_S_MAX
            self._put_in_force(key_set, self._believed_until)
            self._tell_taken(key_set)
        finally:
            self._fetched_at = self._now()

    def _tell_taken(self, key_set: KeySet) -> None:
        self._told(Fetch.TAKEN)
        names = frozenset(key_set.keys)
        if self._told_failure is not None or names != self._key_names:
            self._log.info("signing_keys_in_force", keys=len(names), passed_over=key_set.passed_over)
        self._told_failure, self._key_names = None, names

    def _failed(self, result: Fetch, problem: str) -> None:
        """Say so where it is news: another problem, or keys that have become too old."""
        self._told(result)
        keys_in_force = len(self._key_names) if self._now() < self._believed_until else 0
        if self._told_failure != (problem, keys_in_force):
            fix = "Correct auth.jwt.jwks_url, or see why the issuer does not answer there"
            self._log.error("signing_keys_not_fetched", problem=problem, keys_in_force=keys_in_force, fix=fix)
        self._told_failure = (problem, keys_in_force)
