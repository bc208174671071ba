"""`gateway demo`: what a policy does to short and long requests, shown on the embedded engine. Owns what it prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from bench import comparing
from bench.analysis.comparison import ArmResult
from bench.argument_types import positive
from bench.comparing import Compared
from bench.demo import stage as stages
from bench.demo.stage import BASELINE, Load, Stage
from bench.errors import TargetUnreachableError, UsageError
from bench.exits import Exit, of_runs
from bench.report.comparison_table import describe
from bench.report.page import page
from bench.simulation.profiles import PROFILES
from bench.tables import milliseconds, ratio, share, table

EXAMPLE = """example:
  gateway demo --policy short-first --out gateway-demo

Starts the embedded engine and two gateways in front of it, one that only relays (passthrough) and one with the policy,
sends the same arrivals of short and long prompts to each, and shows what became of them: a table, a picture (PNG), a
page (HTML, one file) and the commands that do the same by hand. Takes about a minute, needs no GPU and no vLLM; the
engine is a model, and the figures are the model's.

exit codes: as `gateway bench run`"""


def main(argv: Sequence[str]) -> int:
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else Exit.USAGE
    try:
        return _demonstrate(args)
    except UsageError as error:
        print(f"gateway demo: {error}", file=sys.stderr)
        return Exit.USAGE
    except TargetUnreachableError as error:
        print(f"gateway demo: {error}", file=sys.stderr)
        return Exit.FAILURE
    except KeyboardInterrupt:
        print("gateway demo: interrupted", file=sys.stderr)
        return Exit.FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gateway demo",
        description="Policy against baseline on the embedded engine.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", default="short-first", metavar="NAME", help="(default short-first)")
    parser.add_argument("--profile", choices=list(PROFILES), default="h200", help="of the engine (default h200)")
    parser.add_argument("--seconds", type=positive, default=20.0, metavar="S", help="of each arm (default 20)")
    parser.add_argument("--request-rate", type=positive, default=11.0, metavar="R", help="requests/s (default 11)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts (default 1)")
    parser.add_argument("--out", type=Path, default=Path("gateway-demo"), metavar="DIR", help="(default gateway-demo)")
    return parser


def _demonstrate(args: argparse.Namespace) -> int:
    shipped = [name for name in _shipped() if name != BASELINE]
    if args.policy not in shipped:
        raise UsageError(
            f"--policy: {args.policy!r} is no policy to show against {BASELINE}. Use one of {', '.join(shipped)}."
        )
    load = Load(args.request_rate, args.seconds, args.seed)
    stage = stages.prepared(args.out.absolute(), args.policy, args.profile, load)
    _say(f"starting the embedded engine ({PROFILES[args.profile].about}) and two gateways, files in {args.out}")
    os.environ |= stage.keys
    with stages.running(stage):
        compared = comparing.measured(stage.scenario, args.out / "runs", ["gateway", "demo"])
    _show(stage, compared, args)
    return of_runs(compared.results)


def _shipped() -> list[str]:
    return sorted(Path(entry.name).stem for entry in files("policies").iterdir() if entry.name.endswith(".yaml"))


def _show(stage: Stage, compared: Compared, args: argparse.Namespace) -> None:
    title = f"{args.policy} against {BASELINE}, {args.request_rate:g} requests/s"
    if not all(result.verdict.valid for result in compared.results):
        title += " (INVALID: the client was late, or more; see the records)"
    engine = f"The engine is {PROFILES[args.profile].about}: figures of the embedded engine, not of a real one."
    print("\n" + summary(compared, args.policy))
    print(f"\n{engine}")
    commands = stages.to_repeat(stage)
    if any(result.records for result in compared.results):
        from bench.report.comparison_plot import png  # the library takes a second to load

        picture = png(compared.results, ("short", "long"), title)
        (args.out / "demo.png").write_bytes(picture)
        said = [engine, "Short prompts have 512 tokens, long ones 8,192; the same arrivals for both, open loop."]
        text = page(title, said, picture, describe(compared.loads), commands)
        (args.out / "demo.html").write_text(text, encoding="utf-8")
        print(f"\n{args.out / 'demo.png'} and {args.out / 'demo.html'} show it.")
    print("\nTo repeat it, each line in a terminal of its own but the last three:\n")
    print("\n".join(f"  {line}" for line in commands))


def summary(compared: Compared, policy: str) -> str:
    """Policy against baseline for each class, or why there is none."""
    arms = {arm.arm: arm for load in compared.loads for arm in load.arms}
    if not {BASELINE, policy} <= arms.keys():
        return (
            "No table: a run is missing or INVALID, as said above. Was the machine busy? A lower --request-rate helps."
        )
    rows = [row for name in ("short", "long") for row in _rows(name, arms[BASELINE], arms[policy])]
    return table(("", BASELINE, policy, "÷"), rows)


def _rows(name: str, baseline: ArmResult, policy: ArmResult) -> list[list[str]]:
    before, after = baseline.classes[name], policy.classes[name]
    rows = []
    for quantile in ("p50", "p95"):
        values = [each.samples["ttft_ms"].value(quantile) for each in (before, after)]
        first, second = values
        shown = ratio(second / first) if first and second is not None else ratio(None)
        rows.append([f"{name}: first token {quantile}, ms", *(milliseconds(value) for value in values), shown])
    met = [share(each.good, each.offered) for each in (before, after)]
    rows.append([f"{name}: in time", *met, ""])
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
