"""`gateway bench policies`: policies on one engine, same arrivals, a gateway of the bench's own for each in turn."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench import campaign_plan
from bench.campaign_plan import Gateways, PoliciesPlan
from bench.commands import arguments
from bench.comparing import planned, run_scenario
from bench.errors import UsageError
from bench.exits import of_runs
from bench.load.target import clean_url
from bench.local_gateway import LocalGateway, base_of_engine, base_of_file, chunk_tokens_max, engine_said, fresh_callers
from bench.options import LONG, SHORT, check_classes, parse_pairs
from bench.order import Cell
from bench.records.run import new_run_id
from bench.trace import reading

HELP = "compare policies on one engine, with the same arrivals for each"
EXAMPLE = """examples:
  gateway bench policies passthrough short-first ./mine.yaml --engine-url http://127.0.0.1:8000 --model tiny \\
      --tokenizer ./tokenizer --capacity 2.2 --loads 0.7 0.95 1.3 --mixes 80/20 50/50 --repeats 3 \\
      --num-prompts 120 --warmup 5 --goodput short:ttft:500 long:ttft:20000
  gateway bench policies --resume runs/policies-20260101T000000Z-0a1b2c3d

The bench starts `gateway serve` with each policy for each of its runs, with a generated configuration (or yours, by
--gateway-config) and keys of its own, and ends it afterwards. Policies of one trace run back to back, in an order drawn
from --order-seed; before each the engine must be idle. The first policy is what the others are compared with; --aa runs
it a second time under another name, which shows how large a difference is noise.

exit codes: as `gateway bench run`, over all runs"""

KIND = "policies"
SERVICE_CLASSES = {SHORT: "interactive", LONG: "batch"}
OTHERS = "standard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="shipped policies by name, or files")
    engine = parser.add_argument_group("engine and gateway")
    engine.add_argument("--engine-url", metavar="URL", help="http://HOST:PORT of the engine")
    engine.add_argument("--model", help="the served model's name")
    engine.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder of the served model's tokenizer")
    engine.add_argument("--engine-scheduling", choices=["probe", "priority", "fcfs"], default="probe")
    engine.add_argument("--calibration", default="probe", metavar="probe|off|FILE", help="(default probe)")
    engine.add_argument(
        "--engine-limits", nargs="+", default=[], metavar="K=N", help="as engines[].limits: max_num_seqs=128 …"
    )
    engine.add_argument("--engine-key-env", metavar="ENV", help="variable with the engine's own key")
    engine.add_argument(
        "--gateway-config",
        nargs="+",
        default=[],
        metavar="[POLICY=]FILE",
        help="your gateway.yaml: its engines and pools; POLICY=FILE where a policy needs an engine of other flags",
    )
    engine.add_argument(
        "--service-classes",
        nargs="+",
        default=[],
        metavar="CLASS=SERVICE_CLASS",
        help="(default short=interactive long=batch)",
    )
    engine.add_argument("--aa", action="store_true", help="run the first policy a second time: the noise floor")
    arguments.add_campaign(parser, name=KIND)
    arguments.add_loads(parser)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the tables of the cells that were run."""
    if args.resume is not None:
        if args.policies:
            raise UsageError("--resume goes on with the policies that were begun: name none.")
        plan, folder = campaign_plan.resumed(args.resume, KIND, PoliciesPlan), args.resume
    else:
        plan, folder = _plan(args, command), None
    scenario = plan.scenario
    callers = fresh_callers(plan.service_classes)
    os.environ.update(callers.environment())
    where = Path("the command line") if folder is None else folder / campaign_plan.FILE
    if args.dry_run:
        for cell in planned(scenario, where).order:
            print(cell.cell_id)
        return 0
    made_of = plan.gateway
    if folder is None:
        planned(scenario, where)
        folder = campaign_plan.begun(args.result_dir, f"{scenario.name}-{new_run_id()}", plan)
    gateway = LocalGateway((folder / "gateway").absolute(), callers)
    # The address is this session's: where an interrupted comparison goes on, another port may be free.
    arms = [arm.model_copy(update={"base_url": gateway.url, "ops_url": gateway.ops_url}) for arm in scenario.arms]
    made = planned(scenario.model_copy(update={"arms": arms}), where)

    def ready(cell: Cell) -> AbstractContextManager[None]:
        name = cell.arm.name
        return gateway.serving(name, made_of.policies[name], made_of.bases[name])

    return of_runs(run_scenario(made, folder, command, ready=ready, retry_invalid=args.retry_invalid).runs)


def _plan(args: argparse.Namespace, command: Sequence[str]) -> PoliciesPlan:
    policies = _named(args.policies, again=args.aa)
    service_classes = _service_classes(args)
    bases = _bases(args, policies)
    callers = fresh_callers(service_classes)
    arms = [
        {
            "name": name,
            "base_url": "http://127.0.0.1:1",
            "credentials": callers.variables(),
            "engine_metrics_url": [engine["url"] for engine in bases[name]["engines"]],
            "again": args.aa and name == _again(next(iter(policies))),
            "about": engine_said(bases[name]),
            "chunk_tokens_max": chunk_tokens_max(bases[name]),
        }
        for name in policies
    ]
    return PoliciesPlan(
        kind=KIND,
        command=list(command),
        service_classes=service_classes,
        gateway=Gateways(policies=policies, bases=bases),
        scenario=arguments.scenario_from(args, arms=arms, model=_model(args), tokenizer=_tokenizer(args)),
    )


def _named(policies: Sequence[str], *, again: bool) -> dict[str, str]:
    """Arm to policy: a shipped one by its name, a file by its absolute path."""
    if not policies:
        raise UsageError("Name the policies: shipped ones (`gateway policies` lists them), or files.")
    named: dict[str, str] = {}
    for policy in policies:
        path = Path(policy)
        is_file = path.suffix in {".yaml", ".yml"} or path.name != policy
        name = path.stem if is_file else policy
        if name in named:
            raise UsageError(f"{policy}: a second policy of the name {name}. Give --aa to run the first one twice.")
        named[name] = str(path.absolute()) if is_file else policy
    if again:
        first = next(iter(named))
        named[_again(first)] = named[first]
    return named


def _service_classes(args: argparse.Namespace) -> dict[str, str]:
    """Of each class of the requests: what the user says, else the usual one, else standard."""
    said = parse_pairs(args.service_classes, "--service-classes")
    names = [SHORT, LONG]
    if args.trace is not None:
        names = reading.read(args.trace, classes=args.trace_classes).class_names()
    check_classes("--service-classes", set(said), set(names))
    return {name: said.get(name) or SERVICE_CLASSES.get(name, OTHERS) for name in names}


def _bases(args: argparse.Namespace, policies: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Arm to what its gateway is configured with, the policy apart."""
    if not args.gateway_config:
        if args.engine_url is None:
            raise UsageError("Give --engine-url of the engine, or --gateway-config with your engines.")
        url = clean_url(args.engine_url, "--engine-url")
        return dict.fromkeys(policies, base_of_engine(url, _model(args), _tokenizer(args), _engine_options(args)))
    if args.engine_url is not None:
        raise UsageError("--engine-url: --gateway-config says which engines there are. Give one of the two.")
    files = parse_pairs((each if "=" in each else f"*={each}" for each in args.gateway_config), "--gateway-config")
    unknown = sorted(set(files) - set(policies) - {"*"})
    if unknown:
        raise UsageError(f"--gateway-config: {unknown[0]} is not among the policies: {', '.join(policies)}.")
    first = next(iter(policies))
    chosen = {name: files.get(first if name == _again(first) else name, files.get("*")) for name in policies}
    without = [name for name, file in chosen.items() if file is None]
    if without:
        raise UsageError(f"--gateway-config: none for {without[0]}. Add {without[0]}=FILE, or FILE for all others.")
    return {name: base_of_file(Path(file)) for name, file in chosen.items() if file is not None}


def _again(name: str) -> str:
    return f"{name}-again"


def _model(args: argparse.Namespace) -> str:
    if args.model is None:
        raise UsageError("--model is missing: the served model's name.")
    return str(args.model)


def _tokenizer(args: argparse.Namespace) -> Path:
    if args.tokenizer is None:
        raise UsageError("--tokenizer is missing: the folder of the served model's tokenizer.")
    return Path(args.tokenizer).absolute()


def _engine_options(args: argparse.Namespace) -> Mapping[str, Any]:
    pairs = parse_pairs(args.engine_limits, "--engine-limits")
    wrong = [name for name, value in pairs.items() if not value.isdigit()]
    if wrong:
        raise UsageError(f"--engine-limits: {wrong[0]}={pairs[wrong[0]]} is no whole number.")
    is_file = args.calibration not in ("probe", "off")
    options: dict[str, Any] = {
        "scheduling": args.engine_scheduling,
        "calibration": str(Path(args.calibration).absolute()) if is_file else args.calibration,
        "limits": {name: int(value) for name, value in pairs.items()},
    }
    return options if args.engine_key_env is None else {**options, "api_key_env": args.engine_key_env}
