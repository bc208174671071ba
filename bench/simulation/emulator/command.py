"""`gateway emulate`: the embedded engine on a port, until it is told to end. Owns what it prints."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

import uvloop

from bench.errors import UsageError
from bench.simulation.emulator import flags
from bench.simulation.emulator.serving import Emulator
from bench.simulation.emulator.vocabulary import FOLDER

EXAMPLE = """example:
  gateway emulate --port 8000 --scheduling-policy priority --max-num-batched-tokens 2048 \\
      --long-prefill-token-threshold 640 --enable-prompt-tokens-details

A vLLM 0.32 as far as its scheduler, its routes and its metrics go, computed from a model of each step's time: it needs
no GPU, no weights and no vLLM. What it writes is made up, its times are the model's. For trying, testing, simulating.

It prints the folder of its tokenizer: `tokenizer: {kind: local, path: FOLDER}` makes a gateway count as it does.

exit codes: 0 told to end, 1 a fault ended it, 2 usage"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gateway emulate",
        description="The embedded engine: a vLLM-compatible emulator in real time.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_arguments(parser)
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    try:
        return uvloop.run(_serve(flags.settings(args), flags.said_of(args, parser)))
    except UsageError as error:
        print(f"gateway emulate: {error}", file=sys.stderr)
        return 2


async def _serve(settings: flags.EmulatorSettings, said: str) -> int:
    def serving(url: str) -> None:
        engine = settings.engine
        print(said, file=sys.stderr, flush=True)
        print(f"serving {settings.models[0]} on {url}: {settings.profile.about}", flush=True)
        print(
            f"  {'priority' if engine.priority_scheduling else 'fcfs'}, {engine.max_num_batched_tokens} tokens a step, "
            f"threshold {engine.long_prefill_token_threshold}, {engine.max_num_seqs} sequences, "
            f"{engine.kv_blocks * engine.block_tokens} KV tokens, context {settings.context_tokens}"
        )
        print(f"  its tokenizer: {FOLDER}", flush=True)

    emulator = Emulator(settings, lambda text: print(f"emulate: {text}", file=sys.stderr, flush=True), serving)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, emulator.stop)
    return await emulator.run()
