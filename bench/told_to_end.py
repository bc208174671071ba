"""Being told to end, by Ctrl-C, SIGTERM or a terminal that closes: what was measured until then is still written down.

Owns the handlers of these signals while a load is sent and recorded. Ends nothing itself.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ToldToEnd:
    """A context. The first signal cancels what `cancels` does, and is put off where that is nothing.

    heard: one has come. A second one while it ends is KeyboardInterrupt: somebody is in a hurry. A signal that was
    ignored before (by `nohup`) stays so.
    """

    def __init__(self) -> None:
        self.heard = False
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        ours = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._hear) for number in ours}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    async def cancels(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it. Raises CancelledError where a signal cancelled it, or came before it began."""
        self._task = asyncio.current_task()
        try:
            if self.heard:
                work.close()
                raise asyncio.CancelledError
            await work
        finally:
            self._task = None

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        again, self.heard = self.heard, True
        if self._task is None:
            return
        if again:
            raise KeyboardInterrupt
        self._task.cancel()
        # The loop may be asleep.
        self._task.get_loop().call_soon_threadsafe(_nothing)


def _nothing() -> None:
    """Wakes a loop, no more."""
