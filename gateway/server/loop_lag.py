"""How late the event loop runs what is due, while it serves.

Owns the one timer that measures it. What holds the loop up holds every request up, health answers too: the measure says
that it happened, never what did it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.05


async def measure_lag(lagged: Callable[[float], None]) -> None:
    """Tell the lateness, in seconds, of a timer that is set again and again. Runs until it is cancelled.

    What uvloop rounds a timer up to, a millisecond, is in it.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_at = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lagged(max(0.0, loop.time() - due_at))
