"""What a person sees while runs go on: live figures by class in a terminal, plain lines elsewhere. Owns one thread.

The thread only reads. It wakes seldom, because it shares the interpreter with the client that keeps time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from bench.load.tally import ClassTally, Tally
from bench.records.request import Outcome
from bench.tables import NOTHING, milliseconds

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

REFRESH_S = 1.0
LINE_EVERY_S = 15.0


def say(text: str) -> None:
    """For whoever watches: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


class TimeLeft:
    """How long the rest takes: the planned times of what is to come, and what earlier ones took beyond theirs."""

    def __init__(self, planned_s: Sequence[float]) -> None:
        self._planned_s = list(planned_s)
        self._beyond_s: list[float] = []

    def took(self, number: int, seconds: float) -> None:
        """`number` from 0."""
        self._beyond_s.append(max(0.0, seconds - self._planned_s[number]))

    def seconds(self, number: int, elapsed_s: float) -> float:
        """From inside number `number`, `elapsed_s` after its first planned request."""
        each = sum(self._beyond_s) / len(self._beyond_s) if self._beyond_s else 0.0
        to_come = self._planned_s[number + 1 :]
        return max(0.0, self._planned_s[number] - elapsed_s) + each + sum(to_come) + each * len(to_come)


class Progress:
    """`with Progress(planned_s) as progress: progress.begin(0, label); progress.watch(tally)`.

    planned_s: how long requests are sent in each run.
    """

    def __init__(self, planned_s: Sequence[float], out: TextIO = sys.stderr) -> None:
        self._left = TimeLeft(planned_s)
        self._runs = len(planned_s)
        self._out = out
        self._number, self._label = 0, ""
        self._tally: Tally | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._lines, name="progress", daemon=True)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._out.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                get_renderable=self._table,
                console=Console(file=self._out),
                refresh_per_second=1 / REFRESH_S,
                transient=True,
            )
            self._live.start()
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._live is not None:
            self._live.stop()
        else:
            self._thread.join()

    def begin(self, number: int, label: str) -> None:
        """The run of that number, from 0, is next."""
        self._tally = None
        self._number, self._label = number, label
        self.say(f"[{number + 1}/{self._runs}] {label}")

    def watch(self, tally: Tally) -> None:
        self._tally = tally

    def took(self, seconds: float) -> None:
        """The run that was begun is over."""
        self._left.took(self._number, seconds)

    def say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._out, flush=True)

    def _lines(self) -> None:
        while not self._over.wait(LINE_EVERY_S):
            tally = self._tally
            if tally is not None and tally.elapsed_s() > 0:
                self.say(f"  {self._where(tally)}: " + "; ".join(line(*each) for each in tally.classes.items()))

    def _where(self, tally: Tally) -> str:
        elapsed_s = tally.elapsed_s()
        left_s = self._left.seconds(self._number, elapsed_s)
        return f"{min(elapsed_s, tally.span_s):.0f} of {tally.span_s:.0f} s, {duration(left_s)} left in all"

    def _table(self) -> Table:
        from rich.table import Table

        tally = self._tally
        title = f"[{self._number + 1}/{self._runs}] {self._label}"
        if tally is not None:
            title += f" · {self._where(tally)}"
        shown = Table(title=title, title_justify="left", expand=False)
        for column in ("class", "sent", "open", "completed", "refused", "other ends", "TTFT p95 of the last, ms"):
            shown.add_column(column, justify="left" if column == "class" else "right")
        for name, own in {} if tally is None else tally.classes.items():
            shown.add_row(name, *_cells(own))
        return shown


def line(name: str, own: ClassTally) -> str:
    sent, still, completed, refused, others, p95 = _cells(own)
    return f"{name} {sent} sent, {still} open, {completed} completed, {refused} refused, {others} other, p95 {p95} ms"


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _cells(own: ClassTally) -> list[str]:
    ended = own.ended.copy()
    completed, refused = ended[Outcome.COMPLETED], ended[Outcome.REFUSED] + ended[Outcome.EXPIRED]
    others = sum(ended.values()) - completed - refused
    p95 = own.recent_p95_ms()
    return [
        f"{own.sent}/{own.planned}",
        str(own.open),
        str(completed),
        str(refused),
        str(others),
        NOTHING if p95 is None else milliseconds(p95),
    ]
