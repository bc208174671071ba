"""`gateway bench manifest rollback`: the baseline put back, or the same under load as a rehearsal that is undone."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.analysis.limits import parse_limits
from bench.argument_types import positive
from bench.cell import CellPlan, CellResult
from bench.commands import arguments
from bench.corpus import prompts, tokenizer
from bench.corpus.tokenizer import PromptForm
from bench.errors import UsageError
from bench.exits import Exit
from bench.load.pacing import Windows
from bench.load.target import Target, clean_url, resolve_keys
from bench.manifest import heard, rehearsed, rollback, sealed
from bench.manifest.ops import Place
from bench.manifest.rehearsal import Rehearsal
from bench.manifest.rehearsed import Rehearsed
from bench.manifest.schema import Manifest
from bench.options import parse_credentials, parse_pairs
from bench.progress import say
from bench.records.run import new_run_id
from bench.records.store import ROLLBACK_FILE, RunFolder
from bench.report import rollback_table
from bench.trace import random_arrivals
from bench.trace.intensity import Intensity

# A rehearsal is about where requests end, not about milliseconds.
LAG_TOLERANCE_MS = 500.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rehearse", action="store_true", help="under a small load of its own, and undone afterwards")
    load = parser.add_argument_group("the rehearsal's load")
    load.add_argument("--candidate", type=Path, metavar="MANIFEST", help="what is gone back from")
    load.add_argument("--base-url", metavar="URL", help="http://HOST:PORT of the gateway")
    load.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder of the served model's tokenizer")
    load.add_argument("--credential", nargs="+", default=[], metavar="[CLASS=]ENV", help="variables with the keys")
    load.add_argument("--request-rate", type=positive, default=2.0, metavar="R", help="(default 2)")
    load.add_argument("--before", type=positive, default=10.0, metavar="S", help="at the candidate (default 10)")
    load.add_argument("--after", type=positive, default=10.0, metavar="S", help="at the baseline (default 10)")
    arguments.add_load(parser)
    parser.add_argument("--name", default="rollback", help="of the folder of records (default rollback)")
    arguments.add_record(parser)


def place_of(args: argparse.Namespace, manifest: Manifest) -> Place:
    """Raises UsageError for what is no URL, or a variable that is not set."""
    ops_url = manifest.gateway.ops_url if args.ops_url is None else clean_url(args.ops_url, "--ops-url")
    token = None if args.ops_token_env is None else resolve_keys({"*": args.ops_token_env}, os.environ)["*"]
    return Place(ops_url, args.gateway_config or Path(manifest.gateway.file), token)


def logs_of(args: argparse.Namespace, manifest: Manifest) -> dict[str, str]:
    """The engines' logs by name. Raises UsageError."""
    named = parse_pairs(args.engine_log, "--engine-log")
    if strangers := sorted(named.keys() - manifest.engines.keys()):
        raise UsageError(f"--engine-log: {strangers[0]} is no engine of the manifest: {', '.join(manifest.engines)}.")
    return {name: heard.log(Path(path)) for name, path in named.items()}


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError, TargetUnreachableError, RefusedError and ChangedError; prints each step."""
    baseline = sealed.load(args.manifest)
    place = place_of(args, baseline)
    if not place.file.is_file():
        raise UsageError(f"{place.file}: not here. Run this on the gateway's machine, or give --gateway-config.")
    if args.rehearse:
        return _rehearse(args, command, baseline, place)
    logs = logs_of(args, baseline)
    if rollback.perform(baseline, place, logs, say):
        print(f"{baseline.name} {baseline.sha256} is in force")
        return Exit.VALID
    print(f"{baseline.name} {baseline.sha256} is NOT wholly in force: the last lines above say what is not")
    return Exit.FAILURE


def _rehearse(args: argparse.Namespace, command: Sequence[str], baseline: Manifest, place: Place) -> int:
    for name in ("candidate", "base_url", "tokenizer"):
        if getattr(args, name) is None:
            raise UsageError(f"--{name.replace('_', '-')} is missing: a rehearsal needs it.")
    candidate = sealed.load(args.candidate)
    if candidate.baseline_sha256 != baseline.sha256:
        raise UsageError(
            f"{args.candidate}: is no change to {baseline.name} {baseline.sha256}, but to another baseline."
        )
    plan = _plan(args, command, baseline)
    rehearsed_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    folder = RunFolder(args.result_dir, f"{args.name}-{new_run_id()}")
    say(f"what is in force now is kept in {folder.path}, and is put back at the end")
    rehearsal = Rehearsal(baseline, candidate, place, args.before, logs_of(args, baseline))
    result = rehearsal.run(plan, folder.path)
    came_to = _judged(rehearsal, result)
    said = {
        "rehearsed_at": rehearsed_at,
        "manifest_sha256": baseline.sha256,
        "candidate_sha256": candidate.sha256,
        "held": came_to.held,
        "failures": list(came_to.failures),
        "figures": came_to.figures,
        "not_verified": list(rehearsal.untold),
        "drain_deadline_s": baseline.drain_deadline_s,
        "run_id": result.run_id,
        "command": list(command),
    }
    folder.write_json(ROLLBACK_FILE, said)
    print(rollback_table.describe(said))
    say(f"\nevidence: {folder.path / ROLLBACK_FILE}")
    if not result.valid:
        return Exit.INVALID
    return Exit.VALID if came_to.held else Exit.FAILURE


def _judged(rehearsal: Rehearsal, result: CellResult) -> Rehearsed:
    if rehearsal.switch is None:
        return Rehearsed({}, ["it ended before the switch"])
    came_to = rehearsed.judged(
        result.records,
        rehearsal.went_to,
        rehearsal.switch,
        baseline=rehearsal.baseline.routing.target,
        abort=rehearsal.candidate.abort,
    )
    invalid = [f"the run is INVALID: {reason}" for reason in result.verdict.reasons]
    afterwards = [] if rehearsal.not_put_back is None else [rehearsal.not_put_back]
    return Rehearsed(came_to.figures, [*came_to.failures, *invalid, *afterwards])


def _plan(args: argparse.Namespace, command: Sequence[str], baseline: Manifest) -> CellPlan:
    mix = arguments.mix_from(args)
    trace = random_arrivals.for_duration(
        rate=Intensity(args.request_rate), span_s=args.before + args.after, mix=mix, seed=args.seed
    )
    served = tokenizer.load(args.tokenizer)
    key_names = parse_credentials(args.credential, "--credential")
    return CellPlan(
        cell_id="rollback",
        repeat=1,
        target=Target(
            name="gateway",
            base_url=clean_url(args.base_url, "--base-url"),
            key_names=key_names,
            priority={},
            keys=resolve_keys(key_names, os.environ),
        ),
        trace=trace,
        corpus=prompts.build(trace, served.count_for(PromptForm.CHAT), args.seed),
        tokenizer=served,
        form=PromptForm.CHAT,
        model=baseline.model.name,
        cache_salted=not args.no_cache_salt,
        engine_cost_per_hour=None,
        # Nothing is open any more once the gateway has ended what was late.
        windows=Windows(0.0, trace.span_s, baseline.drain_deadline_s + rollback.ENDED_S_MAX),
        limits=parse_limits([], "limits"),
        goodput=[],
        lag_tolerance_ms=LAG_TOLERANCE_MS,
        idle_urls=(),
        idle_wait_s_max=0.0,
        seeds={"trace": args.seed, "corpus": args.seed},
        metadata=arguments.metadata_from(args),
        command=command,
    )
