"""What the sender of a divided prompt is told: send this much of it, or take back what is at the engine.

Owns the one signal between admission, which decides, and the coroutine that sends. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TakenBack(Exception):  # noqa: N818 - an order, not an error
    """The request was at the engine and has been recalled; its connection is closed."""


class Parts:
    """The orders for one divided prompt. The last one counts: an order that was not read yet can be withdrawn."""

    def __init__(self) -> None:
        self._ordered = asyncio.Event()
        self._prefix_tokens: int | None = None
        self._scope: asyncio.Timeout | None = None
        self._is_recalled = False

    def proceed(self, prefix_tokens: int | None) -> None:
        """Order the next part: a prefix, or None for the request itself."""
        self._prefix_tokens = prefix_tokens
        self._ordered.set()

    async def next(self) -> int | None:
        """Wait for the order to send, and return what."""
        while not self._ordered.is_set():  # it may have been withdrawn since it woke this up
            await self._ordered.wait()
        self._ordered.clear()
        return self._prefix_tokens

    def recall(self) -> None:
        """Take back the order that was not read yet, else what runs inside `recallable`."""
        if self._ordered.is_set():
            self._ordered.clear()
        elif self._scope is not None and not self._is_recalled:
            self._is_recalled = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    def keep(self) -> None:
        """The first token is here: from now on nothing is taken back."""
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(None)
        self._scope = None

    @asynccontextmanager
    async def recallable(self) -> AsyncIterator[None]:
        """Run what may be taken back until `keep`. Raises TakenBack."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope, self._is_recalled = scope, False
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TakenBack from error
        finally:
            self._scope = None
