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
    """The orders for one divided prompt, one after the other."""

    def __init__(self) -> None:
        self._next: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._scope: asyncio.Timeout | None = None

    def proceed(self, prefix_tokens: int | None) -> None:
        """Order the next part: a prefix, or None for the request itself."""
        if not self._next.cancelled():
            self._next.set_result(prefix_tokens)

    async def next(self) -> int | None:
        """Wait for the order to send, and return what."""
        ordered = await self._next
        self._next = asyncio.get_running_loop().create_future()
        return ordered

    def recall(self) -> None:
        """Take back what runs inside `recallable`; where nothing does any more it is too late, and nothing happens."""
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def keep(self) -> None:
        """The first token is here: from now on nothing is taken back."""
        if self._scope is not None:
            self._scope.reschedule(None)
            self._scope = None

    @asynccontextmanager
    async def recallable(self) -> AsyncIterator[None]:
        """Run what may be taken back until `keep`. Raises TakenBack."""
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        except TimeoutError as error:
            if self._scope is None or not self._scope.expired():
                raise
            raise TakenBack from error
        finally:
            self._scope = None
