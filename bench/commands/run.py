"""`gateway bench run`: one trace against one target, open loop."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.analysis.limits import Limits, parse_limits
from bench.argument_types import not_negative, positive, whole
from bench.cell import CellPlan
from bench.commands import arguments
from bench.corpus import prompts, tokenizer
from bench.corpus.tokenizer import PromptForm
from bench.drive import run_cell
from bench.errors import UsageError
from bench.exits import of_runs
from bench.load.pacing import Windows
from bench.options import check_classes
from bench.progress import Progress, say
from bench.report.run_table import describe
from bench.trace import jsonl, random_arrivals
from bench.trace.arrivals import Trace
from bench.trace.intensity import Intensity

HELP = "send one arrival trace to one target and measure it"
EXAMPLE = """example:
  gateway bench run --base-url http://127.0.0.1:8080 --model tiny --tokenizer ./tokenizer \\
      --credential short=KEY_INTERACTIVE long=KEY_BATCH --request-rate 2 --duration 60 --warmup 10 \\
      --mix 80/20 --goodput short:ttft:500 long:ttft:20000

exit codes: 0 valid, 1 the target does not answer, 2 usage, 3 valid but some requests were still unfinished at the
drain deadline, 4 INVALID (the client was late, requests were answered 400, 401, 403 or 404, none completed, or what was
measured is otherwise not what was asked for)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_target(parser)
    arguments.add_load(parser)
    arrivals = parser.add_argument_group("arrivals")
    arguments.add_rate(arrivals)
    arrivals.add_argument("--duration", type=positive, metavar="S", help="measurement window, after the warm-up")
    arrivals.add_argument("--num-prompts", type=whole, metavar="N", help="exactly N requests, warm-up included")
    arrivals.add_argument("--trace", type=Path, metavar="FILE", help="replay a saved trace instead")
    arrivals.add_argument("--save-trace", type=Path, metavar="FILE", help="keep the trace for a replay")
    arrivals.add_argument("--warmup", type=not_negative, default=0.0, metavar="S", help="(default 0)")
    arrivals.add_argument(
        "--drain-deadline",
        type=positive,
        default=60.0,
        metavar="S",
        help="wait for the last answers (default 60)",
    )
    verdict = parser.add_argument_group("judgement")
    verdict.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="CLASS:METRIC:MS",
        help="limits, e.g. short:ttft:500 long:e2el:60000",
    )
    verdict.add_argument(
        "--lag-tolerance-ms",
        type=positive,
        default=50.0,
        metavar="MS",
        help="client lateness allowed (default 50)",
    )
    verdict.add_argument(
        "--engine-cost-per-hour",
        type=positive,
        metavar="X",
        help="of all engines behind the target: cost of an answer",
    )
    arguments.add_record(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="make trace and prompts, say what would be sent, send nothing"
    )


def execute(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Raises UsageError and TargetUnreachableError; prints the result."""
    target = arguments.target_from(args)
    trace = _trace(args)
    classes = set(trace.class_names())
    limits = parse_limits(args.goodput, "--goodput")
    check_classes("--goodput", set(limits), classes)
    check_classes("--priority", set(target.priority), classes)
    windows = _windows(args, trace)
    form = PromptForm(args.endpoint)
    served = tokenizer.load(args.tokenizer)
    say(f"making {len(trace.arrivals)} prompts")
    corpus = prompts.build(trace, served.count_for(form), args.seed)
    if args.save_trace is not None:
        jsonl.write(trace, args.save_trace)
    plan = CellPlan(
        cell_id="run",
        repeat=1,
        target=target,
        trace=trace,
        corpus=corpus,
        tokenizer=served,
        form=form,
        model=args.model,
        cache_salted=not args.no_cache_salt,
        engine_cost_per_hour=args.engine_cost_per_hour,
        windows=windows,
        limits=limits,
        goodput=args.goodput,
        lag_tolerance_ms=args.lag_tolerance_ms,
        idle_urls=(),
        idle_wait_s_max=0.0,
        seeds={"trace": args.seed, "corpus": args.seed},
        metadata=arguments.metadata_from(args),
        command=command,
    )
    if args.dry_run:
        print(_dry(plan))
        return 0
    with Progress([windows.span_s]) as progress:
        result = run_cell(plan, args.result_dir, progress.say, progress.watch)
    print(describe(result.measured, result.verdict))
    print(f"\nrecords: {result.folder}")
    return of_runs([result])


def _trace(args: argparse.Namespace) -> Trace:
    if args.trace is not None:
        given = [
            f"--{name.replace('_', '-')}"
            for name in ("request_rate", "duration", "num_prompts", "mix", "burst", "ramp_to", "burstiness")
            if getattr(args, name) is not None
        ]
        if given:
            raise UsageError(f"--trace already says when and what is sent: leave out {', '.join(given)}.")
        return jsonl.read(args.trace)
    if args.request_rate is None:
        raise UsageError("--request-rate is missing: give it, or replay a --trace.")
    mix = arguments.mix_from(args)
    rate, burstiness = arguments.intensity_from(args), args.burstiness or random_arrivals.POISSON
    if args.duration is not None and args.num_prompts is None:
        span_s = args.warmup + args.duration
        return random_arrivals.for_duration(rate=rate, span_s=span_s, mix=mix, seed=args.seed, burstiness=burstiness)
    if args.num_prompts is not None and args.duration is None:
        if rate != Intensity(rate.rate_per_s):
            raise UsageError("--num-prompts: a burst or a ramp needs --duration instead.")
        return random_arrivals.for_count(
            rate_per_s=rate.rate_per_s, requests=args.num_prompts, mix=mix, seed=args.seed, burstiness=burstiness
        )
    raise UsageError("Give either --duration or --num-prompts.")


def _windows(args: argparse.Namespace, trace: Trace) -> Windows:
    observation_s = round(trace.span_s - args.warmup, 6)
    if observation_s <= 0:
        raise UsageError(f"--warmup {args.warmup:g} leaves nothing of a trace of {trace.span_s:g} s.")
    return Windows(args.warmup, observation_s, args.drain_deadline)


def _dry(plan: CellPlan) -> str:
    lines = [
        f"trace {jsonl.sha256(plan.trace)}",
        f"corpus {plan.corpus.sha256}",
        f"target {plan.target.base_url}",
        f"{len(plan.trace.arrivals)} requests over {plan.windows.span_s:g} s, cut at {plan.windows.cut_s:g} s",
    ]
    for name in plan.trace.class_names():
        own = [arrival for arrival in plan.trace.arrivals if arrival.class_name == name]
        tokens = sum(arrival.prompt_tokens for arrival in own)
        lines.append(f"{name}: {len(own)} requests, {tokens} prompt tokens, {_limits_said(plan.limits, name)}")
    return "\n".join(lines)


def _limits_said(limits: Limits, class_name: str) -> str:
    said = [f"{limit.metric} ≤ {limit.at_most_ms:g}" for limit in limits.get(class_name, ())]
    return "good where " + ", ".join(said) if said else "no limits"
