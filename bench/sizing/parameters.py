"""How many parameters a model has, part by part, from its config. Pure.

What matters of a part is whether it is a linear layer, which quantization makes smaller, and whether tensor
parallelism divides it or each GPU has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.sizing.families import Experts, Family, is_set, whole, whole_or


@dataclass(frozen=True, slots=True)
class Part:
    """linear, of_experts: what of it quantization_config is about. split: over the GPUs of tensor parallelism.

    kv_heads: where it has as many pieces as the keys' heads: with more GPUs than those, some have the same one.
    """

    name: str
    count: int
    linear: bool = False
    of_experts: bool = False
    split: bool = True
    kv_heads: int = 0


class Layers:
    """The dimensions of one model. Raises KeyError where the config lacks one, ValueError where it is no number."""

    def __init__(self, family: Family, config: Mapping[str, Any]) -> None:
        self.family, self.config = family, config
        self.layers = whole(config, "num_hidden_layers")
        self.hidden = whole(config, "hidden_size")
        self.heads = whole(config, "num_attention_heads")
        self.kv_heads = whole_or(config, "num_key_value_heads", self.heads)
        self.head_dim = whole_or(config, "head_dim", max(1, self.hidden // self.heads))
        self.vocabulary = whole(config, "vocab_size")
        self.tied = bool(config.get("tie_word_embeddings", family.tied))

    @property
    def expert_layers(self) -> int:
        """How many layers have experts instead of one wide layer."""
        experts, config = self.family.experts, self.config
        if experts is None or not config.get(experts.count):
            return 0
        first = whole_or(config, "first_k_dense_replace", 0)
        every = whole_or(config, "moe_layer_freq", 1)
        step = whole_or(config, "decoder_sparse_step", 1)
        dense = set(config.get("mlp_only_layers") or ())
        return sum(
            layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in dense
            for layer in range(self.layers)
        )


def parts(family: Family, config: Mapping[str, Any]) -> list[Part]:
    """Everything that vLLM loads of the text model; heads for speculation are not in it."""
    model = Layers(family, config)
    found = [Part("embeddings", model.vocabulary * model.hidden)]
    if not model.tied:
        found.append(Part("output head", model.vocabulary * model.hidden))
    found += _latent_attention(model) if family.kind == "mla" else _attention(model)
    found += _feed_forward(model)
    found.append(Part("norms", (family.norms * model.layers + 1) * model.hidden, split=False))
    return found


def _attention(model: Layers) -> list[Part]:
    family, config, layers = model.family, model.config, model.layers
    wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
    small = 2 * model.head_dim * is_set(family.qk_norm, config) + model.heads * family.sinks
    biases = (wide + 2 * narrow) * is_set(family.qkv_bias, config) + model.hidden * is_set(family.out_bias, config)
    return [
        Part("attention", layers * 2 * model.hidden * wide, linear=True),
        Part("keys and values", layers * 2 * model.hidden * narrow, linear=True, kv_heads=model.kv_heads),
        Part("attention, small", layers * (small + biases), split=False),
    ]


def _latent_attention(model: Layers) -> list[Part]:
    config, layers, heads = model.config, model.layers, model.heads
    nope, rope, value = (whole(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    latent, query = whole(config, "kv_lora_rank"), whole_or(config, "q_lora_rank", 0)
    down = model.hidden * (latent + rope + query)
    up = (
        (query or model.hidden) * heads * (nope + rope) + latent * heads * (nope + value) + heads * value * model.hidden
    )
    return [
        Part("latent attention, down", layers * down, linear=True, split=False),
        Part("latent attention, up and out", layers * up, linear=True),
        Part("latent attention, norms", layers * (latent + query), split=False),
    ]


def _feed_forward(model: Layers) -> list[Part]:
    family, config = model.family, model.config
    dense = model.layers - model.expert_layers
    found = []
    if dense:
        wide = whole(config, "intermediate_size")
        biases = (2 * wide + model.hidden) * is_set(family.mlp_bias, config)
        found.append(Part("feed-forward", dense * 3 * model.hidden * wide, linear=True))
        found.append(Part("feed-forward, biases", dense * biases, split=False))
    if family.experts is not None and model.expert_layers:
        found += _experts(model, family.experts)
    return [part for part in found if part.count]


def _experts(model: Layers, named: Experts) -> list[Part]:
    config, layers, hidden = model.config, model.expert_layers, model.hidden
    count, wide = whole(config, named.count), whole(config, named.size)
    shared = whole_or(config, named.shared_size, 0) if named.shared_size else 0
    if named.shared_count:
        shared = whole_or(config, named.shared_count, 0) * wide
    router = count * (hidden + named.bias + named.correction) + hidden * named.shared_gate
    return [
        Part("experts", layers * count * 3 * hidden * wide, linear=True, of_experts=True),
        Part("experts, biases", layers * count * (2 * wide + hidden) * named.bias),
        Part("shared experts", layers * 3 * hidden * shared, linear=True),
        Part("router", layers * router, split=False),
    ]
