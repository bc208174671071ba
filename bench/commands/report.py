"""`gateway bench report`: tables and one HTML file from what lies in a folder of records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.commands.arguments import say
from bench.commands.exits import Exit
from bench.errors import UsageError
from bench.report.material import read
from bench.report.whole_report import report

HELP = "make tables and one HTML file from a run, a comparison or a ladder"
EXAMPLE = """example:
  gateway bench report runs/policies-20260101T000000Z-0a1b2c3d

Prints the tables as Markdown, and writes report.html (one file, opens offline, light and dark) and report.md beside the
records, or where --out says. It says first which runs are INVALID and why; figures are of the traces that count.

exit codes: 0 all runs VALID, 2 usage, 4 some are INVALID"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_OR_COMPARISON")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where report.html and report.md go (default: there)")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    material = read(args.folder)
    made = report(material)
    folder = args.out or args.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(made.html(), encoding="utf-8")
        (folder / "report.md").write_text(made.markdown(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}). Choose another.") from error
    print(made.markdown(), end="")
    say(f"\n{folder / 'report.html'}")
    return Exit.VALID if all(run.stored.valid for run in material.runs) else Exit.INVALID
