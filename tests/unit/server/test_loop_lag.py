"""A timer that comes late is told as late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gateway.server.loop_lag import INTERVAL_S, measure_lag

HELD_S = 0.25


class LateLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands at what the test says; each timer is run once its time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.late_s = iter((0.0, HELD_S, 0.0))

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: object, context=None):
        self.now = when + next(self.late_s, 0.0)
        return super().call_at(when, callback, *args, context=context)


def test_each_timers_lateness_is_told_and_no_more():
    loop, told = LateLoop(), []

    def lagged(lag_s: float) -> None:
        told.append(lag_s)
        if len(told) == 3:
            task.cancel()

    task = loop.create_task(measure_lag(lagged))
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert [round(lag_s, 6) for lag_s in told] == [0.0, HELD_S, 0.0]
    assert INTERVAL_S < HELD_S
