"""What the kit says while it works: plain lines on standard error, so that standard output stays for answers."""

from __future__ import annotations

import sys
from pathlib import Path

TAIL_BYTES_MAX = 64 * 1024


def say(line: str) -> None:
    print(f"engine: {line}", file=sys.stderr, flush=True)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log, at most TAIL_BYTES_MAX of it; empty where there is no log yet."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES_MAX))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])
