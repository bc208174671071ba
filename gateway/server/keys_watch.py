"""A file of keys, looked at again and again: keys that change are in force within 2 s.

Owns when the file counts as changed, which is once it stands still: half of what is being written may read as keys that
are fewer. A bad one changes nothing: it is logged, and the last good keys stay in force. Reads in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.observe.metrics import Reloaded
from gateway.strict_yaml import ConfigError

LOOK_EVERY_S = 0.5

Stamp = tuple[int, int, int]
K = TypeVar("K")


class KeysWatch(Generic[K]):
    """Watches one file. load: reads it, in a thread; raises ConfigError. put_in_force: takes the new keys.

    path: of the file now, None where there is none. one_at_a_time: held while keys are read and put in force, so that
    no reload comes in between. told: what became of each change.
    """

    def __init__(
        self,
        path: Callable[[], Path | None],
        load: Callable[[], K],
        put_in_force: Callable[[K], None],
        told: Callable[[Reloaded], None],
        one_at_a_time: asyncio.Lock,
    ) -> None:
        self._path = path
        self._load = load
        self._put_in_force = put_in_force
        self._told = told
        self._one_at_a_time = one_at_a_time
        self._log = structlog.get_logger().bind()

    async def run(self) -> None:
        """Look until cancelled. The first look loads too: the file may have changed since the start read it."""
        seen = last = await asyncio.to_thread(stamp_of, self._path())
        is_first = True
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            # Taken before the file is read: a change in between is found at the next look.
            path = self._path()
            stamp = await asyncio.to_thread(stamp_of, path)
            stands_still, last = stamp == last, stamp
            if not stands_still:
                continue
            if path is not None and (stamp != seen or is_first):
                async with self._one_at_a_time:
                    await self._reload(is_news=stamp != seen)
            seen, is_first = stamp, False

    async def _reload(self, *, is_news: bool) -> None:
        try:
            keys = await asyncio.to_thread(self._load)
        except ConfigError as error:
            self._log.error(
                "keys_refused", file=error.file, key_path=error.key_path, problem=error.problem, fix=error.fix
            )
            self._told(Reloaded.REFUSED)
            return
        self._put_in_force(keys)
        if is_news:
            self._told(Reloaded.APPLIED)
            self._log.info("keys_in_force", file=str(self._path()))


def stamp_of(path: Path | None) -> Stamp | None:
    """What changes when the file does; None where it cannot be looked at."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
