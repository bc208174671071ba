"""A changed configuration, read and put in force while the gateway serves.

Owns when to look at the files, and the two phases: everything is read and made first, and may be refused; then
it is put in force at once, and cannot fail. A refused change changes nothing. Serves no port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.core.plan import Plan
from gateway.observe.metrics import Reloaded
from gateway.server import wiring
from gateway.server.counters import Counters, PoolTokenizerUnusable
from gateway.server.file_stamps import Looks, Stamp, stamp_of
from gateway.server.in_force import InForce
from gateway.server.rooms import Rooms
from gateway.settings import Settings
from gateway.strict_yaml import ConfigError

LOOK_EVERY_S = 0.5
RESTART_SECTIONS = ("listen", "ops", "limits")


@dataclass(frozen=True, slots=True)
class Configured:
    """One reading of the configuration. path: gateway.yaml's; files: whose change is noticed, without the keys file.

    shadow: the policy that decides beside `plan` and is only counted; None: none does.
    """

    path: Path
    settings: Settings
    plan: Plan
    files: tuple[Path, ...]
    shadow: Plan | None = None


Read = Callable[[], Configured]


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that is in force. needs_restart: key paths that changed and are not."""

    policy: str
    sha256: str
    needs_restart: tuple[str, ...]


class Reload:
    """The configuration in force. read: reads it anew, in a thread; raises ConfigError."""

    def __init__(self, configured: Configured, read: Read, rooms: Rooms, in_force: InForce, counters: Counters) -> None:
        self.settings = configured.settings
        self.one_at_a_time = asyncio.Lock()
        self._files = configured.files
        self._read = read
        self._rooms = rooms
        self._in_force = in_force
        self._counters = counters
        self._asked = asyncio.Event()
        self._log = structlog.get_logger().bind()

    def soon(self) -> None:
        """Reload at the next turn of `run`; asking again before that changes nothing."""
        self._asked.set()

    async def run(self) -> None:
        """Look at the files until cancelled."""
        looks = Looks(await self._stamps())
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            stamps = await self._stamps()
            if asked or (looks.stands_still(stamps) and looks.is_news(stamps)):
                await self.apply()
                stamps = {**await self._stamps(), **stamps}
                looks.take({path: stamps[path] for path in self._files})
            self._in_force.sweep()

    async def apply(self) -> Applied | ConfigError:
        """Read everything and put it in force, or say what is wrong with it."""
        async with self.one_at_a_time:
            try:
                applied = await self._apply()
            except ConfigError as error:
                self._rooms.observer.reloaded(Reloaded.REFUSED)
                self._log.error(
                    "reload_refused", file=error.file, key_path=error.key_path, problem=error.problem, fix=error.fix
                )
                return error
        self._rooms.observer.reloaded(Reloaded.APPLIED)
        self._log.info(
            "reload_applied", policy=applied.policy, sha256=applied.sha256, needs_restart=applied.needs_restart
        )
        return applied

    async def _apply(self) -> Applied:
        configured = await asyncio.to_thread(self._read)
        settings, plan = configured.settings, configured.plan
        keyring = await asyncio.to_thread(wiring.keyring, settings, plan)
        try:
            counters = await self._counters.make_for(settings.pools)
        except PoolTokenizerUnusable as error:
            place, cause = f"pools.{error.pool}.tokenizer.path", error.cause
            raise ConfigError(str(configured.path), place, f"{cause.path}: {cause.problem}", cause.fix) from error
        pools = wiring.pools(settings)
        # From here on nothing awaits and nothing fails.
        needs_restart = tuple(_changed(self.settings, settings))
        self._rooms.keyring = keyring
        self._rooms.allowed_engine_fields = settings.engine_fields.allow
        for replaced in self._counters.put_in_force(settings.pools, counters):
            self._in_force.once_unused(lambda replaced=replaced: self._counters.close_one(replaced))  # type: ignore[misc]
        self._in_force.put(plan, pools)
        self._rooms.shadows.put(plan, configured.shadow, self._rooms.gates, self._rooms.clock.now())
        self._files = configured.files
        self.settings = settings.model_copy(
            update={section: getattr(self.settings, section) for section in RESTART_SECTIONS}
            | {"auth": settings.auth.model_copy(update={"jwt": self.settings.auth.jwt})}
            | {"tracing": self.settings.tracing}
        )
        return Applied(plan.name, plan.sha256, needs_restart)

    async def _stamps(self) -> dict[Path, Stamp | None]:
        files = self._files
        return await asyncio.to_thread(lambda: {path: stamp_of(path) for path in files})


def _changed(was: Settings, wanted: Settings) -> Iterator[str]:
    """Yield the key paths that changed in sections which are read at the start alone."""
    for section in RESTART_SECTIONS:
        before: dict[str, Any] = getattr(was, section).model_dump()
        after: dict[str, Any] = getattr(wanted, section).model_dump()
        yield from (f"{section}.{key}" for key in after if after[key] != before[key])
    if was.auth.jwt != wanted.auth.jwt:
        yield "auth.jwt"
    if was.tracing != wanted.tracing:
        yield "tracing"
