"""Child processes that end with whoever started them, in whatever way that is told to end. Owns their start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench import guard

END_S_MAX = 30.0
_KILLED_S_MAX = 30.0  # a GPU's memory is given back by the system, which takes seconds
_POLL_S = 0.02
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_MORE = "ZX"  # states in /proc of what is only to be reaped


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and end it. SIGTERM, or a terminal that closes, is KeyboardInterrupt meanwhile. options: Popen's.

    Its session is its own: the terminal's Ctrl-C reaches this process alone, which ends the others. At the end all of
    its process group is killed; whether it lives is asked of `lives`, since the id of one that was reaped is free.
    """
    told: list[int] = []
    ours = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` stays so
    before = {number: signal.signal(number, lambda which, _: told.append(which)) for number in ours}
    try:
        # Who is told to end while it starts is heard once there is a process to be ended.
        process = subprocess.Popen(command, start_new_session=True, **options)  # noqa: S603 - the caller's own program
        try:
            for number in ours:
                signal.signal(number, signal.default_int_handler)
            if told:
                raise KeyboardInterrupt
            yield process
        finally:
            _end(process)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def guarded(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A `child` that ends, with its whole group, also where this process is killed. Its standard input is taken."""
    words = [sys.executable, "-P", guard.__file__, *command]
    with child(words, stdin=subprocess.PIPE, **options) as process:
        yield process


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has not ended yet. It is not reaped, so that its id stays its own."""
    if process.returncode is not None:
        return False
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def members(group: int) -> list[int]:
    """The processes of a group that live."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended in this moment
            state, _, its_group, *_ = (
                (each / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
            if int(its_group) == group and state not in _NO_MORE:
                found.append(int(each.name))
    return found


def wait_until_gone(group: int) -> None:
    """Of a `guarded` child whose starter was killed: until its guard has ended it, and no longer than that takes."""
    _until(lambda: not members(group), END_S_MAX + _KILLED_S_MAX)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        process.terminate()
        _until(lambda: not lives(process), END_S_MAX)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _until(lambda: not members(process.pid), _KILLED_S_MAX)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _until(true: Callable[[], bool], wait_s_max: float) -> None:
    give_up_at = time.monotonic() + wait_s_max
    while not true() and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
