"""How each known architecture differs from a plain decoder, as data. Pure.

Owns which `model_type` is known and what its config leaves unsaid. A value that is the name of a config key is looked
up there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Flag = bool | str


@dataclass(frozen=True, slots=True)
class Experts:
    """Names of the config's keys. shared_size: width of the shared expert; or so many of them, each as wide as one.

    bias: the experts and their router have biases. correction: the router has one number an expert besides.
    """

    count: str
    size: str = "moe_intermediate_size"
    shared_size: str | None = None
    shared_count: str | None = None
    shared_gate: bool = False
    bias: bool = False
    correction: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """norms: of a layer. qk_norm: one weight a head's dimension for queries and keys. tied: unless the config says.

    sinks: one number an attention head. window_every: of so many layers one sees everything, where the config has a
    sliding window and no layer_types; 0: all slide. kind: gqa covers multi-head and multi-query.
    """

    kind: Literal["gqa", "mla"] = "gqa"
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: Flag = False
    norms: int = 2
    sinks: bool = False
    tied: bool = False
    window_every: int = 0
    window_used: Flag = True
    experts: Experts | None = None


_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
_DEEPSEEK = Experts("n_routed_experts", shared_count="n_shared_experts")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "phi3": Family(),
    "qwen2": Family(qkv_bias=True, window_used="use_sliding_window"),
    "qwen3": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, window_used="use_sliding_window"
    ),
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, tied=True, window_every=2),
    "gemma3_text": Family(norms=4, tied=True, qk_norm=True, window_every=6),
    "mixtral": Family(experts=Experts("num_local_experts", "intermediate_size")),
    "qwen2_moe": Family(
        qkv_bias=True,
        window_used="use_sliding_window",
        experts=Experts("num_experts", shared_size="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        window_used="use_sliding_window",
        experts=Experts("num_experts"),
    ),
    "glm4_moe": Family(
        qkv_bias="attention_bias",
        qk_norm="use_qk_norm",
        experts=Experts("n_routed_experts", shared_count="n_shared_experts", correction=True),
    ),
    "gpt_oss": Family(
        qkv_bias=True,
        out_bias=True,
        sinks=True,
        window_every=2,
        experts=Experts("num_local_experts", "intermediate_size", bias=True),
    ),
    "deepseek_v2": Family(kind="mla", experts=_DEEPSEEK),
    "deepseek_v3": Family(
        kind="mla", experts=Experts("n_routed_experts", shared_count="n_shared_experts", correction=True)
    ),
    "kimi_k2": Family(
        kind="mla", experts=Experts("n_routed_experts", shared_count="n_shared_experts", correction=True)
    ),
}


WHOLE_MAX = 2**53


def whole(config: Mapping[str, Any], name: str) -> int:
    """A number from 1. Raises KeyError where it is missing, ValueError where it is another thing."""
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= WHOLE_MAX or value % 1:
        raise ValueError(f"{name}: {value!r}")
    return int(value)


def whole_or(config: Mapping[str, Any], name: str, otherwise: int) -> int:
    """The same of what may be left out, be null or 0."""
    return whole(config, name) if config.get(name) else otherwise


def is_set(flag: Flag, config: Mapping[str, Any]) -> bool:
    return bool(config.get(flag, False)) if isinstance(flag, str) else flag
