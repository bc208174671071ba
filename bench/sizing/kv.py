"""vLLM's KV cache in blocks: what a block takes, and how many a sequence needs. Pure.

As vLLM 0.32 computes it (`v1/core/kv_cache_utils.py`): layers of one kind form groups of equally many layers, all
groups draw from one pool, and a block is as large as a group's layers need for its tokens. A sliding layer holds its
window and what is in flight, never more than the sequence; one block of the pool stays empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.sizing.families import Family, is_set, whole, whole_or
from bench.sizing.parameters import Layers

EMPTY_BLOCKS = 1
PADDED_UNDER = 1.5  # with fewer times as many layers of the other kind, the smaller group is filled up


@dataclass(frozen=True, slots=True)
class KvCache:
    """Of one GPU. full_groups, sliding_groups: each has group_layers layers. in_flight_tokens: of all steps at work."""

    token_layer_bytes: int
    block_tokens: int
    full_groups: int
    sliding_groups: int
    group_layers: int
    window_tokens: int
    in_flight_tokens: int

    @property
    def block_bytes(self) -> int:
        return self.group_layers * self.block_tokens * self.token_layer_bytes

    @property
    def token_bytes(self) -> float:
        """Of a token that all layers hold; padding layers count, they are allocated."""
        return (self.full_groups + self.sliding_groups) * self.group_layers * self.token_layer_bytes

    def blocks_of(self, tokens: int) -> int:
        """That a sequence of so many tokens holds at most."""
        full = -(-tokens // self.block_tokens)
        sliding = min(self.window_tokens - 1 + self.in_flight_tokens, tokens)
        return self.full_groups * full + self.sliding_groups * (-(-sliding // self.block_tokens) + 1)

    def blocks_in(self, available_bytes: int) -> int:
        return max(0, available_bytes // self.block_bytes)

    def sequences_in(self, available_bytes: int, tokens: int) -> int:
        """Whole sequences of that length at once."""
        return max(0, self.blocks_in(available_bytes) - EMPTY_BLOCKS) // self.blocks_of(tokens)

    def longest_in(self, available_bytes: int, sequences: int = 1) -> int | None:
        """The longest of which so many fit at once; None: any, since all layers slide."""
        blocks = max(0, self.blocks_in(available_bytes) - EMPTY_BLOCKS) // sequences
        if not self.full_groups and blocks >= self.blocks_of(self.window_tokens + self.in_flight_tokens):
            return None
        low, high = 0, blocks * self.block_tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocks_of(middle) <= blocks else (low, middle - 1)
        return low


def kv_cache(
    family: Family,
    config: Mapping[str, Any],
    *,
    value_bytes: int,
    block_tokens: int,
    tensor_parallel: int,
    in_flight_tokens: int,
) -> KvCache:
    """Heads are divided among the GPUs, and repeated where there are fewer; a latent is on each of them."""
    model = Layers(family, config)
    if family.kind == "mla":
        values = whole(config, "kv_lora_rank") + whole(config, "qk_rope_head_dim")
    else:
        values = 2 * max(1, model.kv_heads // tensor_parallel) * model.head_dim
    window, sliding = _sliding(model)
    full = model.layers - sliding
    group_layers = max(full, sliding)
    if full and sliding and group_layers >= min(full, sliding) * PADDED_UNDER:
        group_layers = min(full, sliding)
    return KvCache(
        token_layer_bytes=values * value_bytes,
        block_tokens=block_tokens,
        full_groups=-(-full // group_layers),
        sliding_groups=-(-sliding // group_layers),
        group_layers=group_layers,
        window_tokens=window,
        in_flight_tokens=in_flight_tokens,
    )


def _sliding(model: Layers) -> tuple[int, int]:
    """The window, and how many layers have it."""
    config, family = model.config, model.family
    window = whole_or(config, "sliding_window", 0)
    if not window or not is_set(family.window_used, config):
        return 0, 0
    kinds = config.get("layer_types")
    if kinds:
        return window, sum(kind == "sliding_attention" for kind in kinds)
    every = whole_or(config, "sliding_window_pattern", family.window_every)
    return window, model.layers - (model.layers // every if every else 0)
