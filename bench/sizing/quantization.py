"""Bytes a parameter of linear layers, from `quantization_config`. Pure; scales and zero points are counted.

Embeddings, output head, norms and routers stay in the model's own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import UsageError
from bench.sizing.families import whole, whole_or

_SCALE_BYTES = 2.0
KNOWN = ("awq", "gptq", "fp8", "compressed-tensors", "mxfp4")


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of a parameter: of other linear layers, and of experts. None: the model's own type."""

    said: str
    linear_bytes: float | None = None
    expert_bytes: float | None = None


def stored(config: Mapping[str, Any]) -> Stored:
    """Raises UsageError where the method is none that is known here."""
    said = config.get("quantization_config") or config.get("compression_config")
    if not said:
        return Stored("none")
    if not isinstance(said, Mapping):
        raise UsageError(f"quantization_config: {said!r} is no object. Name the model's folder instead.")
    method = str(said.get("quant_method", "compressed-tensors" if "config_groups" in said else "")).replace("_", "-")
    if method in ("awq", "gptq"):
        bits = whole_or(said, "bits", whole_or(said, "w_bit", 4))
        return _both(f"{method}, {bits} bits", _grouped(bits, said.get("group_size") or said.get("q_group_size")))
    if method == "fp8":
        return _both("fp8", 1.0 + (4.0 / _block(said) if said.get("weight_block_size") else 0.0))
    if method == "mxfp4":  # four bits and one exponent of eight for 32 of them; attention stays as it is
        return Stored("mxfp4, experts", None, 0.5 + 1 / 32)
    if method == "compressed-tensors":
        return _compressed(said)
    raise UsageError(
        f"quantization_config: the method {method or 'unstated'} is not known here, only {', '.join(KNOWN)}. "
        "Name the model's folder instead: the size of its safetensors is taken then."
    )


def _block(said: Mapping[str, Any]) -> int:
    """How many numbers share a scale."""
    sides = dict(zip(("rows", "columns"), said["weight_block_size"], strict=True))
    return whole(sides, "rows") * whole(sides, "columns")


def _compressed(said: Mapping[str, Any]) -> Stored:
    groups = said.get("config_groups")
    each_group = groups.values() if isinstance(groups, Mapping) else ()
    weights = [group["weights"] for group in each_group if _has_weights(group)]
    bits = [whole(each, "num_bits") for each in weights if "num_bits" in each]
    if not bits:
        raise UsageError(
            "quantization_config: no config_groups with num_bits of weights. Name the model's folder instead."
        )
    widest = max(bits)
    group = next((each.get("group_size") for each in weights if each.get("num_bits") == widest), None)
    return _both(f"compressed-tensors, {widest} bits", _grouped(widest, group) if widest < 8 else 1.0)


def _has_weights(group: Any) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)


def _grouped(bits: int, group_size: Any) -> float:
    """A scale and a zero point for each group; one for all of a row is not worth counting."""
    group = int(group_size or -1)
    return bits / 8 + ((_SCALE_BYTES + bits / 8) / group if group > 0 else 0.0)


def _both(said: str, each_bytes: float) -> Stored:
    return Stored(said, each_bytes, each_bytes)
