"""The exit codes of measuring commands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from bench.cell import CellResult
from bench.records.request import Outcome


class Exit(IntEnum):
    """0 and 2 are every command's; 4 is the measurement contract's."""

    VALID = 0
    FAILURE = 1
    USAGE = 2
    UNFINISHED = 3
    INVALID = 4


def of_runs(results: Sequence[CellResult]) -> int:
    """INVALID before UNFINISHED: what may not be used is not worth more for being complete."""
    if any(not result.verdict.valid for result in results):
        return Exit.INVALID
    if any(record.outcome is Outcome.UNFINISHED for result in results for record in result.records):
        return Exit.UNFINISHED
    return Exit.VALID
