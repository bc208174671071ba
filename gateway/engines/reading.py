"""What an engine says of itself, parsed: its models, its version, its metrics.

Pure: bytes in, values out. Whatever is missing or malformed is None, never an error: an engine that says less is
served all the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)
_COUNT = re.compile(rb"\d{1,15}")
CONTEXT_TOKENS_MAX = 1 << 40  # what states more is no context length
_HEADER_PRIORITY_SINCE = (0, 32)  # X-Vllm-Priority is read by this release; older ones read the body alone
_WANTED = {
    b"vllm:num_requests_running": "running",
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:num_requests_waiting_by_reason": "waiting_for_room",
    b"vllm:kv_cache_usage_perc": "kv_usage",
    b"vllm:num_preemptions_total": "preemptions",
    b"process_start_time_seconds": "started_at",
}
_WORDS = {b"True": True, b"False": False}
_CACHE_CONFIG = b"vllm:cache_config_info"
# Any character after /metrics leads to the filtered form, a tenth of the work for the engine. With several API
# servers it is empty, and the whole page must be read.
FILTERED_METRICS_PATH = "/metrics/?" + "&".join(f"name[]={name.decode()}" for name in (*_WANTED, _CACHE_CONFIG))
METRICS_PATH = "/metrics"


@dataclass(frozen=True, slots=True)
class Load:
    """One reading of /metrics, summed over data-parallel ranks; kv_usage is the fullest rank's share."""

    running: float | None = None
    waiting: float | None = None
    waiting_for_room: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    started_at: float | None = None
    kv_tokens: int | None = None
    kv_block_tokens: int | None = None
    prefix_caching: bool | None = None

    @property
    def is_idle(self) -> bool:
        return self.running == 0 and self.waiting == 0


def load(page: bytes) -> Load | None:
    """Read a metrics page; None where it holds none of vLLM's gauges."""
    sums: dict[str, float] = {}
    cache: Mapping[bytes, bytes] = {}
    for name, labels, text in _SAMPLE.findall(page):
        if name == _CACHE_CONFIG:
            cache = dict(_LABEL.findall(labels))
        if (field := _WANTED.get(name)) is None or (value := _float(text)) is None:
            continue
        if field == "waiting_for_room" and b'reason="capacity"' not in labels:
            continue
        known = sums.get(field)
        if known is None or field == "started_at":
            sums[field] = value
        else:
            sums[field] = max(known, value) if field == "kv_usage" else known + value
    if not sums.keys() & {"running", "waiting"}:
        return None
    return Load(
        **sums,
        kv_tokens=_count(cache.get(b"kv_cache_size_tokens")),
        kv_block_tokens=_count(cache.get(b"block_size")),
        prefix_caching=_WORDS.get(cache.get(b"enable_prefix_caching", b"")),
    )


def models(body: bytes) -> tuple[Mapping[str, Any], ...] | None:
    """Read /v1/models; None where it is no such answer."""
    listing = _json(body)
    cards = listing.get("data") if isinstance(listing, dict) else None
    if not isinstance(cards, list):
        return None
    return tuple(card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str))


def context_tokens(cards: Sequence[Mapping[str, Any]], model: str) -> int | None:
    """Return the context length of a model; an adapter has its parent's."""
    by_id = {card["id"]: card for card in cards}
    card = by_id.get(model)
    if card is not None and card.get("max_model_len") is None:
        parent = card.get("parent")
        card = by_id.get(parent, card) if isinstance(parent, str) else card
    length = None if card is None else card.get("max_model_len")
    return length if type(length) is int and 0 < length <= CONTEXT_TOKENS_MAX else None


def longest_context_tokens(cards: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the longest context of all models of the engine; None where none is said."""
    said = (context_tokens(cards, str(card["id"])) for card in cards)
    return max((tokens for tokens in said if tokens is not None), default=None)


def version(body: bytes) -> str | None:
    value = _json(body)
    text = value.get("version") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def reads_priority_header(engine_version: str | None) -> bool:
    """Tell whether this release reads X-Vllm-Priority; an unknown one is given the body's field."""
    match = _VERSION.match(engine_version or "")
    return match is not None and (int(match[1]), int(match[2])) >= _HEADER_PRIORITY_SINCE


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _float(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: bytes | None) -> int | None:
    return int(text) if text is not None and _COUNT.fullmatch(text) else None
