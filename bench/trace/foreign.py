"""Readers of other traces: the Azure 2023 CSV, Mooncake's and vLLM's JSONL, the BurstGPT CSV, a gateway's log.

Owns what their columns mean. Gives rows as they stand in the file: times, lengths, prefix blocks; who they are and how
they are sent is decided in `bench.trace.shaping`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial

from bench.errors import UsageError
from bench.trace import jsonl
from bench.trace.arrivals import CLASS_NAME

MOONCAKE_BLOCK_TOKENS = 512


class Format(StrEnum):
    OURS = "gateway"
    AZURE = "azure"
    MOONCAKE = "mooncake"
    BURSTGPT = "burstgpt"
    GATEWAY_LOG = "gateway-log"


@dataclass(frozen=True, slots=True)
class Row:
    """One request as a file has it. at_s: on the file's own clock, wherever that begins. 0 output tokens: not known."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[str, ...] = ()
    session: str | None = None
    class_name: str | None = None
    service_class: str | None = None
    tenant: str | None = None
    cancel_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file holds. left_out: why rows of it are none of a request that was served, and how many."""

    rows: list[Row]
    left_out: dict[str, int]
    prefix_block_tokens: int | None = None


def detect(text: str, source: str) -> Format:
    """The format by the first line; raises UsageError where it is none of them."""
    first = text.lstrip("\ufeff").split("\n", 1)[0].strip()
    columns = {column.strip().lower() for column in first.split(",")}
    if {"contexttokens", "generatedtokens"} <= columns:
        return Format.AZURE
    if {"request tokens", "response tokens"} <= columns:
        return Format.BURSTGPT
    if first.startswith("{"):
        row = jsonl.json_object(first, f"{source}: line 1")
        if row.get("format") == jsonl.FORMAT:
            return Format.OURS
        if {"timestamp", "input_length", "output_length"} <= row.keys():
            return Format.MOONCAKE
        if row.get("event") is not None and row.get("timestamp") is not None:
            return Format.GATEWAY_LOG
    raise UsageError(
        f"{source}: line 1 is of no known trace: a CSV with ContextTokens and GeneratedTokens (Azure), one with "
        "Request tokens and Response tokens (BurstGPT), JSON lines with timestamp, input_length, output_length, or a "
        "gateway's log."
    )


def parse(
    text: str, kind: Format, source: str, unknown_output_tokens: int = 0, block_tokens: int = MOONCAKE_BLOCK_TOKENS
) -> Rows:
    """Rows without output tokens get `unknown_output_tokens`, or are left out where it is 0. Raises UsageError.

    block_tokens: what each of Mooncake's hash_ids stands for.
    """
    readers: dict[Format, Callable[[str, str], Iterator[Row]]] = {
        Format.AZURE: _azure,
        Format.BURSTGPT: _burstgpt,
        Format.MOONCAKE: partial(_mooncake, block_tokens=block_tokens),
        Format.GATEWAY_LOG: _gateway_log,
    }
    rows: list[Row] = []
    left_out: dict[str, int] = {}
    for row in readers[kind](text, source):
        output_tokens = row.output_tokens or unknown_output_tokens
        reason = _no_request(row, output_tokens)
        if reason is None:
            rows.append(replace(row, output_tokens=output_tokens))
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Rows(rows, left_out, block_tokens if any(row.prefix for row in rows) else None)


def _no_request(row: Row, output_tokens: int) -> str | None:
    """BurstGPT writes 0 response tokens where the service failed; what was refused has none in a gateway's log."""
    if row.prompt_tokens < 1:
        return "no prompt tokens"
    return "no output tokens" if output_tokens < 1 else None


def _azure(text: str, source: str) -> Iterator[Row]:
    for where, row in _records(text, source, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            # Without decimals on a whole second, with seven in 2023, and with a time zone in 2024.
            stamp = datetime.fromisoformat(row["TIMESTAMP"].strip())
        except ValueError as error:
            raise UsageError(f"{where}: TIMESTAMP is no YYYY-MM-DD HH:MM:SS.ffffff.") from error
        at_s = (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
        yield Row(at_s, _whole(row, "ContextTokens", where), _whole(row, "GeneratedTokens", where))


def _burstgpt(text: str, source: str) -> Iterator[Row]:
    for where, row in _records(text, source, ("Timestamp", "Request tokens", "Response tokens")):
        session = (row.get("Session ID") or "").strip()
        yield Row(
            _seconds(row["Timestamp"], f"{where}: Timestamp"),
            _whole(row, "Request tokens", where),
            _whole(row, "Response tokens", where),
            session=f"s{session}" if session.isalnum() and len(session) < 40 else None,
        )


def _mooncake(text: str, source: str, block_tokens: int) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}: line {number}"
        row = jsonl.json_object(line, where)
        counts = {key: row.get(key) for key in ("input_length", "output_length")}
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(isinstance(each, int) and each >= 0 for each in hashes):
            raise UsageError(f"{where}: hash_ids must be a list of whole numbers.")
        prompt_tokens = _count(counts["input_length"], f"{where}: input_length")
        if prompt_tokens and len(hashes) > math.ceil(prompt_tokens / block_tokens):
            raise UsageError(
                f"{where}: {len(hashes)} hash_ids are more than {prompt_tokens} tokens have blocks of {block_tokens}. "
                "Say how many a block has: `gateway bench trace convert --prefix-block-tokens N`."
            )
        # The last, partly filled block is the prompt's own end.
        whole_blocks = hashes[: prompt_tokens // block_tokens]
        yield Row(
            _seconds(row.get("timestamp"), f"{where}: timestamp") / 1000,
            prompt_tokens,
            _count(counts["output_length"], f"{where}: output_length"),
            prefix=tuple(str(each) for each in whole_blocks),
        )


def _gateway_log(text: str, source: str) -> Iterator[Row]:
    """The lines `event: request`; clients that left are those who will leave again."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}: line {number}"
        row = jsonl.json_object(line, where)
        if row.get("event") != "request":
            continue
        gone = row.get("outcome") == "client_gone"
        yield Row(
            _seconds(row.get("arrived_at"), f"{where}: arrived_at"),
            _count(row.get("prompt_tokens") or row.get("counted_prompt_tokens") or 0, f"{where}: prompt_tokens"),
            _count(row.get("output_tokens") or 0, f"{where}: output_tokens"),
            class_name=_label(row.get("length_class")),
            service_class=_label(row.get("service_class")),
            tenant=row.get("tenant") if isinstance(row.get("tenant"), str) else None,
            cancel_after_s=_seconds(row.get("request_s"), f"{where}: request_s") or None if gone else None,
        )


def _label(value: object) -> str | None:
    return value if isinstance(value, str) and value != "none" and CLASS_NAME.fullmatch(value) else None


def _records(text: str, source: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""))
    missing = [name for name in wanted if name not in (reader.fieldnames or [])]
    if missing:
        raise UsageError(f"{source}: line 1: no column {missing[0]!r}.")
    try:
        for row in reader:
            where = f"{source}: line {reader.line_num}"
            short = [name for name in wanted if row[name] is None]
            if short:
                raise UsageError(f"{where}: no value for {short[0]}.")
            yield where, row
    except csv.Error as error:
        raise UsageError(f"{source}: line {reader.line_num}: not CSV ({error}).") from error


def _whole(row: dict[str, str], name: str, where: str) -> int:
    try:
        return int(row[name])
    except ValueError as error:
        raise UsageError(f"{where}: {name} must be a whole number.") from error


def _count(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{where} must be a whole number.")
    return value


def _seconds(value: object, where: str) -> float:
    try:
        seconds = float(value) if isinstance(value, str | int | float) else math.nan
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UsageError(f"{where} must be a number.")
    return seconds
