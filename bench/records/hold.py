"""A folder that one process at a time may add to. The system lets go of it however that process ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import UsageError


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold the folder that `file`, one of its own, stands for. Raises UsageError where another process does.

    The file itself is locked, so that nothing is left behind; child processes do not inherit the lock.
    """
    try:
        locked = file.open("rb+")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written ({error.strerror}). Make the folder writable.") from error
    with locked:
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            said = "another `gateway bench` adds to it. Wait for its end, or end it first"
            raise UsageError(f"{file.parent}: {said}.") from error
        except OSError as error:
            said = f"its file system holds no locks ({error.strerror}). Copy the folder to one that does"
            raise UsageError(f"{file.parent}: {said}.") from error
        yield
