"""`gateway bench capacity`: how many requests a second a target carries, by a short closed-loop saturation."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence

import uvloop

from bench.analysis.capacity import Capacity, estimate
from bench.commands import arguments
from bench.commands.arguments import say
from bench.commands.exits import Exit
from bench.corpus import prompts, tokenizer
from bench.corpus.tokenizer import PromptForm
from bench.engine.session import open_session
from bench.errors import TargetUnreachableError
from bench.load.bodies import BodyStyle
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.saturation import closed_loop, endless_flights
from bench.load.target import PATHS, Target
from bench.reach import reach
from bench.records.request import Outcome, RequestRecord
from bench.records.run import new_run_id
from bench.records.store import RunFolder
from bench.told_to_end import ToldToEnd
from bench.trace.mix import endless

HELP = "find how many requests a second a target carries"
EXAMPLE = """example:
  gateway bench capacity --base-url http://127.0.0.1:8000 --model tiny --tokenizer ./tokenizer \\
      --mix 80/20 --concurrency 16 --warmup 15 --duration 90

Closed loop: a new request is sent when one ends. Its latencies say nothing of what users would see and are not printed.
Measure at the engine: a gateway that refuses keeps the number below what the engine can do."""

CLOSED_DRAIN_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_target(parser)
    arguments.add_load(parser)
    group = parser.add_argument_group("saturation")
    group.add_argument(
        "--concurrency", type=arguments.whole, default=16, metavar="N", help="requests in flight (default 16)"
    )
    group.add_argument("--warmup", type=arguments.not_negative, default=15.0, metavar="S", help="(default 15)")
    group.add_argument("--duration", type=arguments.positive, default=90.0, metavar="S", help="(default 90)")
    group.add_argument(
        "--num-prompts", type=arguments.whole, default=200, metavar="N", help="different prompts to make (default 200)"
    )
    arguments.add_record(parser)


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the capacity."""
    target = arguments.target_from(args)
    mix = arguments.mix_from(args)
    arguments.check_classes("--priority", set(target.priority), {load.name for load in mix})
    metadata = arguments.metadata_from(args)
    form = PromptForm(args.endpoint)
    served = tokenizer.load(args.tokenizer)
    drawn = endless(mix, random.Random(f"closed loop {args.seed}"))
    loads = [next(drawn) for _ in range(args.num_prompts)]
    say(f"making {len(loads)} prompts")
    corpus = prompts.build_lengths((load.prompt_tokens for load in loads), served.count_for(form), args.seed)
    run_id = new_run_id()
    folder = RunFolder(args.result_dir, run_id)
    style = BodyStyle(form, args.model, None if args.no_cache_salt else run_id)
    requests = endless_flights(loads, corpus, style=style, target=target, run_id=run_id)
    records = _measured(args, target, PATHS[form], requests, folder)
    found = estimate(records, from_ms=args.warmup * 1000, to_ms=(args.warmup + args.duration) * 1000)
    said = {
        "run_id": run_id,
        "command": list(command),
        "target": target.public(),
        "concurrency": args.concurrency,
        "warmup_s": args.warmup,
        "mix": {load.name: load.share for load in mix},
        "seed": args.seed,
        "tokenizer_sha256": served.sha256,
        "metadata": metadata,
    }
    folder.write_json("capacity.json", said | {"capacity": found.to_json()})
    print(_described(found, args.concurrency))
    print(f"\nrecords: {folder.path}")
    return Exit.VALID if found.ends.get(Outcome.COMPLETED) else Exit.FAILURE


def _measured(
    args: argparse.Namespace, target: Target, path: str, requests: Iterator[Flight], folder: RunFolder
) -> list[RequestRecord]:
    """Of all that was sent, written down whatever happened. Raises KeyboardInterrupt where it was told to end."""
    sent: list[Flight] = []
    with ToldToEnd() as told:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(told.cancels(_saturate(args, target, path, requests, sent)))
        except TargetUnreachableError:
            folder.discard()
            raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            say(f"records: {folder.path}")
        records = [flight.record(sent[0].planned_at) for flight in sent]
        folder.write_requests(records)
    if told.heard:
        raise KeyboardInterrupt
    return records


async def _saturate(
    args: argparse.Namespace, target: Target, path: str, requests: Iterator[Flight], sent: list[Flight]
) -> None:
    clock = time.perf_counter
    async with open_session() as session:
        await reach(session, target)
    async with StreamingClient(target.base_url, path, clock) as client:
        await client.warm(args.concurrency)
        say(f"{args.concurrency} requests in flight for {args.warmup + args.duration:g} s")
        stop_at = clock() + args.warmup + args.duration
        await closed_loop(
            requests,
            client.send,
            sent,
            concurrency=args.concurrency,
            stop_at=stop_at,
            cut_at=stop_at + CLOSED_DRAIN_S,
            clock=clock,
        )


def _described(found: Capacity, concurrency: int) -> str:
    classes = ", ".join(f"{number:.1f} {name}" for name, number in found.by_class.items()) or "nothing"
    ends = ", ".join(f"{number} {end}" for end, number in found.ends.items()) or "none sent"
    return (
        f"capacity: {found.requests_per_s:.3f} requests/s (closed loop, saturation, {concurrency} in flight)\n"
        f"credited in {found.window_s:g} s: {classes}; ends of all requests: {ends}"
    )
