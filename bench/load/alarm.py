"""A timer that rings to the microsecond. An event loop's own counts whole milliseconds, and to spin takes a core."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

_MONOTONIC = 1  # the clock of time.perf_counter
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("at", _TimeSpec))


class Alarm:
    """Linux's timerfd on the running loop (the standard library has it from 3.13 on). Close it."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._number = self._libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self._number < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._setting = _Setting()
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._number, self._rung)

    def set(self, at_s: float) -> None:
        """Ring at a reading of time.perf_counter, at once where it is past; an earlier setting is forgotten."""
        seconds = int(at_s)
        self._setting.at.seconds = seconds
        # All zero would turn it off.
        self._setting.at.nanoseconds = max(1, int((at_s - seconds) * 1e9))
        self._libc.timerfd_settime(self._number, _ABSOLUTE, ctypes.byref(self._setting), None)

    def close(self) -> None:
        self._loop.remove_reader(self._number)
        os.close(self._number)

    def _rung(self) -> None:
        try:
            os.read(self._number, 8)
        except BlockingIOError:
            return  # set anew in the meantime
        self._ring()
