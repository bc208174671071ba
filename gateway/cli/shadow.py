"""`gateway shadow report`: what the shadow policy would have done otherwise, in words.

Owns the words. The numbers are `/api/state` of the ops port; what they can tell is docs/shadow.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli import ops_client

if TYPE_CHECKING:
    from gateway.cli.commands import Commands

FEW = 100
"""Below this many comparisons a share is little more than a guess."""
_WORDS = {
    "would_refuse": "would be refused: they were served",
    "would_admit": "would be served: they were refused",
    "would_wait": "would wait: they went at once",
    "would_not_wait": "would go at once: they waited",
    "would_reorder": "would have another place in the order",
}
_EXAMPLE = """\
examples:
  gateway serve --config gateway.yaml --shadow mine.yaml     decide by the file's policy, count what mine would do
  gateway shadow report                                      say so in words, per class
  gateway shadow report --url http://127.0.0.1:9090 --json   the same as numbers
"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "shadow",
        help="say what a second policy would have done",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    report = actions.add_parser(
        "report",
        help="what would change, per class, with sample sizes",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    ops_client.add_url(report)
    report.add_argument("--json", action="store_true", help="print the numbers")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    return ops_client.asking(options.url, lambda: _ask(options.url, as_json=options.json))


def _ask(url: str, *, as_json: bool) -> int:
    state = ops_client.state(url)
    shadow = state["shadow"]
    if as_json:
        print(json.dumps(shadow, indent=2))
    elif shadow is None:
        print("No shadow policy is configured. Start `gateway serve` with --shadow, or set `shadow` in gateway.yaml.")
    else:
        print("\n".join(render(state["policy"]["name"], shadow, state["now"])))
    return 0 if shadow is not None and not shadow["failed"] else 1


def render(active: str, shadow: Mapping[str, Any], now: float) -> Iterator[str]:
    """Write the report, line by line."""
    if shadow["failed"]:
        yield "The shadow policy has failed and is off; the log says why (shadow_failed). The counts are from before."
    else:
        policy = shadow["policy"]
        yield f"Shadow {policy['name']} ({policy['sha256'][:12]}) beside {active}, for {_span(now - shadow['since'])}."
    compared = sum(line["compared"] for line in shadow["lines"])
    if shadow["older"]:
        yield f"Comparing starts once the {shadow['older']} requests that were there before it have ended."
    if not compared:
        yield "Nothing has been compared yet."
    else:
        differ = sum(line[kind] for line in shadow["lines"] for kind in _WORDS)
        yield f"It would have treated {differ} of {compared} requests otherwise ({differ / compared:.1%})."
    for line in shadow["lines"]:
        yield ""
        yield from _line(line)
    yield ""
    yield from _limits(shadow)


def _line(line: Mapping[str, Any]) -> Iterator[str]:
    compared = line["compared"]
    few = "" if compared >= FEW else f": fewer than {FEW}, so take the shares as a hint"
    yield f"{line['service_class']}, {line['length_class']}, pool {line['pool']}: {compared} compared{few}"
    reasons = {"would_refuse": line["refuse_reasons"], "would_admit": line["admit_reasons"]}
    for kind, words in _WORDS.items():
        if line[kind]:
            why = ", ".join(f"{reason} {seen}" for reason, seen in reasons.get(kind, {}).items())
            yield f"  {line[kind]} ({line[kind] / compared:.1%}) {words}{f' ({why})' if why else ''}"
    if not any(line[kind] for kind in _WORDS):
        yield "  no difference"
    if line["both_sent"]:
        yield (
            f"  mean wait of the {line['both_sent']} that both serve: {line['mean_wait_s']:.3f} s, "
            f"in the shadow {line['shadow_mean_wait_s']:.3f} s"
        )


def _limits(shadow: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Not compared: {shadow['left']} whose caller left first, {shadow['unfollowed']} that were too many at once. "
        f"For {shadow['assumed']} the time at the engine is assumed: what its like took lately."
    )
    yield "Engine times are as they were under the policy in force; how the shadow would change them, this cannot tell."


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
