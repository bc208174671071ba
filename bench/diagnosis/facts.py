"""What a record says of the engine's own limits, wherever it says it. Pure; what nobody says is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.records.stored import StoredRun


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of all engines of a run together; None: the record does not say it.

    step_tokens, threshold, kv_tokens: of one of them: in a step in all, and of one prompt; in the smallest KV cache.
    """

    max_num_seqs: int | None = None
    step_tokens: int | None = None
    threshold: int | None = None
    kv_tokens: int | None = None

    def over(self, other: EngineFacts) -> EngineFacts:
        """These, and where they are silent the other's."""
        return replace(other, **{name: value for name in _NAMES if (value := getattr(self, name)) is not None})


_NAMES = ("max_num_seqs", "step_tokens", "threshold", "kv_tokens")


NOTHING_KNOWN = EngineFacts()


def of_run(run: StoredRun, gateway: Mapping[str, Any] | None = None, known: EngineFacts = NOTHING_KNOWN) -> EngineFacts:
    """What the engines say of themselves, else what the user knows or stated, else the gateway's configuration.

    gateway: as plan.json keeps it; None where there is none of ours.
    """
    said = run.run.get("effective_args") or {}
    each = [value for value in said.values() if isinstance(value, Mapping)] or [said]
    own = replace(_limits(each), kv_tokens=_kv_tokens(each))
    return own.over(known).over(_stated(run)).over(_configured(gateway))


def _stated(run: StoredRun) -> EngineFacts:
    """What the user said with --metadata."""
    return _limits([run.run.get("metadata") or {}])


def _configured(gateway: Mapping[str, Any] | None) -> EngineFacts:
    return _limits([engine.get("limits") or {} for engine in (gateway or {}).get("engines", [])])


def _limits(each: Sequence[Mapping[str, Any]]) -> EngineFacts:
    return EngineFacts(
        _sum(each, "max_num_seqs"),
        _same(each, "max_num_batched_tokens"),
        _same(each, "long_prefill_token_threshold"),
    )


def _kv_tokens(each: Sequence[Mapping[str, Any]]) -> int | None:
    sizes = [(_whole(said.get("num_gpu_blocks")), _whole(said.get("block_size"))) for said in each]
    known = [blocks * tokens for blocks, tokens in sizes if blocks is not None and tokens is not None]
    return min(known) if known and len(known) == len(sizes) else None


def _sum(each: Sequence[Mapping[str, Any]], name: str) -> int | None:
    known = [value for said in each if (value := _whole(said.get(name))) is not None]
    return sum(known) if known and len(known) == len(each) else None


def _same(each: Sequence[Mapping[str, Any]], name: str) -> int | None:
    known = {_whole(said.get(name)) for said in each}
    return known.pop() if len(known) == 1 else None


def _whole(said: Any) -> int | None:
    """Labels of metrics and options are text; `None` is one of them."""
    try:
        return int(said)
    except (TypeError, ValueError):
        return None
