"""Pools: which engines serve a model.

Owns the routing from a model name to its pool, and what the pool's engines say about their models. Chooses no engine:
admission does, at dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.engines import reading
from gateway.engines.target import Target


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines that serve the same models. context_tokens_stated: None where the engines are to be asked."""

    name: str
    models: tuple[str, ...]
    targets: tuple[Target, ...]
    context_tokens_stated: int | None = None


class Pools:
    """All pools, by name and by model."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._by_model = {model: pool for pool in self._pools.values() for model in pool.models}
        self._cards: dict[str, Sequence[Mapping[str, Any]]] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def of_model(self, model: str) -> Pool | None:
        return self._by_model.get(model)

    def learn(self, target: Target, cards: Sequence[Mapping[str, Any]]) -> None:
        """Keep an engine's model cards."""
        self._cards[target.name] = cards

    def context_tokens(self, model: str) -> int | None:
        """Return the context of a model: as stated, or the smallest that one of its engines names."""
        pool = self._by_model[model]
        if pool.context_tokens_stated is not None:
            return pool.context_tokens_stated
        said = (reading.context_tokens(self._cards.get(target.name, ()), model) for target in pool.targets)
        return min((length for length in said if length is not None), default=None)

    def card(self, model: str) -> Mapping[str, Any] | None:
        """Return a model's card as an engine wrote it, but for paths on its disk; None while no engine has answered."""
        pool = self._by_model.get(model)
        if pool is None:
            return None
        for target in pool.targets:
            for card in self._cards.get(target.name, ()):
                if card["id"] == model:
                    return _without_paths(card)
        return None

    def models(self) -> tuple[str, ...]:
        return tuple(self._by_model)


def _without_paths(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `root`, where it is a path on the engine's disk, by the model's own name."""
    root = card.get("root")
    if isinstance(root, str) and root.startswith(("/", "./", "../", "~")):
        return {**card, "root": card["id"]}
    return card
