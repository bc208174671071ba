"""`gateway bench report`: tables and one HTML file from what lies in a folder of records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench.analysis.oracle import EngineSteps
from bench.errors import UsageError
from bench.exits import Exit
from bench.progress import say
from bench.records.material import read
from bench.records.store import DRILLS_FILE
from bench.records.stored import read_json
from bench.report.drill_table import describe
from bench.report.page import blocks, document
from bench.report.whole_report import report
from bench.simulation.profiles import PROFILES, calibrated

HELP = "make tables and one HTML file from a run, a comparison, a ladder or drills"
EXAMPLE = """example:
  gateway bench report runs/policies-20260101T000000Z-0a1b2c3d

Prints the tables as Markdown, and writes report.html (one file, opens offline, light and dark), report.md and
scorecard.json beside the records, or where --out says. It says first which runs are INVALID and why; figures are of the
traces that count.

exit codes: 0 all runs VALID (all drills passed), 1 a drill failed, 2 usage, 4 some runs are INVALID"""

_HTML, _MARKDOWN = "report.html", "report.md"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="of the engine: first tokens are held against the step oracle"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where report.html and report.md go (default: there)")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    was_drilled = (args.folder / DRILLS_FILE).is_file()
    files, code = _drilled(args.folder) if was_drilled else _measured(args.folder, args.calibration)
    folder = args.out or args.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}). Choose another.") from error
    print(files[_MARKDOWN], end="")
    say(f"\n{folder / _HTML}")
    return code


def _measured(folder: Path, calibration: Path | None) -> tuple[dict[str, str], int]:
    material = read(folder)
    made = report(material, None if calibration is None else _steps(calibration))
    code = Exit.VALID if all(run.stored.valid for run in material.runs) else Exit.INVALID
    card = json.dumps(made.card.to_json(), indent=2, allow_nan=False) + "\n"
    return {_HTML: made.html(), _MARKDOWN: made.markdown(), "scorecard.json": card}, code


def _steps(calibration: Path) -> EngineSteps:
    engine = calibrated(PROFILES["cpu"], calibration)
    return EngineSteps(engine.step_time, engine.request_s, engine.max_num_batched_tokens, engine.max_num_batched_tokens)


def _drilled(folder: Path) -> tuple[dict[str, str], int]:
    held = read_json(folder / DRILLS_FILE)["drills"]
    said = describe(held)
    code = Exit.VALID if all(each["passed"] for each in held) else Exit.FAILURE
    return {_HTML: document("fault drills: bench report", blocks(said)), _MARKDOWN: f"{said}\n"}, code
