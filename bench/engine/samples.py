"""What an engine's readings before, during and after a run come to. Pure.

A counter's difference is *unknown* as soon as one reading is of another process than the one before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

GAP_S_TOLERATED = 10.0
_PEAKS = ("running", "waiting", "kv_usage_max", "gpu_memory_bytes")


def placed(lines: Sequence[Mapping[str, Any]], started_at_s: float) -> list[dict[str, Any]]:
    """The lines with milliseconds from the start of the run in the place of the clock's seconds."""
    return [
        {"at_ms": round((line["at_s"] - started_at_s) * 1000, 1), **{k: v for k, v in line.items() if k != "at_s"}}
        for line in lines
    ]


def during(lines: Sequence[Mapping[str, Any]], until_ms: float) -> dict[str, Any]:
    """How many readings there were, their longest gap, and the highest of each gauge; empty where there were none.

    until_ms: the end of the run, whenever the last line was written.
    """
    if not lines:
        return {}
    readable = [line for line in lines if "unreadable" not in line]
    said: dict[str, Any] = {"samples": len(readable)}
    if unreadable := Counter(line["unreadable"] for line in lines if "unreadable" in line):
        said["unreadable"] = dict(unreadable)
    if (gap_s := longest_gap_s(lines, until_ms)) is not None:
        said["gap_s_max"] = round(gap_s, 3)
    for name in _PEAKS:
        values = [line[name] for line in lines if name in line]
        if values:
            said[name if name.endswith("_max") else f"{name}_max"] = max(values)
    absent = next((line["gpu_absent"] for line in lines if "gpu_absent" in line), None)
    if absent is not None:
        said["gpu_absent"] = absent
    return said


def longest_gap_s(lines: Sequence[Mapping[str, Any]], until_ms: float) -> float | None:
    """Between two readings that told something; from the first line, whatever it told, and to the end of the run."""
    times = [line["at_ms"] for line in lines if "unreadable" not in line]
    if not times:
        return None
    gaps_ms = [later - earlier for earlier, later in pairwise([lines[0]["at_ms"], *times, max(until_ms, times[-1])])]
    return float(max(gaps_ms)) / 1000


def of_each(lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The lines of each engine; those of one alone are as they are."""
    if len(names) == 1:
        return {names[0]: [dict(line) for line in lines]}
    return {name: [{"at_ms": line["at_ms"], **line["engines"][name]} for line in lines] for name in names}


def restarts(lines: Sequence[Mapping[str, Any]]) -> int:
    """How often a reading was of another process: another start, or a counter that fell."""
    readable = [line for line in lines if "unreadable" not in line]
    return sum(_is_another(earlier, later) for earlier, later in pairwise(readable))


def _is_another(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    if "started_at" in earlier and "started_at" in later:
        return bool(earlier["started_at"] != later["started_at"])
    return any(later.get(name, -1.0) < earlier[name] for name in _COUNTED if name in earlier)


_COUNTED = ("prompt_tokens", "generation_tokens", "preemptions", "queue_observations")
