"""`gateway bench compare`: several targets on the same traces, one at a time, in random order."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import campaign, campaign_plan
from bench.analysis.comparison import ArmRun, LoadResult, compare
from bench.analysis.limits import Limits, parse_limits
from bench.analysis.paired import differences
from bench.campaign import Campaign, CellRun, Ready
from bench.campaign_plan import CampaignPlan
from bench.cell import CellResult
from bench.commands.arguments import add_retry, check_classes, say
from bench.commands.exits import of_runs
from bench.corpus import tokenizer
from bench.errors import UsageError
from bench.load.target import Target
from bench.order import Cell, cells
from bench.plans import Plans, classes_of, target_of, trace_of
from bench.records.comparison import write as write_comparison
from bench.records.hold import held
from bench.records.run import new_run_id
from bench.report import difference_table
from bench.report.comparison_table import describe
from bench.scenario import Scenario, load

HELP = "measure several targets on the same traces and print the table"
EXAMPLE = """example:
  gateway bench compare scenario.yaml
  gateway bench compare --resume runs/first-20260101T000000Z-0a1b2c3d

A scenario names the arms (name, base_url, credentials, priority, engine_metrics_url) and the loads; see docs/bench.md.
Arms of one trace run back to back, in an order drawn from order_seed; between two of them every engine that has an
engine_metrics_url must be idle. Progress goes to stderr, the table to stdout.

exit codes: as `gateway bench run`, over all cells"""

KIND = "compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", type=Path, nargs="?", metavar="SCENARIO.yaml")
    parser.add_argument("--result-dir", type=Path, default=Path("runs"), metavar="DIR", help="(default runs)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with a comparison that was interrupted")
    add_retry(parser)
    parser.add_argument("--dry-run", action="store_true", help="say which cells would run in which order, send nothing")


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the tables of the cells that were run."""
    if (args.scenario is None) == (args.resume is None):
        raise UsageError("Give a SCENARIO.yaml, or --resume DIR to go on with one.")
    if args.resume is None:
        scenario, file = load(args.scenario), args.scenario
    else:
        plan = campaign_plan.resumed(args.resume, KIND, CampaignPlan)
        scenario, file = plan.scenario, args.resume / campaign_plan.FILE
    if args.dry_run:
        for cell in planned(scenario, file).order:
            print(cell.cell_id)
        return 0
    if args.resume is None:
        return of_runs(measured(file, args.result_dir, command).runs)
    made = planned(scenario, file)
    return of_runs(run_scenario(made, args.resume, command, retry_invalid=args.retry_invalid).runs)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a scenario has given. folder: of its records; results: of the cells that were run now."""

    scenario: Scenario
    runs: Sequence[CellRun]
    loads: Sequence[LoadResult]
    folder: Path

    @property
    def cells(self) -> Sequence[Cell]:
        return [run.cell for run in self.runs if run.result is not None]

    @property
    def results(self) -> Sequence[CellResult]:
        return [run.result for run in self.runs if run.result is not None]


@dataclass(frozen=True, slots=True)
class Planned:
    """A scenario that was looked at as a whole: nothing of it can fail for its words any more."""

    scenario: Scenario
    limits: Limits
    targets: dict[str, Target]
    order: Sequence[Cell]


def planned(scenario: Scenario, file: Path) -> Planned:
    """Raises UsageError naming `file`."""
    limits = parse_limits(scenario.goodput, f"{file}: goodput")
    targets = {arm.name: target_of(arm, file) for arm in scenario.arms}
    order = cells(scenario)
    _check(scenario, limits, targets, file, order)
    return Planned(scenario, limits, targets, order)


def measured(file: Path, result_dir: Path, command: Sequence[str]) -> Compared:
    """Run every cell of a scenario, keep the records, print the tables. Raises as `execute` does."""
    made = planned(load(file), file)
    # A relative folder of the tokenizer would mean another one where the comparison goes on.
    trace = None if made.scenario.trace is None else made.scenario.trace.absolute()
    scenario = made.scenario.model_copy(update={"tokenizer": made.scenario.tokenizer.absolute(), "trace": trace})
    plan = CampaignPlan(kind=KIND, command=list(command), scenario=scenario)
    folder = campaign_plan.begun(result_dir, f"{scenario.name}-{new_run_id()}", plan)
    return run_scenario(made, folder, command)


More = Callable[[Sequence[CellRun]], Mapping[str, Any]]


def nothing_more(_runs: Sequence[CellRun]) -> Mapping[str, Any]:
    return {}


def run_scenario(
    made: Planned,
    folder: Path,
    command: Sequence[str],
    *,
    ready: Ready = campaign.as_it_is,
    retry_invalid: bool = False,
    more: More = nothing_more,
) -> Compared:
    """Run what of a scenario is not in `folder` yet, and print the tables of all. Raises as `execute` does.

    more: what comparison.json says beside it, of the runs so far.
    """
    scenario, limits = made.scenario, made.limits
    served = tokenizer.load(scenario.tokenizer)
    plans = Plans(scenario, made.targets, limits, served=served, command=command, echo=say)
    with held(folder / campaign_plan.FILE):
        work = Campaign(folder, plans.plan, ready=ready, retry_invalid=retry_invalid)
        loads: Sequence[LoadResult] = []
        try:
            work.run(made.order, [trace_of(scenario, cell.block).span_s for cell in made.order])
        finally:
            # Also when a target went away in the middle: what was measured before is kept and shown.
            runs = [_arm_run(run) for run in work.runs]
            arms = [arm.name for arm in scenario.arms]
            loads = compare(runs, arms, limits)
            again = [arm.name for arm in scenario.arms if arm.again]
            found = differences(runs, arms, limits, again=again)
            write_comparison(folder, scenario, work.runs, loads, found=found, more=more(work.runs))
            print("\n\n".join(part for part in (describe(loads), difference_table.describe(found, arms[0])) if part))
            say(f"\nrecords: {folder}")
    return Compared(scenario, work.runs, loads, folder)


def _check(scenario: Scenario, limits: Limits, targets: dict[str, Target], file: Path, order: Sequence[Cell]) -> None:
    """What only shows once the traces are made: classes that do not occur, a warm-up longer than its trace."""
    known = set(classes_of(scenario))
    check_classes(f"{file}: goodput", set(limits), known)
    for target in targets.values():
        check_classes(f"{file}: arms: {target.name}: priority", set(target.priority), known)
        check_classes(f"{file}: arms: {target.name}: credentials", set(target.key_names), known)
    for cell in order:
        span_s = trace_of(scenario, cell.block).span_s
        if span_s <= scenario.warmup_s:
            raise UsageError(f"{file}: warmup_s: {scenario.warmup_s:g} leaves nothing of a trace of {span_s:g} s.")


def _arm_run(run: CellRun) -> ArmRun:
    block = run.cell.block
    return ArmRun(block.load, block.trace, run.cell.arm.name, run.valid, run.window, run.records)
