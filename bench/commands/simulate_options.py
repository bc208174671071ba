"""The options of `gateway bench simulate`, and the scenario that they or its file say. Plays nothing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bench.argument_types import not_negative, positive, whole
from bench.errors import UsageError
from bench.scenario import Scenario, checked, load
from bench.simulation.profiles import PROFILES
from bench.simulation.study import with_counts

PROBES, BUSY = "probes", "busy"
_ENGINE = ("scheduling_policy", "max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs")
_LOAD = ("policies", "request_rate", "duration", "num_prompts", "warmup", "mix", "goodput")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", type=Path, metavar="SCENARIO.yaml", help="or the options of the load")
    engine = parser.add_argument_group("engine")
    about = "; ".join(f"{profile.name}: {profile.about}" for profile in PROFILES.values())
    engine.add_argument("--profile", choices=list(PROFILES), default="h200", help=f"{about} (default h200)")
    engine.add_argument(
        "--calibration", type=Path, metavar="FILE", help="step costs that `gateway bench calibrate` wrote"
    )
    engine.add_argument("--scheduling-policy", choices=["fcfs", "priority"], help="without a scenario (default fcfs)")
    engine.add_argument("--max-num-batched-tokens", type=whole, metavar="N", help="(default: the profile's)")
    engine.add_argument("--long-prefill-token-threshold", type=whole, metavar="N", help="(default: off)")
    engine.add_argument("--max-num-seqs", type=whole, metavar="N", help="(default: the profile's)")
    load_group = parser.add_argument_group("load, without a scenario")
    load_group.add_argument("--policies", nargs="+", default=[], metavar="NAME_OR_FILE", help="an arm each")
    load_group.add_argument("--request-rate", nargs="+", type=positive, default=[], metavar="R")
    load_group.add_argument("--duration", type=positive, metavar="S", help="after the warm-up")
    load_group.add_argument("--num-prompts", type=whole, metavar="N", help="instead of --duration")
    load_group.add_argument("--warmup", type=not_negative, metavar="S", help="(default 0)")
    load_group.add_argument("--mix", nargs="+", metavar="S/L", help="shares by request count (default 80/20)")
    load_group.add_argument("--short-tokens", type=whole, default=512, metavar="N", help="(default 512)")
    load_group.add_argument("--long-tokens", type=whole, default=8192, metavar="N", help="(default 8192)")
    load_group.add_argument("--output-tokens", type=whole, default=128, metavar="N", help="(default 128)")
    load_group.add_argument("--goodput", nargs="+", default=[], metavar="CLASS:METRIC:MS")
    both = parser.add_argument_group("with and without a scenario")
    both.add_argument(
        "--seeds", nargs="+", type=int, metavar="N", help="one trace each (default: the scenario's, or 1)"
    )
    both.add_argument("--engines", type=whole, metavar="N", help="of all gateways together (default 1)")
    both.add_argument("--gateways", type=whole, metavar="N", help="each with its share (default 1)")
    both.add_argument(
        "--shared-engines", action="store_true", default=None, help="every gateway sends to all engines (default: no)"
    )
    both.add_argument("--tenants", type=whole, metavar="N", help="of each class (default 1)")
    both.add_argument("--jobs", type=whole, default=os.cpu_count() or 1, metavar="N", help="(default: all cores)")
    both.add_argument("--measured", type=Path, metavar="FILE", help="a live comparison.json to be held against")
    both.add_argument(
        "--speed-from",
        choices=[PROBES, BUSY],
        help="how fast the engine was in each measured run: by the lone requests around it, or by how long it was at "
        f"work in it (default {PROBES})",
    )
    both.add_argument("--result-dir", type=Path, default=Path("runs"), metavar="DIR", help="(default runs)")


def scenario_from(args: argparse.Namespace) -> tuple[Scenario, Path]:
    """The scenario, and the folder from which its policies are read."""
    if args.scenario is not None:
        given = [f"--{name.replace('_', '-')}" for name in _LOAD + _ENGINE if getattr(args, name)]
        if given:
            raise UsageError(f"{args.scenario} already says that: leave out {', '.join(given)}.")
        scenario, base = load(args.scenario), args.scenario.parent
    else:
        scenario, base = _from_options(args), Path()
    if args.seeds:
        scenario = scenario.model_copy(update={"seeds": args.seeds})
    counts = {name: getattr(args, name) for name in ("engines", "gateways", "shared_engines", "tenants")}
    return with_counts(scenario, **counts), base


def _from_options(args: argparse.Namespace) -> Scenario:
    if not args.policies or not args.request_rate:
        raise UsageError("Give a SCENARIO.yaml, or --policies and --request-rate.")
    engine = {name: value for name in _ENGINE if (value := getattr(args, name)) is not None}
    long, short = (
        {"prompt_tokens": n, "output_tokens": args.output_tokens} for n in (args.long_tokens, args.short_tokens)
    )
    said: dict[str, Any] = {
        "version": 1,
        "name": "options",
        "model": "simulated",
        "tokenizer": ".",
        "arms": [
            {"name": Path(policy).stem, "simulated": {"policy": policy, "engine": engine}} for policy in args.policies
        ],
        "rates_per_s": args.request_rate,
        "mixes": args.mix or ["80/20"],
        "lengths": {"short": short, "long": long},
        "duration_s": args.duration,
        "num_prompts": args.num_prompts,
        "warmup_s": args.warmup or 0.0,
        "goodput": args.goodput,
    }
    return checked({key: value for key, value in said.items() if value is not None}, "options")
