"""One at a time, across processes: a lock file that the kernel frees when its holder ends, however it ends.

Owns nothing but the lock. Never removes the file: a removed lock file can be held twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.engine.words import say


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock at path; where another process holds it, say what is waited for and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        os.set_inheritable(file.fileno(), True)  # a child that is given it (close_fds=False) keeps the lock as well
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is {doing}: waiting for it ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
