"""What the engine does while a demonstration runs, a line at a time. Owns a thread; reads metrics, changes nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from bench.engine.metrics import Reading, parse

EVERY_S = 1.0
LINE_EVERY = 5
"""Where no terminal shows it: one line for so many readings."""


class Progress:
    """`with Progress(read): …`. read: the engine's metrics page; may raise OSError, which is a moment without news."""

    def __init__(self, read: Callable[[], str], out: TextIO = sys.stderr) -> None:
        self._read = read
        self._out = out
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before, number, is_terminal = None, 0, self._out.isatty()
        while not self._over.wait(EVERY_S):
            try:
                now = parse(self._read())
            except (OSError, ValueError):
                continue
            number += 1
            if is_terminal:
                self._out.write(f"\r\033[K{line(before, now)}")
            elif number % LINE_EVERY == 1:
                self._out.write(line(before, now) + "\n")
            self._out.flush()
            before = now
        if is_terminal:
            self._out.write("\r\033[K")


def line(before: Reading | None, now: Reading) -> str:
    """Describe a reading, and what changed since the last."""
    gauges = now.gauges
    said = (
        f"  engine: {gauges.get('running', 0):.0f} running, {gauges.get('waiting', 0):.0f} waiting inside it, "
        f"KV {gauges.get('kv_usage_max', 0):.1%}"
    )
    if before is None:
        return said

    def grown(name: str) -> float:
        return (now.counters.get(name, 0) - before.counters.get(name, 0)) / EVERY_S

    return f"{said}, {grown('prompt_tokens'):,.0f} prompt and {grown('generation_tokens'):,.0f} output tokens/s"
