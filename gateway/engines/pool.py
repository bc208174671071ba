"""Pools: which engines serve a model.

Owns the routing from a model name to its pool, and what the pool's engines say about their models. A pool serves the
models that the configuration names, and the adapters of these that all of its engines list: one that an engine loads
while it runs is served from when its cards are read again. Chooses no engine: admission does, at dispatch.
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
        self._adapters: dict[str, Pool] = {}
        self._cards: dict[str, Sequence[Mapping[str, Any]]] = {}

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def of_model(self, model: str) -> Pool | None:
        return self._by_model.get(model) or self._adapters.get(model)

    def learn(self, target: Target, cards: Sequence[Mapping[str, Any]]) -> None:
        """Keep an engine's model cards."""
        self._cards[target.name] = cards
        found: dict[str, list[Pool]] = {}
        for pool in self:
            for name in sorted(self._adapters_of(pool) - self._by_model.keys()):
                found.setdefault(name, []).append(pool)
        # A name that two pools give to an adapter of theirs is neither's: nobody gets another model than was meant.
        self._adapters = {name: pools[0] for name, pools in found.items() if len(pools) == 1}

    def _adapters_of(self, pool: Pool) -> set[str]:
        """The adapters of the pool's models that every engine lists which has told of its models."""
        told = [cards for target in pool.targets if (cards := self._cards.get(target.name))]
        listed = [{card["id"] for card in cards if card.get("parent") in pool.models} for cards in told]
        return set.intersection(*listed) if listed else set()

    def context_tokens(self, model: str) -> int | None:
        """Return the context of a model: as stated, or the smallest that one of its engines names; None: not known."""
        pool = self.of_model(model)
        if pool is None:
            return None  # an adapter that was unloaded since its pool was looked up
        if pool.context_tokens_stated is not None:
            return pool.context_tokens_stated
        said = (reading.context_tokens(self._cards.get(target.name, ()), model) for target in pool.targets)
        return min((length for length in said if length is not None), default=None)

    def card(self, model: str) -> Mapping[str, Any] | None:
        """Return a model's card as an engine wrote it, but for paths on its disk; None while no engine has answered."""
        pool = self.of_model(model)
        if pool is None:
            return None
        for target in pool.targets:
            for card in self._cards.get(target.name, ()):
                if card["id"] == model:
                    return _without_paths(card)
        return None

    def models(self) -> tuple[str, ...]:
        return (*self._by_model, *self._adapters)


def _without_paths(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `root`, where it is a path on the engine's disk, by the model's own name."""
    root = card.get("root")
    if isinstance(root, str) and root.startswith(("/", "./", "../", "~")):
        return {**card, "root": card["id"]}
    return card
