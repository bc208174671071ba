"""The exit codes of measuring commands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

from bench.records.request import Outcome, RequestRecord


class Exit(IntEnum):
    """0 and 2 are every command's; 4 is the measurement contract's."""

    VALID = 0
    FAILURE = 1
    USAGE = 2
    UNFINISHED = 3
    INVALID = 4


class Judged(Protocol):
    """A run and whether it may be used."""

    @property
    def valid(self) -> bool: ...

    @property
    def records(self) -> Sequence[RequestRecord]: ...


def of_runs(results: Sequence[Judged]) -> int:
    """INVALID before UNFINISHED: what may not be used is not worth more for being complete."""
    if any(not result.valid for result in results):
        return Exit.INVALID
    if any(record.outcome is Outcome.UNFINISHED for result in results for record in result.records):
        return Exit.UNFINISHED
    return Exit.VALID
