"""How fast the engine was when it was measured, as a factor on all its costs.

Owns two sources: requests that had the engine to themselves around a run (`bench.engine.speed_probe`), and how long it
was at work in the run itself (`bench.analysis.busy`), which is the same whatever the order. Each is held against what
the model says of the same requests. Reads records, sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.analysis.busy import busy_s
from bench.engine.speed_probe import OUTPUT_TOKENS, PROMPT_TOKENS, typical_s
from bench.errors import UsageError
from bench.records import stored
from bench.records.stored import StoredRun
from bench.simulation.profiles import Profile

SLOWEST = 3.0
"""Nobody is so much slower, or quicker, than a calibration of the same engine says."""
_STRIDE, _EXACT = 1.1, 1e-4


def slower(profile: Profile, factor: float) -> Profile:
    """Return the profile with every cost so many times as high."""
    costs = profile.step_time
    within_s = costs.per_token_chunk_s
    step_time = replace(
        costs,
        base_s=costs.base_s * factor,
        per_token_s=costs.per_token_s * factor,
        per_token_context_s=costs.per_token_context_s * factor,
        per_sequence_s=costs.per_sequence_s * factor,
        per_token_chunk_s=None if within_s is None else within_s * factor,
    )
    return replace(profile, step_time=step_time, request_s=profile.request_s * factor)


def valid_runs(measured: Path) -> list[StoredRun]:
    """Return the runs beside a comparison.json that it counts. Raises UsageError."""
    return [run for folder in stored.runs_in(measured.parent) if (run := stored.read_run(folder)).valid]


def by_probes(profile: Profile, runs: Iterable[StoredRun]) -> dict[str, float]:
    """Return how many times as high costs were, by cell; runs without probes have none."""
    found = {run.cell_id: probed(profile, run.measurements.get("engine_speed", {})) for run in runs}
    return {cell: factor for cell, factor in found.items() if factor is not None}


def probed(profile: Profile, said: Mapping[str, Any]) -> float | None:
    """Return measured over predicted, of the probes before and after; None: there were none.

    said: `engine_speed` of a record.
    """
    probes = [probe for when in ("before", "after") for probe in said.get(when, ())]
    taken_s = [each for probe in probes if (each := typical_s(probe)) is not None]
    return fmean(taken_s) / _lone_s(profile) if taken_s else None


def _lone_s(profile: Profile) -> float:
    steps, further = profile.step_time, range(OUTPUT_TOKENS - 1)
    decode_s = sum(steps.base_s + steps.chunk_s(1, PROMPT_TOKENS + number) for number in further)
    return profile.request_s + steps.prefill_s(PROMPT_TOKENS, profile.max_num_batched_tokens) + decode_s


def busy_by_cell(runs: Iterable[StoredRun]) -> dict[str, float]:
    """Return the seconds in which the engine was at work, by cell."""
    return {run.cell_id: busy_s(run.records) for run in runs}


def that_keeps_busy(played_busy_s: Callable[[float], float], measured_busy_s: float) -> float:
    """Return how many times as high costs have to be for the engine to be at work as long as it was.

    played_busy_s: how long it is at work with costs so many times as high. Looked for from 1 outwards: where costs are
    far too high a gateway refuses, and the engine has less to do. Raises UsageError where no factor up to SLOWEST does.
    """
    high = 1.0
    while played_busy_s(high) < measured_busy_s and high <= SLOWEST:
        high *= _STRIDE
    low = high / _STRIDE
    while played_busy_s(low) >= measured_busy_s and low >= 1 / SLOWEST:
        high, low = low, low / _STRIDE
    if not 1 / SLOWEST <= low < high <= SLOWEST:
        raise UsageError(
            f"--speed-from busy: an engine of these costs is not at work for {measured_busy_s:.1f} s with these "
            f"requests, not {SLOWEST:g} times as slow nor as quick. Is the calibration of the engine that was measured?"
        )
    while high / low > 1 + _EXACT:
        middle = sqrt(low * high)
        low, high = (middle, high) if played_busy_s(middle) < measured_busy_s else (low, middle)
    return sqrt(low * high)
