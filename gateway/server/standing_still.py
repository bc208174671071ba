"""When files that are looked at again and again count as changed.

Owns that alone: they do once they stand still, since half of what is being written may read as a whole that says less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

LOOK_EVERY_S = 0.5  # a change is seen at one look, and taken up at the next: within 2 s

Stamp = tuple[int, int, int]
Stamps = Mapping[Path, Stamp | None]


class StandingStill:
    """Files as they were when they were last read, and at the last look. stamps: of both, to begin with."""

    def __init__(self, stamps: Stamps) -> None:
        self._read = self._last = stamps

    def look(self, stamps: Stamps) -> bool:
        """Whether they are as they were at the last look."""
        before, self._last = self._last, stamps
        return stamps == before

    @property
    def is_news(self) -> bool:
        """Whether they were otherwise when they were last read."""
        return self._last != self._read

    def were_read(self, stamps: Stamps) -> None:
        """stamps: taken before they were read, so that a change in between is found at the next look."""
        self._read = self._last = stamps


def stamps_of(paths: Iterable[Path]) -> Stamps:
    """What changes when a file does; None for one that cannot be looked at."""
    return {path: _stamp_of(path) for path in paths}


def _stamp_of(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
