"""`gateway bench compare`: several targets on the same traces, one at a time, in random order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import campaign_plan
from bench.campaign_plan import CampaignPlan
from bench.commands.arguments import add_retry
from bench.comparing import KIND, measured, planned, run_scenario
from bench.errors import UsageError
from bench.exits import of_runs
from bench.scenario import load

HELP = "measure several targets on the same traces and print the table"
EXAMPLE = """example:
  gateway bench compare scenario.yaml
  gateway bench compare --resume runs/first-20260101T000000Z-0a1b2c3d

A scenario names the arms (name, base_url, credentials, priority, engine_metrics_url) and the loads; see docs/bench.md.
Arms of one trace run back to back, in an order drawn from order_seed; between two of them every engine that has an
engine_metrics_url must be idle. Progress goes to stderr, the table to stdout.

exit codes: as `gateway bench run`, over all cells"""


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
