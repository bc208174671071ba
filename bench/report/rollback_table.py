"""A rehearsed rollback as Markdown: whether it held, and what became of the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.tables import NOTHING, table


def describe(said: Mapping[str, Any]) -> str:
    """`said`: as it lies in rollback.json."""
    verdict = "The rollback held." if said["held"] else "The rollback did NOT hold:"
    parts = [f"## Rollback rehearsed\n\n{verdict}"]
    if said["failures"]:
        parts.append("\n".join(f"- {each}" for each in said["failures"]))
    if figures := said["figures"]:
        parts.append(table(("what was seen", "figure"), _rows(figures, said["drain_deadline_s"])))
    return "\n\n".join(parts)


def _rows(figures: Mapping[str, Any], drain_deadline_s: float) -> list[list[str]]:
    streams, fired = figures["streams"], figures["abort_would_have_fired"]
    went = ", ".join(f"{count} {engine}" for engine, count in figures["new_after_switch"].items())
    ended = ", ".join(f"{count} {how}" for how, count in streams["ended_how"].items())
    return [
        ["requests offered, completed", f"{figures['offered']}, {figures['completed']}"],
        ["requests lost", str(figures["lost"])],
        ["refused by admission", str(figures["refused_by_admission"])],
        ["the gateway had the baseline in force after", _ms(figures.get("switch_ms"))],
        ["the first new request went to the baseline after", _ms(figures.get("first_new_at_baseline_ms"))],
        ["new requests went to", went or NOTHING],
        ["streams open at the switch, finished by themselves", f"{streams['open_at_switch']}, {streams['finished']}"],
        [f"streams ended at the deadline of {drain_deadline_s:g} s", ended or "0"],
        ["the withdrawn engines were idle after", _ms(figures.get("drained_ms"))],
        ["abort thresholds that the candidate passed", "; ".join(fired["candidate"]) or "none"],
        ["abort thresholds that the baseline passed", "; ".join(fired["baseline"]) or "none"],
    ]


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} ms"
