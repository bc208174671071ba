"""A scenario measured as a whole: looked at before anything is sent, run cell by cell, written down, told in tables.

Owns comparison.json of its folder. Knows no options: commands and the demonstration say what is to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import campaign, campaign_plan
from bench.analysis.comparison import ArmRun, LoadResult, compare
from bench.analysis.limits import Limits, parse_limits
from bench.analysis.paired import differences
from bench.campaign import Campaign, Ready
from bench.campaign_plan import CampaignPlan
from bench.cell import CellResult, CellRun
from bench.corpus import tokenizer
from bench.errors import UsageError
from bench.load.target import Target
from bench.options import check_classes
from bench.order import Cell, cells
from bench.plans import Plans, classes_of, target_of, trace_of
from bench.progress import say
from bench.records.comparison import write as write_comparison
from bench.records.hold import held
from bench.records.run import new_run_id
from bench.report import difference_table
from bench.report.comparison_table import describe
from bench.scenario import Scenario, load

KIND = "compare"


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
