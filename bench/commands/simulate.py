"""`gateway bench simulate`: a scenario in virtual time, on a model of the engine. Sends nothing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.analysis.limits import parse_limits
from bench.analysis.prediction import check_same_traces
from bench.commands.simulate_options import BUSY, PROBES, add_arguments, scenario_from
from bench.errors import UsageError
from bench.exits import Exit
from bench.options import LONG, SHORT, check_classes
from bench.order import Block
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.records.stored import StoredRun
from bench.report import prediction_table
from bench.report.simulation_table import describe
from bench.scenario import Scenario, checked
from bench.simulation import study
from bench.simulation.profiles import PROFILES, Profile, calibrated
from bench.simulation.results import Simulated, held_against
from bench.simulation.speed import busy_by_cell, by_probes, valid_runs
from bench.simulation.study import Run, Task

__all__ = ["EXAMPLE", "HELP", "add_arguments", "execute"]

HELP = "play a scenario in virtual time, on a model of the engine, and print the table"
EXAMPLE = """example:
  gateway bench simulate scenario.yaml --calibration engine-a.yaml
  gateway bench simulate --policies passthrough short-first --request-rate 5 10 --duration 3600 --mix 80/20 \\
      --seeds 1 2 3 4 5 6 7 8 --goodput short:ttft:500 long:ttft:20000
  gateway bench simulate scenario.yaml --calibration engine-a.yaml --measured runs/first-…/comparison.json

A scenario is one of `gateway bench compare`; what its arms are is said by simulated: {policy, engine}. All figures are
those of a model. docs/simulation.md says which."""


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError; prints the tables and keeps one record."""
    if args.speed_from is not None and args.measured is None:
        raise UsageError("--speed-from: of which measured runs? Give --measured, or leave it out.")
    scenario, base = scenario_from(args)
    limits = parse_limits(scenario.goodput, "goodput")
    check_classes("goodput", set(limits), {SHORT, LONG})
    profiles = _profiles(args)
    made = [study.setups(scenario, profile, base) for profile in profiles]
    record: Mapping[str, Any] | None = None
    measured: Sequence[StoredRun] = ()
    blocks = study.once_each(scenario)
    if args.measured is not None:
        record, measured = _record(args.measured, scenario), valid_runs(args.measured)
        blocks = _blocks(scenario, record, args.measured)
    keeps_records = record is not None
    todo = [task for each in made for task in study.tasks(scenario, each, limits, blocks, keeps_records=keeps_records)]
    if record is not None:
        todo = _at_their_speed(todo, measured, args.speed_from)
    folder = RunFolder(args.result_dir, f"{scenario.name}-simulated-{new_run_id()}")
    began = time.perf_counter()
    runs = study.run_all(todo, args.jobs, lambda done: _say(f"[{done}/{len(todo)}]"))
    took_s = time.perf_counter() - began
    each_runs = [runs[at : at + len(todo) // len(made)] for at in range(0, len(todo), len(todo) // len(made))]
    found = [] if record is None else held_against(scenario, each_runs, limits, record, measured)
    simulated = Simulated(scenario, profiles[0], made[0], each_runs[0], found)
    folder.write_json("simulation.json", simulated.to_json(command))
    print(describe(simulated.over_seeds()))
    if found:
        print("\n" + prediction_table.describe(found))
    _say(f"{_speed(runs, took_s)}\n\nsimulated with {profiles[0].about}\nrecord: {folder.path}")
    return Exit.VALID


def _profiles(args: argparse.Namespace) -> list[Profile]:
    """The engine, and where it is held against measurements, also those at the ends of its calibration's intervals."""
    profile = PROFILES[args.profile]
    if args.calibration is None:
        return [profile]
    found = [calibrated(profile, args.calibration)]
    if args.measured is not None:
        found += [calibrated(profile, args.calibration, "low"), calibrated(profile, args.calibration, "high")]
    return found


def _at_their_speed(todo: Sequence[Task], runs: Sequence[StoredRun], source: str | None) -> list[Task]:
    """Each at the speed that the measured engine had in the run of the same cell. source: None is probes."""
    found = busy_by_cell(runs) if source == BUSY else by_probes(todo[0].setup.profile, runs)
    if without := sorted({task.cell_id for task in todo} - found.keys()):
        _say(f"at the calibration's own costs, since no VALID run of it has {source or PROBES}: {'; '.join(without)}")
    if source == BUSY:
        return [replace(task, busy_s=found.get(task.cell_id)) for task in todo]
    return [replace(task, slower=found.get(task.cell_id, 1.0)) for task in todo]


def _blocks(scenario: Scenario, record: Mapping[str, Any], path: Path) -> list[Block]:
    if found := study.as_measured(scenario, record):
        return found
    raise UsageError(f"--measured: {path}: no trace of {scenario.name} counts in it: no arm has a VALID run of one.")


def _record(path: Path, scenario: Scenario) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--measured: {path} cannot be read as JSON ({error}).") from error
    where = f"--measured: {path}"
    if not isinstance(record, dict) or not isinstance(record.get("loads"), list):
        raise UsageError(f"{where}: is no comparison.json of `gateway bench compare`.")
    said = checked(record.get("scenario", {}), f"{where}: scenario")
    check_same_traces(scenario.model_dump(mode="json"), said.model_dump(mode="json"), where)
    return record


def _speed(runs: Sequence[Run], took_s: float) -> str:
    simulated_s = sum(run.simulated_s for run in runs)
    return f"{simulated_s:.0f} s simulated in {took_s:.1f} s: {simulated_s / max(took_s, 1e-9):.0f} times real time"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
