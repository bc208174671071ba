"""The engines behind a target, read around a run: what they say as one and each, and what voids the run. Pure.

What is not known of one of them is not known of all: a sum of some would look like a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.engine.metrics import UNKNOWN, Reading, Unreadable, as_one, delta, restarted
from bench.engine.samples import GAP_S_TOLERATED, during, longest_gap_s, of_each, restarts

NOBODY = Unreadable("no_connection")


@dataclass(slots=True)
class Around:
    """One engine. None: it was not read."""

    before: Reading | Unreadable | None = None
    after: Reading | Unreadable | None = None
    version: str | None = None
    model_revision: str | None = None


Lines = Sequence[Mapping[str, Any]]  # of engine.jsonl


def faults(engines: Mapping[str, Around], lines: Lines, until_ms: float) -> list[str]:
    """Why the run was not of engines that were there from its beginning to its end, each one the same process.

    Or was not seen: for so long that nobody knows.
    """
    reasons = []
    apart = of_each(lines, list(engines))
    for name, engine in engines.items():
        said = _said_of(name, engines)
        if isinstance(engine.before, Reading) and engine.after == NOBODY:
            reasons.append(f"{said} went away during the run: nothing answers there any more")
        elif engine.before == NOBODY and isinstance(engine.after, Reading):
            reasons.append(f"{said} was not there yet at the start of the run")
        elif _restarted(engine, apart[name]):
            reasons.append(f"{said} restarted during the run")
    gap_s = longest_gap_s(lines, until_ms)
    if gap_s is not None and gap_s > GAP_S_TOLERATED:
        reasons.append(
            f"engine metrics during the run: {gap_s:.0f} s without a reading ({GAP_S_TOLERATED:g} are tolerated)"
        )
    return reasons


def notes(engines: Mapping[str, Around]) -> list[str]:
    """What a reader should know and voids nothing."""
    found = []
    for name, engine in engines.items():
        of = "" if len(engines) == 1 else f" of {name}"
        found += [
            f"engine metrics{of} {when} the run: {reading.reason}"
            for when, reading in (("before", engine.before), ("after", engine.after))
            if isinstance(reading, Unreadable)
        ]
        if isinstance(engine.before, Reading) and engine.before.idle is False:
            found.append(f"{_said_of(name, engines)} was serving other requests at the start")
    return found


def to_json(engines: Mapping[str, Around], lines: Lines, until_ms: float) -> dict[str, Any]:
    """All as one, and each where there are several; empty where none was read."""
    if all(engine.before is None and engine.after is None for engine in engines.values()):
        return {}
    apart = of_each(lines, list(engines))
    each = {name: _one(engine, apart[name], until_ms) for name, engine in engines.items()}
    if len(each) == 1:
        return {"engine": next(iter(each.values()))}
    said: dict[str, Any] = {}
    for when in ("before", "after"):
        readings = {name: reading for name, engine in engines.items() if (reading := getattr(engine, when)) is not None}
        if len(readings) == len(engines):
            said[when] = _reading_json(as_one(readings))
    if during_it := during(lines, until_ms):
        said["during"] = during_it
    if deltas := [one["delta"] for one in each.values() if "delta" in one]:
        said["delta"] = _summed(deltas) if len(deltas) == len(each) else {}
    return {"engine": {**said, "engines": each}}


def cached_share(said: Mapping[str, Any]) -> float | None:
    """Of all prompt tokens that the engines computed or found during the run, those found; of what `to_json` gives."""
    grown = said.get("engine", {}).get("delta", {})
    hits, tokens = grown.get("prefix_cache_hit_tokens"), grown.get("prompt_tokens")
    return hits / tokens if isinstance(hits, float) and isinstance(tokens, float) and tokens else None


def version(engines: Mapping[str, Around]) -> str | None:
    """Of all; several ones one after another."""
    return ", ".join(sorted({engine.version for engine in engines.values() if engine.version is not None})) or None


def model_revision(engines: Mapping[str, Around]) -> str | None:
    """Of all, where all have one and the same."""
    found = {engine.model_revision for engine in engines.values()}
    return found.pop() if len(found) == 1 else None


def effective_args(engines: Mapping[str, Around]) -> dict[str, Any]:
    """What the engines say that they run with, by name where they differ."""
    read = {name: dict(each.before.cache_config) for name, each in engines.items() if isinstance(each.before, Reading)}
    values = list(read.values())
    return (values[0] if all(value == values[0] for value in values) else read) if values else {}


def _one(engine: Around, lines: Lines, until_ms: float) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for when, reading in (("before", engine.before), ("after", engine.after)):
        if reading is not None:
            said[when] = _reading_json(reading)
    if during_it := during(lines, until_ms):
        said["during"] = during_it
    if isinstance(engine.before, Reading) and isinstance(engine.after, Reading):
        unknown = dict.fromkeys(engine.before.counters, UNKNOWN)
        said["delta"] = unknown if _restarted(engine, lines) else delta(engine.before, engine.after)
    return said


def _restarted(engine: Around, lines: Lines) -> bool:
    if restarts(lines):
        return True
    before, after = engine.before, engine.after
    return isinstance(before, Reading) and isinstance(after, Reading) and restarted(before, after)


def _summed(deltas: Sequence[Mapping[str, float | str]]) -> dict[str, float | str]:
    summed: dict[str, float | str] = {}
    for name in deltas[0]:
        values = [each.get(name) for each in deltas]
        known = [value for value in values if isinstance(value, float)]
        if len(known) == len(values):
            summed[name] = sum(known)
        elif UNKNOWN in values:
            summed[name] = UNKNOWN
    return summed


def _reading_json(reading: Reading | Unreadable) -> dict[str, Any]:
    return {"unreadable": reading.reason} if isinstance(reading, Unreadable) else reading.to_json()


def _said_of(name: str, engines: Mapping[str, Around]) -> str:
    return "the engine" if len(engines) == 1 else f"the engine {name}"
