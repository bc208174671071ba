"""When a file of keys counts as changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.server import keys_watch
from gateway.server.file_stamps import Stamp
from gateway.server.keys_watch import KeysWatch


async def test_a_file_is_read_once_it_stands_still_and_not_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    at_first, growing, whole = (1, 90, 7), (2, 10, 7), (2, 80, 7)
    stamps: Iterator[Stamp] = iter([at_first, at_first, growing, whole, whole, whole])
    looks: list[Stamp] = []
    read_after: list[list[Stamp]] = []
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stamp_of(_path: Path | None) -> Stamp | None:
        stamp = next(stamps, None)
        if stamp is None:
            loop.call_soon_threadsafe(over.set)
        else:
            looks.append(stamp)
        return stamp

    def load() -> None:
        read_after.append(looks.copy())

    monkeypatch.setattr(keys_watch, "stamp_of", stamp_of)
    monkeypatch.setattr(keys_watch, "LOOK_EVERY_S", 0)
    watch = KeysWatch[None](lambda: Path("keys.yaml"), load, lambda _: None, lambda _: None, asyncio.Lock())
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        running = group.create_task(watch.run())
        await over.wait()
        running.cancel()
    assert read_after == [[at_first, at_first], [at_first, at_first, growing, whole, whole]]
