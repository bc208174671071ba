"""Our own trace format: one JSON object a line, the first describes the trace, each further one is an arrival.

    {"format": "gateway-bench-trace", "version": 1, "span_s": 60.0, "origin": {...}}
    {"arrival_ms": 12.345, "class": "short", "prompt_tokens": 512, "output_tokens": 128, "cancel_after_ms": 900.0}

Owns the bytes and their hash. A trace holds times, classes and lengths, never text.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.trace.arrivals import Arrival, Trace, check

FORMAT = "gateway-bench-trace"
VERSION = 1
FILE_BYTES_MAX = 256 * 1024 * 1024
_REQUIRED = {"arrival_ms": float, "class": str, "prompt_tokens": int, "output_tokens": int}
_OPTIONAL = {"cancel_after_ms": float}


def encode(trace: Trace) -> bytes:
    head = {"format": FORMAT, "version": VERSION, "span_s": trace.span_s, "origin": dict(trace.origin)}
    lines = [json.dumps(head)]
    for arrival in trace.arrivals:
        row: dict[str, Any] = {
            "arrival_ms": round(arrival.at_s * 1000, 3),
            "class": arrival.class_name,
            "prompt_tokens": arrival.prompt_tokens,
            "output_tokens": arrival.output_tokens,
        }
        if arrival.cancel_after_s is not None:
            row["cancel_after_ms"] = round(arrival.cancel_after_s * 1000, 3)
        lines.append(json.dumps(row))
    return ("\n".join(lines) + "\n").encode()


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
    head = _object(lines[0], f"{source}: line 1")
    if head.get("format") != FORMAT or head.get("version") != VERSION:
        raise UsageError(
            f'{source}: line 1: not a trace of this bench. It begins with {{"format": "{FORMAT}", '
            f'"version": {VERSION}, "span_s": seconds, "origin": {{…}}}}.'
        )
    span_s, origin = head.get("span_s"), head.get("origin")
    if not isinstance(span_s, int | float) or isinstance(span_s, bool) or not isinstance(origin, dict):
        raise UsageError(f"{source}: line 1: span_s must be a number of seconds and origin an object.")
    arrivals = tuple(_arrival(line, f"{source}: line {n}") for n, line in enumerate(lines[1:], start=2))
    check(arrivals, float(span_s), source)
    return Trace(arrivals, float(span_s), origin)


def read(path: Path) -> Trace:
    """Raises UsageError where the file is missing, too large or malformed."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{path}: larger than {FILE_BYTES_MAX} bytes.")
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error
    return decode(raw, str(path))


def write(trace: Trace, path: Path) -> None:
    try:
        path.write_bytes(encode(trace))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: not a JSON object.")
    return value


def _arrival(line: str, where: str) -> Arrival:
    row = _object(line, where)
    unknown = sorted(set(row) - set(_REQUIRED) - set(_OPTIONAL))
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join([*_REQUIRED, *_OPTIONAL])}.")
    for key, kind in (_REQUIRED | _OPTIONAL).items():
        if key not in row and key in _OPTIONAL:
            continue
        value = row.get(key)
        fits = _is_number(value) if kind is float else isinstance(value, kind) and not isinstance(value, bool)
        if not fits:
            raise UsageError(f"{where}: {key} must be a {'number' if kind is float else kind.__name__}.")
    cancel_after_ms = row.get("cancel_after_ms")
    return Arrival(
        at_s=round(row["arrival_ms"] / 1000, 6),
        class_name=row["class"],
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"],
        cancel_after_s=None if cancel_after_ms is None else cancel_after_ms / 1000,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
