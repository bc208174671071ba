"""Child processes that end with whoever started them, in whatever way that is told to end. Owns their start and end."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

END_S_MAX = 30.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and end it. SIGTERM, or a terminal that closes, is KeyboardInterrupt meanwhile. options: Popen's.

    Its session is its own: the terminal's Ctrl-C reaches this process alone, which ends the others.
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
