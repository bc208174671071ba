"""A trace as text: a table by class, and what a replay of it is like."""

from __future__ import annotations

import json

from bench.tables import NOTHING, rate, table
from bench.trace import jsonl
from bench.trace.arrivals import Trace
from bench.trace.portrait import Portrait, portrait

_HEAD = (
    "class", "requests", "share", "requests/s", "prompt p50", "p90", "p99", "max", "output p50", "p90", "p99", "max",
    "leave",
)  # fmt: skip


def describe(trace: Trace) -> str:
    found = portrait(trace)
    rows = [
        [
            name,
            str(each.requests),
            f"{each.share:.0%}",
            rate(each.rate_per_s),
            *(str(tokens) for tokens in (*each.prompt_tokens, *each.output_tokens)),
            str(each.cancelled),
        ]
        for name, each in found.classes.items()
    ]
    said = [
        f"{len(trace.arrivals)} requests over {trace.span_s:g} s, {rate(len(trace.arrivals) / trace.span_s)} a second",
        f"most in one second: {found.peak_in_one_second}; gaps vary by {_variation(found)} of their mean (Poisson: 1)",
    ]
    if found.tick_s is not None:
        said.append(f"times fall on ticks of {found.tick_s:g} s: a replay sends clumps; `convert` spreads them")
    if trace.prefix_block_tokens is not None:
        said.append(
            f"{found.shared_tokens_share:.0%} of the prompt tokens stand in blocks of {trace.prefix_block_tokens} "
            "tokens that an earlier prompt had too"
        )
    said += [f"made by: {json.dumps(trace.origin)}", f"sha256 {jsonl.sha256(trace)}"]
    return table(_HEAD, rows) + "\n\n" + "\n".join(f"- {each}" for each in said)


def _variation(found: Portrait) -> str:
    return NOTHING if found.gap_variation is None else f"{found.gap_variation:.2f}"
