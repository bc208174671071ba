"""Runs one command, and ends it with whoever asked for it: also where that one was killed and could end nothing.

`python -P guard.py COMMAND…`. Whoever asks holds the other end of the pipe that is its standard input: once nobody
does, the command is told to end, and all of its process group is killed. It is run as a file, from any folder, and so
knows nothing of the bench.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

END_S_MAX = 30.0
NOT_FOUND = 127


def main(command: Sequence[str]) -> int:
    """Return how the command ended. A signal to end is passed on to it."""
    if os.getpgrp() != os.getpid():
        os.setsid()  # whose group is killed at the end is its own
    told: list[int] = []

    def passed_on(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        if running is not None:
            running.send_signal(number)

    running: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, passed_on)
    try:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - what it was asked for
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND
    if told:
        running.terminate()
    return _watched(running)


def _watched(running: subprocess.Popen[bytes]) -> int:
    ended = os.pidfd_open(running.pid)
    seen, _, _ = select.select([0, ended], [], [])
    if 0 in seen:
        running.terminate()
        select.select([ended], [], [], END_S_MAX)
        os.killpg(0, signal.SIGKILL)
    code = running.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
