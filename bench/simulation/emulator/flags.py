"""The emulator's command line: vLLM's own names, and the few that only an emulator has.

Owns the options and the defaults behind them. What vLLM knows and the model does not is refused, never ignored.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bench.argument_types import whole
from bench.errors import UsageError
from bench.simulation.emulator import faults
from bench.simulation.emulator.faults import Fault
from bench.simulation.profiles import PROFILES, Profile, calibrated
from bench.simulation.steps import EngineFlags

MODEL = "emulated"
CONTEXT_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """What one emulator is. models: the names it serves under; metrics bear the first."""

    host: str
    port: int
    models: tuple[str, ...]
    context_tokens: int
    engine: EngineFlags
    profile: Profile
    queued_requests_max: int | None
    queued_tokens_max: int | None
    prompt_tokens_details: bool
    faults: tuple[Fault, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="(default 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="0 is any free one (default 8000)")
    own = parser.add_argument_group("the model of the engine")
    own.add_argument("--profile", choices=list(PROFILES), default="h200", help=_profiles())
    own.add_argument("--calibration", type=Path, metavar="FILE", help="step costs that `gateway bench calibrate` wrote")
    own.add_argument("--fault", action="append", default=[], metavar="FAULT", help=faults.HELP)
    engine = parser.add_argument_group("vLLM's own flags")
    engine.add_argument("--served-model-name", nargs="+", default=[MODEL], metavar="NAME", help=f"(default {MODEL})")
    engine.add_argument(
        "--max-model-len", type=whole, default=CONTEXT_TOKENS, metavar="N", help=f"(default: {CONTEXT_TOKENS})"
    )
    engine.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs", help="(default: fcfs)")
    engine.add_argument("--max-num-batched-tokens", type=whole, metavar="N", help="(default: the profile's)")
    engine.add_argument(
        "--long-prefill-token-threshold", type=_not_negative, default=0, metavar="N", help="0 is off (default: 0)"
    )
    engine.add_argument("--max-num-seqs", type=whole, metavar="N", help="(default: the profile's)")
    engine.add_argument("--max-num-active-seqs", type=whole, metavar="N", help="(default: --max-num-seqs)")
    engine.add_argument("--num-gpu-blocks-override", type=whole, metavar="N", help="KV blocks (default: the profile's)")
    engine.add_argument("--block-size", type=whole, metavar="N", help="tokens a block (default: the profile's)")
    engine.add_argument("--watermark", type=_share, default=0.0, metavar="SHARE", help="of KV kept free (default: 0.0)")
    for name in ("enable-prefix-caching", "enable-chunked-prefill"):
        engine.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=True)
    engine.add_argument("--async-scheduling", action=argparse.BooleanOptionalAction, default=None)
    engine.add_argument(
        "--max-num-queued-reqs", type=whole, metavar="N", help="unfinished requests (default: any number)"
    )
    engine.add_argument(
        "--max-num-queued-tokens", type=whole, metavar="N", help="prompt tokens in prefill (default: any)"
    )
    engine.add_argument("--enable-prompt-tokens-details", action="store_true", help="cached_tokens in `usage`")


def settings(args: argparse.Namespace) -> EmulatorSettings:
    """Put the options together. Raises UsageError where they do not fit."""
    profile = PROFILES[args.profile]
    if args.calibration is not None:
        profile = calibrated(profile, args.calibration)
    if not args.enable_chunked_prefill:
        raise UsageError("--no-enable-chunked-prefill: the model knows chunked prefill alone. Leave it on.")
    block_tokens = args.block_size or profile.block_tokens
    is_async = profile.async_scheduling if args.async_scheduling is None else args.async_scheduling
    engine = EngineFlags(
        max_num_batched_tokens=args.max_num_batched_tokens or profile.max_num_batched_tokens,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_num_seqs=args.max_num_seqs or profile.max_num_seqs,
        kv_blocks=args.num_gpu_blocks_override or profile.kv_tokens // block_tokens,
        block_tokens=block_tokens,
        priority_scheduling=args.scheduling_policy == "priority",
        batches_in_flight=2 if is_async else 1,
        prefix_caching=args.enable_prefix_caching,
        watermark=args.watermark,
        max_num_active_seqs=args.max_num_active_seqs,
    )
    _check_room(engine, args.max_model_len)
    return EmulatorSettings(
        host=args.host,
        port=args.port,
        models=tuple(args.served_model_name),
        context_tokens=args.max_model_len,
        engine=engine,
        profile=profile,
        queued_requests_max=args.max_num_queued_reqs,
        queued_tokens_max=args.max_num_queued_tokens,
        prompt_tokens_details=args.enable_prompt_tokens_details,
        faults=tuple(faults.parse(text) for text in args.fault),
    )


def said_of(args: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """The lines of vLLM's log that tell what it was asked for and what is in force, as far as the model has it."""
    asked = {name: value for name, value in vars(args).items() if value != parser.get_default(name)}
    tokens = args.max_num_batched_tokens or PROFILES[args.profile].max_num_batched_tokens
    config = {
        "model": repr(args.served_model_name[0]),
        "speculative_config": None,
        "max_seq_len": args.max_model_len,
        "served_model_name": args.served_model_name[0],
        "enable_prefix_caching": args.enable_prefix_caching,
        "enable_chunked_prefill": args.enable_chunked_prefill,
    }
    shown = ", ".join(f"{name}={value}" for name, value in config.items())
    return "\n".join(
        [
            f"non-default args: {asked}",
            f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.",
            f"Initializing a V1 LLM engine (emulated) with config: {shown}",
        ]
    )


def _check_room(engine: EngineFlags, context_tokens: int) -> None:
    """As vLLM refuses to start where one request of the whole context would not fit: it could never be scheduled."""
    blocks = engine.kv_blocks - 1 - int(engine.watermark * engine.kv_blocks)
    if blocks * engine.block_tokens < context_tokens:
        raise UsageError(
            f"--num-gpu-blocks-override: {engine.kv_blocks} blocks of {engine.block_tokens} tokens do not hold a "
            f"request of {context_tokens} tokens. Give more blocks, or a smaller --max-model-len."
        )


def _profiles() -> str:
    return "; ".join(f"{profile.name}: {profile.about}" for profile in PROFILES.values()) + " (default h200)"


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65_536:
        raise argparse.ArgumentTypeError("must be a port, 0 to 65535")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("must lie between 0 and 1")
    return value
