"""Our own trace format: one JSON object a line, the first describes the trace, each further one is an arrival.

    {"format": "gateway-bench-trace", "version": 1, "span_s": 60.0, "prefix_block_tokens": 512, "origin": {...}}
    {"arrival_ms": 12.345, "class": "short", "prompt_tokens": 512, "output_tokens": 128, "cancel_after_ms": 900.0}

Owns the bytes and their hash. A trace holds times, classes and lengths, never text.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.trace.arrivals import TOKENS_MAX, Arrival, Trace, check

FORMAT = "gateway-bench-trace"
VERSION = 1
FILE_BYTES_MAX = 256 * 1024 * 1024
_REQUIRED = {"arrival_ms": float, "class": str, "prompt_tokens": int, "output_tokens": int}
_LABELS = ("tenant", "service_class", "session")
_OPTIONAL = {"cancel_after_ms": float, "prefix": list, **dict.fromkeys(_LABELS, str)}
_SAID = {float: "a number", list: "a list of words"}


def encode(trace: Trace) -> bytes:
    head = {"format": FORMAT, "version": VERSION, "span_s": trace.span_s, "origin": dict(trace.origin)}
    if trace.prefix_block_tokens is not None:
        head["prefix_block_tokens"] = trace.prefix_block_tokens
    return ("\n".join([json.dumps(head), *(json.dumps(_row(each)) for each in trace.arrivals)]) + "\n").encode()


def sha256(trace: Trace) -> str:
    """The hash of the trace as `encode` writes it: equal for a generated trace and for its saved copy."""
    return hashlib.sha256(encode(trace)).hexdigest()


def decode(raw: bytes, source: str) -> Trace:
    """Raises UsageError with source and line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 at byte {error.start}.") from error
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"{source}: empty. The first line describes the trace.")
    head = json_object(lines[0], f"{source}: line 1")
    if head.get("format") != FORMAT or head.get("version") != VERSION:
        raise UsageError(
            f'{source}: line 1: not a trace of this bench. It begins with {{"format": "{FORMAT}", '
            f'"version": {VERSION}, "span_s": seconds, "origin": {{…}}}}; `gateway bench trace convert` makes one.'
        )
    span_s, origin = head.get("span_s"), head.get("origin")
    if not isinstance(span_s, int | float) or isinstance(span_s, bool) or not isinstance(origin, dict):
        raise UsageError(f"{source}: line 1: span_s must be a number of seconds and origin an object.")
    arrivals = tuple(_arrival(line, f"{source}: line {n}") for n, line in enumerate(lines[1:], start=2))
    check(arrivals, float(span_s), source)
    return Trace(arrivals, float(span_s), origin, _block_tokens(head, arrivals, source))


def read(path: Path) -> Trace:
    """Raises UsageError where the file is missing, too large or malformed."""
    return decode(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """A trace file of any format. Raises UsageError where it is missing or too large."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{path}: larger than {FILE_BYTES_MAX} bytes.")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error


def write(trace: Trace, path: Path) -> None:
    try:
        path.write_bytes(encode(trace))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error


def json_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: not a JSON object.")
    return value


def _row(arrival: Arrival) -> dict[str, Any]:
    row: dict[str, Any] = {
        "arrival_ms": round(arrival.at_s * 1000, 3),
        "class": arrival.class_name,
        "prompt_tokens": arrival.prompt_tokens,
        "output_tokens": arrival.output_tokens,
    }
    if arrival.cancel_after_s is not None:
        row["cancel_after_ms"] = round(arrival.cancel_after_s * 1000, 3)
    if arrival.prefix:
        row["prefix"] = list(arrival.prefix)
    return row | {name: value for name in _LABELS if (value := getattr(arrival, name)) is not None}


def _block_tokens(head: dict[str, Any], arrivals: tuple[Arrival, ...], source: str) -> int | None:
    said = head.get("prefix_block_tokens")
    if said is None:
        if any(arrival.prefix for arrival in arrivals):
            raise UsageError(f"{source}: line 1: prefix_block_tokens is missing, and some arrivals have a prefix.")
        return None
    if not isinstance(said, int) or isinstance(said, bool) or not 1 <= said <= TOKENS_MAX:
        raise UsageError(f"{source}: line 1: prefix_block_tokens must be a whole number from 1.")
    return said


def _arrival(line: str, where: str) -> Arrival:
    row = json_object(line, where)
    unknown = sorted(set(row) - set(_REQUIRED) - set(_OPTIONAL))
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join([*_REQUIRED, *_OPTIONAL])}.")
    for key, kind in (_REQUIRED | _OPTIONAL).items():
        if key not in row and key in _OPTIONAL:
            continue
        if not _fits(row.get(key), kind):
            raise UsageError(f"{where}: {key} must be {_SAID.get(kind, f'a {kind.__name__}')}.")
    cancel_after_ms = row.get("cancel_after_ms")
    return Arrival(
        at_s=round(row["arrival_ms"] / 1000, 6),
        class_name=row["class"],
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"],
        cancel_after_s=None if cancel_after_ms is None else cancel_after_ms / 1000,
        prefix=tuple(row.get("prefix", ())),
        **{name: row.get(name) for name in _LABELS},
    )


def _fits(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, kind) and not isinstance(value, bool)
