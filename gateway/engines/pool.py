"""Pools: which engines serve a model.

Owns the routing from a model name to its pool, or to its two where the length class decides, and what the pools'
engines say about their models. Served are the models that the configuration names, and the adapters of these that all
of their engines list: one that an engine loads while it runs is served from when its cards are read again. Chooses no
engine: admission does, at dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.types import LONG, SHORT, LengthClass
from gateway.engines import reading
from gateway.engines.target import Target


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines that serve the same models.

    context_tokens_stated: None where the engines are to be asked. length_class: the prompts that it serves; None: all.
    """

    name: str
    models: tuple[str, ...]
    targets: tuple[Target, ...]
    context_tokens_stated: int | None = None
    length_class: LengthClass | None = None


@dataclass(frozen=True, slots=True)
class ModelPools:
    """Who serves these models: one pool for short prompts, one for long; one and the same where length is nothing."""

    short: Pool
    long: Pool
    models: tuple[str, ...]

    def __iter__(self) -> Iterator[Pool]:
        return iter((self.short,) if self.short is self.long else (self.short, self.long))

    def of(self, length_class: LengthClass) -> Pool:
        return self.short if length_class is SHORT else self.long

    def named(self, name: str) -> Pool:
        return next(pool for pool in self if pool.name == name)


class Pools:
    """All pools, by name and by model. A model is in one pool, or in two of which each states a length class."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._model_pools = list(_by_length(self._pools))
        self._by_model = {model: each for each in self._model_pools for model in each.models}
        self._adapters: dict[str, ModelPools] = {}
        self._cards: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._contexts: dict[tuple[str, str], int | None] = {}  # by pool and model, until the next cards

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def of_model(self, model: str) -> ModelPools | None:
        return self._by_model.get(model) or self._adapters.get(model)

    def learn(self, target: Target, cards: Sequence[Mapping[str, Any]]) -> None:
        """Keep an engine's model cards."""
        self._cards[target.name] = cards
        self._contexts.clear()
        found: dict[str, list[ModelPools]] = {}
        for each in self._model_pools:
            for name in sorted(self._adapters_of(each) - self._by_model.keys()):
                found.setdefault(name, []).append(each)
        # A name that two pools give to adapters of different models is neither's: nobody gets another than was meant.
        self._adapters = {name: those[0] for name, those in found.items() if len(those) == 1}

    def _adapters_of(self, pools: ModelPools) -> set[str]:
        """The adapters of the pools' models that every engine lists which has told of its models."""
        told = [cards for pool in pools for target in pool.targets if (cards := self._cards.get(target.name))]
        listed = [{card["id"] for card in cards if card.get("parent") in pools.models} for cards in told]
        return set.intersection(*listed) if listed else set()

    def context_tokens(self, pool: Pool, model: str) -> int | None:
        """Return the context of a model in a pool: as stated, or the smallest that an engine names; None: not known."""
        if pool.context_tokens_stated is not None:
            return pool.context_tokens_stated
        if (pool.name, model) not in self._contexts:
            said = (reading.context_tokens(self._cards.get(target.name, ()), model) for target in pool.targets)
            smallest = min((length for length in said if length is not None), default=None)
            self._contexts[pool.name, model] = smallest
        return self._contexts[pool.name, model]

    def longest_context_tokens(self, pools: ModelPools, model: str) -> int | None:
        """Return the context of that one of the pools which has more; None where one of them is not known."""
        short, long = self.context_tokens(pools.short, model), self.context_tokens(pools.long, model)
        return None if short is None or long is None else max(short, long)

    def card(self, model: str) -> Mapping[str, Any] | None:
        """Return a model's card as an engine wrote it, but for paths on its disk; None while no engine has answered.

        Of two pools the long prompts' one comes first: its context is what a prompt may have.
        """
        pools = self.of_model(model)
        if pools is None:
            return None
        for target in (*pools.long.targets, *pools.short.targets):
            for card in self._cards.get(target.name, ()):
                if card["id"] == model:
                    return _without_paths(card)
        return None

    def models(self) -> tuple[str, ...]:
        return (*self._by_model, *self._adapters)


def _by_length(pools: Mapping[str, Pool]) -> Iterator[ModelPools]:
    """Yield who serves which models. Where one pool serves a model's short prompts, another serves its long ones."""
    for_long = {model: name for name, pool in pools.items() if pool.length_class is LONG for model in pool.models}
    for pool in pools.values():
        if pool.length_class is None:
            yield ModelPools(pool, pool, pool.models)
        elif pool.length_class is SHORT:
            shared: dict[str, list[str]] = {}
            for model in pool.models:
                shared.setdefault(for_long[model], []).append(model)
            yield from (ModelPools(pool, pools[name], tuple(models)) for name, models in shared.items())


def _without_paths(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `root`, where it is a path on the engine's disk, by the model's own name."""
    root = card.get("root")
    if isinstance(root, str) and root.startswith(("/", "./", "../", "~")):
        return {**card, "root": card["id"]}
    return card
