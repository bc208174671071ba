"""`gateway bench trace`: looks at arrival traces, makes them, converts those of others, takes names out of them."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.argument_types import not_negative, positive, share, whole
from bench.errors import UsageError
from bench.report.trace_table import describe
from bench.trace import anonymous, groups, jsonl, random_arrivals, reading, shaping
from bench.trace.arrivals import TOKENS_MAX, Trace
from bench.trace.foreign import MOONCAKE_BLOCK_TOKENS, Format
from bench.trace.intensity import parse_burst
from bench.trace.reading import CLASSES, SHORT_TOKENS

HELP = "look at, make, convert and anonymize arrival traces"
EXAMPLE = """examples:
  gateway bench trace show day.jsonl
  gateway bench trace generate --chat 4 --document 0.3 --agent 0.5 --duration 600 --seed 1 --out mixed.jsonl
  gateway bench trace convert conv.csv code.csv --classes short:4096 long --request-rate 2 --seed 1 --out azure.jsonl
  gateway bench trace anonymize gateway.log --out ours.jsonl

`convert` reads the Azure 2023 CSV, Mooncake's and vLLM's JSON lines, the BurstGPT CSV, a gateway's log and our format.
Times that fall on ticks are spread within their tick with the seed, and the trace says so (--keep-ticks leaves them).
`run --trace FILE` replays the result."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="classes, rates, lengths, clumps, hash")
    _add_reading(show)
    convert = actions.add_parser("convert", help="files of any known format into one trace")
    _add_reading(convert, several=True)
    _add_shaping(convert)
    anonymize = actions.add_parser(
        "anonymize", help="keep times, lengths, classes and salted prefix hashes, nothing else"
    )
    _add_reading(anonymize)
    anonymize.add_argument(
        "--salt-env",
        metavar="ENV",
        help="variable with the salt of the prefix hashes, for traces that are to fit together (default: a fresh one, "
        "kept nowhere)",
    )
    generate = actions.add_parser("generate", help="synthetic traffic of three groups")
    for group, what in (
        (groups.CHAT, "short chats per second"),
        (groups.DOCUMENT, "long prompts per second"),
        (groups.AGENT, "agent sessions per second, of about four turns each"),
    ):
        generate.add_argument(f"--{group}", type=positive, metavar="R", help=what)
    generate.add_argument("--duration", type=positive, required=True, metavar="S")
    generate.add_argument("--burstiness", type=positive, default=random_arrivals.POISSON, metavar="K")
    generate.add_argument("--burst", metavar="EVERY:LENGTH:FACTOR")
    for each in (convert, generate):
        each.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default 0)")
    for each in (convert, anonymize, generate):
        each.add_argument("--out", type=Path, required=True, metavar="FILE")


def _add_reading(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    if several:
        parser.add_argument(
            "files", type=Path, nargs="+", metavar="FILE", help="several become one, each from its start"
        )
    else:
        parser.add_argument("files", type=Path, nargs=1, metavar="FILE")
    parser.add_argument("--format", choices=[str(each) for each in Format], help="(default: by the first line)")
    parser.add_argument(
        "--classes",
        nargs="+",
        default=list(CLASSES),
        metavar="CLASS[:TOKENS]",
        help=f"classes by prompt tokens, for files that name none (default short:{SHORT_TOKENS} long)",
    )
    parser.add_argument(
        "--unknown-output-tokens",
        type=whole,
        default=0,
        metavar="N",
        help="for requests whose output the file does not know, as refused ones (default: they are left out)",
    )

    parser.add_argument(
        "--prefix-block-tokens",
        type=whole,
        default=MOONCAKE_BLOCK_TOKENS,
        metavar="N",
        help=f"of each of a file's hash_ids (default {MOONCAKE_BLOCK_TOKENS}, as Mooncake's; 16 as vLLM's)",
    )


def _add_shaping(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-ticks", action="store_true", help="do not spread times that fall on ticks")
    parser.add_argument("--from-s", type=not_negative, default=0.0, metavar="S")
    parser.add_argument("--until-s", type=positive, metavar="S", help="only arrivals before this time")
    parser.add_argument("--thin", type=share, metavar="P", help="keep each request with this probability")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--time-scale", type=positive, metavar="F", help="2: everything takes twice as long")
    speed.add_argument("--request-rate", type=positive, metavar="R", help="scale time to this mean rate")
    parser.add_argument("--prompt-tokens-min", type=whole, default=1, metavar="N", help="raise shorter prompts")
    parser.add_argument(
        "--prompt-tokens-max", type=whole, default=TOKENS_MAX, metavar="N", help="leave longer prompts out"
    )
    parser.add_argument("--cancel", nargs="+", default=[], metavar="CLASS:SHARE:MEAN_S", help="clients that leave")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    match args.action:
        case "show":
            print(describe(_read(args.files[0], args)))
            return 0
        case "convert":
            made = _converted(args)
        case "anonymize":
            made = anonymous.anonymized(_read(args.files[0], args), _salt(args.salt_env))
        case _:
            made = _generated(args)
    jsonl.write(made, args.out)
    print(describe(made))
    return 0


def _read(path: Path, args: argparse.Namespace) -> Trace:
    kind = None if args.format is None else Format(args.format)
    return reading.read(
        path,
        kind=kind,
        classes=args.classes,
        unknown_output_tokens=args.unknown_output_tokens,
        block_tokens=args.prefix_block_tokens,
    )


def _converted(args: argparse.Namespace) -> Trace:
    cancels = shaping.parse_cancels(args.cancel, "--cancel")
    traces = [_read(path, args) for path in args.files]
    if not args.keep_ticks:
        traces = [reading.unticked(trace, args.seed) for trace in traces]
    origins = [dict(trace.origin) for trace in traces]
    origin: dict[str, Any] = origins[0] if len(origins) == 1 else {"label": "replay", "merged": origins}
    trace = shaping.merged(traces, origin)
    until_s = args.until_s if args.until_s is not None else trace.span_s
    arrivals, span_s = list(trace.arrivals), trace.span_s
    if args.from_s or args.until_s is not None:
        arrivals, span_s = shaping.cut(arrivals, args.from_s, until_s), until_s - args.from_s
        origin["cut_s"] = [args.from_s, until_s]
    if args.prompt_tokens_min > 1 or args.prompt_tokens_max < TOKENS_MAX:
        arrivals = shaping.within(arrivals, args.prompt_tokens_min, args.prompt_tokens_max)
        origin["prompt_tokens"] = {"raised_to": args.prompt_tokens_min, "left_out_over": args.prompt_tokens_max}
    if args.thin is not None:
        arrivals = shaping.thinned(arrivals, args.thin, args.seed)
        origin["thinned"] = {"share": args.thin, "seed": args.seed}
    factor = args.time_scale
    if args.request_rate is not None and arrivals and span_s > 0:
        factor = len(arrivals) / span_s / args.request_rate
    if factor is not None:
        arrivals, span_s = shaping.stretched(arrivals, factor), span_s * factor
        origin["time_scale"] = round(factor, 9)
    if cancels:
        arrivals = shaping.with_cancels(arrivals, cancels, args.seed)
        origin["cancels"] = {"of": list(args.cancel), "seed": args.seed}
    return shaping.finished(arrivals, span_s, origin, trace.prefix_block_tokens)


def _generated(args: argparse.Namespace) -> Trace:
    rates = {group: rate for group in groups.ALL if (rate := getattr(args, group)) is not None}
    if not rates:
        raise UsageError(f"Give a rate for one group at least: {', '.join(f'--{group}' for group in groups.ALL)}.")
    burst = None if args.burst is None else parse_burst(args.burst, "--burst")
    return groups.generate(rates, span_s=args.duration, seed=args.seed, burst=burst, burstiness=args.burstiness)


def _salt(name: str | None) -> bytes:
    if name is None:
        return secrets.token_bytes(32)
    value = os.environ.get(name, "")
    if len(value) < 16:
        raise UsageError(
            f"--salt-env: variable {name} is unset or shorter than 16 characters. Export a long random word."
        )
    return value.encode()
