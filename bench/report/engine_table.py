"""What the engine itself said over the runs that count, as Markdown: peaks, waits, preemptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.analysis.comparison import Load
from bench.tables import NOTHING, table

_HEAD = (
    "load", "mix", "arm", "running max", "waiting max", "KV max", "mean wait in the engine ms", "preemptions",
    "GPU memory max GiB",
)  # fmt: skip


def describe(found: Sequence[tuple[Load, str, Sequence[Mapping[str, Any]]]]) -> str:
    """found: load, arm and the `engine` part of the measurements of its runs; empty where no engine was read."""
    rows = [[load.label, load.mix, arm, *_row(engines)] for load, arm, engines in found if engines]
    if not rows:
        return ""
    absent = {
        each["during"]["gpu_absent"]
        for _, _, engines in found
        for each in engines
        if "gpu_absent" in each.get("during", {})
    }
    said = f"\n\nGPU memory was not measured: {'; '.join(sorted(absent))}." if absent else ""
    return f"### The engine during the runs{said}\n\n{table(_HEAD, rows)}"


def _row(engines: Sequence[Mapping[str, Any]]) -> list[str]:
    def peak(name: str) -> float | None:
        values = [each["during"][name] for each in engines if name in each.get("during", {})]
        return max(values, default=None)

    def total(name: str) -> float | None:
        values = [each.get("delta", {}).get(name) for each in engines]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return sum(known) if len(known) == len(values) else None

    running, waiting, kv, gpu = map(peak, ("running_max", "waiting_max", "kv_usage_max", "gpu_memory_bytes_max"))
    waited_s, waits = total("queue_seconds"), total("queue_observations")
    return [
        _whole(running),
        _whole(waiting),
        NOTHING if kv is None else f"{kv:.0%}",
        _whole(waited_s * 1000 / waits if waited_s is not None and waits else None),
        _whole(total("preemptions")),
        NOTHING if gpu is None else f"{gpu / 2**30:.1f}",
    ]


def _whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
