"""`gateway bench calibrate`: how long an engine's steps take, into a file that a gateway starts from."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.analysis import step_model
from bench.argument_types import positive, whole
from bench.calibration import Measured, measure, prompt_lengths
from bench.engine.lone_requests import LONE_PATH, LoneRequests
from bench.engine.metrics import Reading, Unreadable, delta
from bench.engine.session import open_session
from bench.engine.watch import engine_version, page, scrape, wait_until_idle
from bench.errors import TargetUnreachableError, UsageError
from bench.exits import Exit
from bench.load.client import StreamingClient
from bench.load.target import Target, clean_url, metrics_url, resolve_keys
from bench.options import parse_credentials
from bench.progress import say
from bench.records import calibration
from bench.report.calibration_table import describe

HELP = "measure how long an engine's steps take, and write the file that a gateway can start from"
EXAMPLE = """example:
  gateway bench calibrate --engine-url http://127.0.0.1:8000 --max-num-batched-tokens 2048 --out engine-a.yaml

Measure an engine that nobody else uses meanwhile, without a gateway before it. `calibration: engine-a.yaml` in the
engine's entry of gateway.yaml then takes the place of the gateway's own probes.

exit codes: 0 written, 1 the engine does not answer, is at work or is too slow, 2 usage, 4 INVALID (others used the
engine meanwhile, or it restarted; nothing is written)"""

STEP_TOKENS_DEFAULT = 2048
IDLE_WAIT_S_MAX = 15.0


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine says of itself. context_tokens None: it does not say."""

    model: str
    context_tokens: int | None
    version: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine-url", required=True, metavar="URL", help="http://HOST:PORT of the engine")
    parser.add_argument("--model", metavar="M", help="the served model's name (default: the first that it lists)")
    parser.add_argument("--credential", metavar="ENV", help="environment variable that holds the engine's key")
    parser.add_argument(
        "--max-num-batched-tokens",
        type=whole,
        metavar="N",
        help=f"as the engine was started with (default {STEP_TOKENS_DEFAULT})",
    )
    parser.add_argument("--duration", type=positive, default=80.0, metavar="S", help="at most so long (default 80)")
    parser.add_argument(
        "--out", type=Path, default=Path("calibration.yaml"), metavar="FILE", help="(default calibration.yaml)"
    )


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the fit."""
    del command
    target = _target(args)
    if not args.out.absolute().parent.is_dir():
        raise UsageError(f"--out: {args.out.parent} is no folder. Make it, or give another.")
    step_tokens = args.max_num_batched_tokens or STEP_TOKENS_DEFAULT
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        served, measured, fault = runner.run(_measure(args, target, step_tokens))
    fitted = step_model.fit(measured.samples)
    print(describe(fitted, measured, step_tokens))
    if args.max_num_batched_tokens is None:
        print(f"\na step was taken to hold {step_tokens} tokens: state --max-num-batched-tokens if it holds others")
    if fault is not None:
        print(f"\nINVALID: {fault}")
        return Exit.INVALID
    said = calibration.contents(
        fitted,
        model=served.model,
        engine_version=served.version,
        max_num_batched_tokens=args.max_num_batched_tokens,
        requests=measured.requests,
        made_at=calibration.now_utc(),
    )
    calibration.write(args.out, said)
    print(f"\nwritten: {args.out}")
    return Exit.VALID


def _target(args: argparse.Namespace) -> Target:
    key_names = parse_credentials([] if args.credential is None else [args.credential], "--credential")
    return Target(
        name="engine",
        base_url=clean_url(args.engine_url, "--engine-url"),
        key_names=key_names,
        priority={},
        keys=resolve_keys(key_names, os.environ),
    )


async def _measure(args: argparse.Namespace, target: Target, step_tokens: int) -> tuple[Served, Measured, str | None]:
    clock, metrics_at = time.perf_counter, metrics_url(args.engine_url, "--engine-url")
    async with open_session() as session:
        served = await _served(session, target, metrics_at, args.model)
        before = await scrape(session, metrics_at)
        if isinstance(before, Unreadable):
            say(f"note: {metrics_at} cannot be read ({before.reason}): who else uses the engine is not seen")
        elif not await wait_until_idle(session, metrics_at, wait_s_max=IDLE_WAIT_S_MAX, clock=clock):
            raise TargetUnreachableError("the engine is at work. Calibrate it while nobody else uses it.")
        else:
            before = await scrape(session, metrics_at)
        lengths = prompt_lengths(step_tokens, served.context_tokens)
        say(f"lone prompts of {lengths[0]} to {lengths[-1]} tokens, for at most {args.duration:g} s")
        async with StreamingClient(target.base_url, LONE_PATH, clock) as client:
            requests = LoneRequests(client, target, served.model, clock)
            measured = await measure(
                lambda prompt, output, s_max: requests.ask(prompt, output, s_max=s_max),
                lengths,
                step_tokens=step_tokens,
                seconds=args.duration,
                clock=clock,
            )
        fault = None if isinstance(before, Unreadable) else _fault(before, await scrape(session, metrics_at), measured)
        return served, measured, fault


def _fault(before: Reading, after: Reading | Unreadable, measured: Measured) -> str | None:
    """Why the times may not be those of lone requests, as the engine's own count of prompt tokens tells."""
    if isinstance(after, Unreadable):
        return f"the engine's metrics cannot be read any more ({after.reason})"
    computed = delta(before, after).get("prompt_tokens")
    if isinstance(computed, str):
        return "the engine restarted"
    if computed is not None and computed != measured.prompt_tokens_sent:
        return (
            f"the engine computed {computed:.0f} prompt tokens, and {measured.prompt_tokens_sent} were sent from here"
        )
    return None


async def _served(session: aiohttp.ClientSession, target: Target, metrics_at: str, model: str | None) -> Served:
    body = await page(session, f"{target.base_url}/v1/models", target.headers(""))
    if isinstance(body, Unreadable):
        raise TargetUnreachableError(
            f"{target.base_url}/v1/models gives no list of models ({body.reason}). Is a vLLM server started there?"
        )
    cards = _cards(body)
    named = [card for card in cards if model is None or card.get("id") == model]
    if not named:
        known = ", ".join(str(card.get("id")) for card in cards) or "none"
        raise UsageError(f"--model: {model or 'any'} is not served at {target.base_url}; it has {known}.")
    context = named[0].get("max_model_len")
    return Served(
        str(named[0]["id"]),
        context if isinstance(context, int) and context > 1 else None,
        await engine_version(session, metrics_at),
    )


def _cards(body: bytes) -> list[dict[str, Any]]:
    try:
        listing = json.loads(body)
    except ValueError:
        return []
    data = listing.get("data") if isinstance(listing, dict) else None
    return [card for card in data if isinstance(card, dict) and "id" in card] if isinstance(data, list) else []
