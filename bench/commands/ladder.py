"""`gateway bench ladder`: one target at higher and higher rates, up to where it no longer serves every class."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import campaign_plan
from bench.analysis.comparison import Load
from bench.analysis.knee import Rung, knee, next_rate
from bench.analysis.limits import Limits
from bench.analysis.measurements import by_class
from bench.argument_types import positive, share
from bench.campaign import Campaign
from bench.campaign_plan import LadderPlan
from bench.cell import CellRun
from bench.commands import arguments
from bench.comparing import planned
from bench.corpus import tokenizer
from bench.errors import UsageError
from bench.exits import of_runs
from bench.options import parse_credentials, parse_priorities
from bench.order import Block, Cell
from bench.plans import Plans, trace_of
from bench.progress import say
from bench.records.comparison import write as write_comparison
from bench.records.hold import held
from bench.records.run import new_run_id
from bench.report.ladder_table import describe
from bench.scenario import Scenario

HELP = "offer more and more to one target, and mark the knee"
EXAMPLE = """examples:
  gateway bench ladder --base-url http://127.0.0.1:8080 --model tiny --tokenizer ./tokenizer \\
      --credential short=KEY_INTERACTIVE long=KEY_BATCH --rates 0.5 1 2 4 8 --duration 60 --warmup 5 \\
      --goodput short:ttft:500 long:ttft:20000
  gateway bench ladder --resume runs/ladder-20260101T000000Z-0a1b2c3d

Rates go up until one fails twice in a row in some class, then --refine times halfway between the last that held and
the first that failed. A rate holds where each class has at least --good-share of all its offered requests completed
within its limits. The knee is the highest rate that holds.

exit codes: as `gateway bench run`, over all runs"""

KIND = "ladder"
FAILING_MAX = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("target")
    target.add_argument("--base-url", metavar="URL", help="http://HOST:PORT of the gateway or an engine")
    target.add_argument("--model", help="the served model's name")
    target.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder of the served model's tokenizer")
    target.add_argument("--credential", nargs="+", default=[], metavar="[CLASS=]ENV", help="variables with the keys")
    target.add_argument("--priority", nargs="+", default=[], metavar="CLASS=N", help="straight to an engine")
    arguments.add_ops(target)
    arguments.add_engines(target)
    load = parser.add_argument_group("load")
    load.add_argument("--rates", nargs="+", type=positive, default=[], metavar="R", help="requests per second")
    load.add_argument("--mix", default="80/20", metavar="S/L", help="(default 80/20)")
    load.add_argument("--seed", type=int, default=1, help="of arrivals and prompts (default 1)")
    load.add_argument("--good-share", type=share, default=0.95, metavar="X", help="(default 0.95)")
    load.add_argument("--refine", type=int, default=2, metavar="N", help="rates tried inside the last gap (default 2)")
    arguments.add_campaign(parser, name=KIND)
    parser.set_defaults(trace=None, trace_classes=[], capacity=[], loads=[], repeats=1)


@dataclass(frozen=True, slots=True)
class _Ladder:
    scenario: Scenario
    limits: Limits
    good_share: float
    refine: int

    def cell(self, rate: float) -> Cell:
        load = Load(f"{rate:g} requests/s", rate, self.scenario.mixes[0])
        return Cell(Block(load, self.scenario.seeds[0], 1), self.scenario.arms[0])

    def rungs(self, runs: Sequence[CellRun]) -> list[Rung]:
        return [
            Rung(
                run.cell.block.load.rate_per_s,
                run.valid,
                by_class(run.records, window=run.window, limits=self.limits),
            )
            for run in runs
        ]

    def climb(self, runs: Sequence[CellRun]) -> Iterator[Cell]:
        """The cells to run, each decided by the runs so far."""
        failing = 0
        for rate in sorted(self.scenario.rates_per_s):
            yield self.cell(rate)
            failing = 0 if self.rungs(runs[-1:])[0].holds(self.good_share) else failing + 1
            if failing == FAILING_MAX:
                break
        for _ in range(self.refine):
            between = next_rate(self.rungs(runs), self.good_share)
            if between is None or any(run.cell.block.load.rate_per_s == between for run in runs):
                return
            yield self.cell(between)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the ladder."""
    plan = _plan(args, command) if args.resume is None else campaign_plan.resumed(args.resume, KIND, LadderPlan)
    where = Path("command line") if args.resume is None else args.resume / campaign_plan.FILE
    scenario = plan.scenario
    made = planned(scenario, where)
    if args.dry_run:
        for rate in sorted(scenario.rates_per_s):
            print(f"{rate:g} requests/s")
        return 0
    ladder = _Ladder(scenario, made.limits, plan.good_share, plan.refine)
    folder = args.resume or campaign_plan.begun(args.result_dir, f"{scenario.name}-{new_run_id()}", plan)
    served = tokenizer.load(scenario.tokenizer)
    plans = Plans(scenario, made.targets, made.limits, served=served, command=command, echo=say)
    with held(folder / campaign_plan.FILE):
        work = Campaign(folder, plans.plan, retry_invalid=args.retry_invalid)
        spans_s = [trace_of(scenario, ladder.cell(rate).block).span_s for rate in sorted(scenario.rates_per_s)]
        try:
            work.run(ladder.climb(work.runs), spans_s + [max(spans_s)] * ladder.refine)
        finally:
            rungs = ladder.rungs(work.runs)
            found = knee(rungs, ladder.good_share)
            more = {"good_share": ladder.good_share, **({} if found is None else {"knee_per_s": found})}
            write_comparison(folder, scenario, work.runs, [], more=more)
            print(describe(rungs, ladder.good_share))
            say(f"\nrecords: {folder}")
    return of_runs(work.runs)


def _plan(args: argparse.Namespace, command: Sequence[str]) -> LadderPlan:
    for name in ("base_url", "model", "tokenizer"):
        if getattr(args, name) is None:
            raise UsageError(f"--{name.replace('_', '-')} is missing.")
    if not args.rates or not args.goodput:
        raise UsageError("Give --rates from low to high, and --goodput: a rate holds where its limits are met.")
    arm = {
        "name": "target",
        "base_url": args.base_url,
        "credentials": parse_credentials(args.credential, "--credential"),
        "priority": parse_priorities(args.priority, "--priority"),
        "engine_metrics_url": args.engine_url,
        "ops_url": arguments.ops_from(args),
    }
    args.mixes, args.seeds = [args.mix], [args.seed]
    return LadderPlan(
        kind=KIND,
        command=list(command),
        good_share=args.good_share,
        refine=max(0, args.refine),
        scenario=arguments.scenario_from(args, arms=[arm], model=args.model, tokenizer=args.tokenizer.absolute()),
    )
