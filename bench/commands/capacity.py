"""`gateway bench capacity`: how many requests a second a target carries, by a short closed-loop saturation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.analysis.capacity import Capacity
from bench.argument_types import not_negative, positive, whole
from bench.commands import arguments
from bench.corpus import tokenizer
from bench.corpus.tokenizer import PromptForm
from bench.exits import Exit
from bench.options import check_classes
from bench.progress import say
from bench.records.request import Outcome
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.saturation import Saturation, carried

HELP = "find how many requests a second a target carries"
EXAMPLE = """example:
  gateway bench capacity --base-url http://127.0.0.1:8000 --model tiny --tokenizer ./tokenizer \\
      --mix 80/20 --concurrency 16 --warmup 15 --duration 90

Closed loop: a new request is sent when one ends. Its latencies say nothing of what users would see and are not printed.
Measure at the engine: a gateway that refuses keeps the number below what the engine can do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_target(parser)
    arguments.add_load(parser)
    group = parser.add_argument_group("saturation")
    group.add_argument("--concurrency", type=whole, default=16, metavar="N", help="requests in flight (default 16)")
    group.add_argument("--warmup", type=not_negative, default=15.0, metavar="S", help="(default 15)")
    group.add_argument("--duration", type=positive, default=90.0, metavar="S", help="(default 90)")
    group.add_argument(
        "--num-prompts", type=whole, default=200, metavar="N", help="different prompts to make (default 200)"
    )
    arguments.add_record(parser)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the capacity."""
    target = arguments.target_from(args)
    mix = arguments.mix_from(args)
    check_classes("--priority", set(target.priority), {load.name for load in mix})
    metadata = arguments.metadata_from(args)
    what = Saturation(
        target=target,
        model=args.model,
        form=PromptForm(args.endpoint),
        served=tokenizer.load(args.tokenizer),
        mix=mix,
        seed=args.seed,
        concurrency=args.concurrency,
        warmup_s=args.warmup,
        duration_s=args.duration,
        num_prompts=args.num_prompts,
        cache_salted=not args.no_cache_salt,
    )
    folder = RunFolder(args.result_dir, new_run_id())
    found = carried(what, folder, command=command, metadata=metadata, echo=say)
    print(_described(found, args.concurrency))
    print(f"\nrecords: {folder.path}")
    return Exit.VALID if found.ends.get(Outcome.COMPLETED) else Exit.FAILURE


def _described(found: Capacity, concurrency: int) -> str:
    classes = ", ".join(f"{number:.1f} {name}" for name, number in found.by_class.items()) or "nothing"
    ends = ", ".join(f"{number} {end}" for end, number in found.ends.items()) or "none sent"
    return (
        f"capacity: {found.requests_per_s:.3f} requests/s (closed loop, saturation, {concurrency} in flight)\n"
        f"credited in {found.window_s:g} s: {classes}; ends of all requests: {ends}"
    )
