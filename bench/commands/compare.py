"""`gateway bench compare`: several targets on the same traces, one at a time, in random order."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.comparison import ArmRun, LoadResult, compare
from bench.analysis.limits import Limits, parse_limits
from bench.cell import CellResult
from bench.commands.arguments import check_classes
from bench.commands.exits import of_runs
from bench.corpus import tokenizer
from bench.drive import run_cell
from bench.errors import UsageError
from bench.load.target import Target
from bench.options import LONG, SHORT
from bench.order import Cell, cells
from bench.plans import Plans, target_of, trace_of
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.report.comparison_table import describe
from bench.report.run_table import describe as describe_run
from bench.scenario import Scenario, load

HELP = "measure several targets on the same traces and print the table"
EXAMPLE = """example:
  gateway bench compare scenario.yaml

A scenario names the arms (name, base_url, credentials, priority, engine_metrics_url) and the loads; see docs/bench.md.
Arms of one trace run back to back, in an order drawn from order_seed; between two of them every engine that has an
engine_metrics_url must be idle. Progress goes to stderr, the table to stdout.

exit codes: as `gateway bench run`, over all cells"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.yaml")
    parser.add_argument("--result-dir", type=Path, default=Path("runs"), metavar="DIR", help="(default runs)")
    parser.add_argument("--dry-run", action="store_true", help="say which cells would run in which order, send nothing")


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the tables of the cells that were run."""
    if args.dry_run:
        for cell in _planned(args.scenario).order:
            print(cell.cell_id)
        return 0
    return of_runs(measured(args.scenario, args.result_dir, command).results)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a scenario has given. folder: of its records."""

    scenario: Scenario
    cells: Sequence[Cell]
    results: Sequence[CellResult]
    loads: Sequence[LoadResult]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Planned:
    scenario: Scenario
    limits: Limits
    targets: dict[str, Target]
    order: Sequence[Cell]


def _planned(file: Path) -> _Planned:
    scenario = load(file)
    limits = parse_limits(scenario.goodput, f"{file}: goodput")
    targets = {arm.name: target_of(arm, file) for arm in scenario.arms}
    order = cells(scenario)
    _check(scenario, limits, targets, file, order)
    return _Planned(scenario, limits, targets, order)


def measured(file: Path, result_dir: Path, command: Sequence[str]) -> Compared:
    """Run every cell of a scenario, keep the records, print the tables. Raises as `execute` does."""
    planned = _planned(file)
    scenario, limits, order = planned.scenario, planned.limits, planned.order
    served = tokenizer.load(scenario.tokenizer)
    plans = Plans(scenario, planned.targets, limits, served=served, command=command, echo=_say)
    folder = RunFolder(result_dir, f"{scenario.name}-{new_run_id()}")
    results: list[tuple[Cell, CellResult]] = []
    try:
        for number, cell in enumerate(order, start=1):
            _say(f"[{number}/{len(order)}] {cell.cell_id}")
            result = run_cell(plans.plan(cell), folder.path, _say)
            results.append((cell, result))
            _say(describe_run(result.measured, result.verdict) + "\n")
            if result.interrupted:
                break
    finally:
        # Also when a target went away in the middle: what was measured before is kept and shown.
        compared = _compared(results, scenario, limits)
        folder.write_json("comparison.json", _to_json(scenario, results, compared))
        print(describe(compared))
        _say(f"\nrecords: {folder.path}")
    run_cells = [cell for cell, _ in results]
    return Compared(scenario, run_cells, [result for _, result in results], compared, folder.path)


def _check(scenario: Scenario, limits: Limits, targets: dict[str, Target], file: Path, order: Sequence[Cell]) -> None:
    """What only shows once the traces are made: classes that do not occur, a warm-up longer than its trace."""
    known = {SHORT, LONG}
    check_classes(f"{file}: goodput", set(limits), known)
    for target in targets.values():
        check_classes(f"{file}: arms: {target.name}: priority", set(target.priority), known)
        check_classes(f"{file}: arms: {target.name}: credentials", set(target.key_names), known)
    for cell in order:
        span_s = trace_of(scenario, cell.block).span_s
        if span_s <= scenario.warmup_s:
            raise UsageError(f"{file}: warmup_s: {scenario.warmup_s:g} leaves nothing of a trace of {span_s:g} s.")


def _compared(results: Sequence[tuple[Cell, CellResult]], scenario: Scenario, limits: Limits) -> list[LoadResult]:
    runs = [
        ArmRun(
            load=cell.block.load,
            trace=cell.block.trace,
            arm=cell.arm.name,
            valid=result.verdict.valid,
            window_s=result.measured.window_s,
            records=result.records,
        )
        for cell, result in results
    ]
    return compare(runs, [arm.name for arm in scenario.arms], limits)


def _to_json(
    scenario: Scenario, results: Sequence[tuple[Cell, CellResult]], compared: Sequence[LoadResult]
) -> dict[str, Any]:
    return {
        "scenario": scenario.model_dump(mode="json", exclude_none=True),
        "order": [
            {
                "cell_id": cell.cell_id,
                "run_id": result.run_id,
                "arm": cell.arm.name,
                "verdict": "VALID" if result.verdict.valid else "INVALID",
            }
            for cell, result in results
        ],
        "loads": [
            {
                "label": each.load.label,
                "rate_per_s": each.load.rate_per_s,
                "mix": each.load.mix,
                "traces": list(each.traces),
                "left_out": list(each.left_out),
                "arms": [arm.to_json() for arm in each.arms],
            }
            for each in compared
        ],
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
