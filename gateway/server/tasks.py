"""The one way to start a background task: named, kept, and its crash logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.get_logger(__name__)
_alive: set[asyncio.Task[Any]] = set()


def spawn(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Run `work` in the background. Whoever spawns it cancels it at its own end."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _alive.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _alive.discard(task)
    if not task.cancelled() and (crash := task.exception()) is not None:
        _log.error("task_crashed", task=task.get_name(), exc_info=crash)
