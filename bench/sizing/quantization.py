"""Bytes a parameter of linear layers, from `quantization_config`. Pure; scales and zero points are counted.

Embeddings, output head, norms and routers stay in the model's own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import UsageError

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
    method = str(said.get("quant_method", "compressed-tensors" if "config_groups" in said else "")).replace("_", "-")
    if method in ("awq", "gptq"):
        bits = int(said.get("bits") or said.get("w_bit") or 4)
        return _both(f"{method}, {bits} bits", _grouped(bits, said.get("group_size") or said.get("q_group_size")))
    if method == "fp8":
        block = said.get("weight_block_size")
        return _both("fp8", 1.0 + (4.0 / (int(block[0]) * int(block[1])) if block else 0.0))
    if method == "mxfp4":  # four bits and one exponent of eight for 32 of them; attention stays as it is
        return Stored("mxfp4, experts", None, 0.5 + 1 / 32)
    if method == "compressed-tensors":
        return _compressed(said)
    raise UsageError(
        f"quantization_config: the method {method or 'unstated'} is not known here, only {', '.join(KNOWN)}. "
        "Name the model's folder instead: the size of its safetensors is taken then."
    )


def _compressed(said: Mapping[str, Any]) -> Stored:
    weights = [group.get("weights") or {} for group in (said.get("config_groups") or {}).values()]
    bits = [int(each["num_bits"]) for each in weights if "num_bits" in each]
    if not bits:
        raise UsageError(
            "quantization_config: no config_groups with num_bits of weights. Name the model's folder instead."
        )
    widest = max(bits)
    group = next((each.get("group_size") for each in weights if each.get("num_bits") == widest), None)
    return _both(f"compressed-tensors, {widest} bits", _grouped(widest, group) if widest < 8 else 1.0)


def _grouped(bits: int, group_size: Any) -> float:
    """A scale and a zero point for each group; one for all of a row is not worth counting."""
    group = int(group_size or -1)
    return bits / 8 + ((_SCALE_BYTES + bits / 8) / group if group > 0 else 0.0)


def _both(said: str, each_bytes: float) -> Stored:
    return Stored(said, each_bytes, each_bytes)
