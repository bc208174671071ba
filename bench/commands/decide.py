"""`gateway bench decide`: keep, retune or isolate, from what lies in folders of records. Sends nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from enum import IntEnum
from html import escape
from pathlib import Path
from typing import Any

from bench.argument_types import positive, whole
from bench.commands import arguments
from bench.decision import drills, recovery
from bench.decision.evidence import gather
from bench.decision.questions import answers
from bench.decision.terms import Terms
from bench.decision.verdict import decide
from bench.decision.words import Verdict
from bench.errors import UsageError
from bench.options import parse_prices
from bench.progress import say
from bench.report.decision_table import describe, headline, to_json
from bench.report.page import blocks, document
from bench.strict_yaml import read, validated

HELP = "keep, retune or isolate: the verdict on one shared engine, from records"
EXAMPLE = """examples:
  gateway bench decide runs/policies-20260101T000000Z-0a1b2c3d
  gateway bench decide runs/policies-… runs/alone-… --faults runs/faults-… --manifest baseline.yaml runs/rollback-… \\
      --engine-cost-per-hour 2.5 isolated=5 --alternative-cost 0.002

Looks at validity, acceptance, faults and recovery, in this order, and prints the verdict with the evidence of each
rule; decision.json, decision.md and decision.html go into the first folder, or where --out says. What is not shown is
not taken for granted: then it is `keep the baseline: evidence missing`, with the commands that would show it.

exit codes: 0 keep, 10 retune, 11 isolate, 12 keep the baseline: evidence missing; 1 failure, 2 usage"""

FILE = "decision.json"


class Decided(IntEnum):
    """Codes that no other command has: a pipeline tells them apart."""

    KEEP = 0
    RETUNE = 10
    ISOLATE = 11
    MISSING = 12


_CODES = {
    Verdict.KEEP: Decided.KEEP,
    Verdict.RETUNE: Decided.RETUNE,
    Verdict.ISOLATE: Decided.ISOLATE,
    Verdict.MISSING: Decided.MISSING,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="comparisons, ladders, single runs")
    evidence = parser.add_argument_group("evidence beside them")
    evidence.add_argument("--faults", type=Path, nargs="+", default=[], metavar="DIR", help="of `gateway bench faults`")
    evidence.add_argument(
        "--manifest", type=Path, nargs="+", default=[], metavar="FILE", help="manifests, and records of a rehearsal"
    )
    terms = parser.add_argument_group("what was agreed")
    terms.add_argument(
        "--terms", type=Path, metavar="decision.yaml", help="all of this as a file; options go before it"
    )
    terms.add_argument("--baseline", metavar="ARM", help="(default: the first arm of the records)")
    terms.add_argument("--goodput", nargs="+", metavar="CLASS:METRIC:MS", help="(default: the limits of the records)")
    terms.add_argument("--load", nargs="+", metavar="LOAD", help="0.95, or '0.95, 80/20' (default: up to the capacity)")
    terms.add_argument("--repeats-min", type=whole, metavar="N", help="runs of each arm and load (default 3)")
    terms.add_argument("--requests-min", type=whole, metavar="N", help="of each class, arm and load (default 72)")
    arguments.add_prices(terms)
    terms.add_argument("--alternative-cost", type=positive, metavar="X", help="of a response, elsewhere")
    terms.add_argument("--context-tokens", type=whole, metavar="N", help="the longest that is meant to be served")
    terms.add_argument("--without", nargs="+", metavar="ARM", help="leave out arms that cannot run")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the decision goes (default: the first FOLDER)")


def execute(args: argparse.Namespace, _command: Sequence[str]) -> int:
    """Raises UsageError."""
    terms = _terms(args)
    evidence = gather(args.folders, terms)
    held = drills.read(args.faults)
    decision = decide(evidence, terms, held, recovery.read(args.manifest))
    questions = answers(evidence, decision, terms, held)
    markdown = describe(evidence, decision, questions)
    record = to_json(evidence, decision, questions, terms.model_dump(mode="json", exclude_none=True))
    folder = args.out or args.folders[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        (folder / "decision.md").write_text(markdown, encoding="utf-8")
        title, body = headline(decision), markdown.partition("\n\n")[2]
        page = document(f"{title}: bench decision", f"<h1>{escape(title)}</h1>\n{blocks(body)}")
        (folder / "decision.html").write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}). Choose another.") from error
    print(markdown, end="")
    say(f"\n{folder / FILE}")
    return _CODES[decision.verdict]


def _terms(args: argparse.Namespace) -> Terms:
    said = {} if args.terms is None else read(args.terms, Terms).model_dump(exclude_unset=True)
    options: dict[str, Any] = {
        "baseline": args.baseline,
        "goodput": args.goodput,
        "loads": args.load,
        "repeats_min": args.repeats_min,
        "requests_min": args.requests_min,
        "engine_cost_per_hour": parse_prices(args.engine_cost_per_hour, "--engine-cost-per-hour"),
        "alternative_cost": args.alternative_cost,
        "context_tokens": args.context_tokens,
        "without": args.without,
    }
    return validated(
        said | {name: value for name, value in options.items() if value is not None}, Terms, "command line"
    )
