"""Drills as Markdown: which passed, and of each what was expected and what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.tables import NOTHING, table


def describe(drills: Sequence[Mapping[str, Any]]) -> str:
    """`drills`: as they lie in faults.json."""
    failed = [each["drill"] for each in drills if not each["passed"]]
    verdict = f"FAILED: {', '.join(failed)}" if failed else f"All {len(drills)} drills passed"
    head = ("drill", "what happens", "passed", "offered", "completed", "served again after")
    rows = [_row(each) for each in drills]
    return "\n\n".join([f"## Fault drills\n\n{verdict}.", table(head, rows), *(_checks(each) for each in drills)])


def _row(drill: Mapping[str, Any]) -> list[str]:
    again_s = drill.get("served_again_s")
    return [
        drill["drill"],
        drill["about"],
        "yes" if drill["passed"] else "NO",
        str(drill["offered"]),
        str(drill["completed"]),
        NOTHING if again_s is None else f"{again_s:.1f} s",
    ]


def _checks(drill: Mapping[str, Any]) -> str:
    rows = [[each["check"], "yes" if each["passed"] else "NO", each["seen"]] for each in drill["checks"]]
    return f"### {drill['drill']}\n\n{table(('expected', 'met', 'seen'), rows)}"
