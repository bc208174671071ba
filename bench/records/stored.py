"""Runs as they lie on disk, read back: for reports, and for going on after an interruption. Changes nothing there.

A run is whole when its last file is there: each file is renamed into place when it is complete, in one order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.classes import Window
from bench.errors import UsageError
from bench.records.request import RequestRecord, from_row
from bench.records.store import ENGINE_FILE, LAST_FILE

CUT_SUFFIX = ".cut"
REPEATED_SUFFIX = ".invalid"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run. `run`, `measurements` and `verdict` are the files of these names; engine: readings of it, if any."""

    folder: Path
    cell_id: str
    valid: bool
    window: Window
    run: Mapping[str, Any]
    records: Sequence[RequestRecord]
    measurements: Mapping[str, Any]
    verdict: Mapping[str, Any]
    engine: Sequence[Mapping[str, Any]] = ()

    @property
    def interrupted(self) -> bool:
        return bool(self.verdict.get("interrupted", False))


def is_whole(folder: Path) -> bool:
    return (folder / LAST_FILE).is_file()


def set_aside(folder: Path) -> int:
    """How many INVALID runs were repeated: a reader of the others is to know."""
    return len([path for path in folder.iterdir() if path.name.endswith(REPEATED_SUFFIX)])


def read_run(folder: Path) -> StoredRun:
    """Raises UsageError where the folder is no whole run."""
    if not is_whole(folder):
        raise UsageError(f"{folder}: no whole run. It has a {LAST_FILE} where it is one.")
    try:
        run, measurements, verdict = (read_json(folder / f"{name}.json") for name in ("run", "measurements", "verdict"))
        return StoredRun(
            folder=folder,
            cell_id=str(run["cell_id"]),
            valid=verdict["verdict"] == "VALID",
            window=Window(float(run["warmup_seconds"]), float(measurements["window"]["seconds"])),
            run=run,
            records=read_requests(folder),
            measurements=measurements,
            verdict=verdict,
            engine=[json.loads(line) for line in _lines(folder / ENGINE_FILE)],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder}: cannot be read as a run ({error}). Move it away to go on without it.") from error


def read_requests(folder: Path) -> list[RequestRecord]:
    """Raises OSError and ValueError where there are none to be read."""
    return [from_row(json.loads(line)) for line in _lines(folder / "requests.jsonl", must_be=True)]


def _lines(path: Path, *, must_be: bool = False) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if must_be or path.is_file() else []


def runs_in(folder: Path) -> list[Path]:
    """The whole runs of a comparison, by time of start."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and is_whole(each))


def read_json(path: Path) -> dict[str, Any]:
    """Raises UsageError where there is no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a JSON object.")
    return value
