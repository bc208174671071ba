"""An estimate as Markdown. Says in its first line that it is one."""

from __future__ import annotations

from typing import Any

from bench.sizing.estimate import GIB, Estimate
from bench.tables import table

_LABEL = "An estimate before a measured run: weights and KV follow from the config, the overhead is a rule of thumb."


def describe(title: str, found: Estimate) -> str:
    gpus = found.ask.tensor_parallel
    rows = [
        ["weights", _gib(found.weights_bytes), _weights(found)],
        ["run-time overhead", _gib(found.overhead_bytes), "a step's values, logits, CUDA's context and graphs"],
        ["KV cache", _gib(found.kv_bytes), _budget(found)],
        ["of it needed", _gib(found.needed_bytes), _needed(found)],
        ["of it left", _gib(found.left_bytes), _left(found)],
    ]
    head = ("of one GPU" if gpus == 1 else f"of each of {gpus} GPUs", "GiB", "how")
    parts = [f"# {title}", _LABEL, table(head, rows), "\n".join(f"- {line}" for line in _lines(found))]
    return "\n\n".join(parts) + "\n"


def to_json(found: Estimate) -> dict[str, Any]:
    """What is not known or was not asked has no key."""
    kv, ask = found.kv, found.ask
    said: dict[str, Any] = {
        "estimate": True,
        "tensor_parallel": ask.tensor_parallel,
        "dtype": found.dtype,
        "weights_bytes": found.weights_bytes,
        "weights_from": found.weights_said,
        "overhead_bytes": found.overhead_bytes,
        "kv_cache_bytes": found.kv_bytes,
        "kv_bytes_per_token": kv.token_bytes,
        "block_tokens": kv.block_tokens,
        "block_bytes": kv.block_bytes,
        "blocks": found.blocks,
        "context_tokens": found.context_tokens,
        "kv_cache_size_tokens": found.printed[0],
        "max_concurrency": round(found.printed[1], 4),
        "sequences_that_fit": found.sequences,
        "needed_bytes": found.needed_bytes,
        "left_bytes": found.left_bytes,
        "fits": found.fits,
        "notes": list(found.notes),
    }
    optional = {
        "parameters": None if found.parameters is None else sum(part.count for part in found.parameters),
        "sequences_intended": ask.sequences,
        "longest_sequence_tokens": kv.longest_in(found.kv_bytes),
    }
    return said | {name: value for name, value in optional.items() if value is not None}


def _weights(found: Estimate) -> str:
    if found.parameters is None:
        return found.weights_said
    return f"{sum(part.count for part in found.parameters):,} parameters; {found.weights_said}"


def _budget(found: Estimate) -> str:
    if found.ask.kv_memory_bytes is not None:
        return "as stated"
    return f"{found.ask.utilization:g} of {_gib(found.ask.gpu_memory_bytes or 0)} GiB, less the two"


def _needed(found: Estimate) -> str:
    number = found.asked_sequences
    return f"{number} sequence{'s' if number > 1 else ''} of {found.context_tokens:,} tokens"


def _left(found: Estimate) -> str:
    if not found.fits:
        return "it does not fit"
    return f"the margin: {found.left_bytes / found.kv_bytes:.0%} of the cache"


def _lines(found: Estimate) -> list[str]:
    kv, (tokens, sequences) = found.kv, found.printed
    longest, beside = kv.longest_in(found.kv_bytes), kv.longest_in(found.kv_bytes, found.asked_sequences)
    block = f"{found.blocks:,} blocks of {kv.block_tokens} tokens and {kv.block_bytes / 1024:.4g} KiB"
    lines = [
        f"KV of a token: {kv.token_bytes / 1024:.4g} KiB; {block}",
        f"vLLM would print: KV cache size: {tokens:,} tokens, Maximum concurrency: {sequences:.2f}x",
        f"{found.sequences:,} sequences of {found.context_tokens:,} tokens fit at once",
    ]
    if kv.sliding_groups:
        sliding = f"{kv.sliding_groups} of {kv.sliding_groups + kv.full_groups} groups of layers"
        lines.append(f"{sliding} hold a window of {kv.window_tokens:,} tokens and what is in flight")
    most = "any, since all layers slide" if longest is None else f"at most {longest:,}"
    lines.append(f"max_model_len that the memory allows: {most}")
    if found.asked_sequences > 1 and beside is not None:
        lines.append(f"with {found.asked_sequences} sequences at once each may have {beside:,} tokens")
    return [*lines, *found.notes, "measure it: the truth is what the engine prints at its start"]


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
