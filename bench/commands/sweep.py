"""`gateway bench sweep`: an engine's settings on the same arrivals, a fresh engine of the bench's own for each cell."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import campaign_plan
from bench.analysis.comparison import Load
from bench.cell import CellRun
from bench.commands.arguments import add_retry
from bench.comparing import Planned, planned, run_scenario
from bench.errors import UsageError
from bench.exits import of_runs
from bench.load.target import ANY_CLASS, resolve_keys
from bench.local_gateway import Callers, LocalGateway, base_of_engine, fresh_callers
from bench.order import Cell
from bench.plans import classes_of
from bench.progress import say
from bench.records import comparison, material, stored
from bench.records.hold import held
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.report import scorecard
from bench.scenario import Scenario
from bench.sweep import order, rates, settings
from bench.sweep.choice import choose
from bench.sweep.flags import Help, Value, help_commands, printed_help
from bench.sweep.plan import SweepPlan
from bench.sweep.settings import Sweep, Way
from bench.sweep.starts import FOLDER, Before, Commands, Starts, all_of, nothing_before

HELP = "compare settings of an engine that the bench starts itself, with the same arrivals for each"
EXAMPLE = """examples:
  gateway bench sweep sweep.yaml --dry-run
  gateway bench sweep sweep.yaml
  gateway bench sweep --resume runs/sweep-20260101T000000Z-0a1b2c3d

sweep.yaml says how the engine is started (engine.command: the approved baseline, B0) and which settings are tried
(grid, cells); all else is a scenario's. Every flag is held against the installed version's own help; every start is
read back, and not measured where other values are in force than asked. See docs/sweep.md.

exit codes: as `gateway bench run`, over all cells: a cell that could not be measured is INVALID (4), not passed"""

KIND = "sweep"
SCORES_FILE = "scorecard.json"
HELP_FILE = "help.txt"
NOWHERE = "http://127.0.0.1:1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", type=Path, nargs="?", metavar="SWEEP.yaml")
    parser.add_argument("--result-dir", type=Path, default=Path("runs"), metavar="DIR", help="(default runs)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with a sweep that was interrupted")
    add_retry(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="check every flag, say what would run in which order; start no engine"
    )


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the tables of the runs, the scorecard and the choice."""
    if (args.sweep is None) == (args.resume is None):
        raise UsageError("Give a SWEEP.yaml, or --resume DIR to go on with one.")
    folder: Path | None = args.resume
    if folder is None:
        sweep = settings.load(args.sweep)
        printed = _help_of(sweep)
        plan = _plan(sweep, printed, command)
    else:
        plan = campaign_plan.resumed(folder, KIND, SweepPlan)
        sweep = plan.sweep(str(folder / campaign_plan.FILE))
        printed = _kept_help(folder, sweep)
    callers = None if sweep.settings.policy is None else fresh_callers(sweep.settings.service_classes)
    if callers is not None:
        os.environ.update(callers.environment())
    # What is wrong with the load shows before anything is started.
    unknown_rates = dict.fromkeys(sweep.mixes(), 1.0)
    checked = planned(sweep.scenario(_way(sweep, callers, None), unknown_rates), Path(sweep.where))
    if args.dry_run:
        _say_plan(sweep, plan, checked.scenario)
        return 0
    if folder is None:
        folder = campaign_plan.begun(args.result_dir, f"{checked.scenario.name}-{new_run_id()}", plan)
        _keep_help(folder, printed)
    work = _Work(folder, sweep, plan, printed, callers, command)
    return of_runs(work.done(retry_invalid=args.retry_invalid))


@dataclass(frozen=True, slots=True)
class _Work:
    """One session of a sweep."""

    folder: Path
    sweep: Sweep
    plan: SweepPlan
    printed: Help
    callers: Callers | None
    command: Sequence[str]

    def done(self, *, retry_invalid: bool) -> Sequence[CellRun]:
        gateway = None
        if self.callers is not None:
            gateway = LocalGateway((self.folder / "gateway").absolute(), self.callers)
            self._try_policy(gateway)
        with Starts(self.folder, self._commands(), before=self._before(gateway), say=say) as starts:
            capacity = None
            if self.sweep.measures_capacity:
                capacity = rates.found(
                    self.folder, self.sweep, starts, key=_engine_key(self.sweep), command=self.command, say=say
                )
            scenario = self.sweep.scenario(_way(self.sweep, self.callers, gateway), capacity)
            made = planned(scenario, Path(self.sweep.where))
            made = replace(made, order=order.runs(scenario, self.sweep.settings.engine.restart))
            try:
                found = run_scenario(
                    made,
                    self.folder,
                    self.command,
                    ready=starts.ready,
                    retry_invalid=retry_invalid,
                    more=lambda runs: {"sweep": self._account(made, runs)},
                )
            except KeyboardInterrupt:
                self._conclude(made)
                raise
        self._conclude(made)
        return found.runs

    def _commands(self) -> Commands:
        engine = self.sweep.settings.engine
        cells = self.sweep.cells
        return Commands(
            engine=engine,
            by_cell={name: self.sweep.command_of(name) for name in cells},
            flags=cells,
            unknown=self.plan.unknown,
            printed=self.printed,
            model=str(self.sweep.load["model"]),
            key=_engine_key(self.sweep),
            folder=self.sweep.folder,
        )

    def _try_policy(self, gateway: LocalGateway) -> None:
        """A policy that no gateway starts with would void every run, one engine start after another.

        Another session's gateway reads the same keys: where one goes on, this one ends here and changes none.
        """
        policy = str(self.sweep.settings.policy)
        with (
            held(self.folder / campaign_plan.FILE),
            gateway.serving("trial", policy, self._base({}), without_engine=True),
        ):
            pass

    def _before(self, gateway: LocalGateway | None) -> Before:
        if gateway is None:
            return nothing_before
        policy = str(self.sweep.settings.policy)
        return lambda cell, effective: gateway.serving(cell, policy, self._base(effective))

    def _base(self, effective: Mapping[str, Value]) -> dict[str, Any]:
        """A gateway's configuration: the engine as it says that it is."""
        engine, load = self.sweep.settings.engine, self.sweep.load
        limits = ("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")
        options = {
            "calibration": "off",  # prefills of the gateway's own would come beside the load
            "scheduling": effective.get("scheduling_policy", "probe"),
            "limits": {name: effective[name] for name in limits if name in effective},
        }
        if engine.api_key_env is not None:
            options["api_key_env"] = engine.api_key_env
        return base_of_engine(engine.base_url, str(load["model"]), Path(load["tokenizer"]), options)

    def _account(self, made: Planned, runs: Sequence[CellRun]) -> dict[str, Any]:
        """What was planned and what became of it: planned is not executed."""
        starts = all_of(self.folder)
        return {
            "planned_runs": len(made.order),
            "executed_runs": sum(_was_executed(run) for run in runs),
            "valid_runs": sum(run.valid for run in runs),
            "restart": self.sweep.settings.engine.restart,
            "engine_starts": len(starts),
            "engine_starts_failed": sum("failed" in start for start in starts),
            "policy": self.sweep.settings.policy or "none: straight at the engine",
            "engine_help_sha256": self.plan.engine_help_sha256,
            "cells": {name: self._of_cell(name, starts) for name in self.sweep.cells},
        }

    def _of_cell(self, name: str, starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What it is, and what its engines said that they run with; the KV cache is what flags left of the memory."""
        said = {
            "command": self.sweep.command_of(name),
            "flags": self.sweep.cells[name],
            "unknown": self.plan.unknown.get(name, []),
        }
        measured = [start for start in starts if start["cell"] == name and "failed" not in start]
        if not measured:
            return said
        kv_tokens = {start["cache_config"].get("kv_cache_size_tokens") for start in measured} - {None}
        return {**said, "effective": measured[-1]["effective"], "kv_cache_size_tokens": sorted(map(int, kv_tokens))}

    def _conclude(self, made: Planned) -> None:
        """Of whatever has been run, by this session or before; nothing where none has."""
        if not (self.folder / comparison.FILE).is_file():
            return
        kept = stored.read_json(self.folder / comparison.FILE)
        if not kept["order"]:
            return
        found = material.read(self.folder)
        card = scorecard.of(found)
        loads = [Load(load.label, load.rate_per_s, load.mix) for load in made.scenario.offered()]
        choice = choose(card, [arm.name for arm in made.scenario.arms], loads)
        said = kept["sweep"]
        RunFolder(self.folder.parent, self.folder.name, again=True).write_json(
            SCORES_FILE, {**card.to_json(), "choice": choice.to_json(), "sweep": said}
        )
        print(f"\n{scorecard.describe(card)}\n\n{choice}\n\n{_said(said)}")


def _was_executed(run: CellRun) -> bool:
    """Whether a request of it was sent."""
    return any(record.dispatched_ms is not None for record in run.records)


def _said(account: Mapping[str, Any]) -> str:
    return (
        f"{account['planned_runs']} runs planned, {account['executed_runs']} executed, {account['valid_runs']} VALID; "
        f"{account['engine_starts']} engine starts, {account['engine_starts_failed']} of them failed."
    )


def _plan(sweep: Sweep, printed: Help, command: Sequence[str]) -> SweepPlan:
    found = {name: printed.unknown(list(flags)) for name, flags in sweep.cells.items()}
    return SweepPlan(
        kind=KIND,
        command=list(command),
        settings=sweep.settings,
        load=dict(sweep.load),
        folder=sweep.folder,
        unknown={name: unknown for name, unknown in found.items() if unknown},
        engine_help_sha256=hashlib.sha256(printed.text.encode()).hexdigest(),
    )


def _help_of(sweep: Sweep) -> Help:
    engine = sweep.settings.engine
    commands = help_commands(engine.command, engine.help)
    say(f"asking the engine for its flags: {' '.join(commands[0])}")
    return printed_help(commands, {**os.environ, **engine.environment}, sweep.where, sweep.folder)


def _keep_help(folder: Path, printed: Help) -> None:
    (folder / FOLDER).mkdir()
    (folder / FOLDER / HELP_FILE).write_text(printed.text, encoding="utf-8")


def _kept_help(folder: Path, sweep: Sweep) -> Help:
    """As it was when the sweep began; an engine of another version is found by its starts."""
    file = folder / FOLDER / HELP_FILE
    return Help(file.read_text(encoding="utf-8")) if file.is_file() else _help_of(sweep)


def _engine_key(sweep: Sweep) -> str | None:
    name = sweep.settings.engine.api_key_env
    return None if name is None else resolve_keys({ANY_CLASS: name}, os.environ)[ANY_CLASS]


def _way(sweep: Sweep, callers: Callers | None, gateway: LocalGateway | None) -> Way:
    """gateway: None where it is only to be seen whether the words are right, or there is none."""
    if callers is not None:
        variables = callers.variables()
        return Way(NOWHERE, variables) if gateway is None else Way(gateway.url, variables, gateway.ops_url)
    engine = sweep.settings.engine
    if engine.api_key_env is None:
        return Way(engine.base_url, {})
    free = sweep.scenario(Way(engine.base_url, {}), dict.fromkeys(sweep.mixes(), 1.0))
    return Way(engine.base_url, dict.fromkeys(classes_of(free), engine.api_key_env))


def _say_plan(sweep: Sweep, plan: SweepPlan, scenario: Scenario) -> None:
    restart = sweep.settings.engine.restart
    cells: Sequence[Cell] = order.runs(scenario, restart)
    for name, flags in sweep.cells.items():
        said = ", ".join(f"{flag} {value}" for flag, value in flags.items()) or "as it is"
        unknown = plan.unknown.get(name)
        print(f"{name}: {said}" + (f": INVALID, the engine does not have {', '.join(unknown)}" if unknown else ""))
    counts = (
        f"{len(scenario.arms)} cells x {len(scenario.offered())} loads (rates and mixes) x "
        f"{len(scenario.seeds)} seeds x {scenario.repeats} repeats"
    )
    rates = "; the rates are found on B0 first" if sweep.measures_capacity else ""
    print(f"{len(cells)} runs planned ({counts}), {order.starts(cells, restart)} engine starts{rates}")
    for cell in cells:
        print(cell.cell_id)
