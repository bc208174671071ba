"""A file of keys, looked at again and again: keys that change are in force within 2 s.

Owns when the file counts as changed, and that a bad one changes nothing: it is logged, and the last good keys stay in
force. Reads in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.strict_yaml import ConfigError

LOOK_EVERY_S = 1.0

_Stamp = tuple[int, int, int]
K = TypeVar("K")


class KeysWatch(Generic[K]):
    """Watches one file. load: reads it, in a thread; raises ConfigError. put_in_force: takes the new keys."""

    def __init__(self, path: Path, load: Callable[[], K], put_in_force: Callable[[K], None]) -> None:
        self._path = path
        self._load = load
        self._put_in_force = put_in_force
        self._log = structlog.get_logger().bind()

    async def run(self) -> None:
        """Look until cancelled. The first look loads too: the file may have changed since the start read it."""
        seen = await asyncio.to_thread(_stamp, self._path)
        is_first = True
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            # Taken before the file is read: a change in between is found at the next look.
            stamp = await asyncio.to_thread(_stamp, self._path)
            if stamp != seen or is_first:
                await self._reload(is_news=stamp != seen)
            seen, is_first = stamp, False

    async def _reload(self, *, is_news: bool) -> None:
        try:
            keys = await asyncio.to_thread(self._load)
        except ConfigError as error:
            self._log.error(
                "keys_refused", file=error.file, key_path=error.key_path, problem=error.problem, fix=error.fix
            )
            return
        self._put_in_force(keys)
        if is_news:
            self._log.info("keys_in_force", file=str(self._path))


def _stamp(path: Path) -> _Stamp | None:
    """What changes when the file does; None where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
