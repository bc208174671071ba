"""An event loop whose clock a test puts ahead, so that a silence of half a minute takes none."""

from __future__ import annotations

import asyncio


class SkippingLoop(asyncio.SelectorEventLoop):
    """As asyncio's own, but that whoever waits for a time may have it sooner."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def skip(self, seconds: float) -> None:
        """Let so much time have passed; what arrived meanwhile is seen before what is due by now."""
        self._ahead_s += seconds


def skip(seconds: float) -> None:
    """Put the running loop ahead, which has to be one that can be."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop), "this loop's time is the machine's"
    loop.skip(seconds)
