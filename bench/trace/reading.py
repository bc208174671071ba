"""A file of any format that is known as a trace, and a trace at another speed. Owns what a replay's origin says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.trace import foreign, jsonl, shaping
from bench.trace.arrivals import Trace
from bench.trace.foreign import Format

SHORT_TOKENS = 640
CLASSES = (f"short:{SHORT_TOKENS}", "long")


def read(
    path: Path,
    *,
    kind: Format | None = None,
    classes: Sequence[str] = CLASSES,
    unknown_output_tokens: int = 0,
    block_tokens: int = foreign.MOONCAKE_BLOCK_TOKENS,
) -> Trace:
    """A file of any format; other times than our own begin at its first request. Raises UsageError.

    kind: None is told from the first line. classes: by prompt tokens, where the file names none.
    """
    raw = jsonl.read_bytes(path)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}.") from error
    found = foreign.detect(text, str(path)) if kind is None else kind
    if found is Format.OURS:
        return jsonl.decode(raw, str(path))
    rule = shaping.parse_rule(classes, "--classes")
    rows = foreign.parse(text, found, str(path), unknown_output_tokens, block_tokens)
    if not rows.rows:
        raise UsageError(f"{path}: no request in it. Left out: {rows.left_out or 'nothing'}.")
    arrivals = shaping.arrivals_of(rows.rows, rule)
    origin: dict[str, Any] = {"label": "replay", "source": path.name, "format": str(found), "classes": str(rule)}
    if rows.left_out:
        origin["left_out"] = rows.left_out
    if unknown_output_tokens:
        origin["unknown_output_tokens"] = unknown_output_tokens
    return shaping.finished(arrivals, arrivals[-1].at_s, origin, rows.prefix_block_tokens)


def unticked(trace: Trace, seed: int) -> Trace:
    """Times that fall on ticks, spread inside their tick."""
    tick = shaping.tick_s(trace.arrivals)
    if tick is None:
        return trace
    arrivals = shaping.spread(trace.arrivals, tick, seed)
    origin = {**trace.origin, "spread": {"tick_s": round(tick, 6), "seed": seed}}
    return shaping.finished(arrivals, max(trace.span_s, arrivals[-1].at_s), origin, trace.prefix_block_tokens)


def at_rate(trace: Trace, rate_per_s: float, seed: int) -> Trace:
    """The same requests, spread from their ticks and faster or slower, so that their mean rate is that one."""
    spread = unticked(trace, seed)
    span_s = len(spread.arrivals) / rate_per_s
    if spread.span_s <= 0:
        raise UsageError(f"{trace.origin.get('source', 'trace')}: all its requests are at one time: it has no rate.")
    factor = span_s / spread.span_s
    origin = {**spread.origin, "time_scale": round(factor, 9)}
    return shaping.finished(shaping.stretched(spread.arrivals, factor), span_s, origin, spread.prefix_block_tokens)
