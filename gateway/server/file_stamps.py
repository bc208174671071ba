"""When files that are looked at again and again count as changed: once they stand still.

Half of what is being written may read as something whole: as keys that are fewer, as pools without their last engine.
Owns the comparison of looks; when to look, and what to do then, is the caller's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

Stamp = tuple[int, int, int]
S = TypeVar("S")


def stamp_of(path: Path | None) -> Stamp | None:
    """What changes when the file does; None where it cannot be looked at."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Looks(Generic[S]):
    """What the last look showed, and what was taken in last. Stamps are taken before files are read."""

    def __init__(self, stamp: S) -> None:
        self._last = self._taken = stamp

    def stands_still(self, stamp: S) -> bool:
        """Note a look; return whether it shows what the one before it did."""
        is_still, self._last = stamp == self._last, stamp
        return is_still

    def is_news(self, stamp: S) -> bool:
        return stamp != self._taken

    def take(self, stamp: S) -> None:
        self._taken = stamp
