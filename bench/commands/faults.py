"""`gateway bench faults`: drills, each with what is expected of every request; passed or failed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.analysis.limits import parse_limits
from bench.cell import CellPlan, CellResult
from bench.commands import arguments
from bench.corpus import prompts, tokenizer
from bench.corpus.tokenizer import PromptForm
from bench.drive import run_cell
from bench.errors import UsageError
from bench.exits import Exit
from bench.faults import drills, expectations, stage
from bench.faults.drills import DRILLS, Drill
from bench.faults.stage import Scene
from bench.load.pacing import Windows
from bench.load.target import Target, clean_url, metrics_urls, resolve_keys
from bench.local_gateway import fresh_callers
from bench.options import LONG, SHORT, parse_credentials
from bench.progress import Progress, say
from bench.records.run import new_run_id
from bench.records.store import DRILLS_FILE, RunFolder
from bench.report import drill_table

HELP = "hold fault drills, and say of each whether it went as expected"
EXAMPLE = """examples:
  gateway bench faults
  gateway bench faults engine-restarts flood --policy sliced
  gateway bench faults long-burst client-leaves flood --base-url http://127.0.0.1:8080 \\
      --ops-url http://127.0.0.1:9090 --model my-model --tokenizer ./tokenizer --credential short=KEY long=KEY_BATCH

Each drill has an embedded engine (`gateway emulate --fault`) and a gateway of its own. With --base-url it is a live
gateway that is drilled, by those drills that break nothing; they load it hard. --list prints all.

exit codes: 0 all passed, 1 some failed or nothing answers, 2 usage, 4 INVALID: the client itself was late
or lost a process"""

SERVICE_CLASSES = {SHORT: "interactive", LONG: "batch"}
DRAIN_S = 60.0
LAG_TOLERANCE_MS = 500.0
# How a verdict's reasons begin that say nothing of the target.
CLIENTS_OWN = ("client lag", "a process of the client", "the client ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("drills", nargs="*", metavar="DRILL", help="(default: all that the target allows)")
    parser.add_argument("--list", action="store_true", help="print the drills and hold none")
    parser.add_argument("--policy", default="short-first", metavar="NAME_OR_FILE", help="(default short-first)")
    live = parser.add_argument_group("a live gateway in the place of the embedded engine")
    live.add_argument("--base-url", metavar="URL", help="http://HOST:PORT of the gateway")
    live.add_argument("--ops-url", metavar="URL", help="its ops port: whether it counted every request once")
    arguments.add_engines(live)
    live.add_argument("--model", help="the served model's name")
    live.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder of the served model's tokenizer")
    live.add_argument("--credential", nargs="+", default=[], metavar="[CLASS=]ENV", help="variables with the keys")
    parser.add_argument("--name", default="faults", help="of the folder of records (default faults)")
    arguments.add_record(parser)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints what each drill came to."""
    chosen = _chosen(args)
    if args.list:
        print("\n".join(f"{each.name:16} {each.about}" for each in chosen))
        return Exit.VALID
    metadata = arguments.metadata_from(args)
    live = None if args.base_url is None else _live(args)
    callers = fresh_callers(SERVICE_CLASSES)
    folder = RunFolder(args.result_dir, f"{args.name}-{new_run_id()}")
    held: list[dict[str, Any]] = []
    try:
        with Progress([each.trace().span_s for each in chosen]) as progress:
            for number, drill in enumerate(chosen):
                progress.begin(number, drill.name)
                with _scene(drill, live, folder.path / "gateway", args.policy, callers) as scene:
                    account = stage.account(scene.ops_url)
                    result = run_cell(_plan(drill, scene, metadata, command), folder.path, progress.say, progress.watch)
                    counted = account()
                if result.interrupted:
                    raise KeyboardInterrupt
                held.append(_said(drill, result, counted))
                progress.say(f"{drill.name}: {'passed' if held[-1]['passed'] else 'FAILED'}\n")
    finally:
        folder.write_json(DRILLS_FILE, {"command": list(command), "policy": args.policy, "drills": held})
        if held:
            print(drill_table.describe(held))
        say(f"\nrecords: {folder.path}")
    if any(each["client_late"] for each in held):
        return Exit.INVALID
    return Exit.VALID if all(each["passed"] for each in held) else Exit.FAILURE


def _chosen(args: argparse.Namespace) -> list[Drill]:
    known = {each.name: each for each in DRILLS}
    unknown = [name for name in args.drills if name not in known]
    if unknown:
        raise UsageError(f"no drill {unknown[0]!r}; there are {', '.join(known)}.")
    if args.base_url is None:
        return [known[name] for name in args.drills] or list(DRILLS)
    breaking = [name for name in args.drills if known[name].needs_emulator]
    if breaking:
        raise UsageError(f"{breaking[0]}: needs the embedded engine, which breaks on command. Leave out --base-url.")
    return [known[name] for name in args.drills] or [each for each in DRILLS if not each.needs_emulator]


def _live(args: argparse.Namespace) -> Scene:
    missing = [name for name in ("model", "tokenizer") if getattr(args, name) is None]
    if missing:
        raise UsageError(f"--{missing[0]} is missing: --base-url drills a live gateway.")
    key_names = parse_credentials(args.credential, "--credential")
    target = Target(
        name="live",
        base_url=clean_url(args.base_url, "--base-url"),
        key_names=key_names,
        priority={},
        metrics_urls=metrics_urls(args.engine_url, "--engine-url"),
        ops_url=arguments.ops_from(args),
        keys=resolve_keys(key_names, os.environ),
    )
    return Scene(target, args.model, args.tokenizer, target.ops_url)


@contextmanager
def _scene(drill: Drill, live: Scene | None, folder: Path, policy: str, callers: Any) -> Iterator[Scene]:
    if live is not None:
        yield live
        return
    with stage.embedded(drill, folder, policy, callers) as scene:
        yield scene


def _plan(drill: Drill, scene: Scene, metadata: Mapping[str, str], command: Sequence[str]) -> CellPlan:
    trace = drill.trace()
    served = tokenizer.load(scene.tokenizer)
    return CellPlan(
        cell_id=drill.name,
        repeat=1,
        target=scene.target,
        trace=trace,
        corpus=prompts.build(trace, served.count_for(PromptForm.CHAT), drills.SEED),
        tokenizer=served,
        form=PromptForm.CHAT,
        model=scene.model,
        cache_salted=True,
        engine_cost_per_hour=None,
        windows=Windows(0.0, trace.span_s, DRAIN_S),
        limits=parse_limits(drills.TTFT_LIMITS, "limits"),
        goodput=drills.TTFT_LIMITS,
        lag_tolerance_ms=LAG_TOLERANCE_MS,
        idle_urls=(),
        idle_wait_s_max=0.0,
        seeds={"trace": drills.SEED, "corpus": drills.SEED},
        metadata=metadata,
        command=command,
    )


def _said(drill: Drill, result: CellResult, counted: expectations.Counted | None) -> dict[str, Any]:
    late = next((reason for reason in result.verdict.reasons if reason.startswith(CLIENTS_OWN)), None)
    checks = expectations.judged(drill, result.records, counted, result.plan.limits, late)
    again_s = expectations.served_again_s(result.records) if drill.served_again_s_max is not None else None
    return {
        "drill": drill.name,
        "about": drill.about,
        "run_id": result.run_id,
        "passed": all(each.passed for each in checks),
        "client_late": late is not None,
        "offered": len(result.records),
        "completed": sum(str(each.outcome) == "completed" for each in result.records),
        **({} if again_s is None else {"served_again_s": round(again_s, 2)}),
        "checks": [each.to_json() for each in checks],
    }
