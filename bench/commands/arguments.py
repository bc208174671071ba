"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.argument_types import not_negative, positive, whole
from bench.corpus.tokenizer import PromptForm
from bench.errors import UsageError
from bench.load.target import Target, clean_url, metrics_urls, resolve_keys
from bench.options import (
    LONG,
    SHORT,
    parse_capacity,
    parse_credentials,
    parse_mix,
    parse_pairs,
    parse_prices,
    parse_priorities,
)
from bench.scenario import Scenario, checked
from bench.trace.intensity import Intensity, parse_burst
from bench.trace.mix import ClassLoad
from bench.trace.reading import CLASSES


def add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--base-url", required=True, metavar="URL", help="http://HOST:PORT of the gateway or an engine")
    group.add_argument("--model", required=True, help="the served model's name")
    group.add_argument(
        "--tokenizer", required=True, type=Path, metavar="DIR", help="folder of the served model's tokenizer"
    )
    group.add_argument("--endpoint", choices=[str(form) for form in PromptForm], default=str(PromptForm.CHAT))
    group.add_argument(
        "--credential",
        nargs="+",
        default=[],
        metavar="[CLASS=]ENV",
        help="environment variables that hold the keys: ENV for all classes, or short=ENV long=ENV",
    )
    group.add_argument("--api-key-env-short", metavar="ENV", help="the same as --credential short=ENV")
    group.add_argument("--api-key-env-long", metavar="ENV", help="the same as --credential long=ENV")
    group.add_argument(
        "--priority", nargs="+", default=[], metavar="CLASS=N", help="X-Vllm-Priority by class, straight to an engine"
    )
    add_ops(group)
    add_engines(group)


def add_ops(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ops-url", metavar="URL", help="the gateway's ops port: it says which policy is in force")


def ops_from(args: argparse.Namespace) -> str | None:
    """Raises UsageError for what is no URL."""
    return None if args.ops_url is None else clean_url(args.ops_url, "--ops-url")


def add_engines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine-url", nargs="+", metavar="URL", help="the engines behind the target: their /metrics are read"
    )


def add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--mix", metavar="S/L", help="short/long shares by request count (default 80/20)")
    group.add_argument("--short-tokens", type=whole, default=512, metavar="N", help="prompt tokens (default 512)")
    group.add_argument("--long-tokens", type=whole, default=8192, metavar="N", help="prompt tokens (default 8192)")
    group.add_argument("--output-tokens", type=whole, default=128, metavar="N", help="of each answer (default 128)")
    group.add_argument("--seed", type=int, default=0, help="of arrivals and prompts (default 0)")
    group.add_argument(
        "--no-cache-salt", action="store_true", help="let a repeated prompt find the engine's prefix cache warm"
    )


def add_rate(group: argparse._ArgumentGroup) -> None:
    """How arrivals come; `intensity_from` reads it."""
    group.add_argument("--request-rate", type=positive, metavar="R", help="requests per second")
    group.add_argument(
        "--burstiness", type=positive, metavar="K", help="shape of the gamma gaps: 1 Poisson (default), less: clumps"
    )
    group.add_argument(
        "--burst", metavar="EVERY:LENGTH:FACTOR", help="seconds and factor: 60:5:8 is 5 s of eightfold each minute"
    )
    group.add_argument("--ramp-to", type=positive, metavar="R", help="the rate goes in a straight line to this one")


def intensity_from(args: argparse.Namespace) -> Intensity:
    """Raises UsageError where burst and ramp are both given, or one is malformed."""
    if args.burst is not None and args.ramp_to is not None:
        raise UsageError("--burst and --ramp-to: give one of them.")
    burst = None if args.burst is None else parse_burst(args.burst, "--burst")
    return Intensity(args.request_rate, burst, args.ramp_to)


def add_loads(parser: argparse.ArgumentParser) -> None:
    """What a scenario says of its load; `scenario_from` reads it."""
    group = parser.add_argument_group("load")
    group.add_argument("--rates", nargs="+", type=positive, default=[], metavar="R", help="requests per second")
    group.add_argument(
        "--capacity",
        nargs="+",
        default=[],
        metavar="[MIX=]R",
        help="requests/s, from `gateway bench capacity`: R for all mixes, or 80/20=6.8 50/50=3.2",
    )
    group.add_argument("--loads", nargs="+", type=positive, default=[], metavar="X", help="shares of --capacity")
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="replay it at each rate: of any format that `trace convert` reads"
    )
    group.add_argument(
        "--trace-classes", nargs="+", default=list(CLASSES), metavar="CLASS[:TOKENS]", help="as --classes of `trace`"
    )
    group.add_argument("--mixes", nargs="+", default=["80/20"], metavar="S/L", help="(default 80/20)")
    group.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="one trace each (default 1)")
    group.add_argument("--repeats", type=whole, default=1, metavar="N", help="of each trace (default 1)")


def add_campaign(parser: argparse.ArgumentParser, *, name: str) -> None:
    """What every command with several runs takes; `scenario_from` reads it."""
    group = parser.add_argument_group("runs")
    group.add_argument("--num-prompts", type=whole, metavar="N", help="exactly N requests a run, warm-up included")
    group.add_argument("--duration", type=positive, metavar="S", help="measurement window, after the warm-up")
    group.add_argument(
        "--num-prompts-min",
        type=whole,
        metavar="N",
        help="with --duration: longer where the rate is low, until N requests; the rate is exact then",
    )
    group.add_argument("--warmup", type=not_negative, default=0.0, metavar="S", help="(default 0)")
    group.add_argument("--drain-deadline", type=positive, default=60.0, metavar="S", help="(default 60)")
    group.add_argument("--idle-wait", type=positive, default=120.0, metavar="S", help="until it is idle (default 120)")
    group.add_argument("--burstiness", type=positive, default=1.0, metavar="K", help="of the gaps (default 1: Poisson)")
    group.add_argument("--short-tokens", type=whole, default=512, metavar="N", help="prompt tokens (default 512)")
    group.add_argument("--long-tokens", type=whole, default=8192, metavar="N", help="prompt tokens (default 8192)")
    group.add_argument("--output-tokens", type=whole, default=128, metavar="N", help="of each answer (default 128)")
    group.add_argument("--endpoint", choices=[str(form) for form in PromptForm], default=str(PromptForm.CHAT))
    group.add_argument("--no-cache-salt", action="store_true", help="let repeated prompts find warm prefix caches")
    group.add_argument("--goodput", nargs="+", default=[], metavar="CLASS:METRIC:MS", help="limits, short:ttft:500 …")
    group.add_argument("--lag-tolerance-ms", type=positive, default=50.0, metavar="MS", help="(default 50)")
    add_prices(group)
    group.add_argument("--order-seed", type=int, default=1, metavar="N", help="of the order of runs (default 1)")
    group.add_argument("--name", default=name, help=f"of the comparison (default {name})")
    group.add_argument("--resume", type=Path, metavar="DIR", help="go on with what was interrupted")
    add_retry(group)
    group.add_argument("--dry-run", action="store_true", help="say which runs there would be, send nothing")
    add_record(parser)


def add_retry(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--retry-invalid", action="store_true", help="with --resume: repeat INVALID runs; the report says how many"
    )


def scenario_from(
    args: argparse.Namespace, *, arms: Sequence[Mapping[str, Any]], model: str, tokenizer: Path
) -> Scenario:
    """Raises UsageError naming the option where it is none."""
    said: dict[str, Any] = {
        "version": 1,
        "name": args.name,
        "model": model,
        "tokenizer": str(tokenizer),
        "endpoint": args.endpoint,
        "arms": list(arms),
        "lengths": {
            SHORT: {"prompt_tokens": args.short_tokens, "output_tokens": args.output_tokens},
            LONG: {"prompt_tokens": args.long_tokens, "output_tokens": args.output_tokens},
        },
        "trace": None if args.trace is None else str(args.trace.absolute()),
        "trace_classes": args.trace_classes,
        "mixes": args.mixes,
        "rates_per_s": args.rates,
        "capacity_per_s": parse_capacity(args.capacity, "--capacity"),
        "loads": args.loads,
        "duration_s": args.duration,
        "num_prompts": args.num_prompts,
        "num_prompts_min": args.num_prompts_min,
        "burstiness": args.burstiness,
        "warmup_s": args.warmup,
        "drain_deadline_s": args.drain_deadline,
        "idle_wait_s_max": args.idle_wait,
        "seeds": args.seeds,
        "repeats": args.repeats,
        "order_seed": args.order_seed,
        "goodput": args.goodput,
        "lag_tolerance_ms": args.lag_tolerance_ms,
        "cache_salt": not args.no_cache_salt,
        "engine_cost_per_hour": parse_prices(args.engine_cost_per_hour, "--engine-cost-per-hour"),
        "metadata": metadata_from(args),
    }
    return checked(said, "command line")


def add_prices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine-cost-per-hour", nargs="+", metavar="[ARM=]X", help="of all engines behind an arm: 2.5 isolated=5"
    )


def add_record(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("records")
    group.add_argument("--result-dir", type=Path, default=Path("runs"), metavar="DIR", help="(default runs)")
    group.add_argument("--metadata", nargs="+", default=[], metavar="K=V", help="facts to keep with the record")


def target_from(args: argparse.Namespace) -> Target:
    """Raises UsageError for a URL that is none, a variable that is not set, a word that is malformed."""
    words = list(args.credential)
    for class_name, name in ((SHORT, args.api_key_env_short), (LONG, args.api_key_env_long)):
        if name is not None:
            words.append(f"{class_name}={name}")
    key_names = parse_credentials(words, "--credential")
    return Target(
        name="target",
        base_url=clean_url(args.base_url, "--base-url"),
        key_names=key_names,
        priority=parse_priorities(args.priority, "--priority"),
        metrics_urls=metrics_urls(args.engine_url, "--engine-url"),
        ops_url=ops_from(args),
        keys=resolve_keys(key_names, os.environ),
    )


def mix_from(args: argparse.Namespace) -> list[ClassLoad]:
    lengths = {SHORT: (args.short_tokens, args.output_tokens), LONG: (args.long_tokens, args.output_tokens)}
    return parse_mix(args.mix or "80/20", lengths=lengths, where="--mix")


def metadata_from(args: argparse.Namespace) -> dict[str, str]:
    return parse_pairs(args.metadata, "--metadata")
