"""Many cells, one after another, in one folder: what is still to be run, what is there already, what it comes to.

Owns the folder of a comparison. What lies in it as a whole run counts, whoever wrote it when: so a comparison that was
killed goes on where it stopped, and no cell is lost or run twice. A run that was cut in the middle is set aside: so
whoever makes a Campaign holds its folder (`bench.records.hold`), or two at once would cut each other's runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cell import CellPlan, CellRun
from bench.drive import run_cell, unmeasured
from bench.order import Cell
from bench.progress import Progress
from bench.records import stored
from bench.report.run_table import describe


class UnmeasurableError(Exception):
    """A cell's target is not what is to be measured, or is not there: the cell is INVALID, and the others go on.

    engine_start: as far as it is known.
    """

    def __init__(self, *reasons: str, engine_start: Mapping[str, Any] | None = None) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.engine_start = engine_start or {}


EngineStart = Mapping[str, Any]
Ready = Callable[[Cell], AbstractContextManager[EngineStart | None]]


def as_it_is(_cell: Cell) -> AbstractContextManager[None]:
    """For targets that run by themselves."""
    return nullcontext()


class Campaign:
    """ready: a context in which a cell's target answers; what it gives tells how its engine was started, if it was.

    retry_invalid: runs that are there and INVALID are set aside, and run again.
    """

    def __init__(
        self,
        folder: Path,
        plan_of: Callable[[Cell], CellPlan],
        *,
        ready: Ready = as_it_is,
        retry_invalid: bool = False,
    ) -> None:
        self.folder = folder
        self.runs: list[CellRun] = []
        self._plan_of = plan_of
        self._ready = ready
        self._found = _whole_runs(folder, retry_invalid=retry_invalid)

    def run(self, cells: Iterable[Cell], planned_s: Sequence[float]) -> Sequence[CellRun]:
        """Run what is not there yet, in order; stop at Ctrl-C. `planned_s`: how long requests are sent in each.

        `cells` may decide by `runs` what comes next. Raises TargetUnreachableError; what was run before is in `runs`.
        """
        with Progress(planned_s) as progress:
            for number, cell in enumerate(cells):
                progress.begin(number, cell.cell_id)
                found = self._found.get(cell.cell_id)
                if found is not None:
                    progress.say(f"there already: {found.folder.name}")
                    self.runs.append(_of_stored(cell, found))
                    continue
                run = self._run(cell, progress)
                self.runs.append(run)
                if run.interrupted:
                    break
        return self.runs

    def _run(self, cell: Cell, progress: Progress) -> CellRun:
        began = time.monotonic()
        plan = self._plan_of(cell)
        try:
            with self._ready(cell) as engine_start:
                plan = replace(plan, engine_start=engine_start or {})
                result = run_cell(plan, self.folder, progress.say, progress.watch)
        except UnmeasurableError as error:
            result = unmeasured(replace(plan, engine_start=error.engine_start), self.folder, error.reasons)
            progress.say(f"INVALID: {error}\n")
        else:
            progress.say(describe(result.measured, result.verdict) + "\n")
        progress.took(time.monotonic() - began)
        return CellRun(
            cell,
            result.run_id,
            result.valid,
            result.interrupted,
            result.plan.window,
            result.records,
            result,
        )


def _whole_runs(folder: Path, *, retry_invalid: bool) -> dict[str, stored.StoredRun]:
    """Cell id to the run of it. Runs that were cut are set aside, those that were interrupted do not count."""
    found: dict[str, stored.StoredRun] = {}
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        if each.name.endswith((stored.CUT_SUFFIX, stored.REPEATED_SUFFIX)):
            continue
        if stored.is_whole(each):
            run = stored.read_run(each)
            if run.interrupted:
                continue
            if retry_invalid and not run.valid:
                each.rename(each.with_name(each.name + stored.REPEATED_SUFFIX))
            else:
                found.setdefault(run.cell_id, run)
        elif _is_a_run(each):
            each.rename(each.with_name(each.name + stored.CUT_SUFFIX))
    return found


def _is_a_run(folder: Path) -> bool:
    """Empty, or with a run's first file, or that file half written."""
    names = {path.name for path in folder.iterdir()}
    return not names or bool(names & {"run.json", ".run.json.part"})


def _of_stored(cell: Cell, run: stored.StoredRun) -> CellRun:
    return CellRun(cell, run.folder.name, run.valid, run.interrupted, run.window, run.records)
