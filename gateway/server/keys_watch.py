"""A file of keys, looked at again and again: keys that change are in force within 2 s.

Owns when to look. A bad file changes nothing: it is logged, and the last good keys stay in force. Reads in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.observe.metrics import Reloaded
from gateway.server.file_stamps import Looks, stamp_of
from gateway.strict_yaml import ConfigError

LOOK_EVERY_S = 0.5

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
        looks = Looks(await asyncio.to_thread(stamp_of, self._path()))
        is_first = True
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            path = self._path()
            stamp = await asyncio.to_thread(stamp_of, path)
            if not looks.stands_still(stamp):
                continue
            is_news = looks.is_news(stamp)
            if path is not None and (is_news or is_first):
                async with self._one_at_a_time:
                    await self._reload(is_news=is_news)
            looks.take(stamp)
            is_first = False

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
