"""How the parts of gateway.yaml must agree with each other.

Owns the rules that no single key can break alone. Looks at nothing outside the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.core.types import LengthClass
from gateway.strict_yaml import problem

if TYPE_CHECKING:
    from gateway.settings.model import Pool, Settings


def check(settings: Settings) -> None:
    """Raise the first disagreement as a validator's problem."""
    _check_ports(settings)
    _check_engines(settings)
    _check_models(settings.pools)
    if settings.limits.inflated_bytes_max < settings.limits.body_bytes_max:
        raise problem(
            "is below limits.body_bytes_max",
            fix="Raise it: an uncompressed body must fit too",
            at="limits.inflated_bytes_max",
        )
    drain = settings.drain
    if "settle_s" in drain.model_fields_set and drain.settle_s > drain.deadline_s:
        raise problem(
            f"is {drain.settle_s:g}, above drain.deadline_s ({drain.deadline_s:g})",
            fix="Lower it, or raise drain.deadline_s: both count from the signal",
            at="drain.settle_s",
        )


def _check_ports(settings: Settings) -> None:
    listen, ops = settings.listen, settings.ops
    if listen.port == ops.port != 0 and (listen.host == ops.host or {"0.0.0.0", "::"} & {listen.host, ops.host}):  # noqa: S104
        raise problem("is the port of listen too", fix="Give ops a port of its own", at="ops.port")


def _check_engines(settings: Settings) -> None:
    _check_unique((engine.name for engine in settings.engines), "engines[{}].name")
    _check_unique((engine.url for engine in settings.engines), "engines[{}].url")
    for index, engine in enumerate(settings.engines):
        if engine.pool not in settings.pools:
            known = ", ".join(settings.pools)
            raise problem(
                f"names the pool {engine.pool}, which is not among pools",
                fix=f"Use one of: {known}; or add it under pools",
                at=f"engines[{index}].pool",
            )
    for name in settings.pools:
        if not settings.engines_of(name):
            raise problem("has no engine", fix=f"Give an engine `pool: {name}`, or remove it", at=f"pools.{name}")
        if not any(engine.weight for engine in settings.engines_of(name)):
            raise problem("has engines of weight 0 alone", fix="Give one a weight above 0", at=f"pools.{name}")


def _check_unique(values: Iterable[str], place: str) -> None:
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in first:
            raise problem(f"is the same as {place.format(first[value])}", fix="Use each once", at=place.format(index))
        first[value] = index


def _check_models(pools: dict[str, Pool]) -> None:
    """A model is in one pool for all prompts, or in one for short prompts and one for long ones."""
    served_by: dict[str, list[str]] = {}
    for name, pool in pools.items():
        for index, model in enumerate(pool.models):
            others = served_by.setdefault(model, [])
            if others:
                _check_second(pools, model, name, others, at=f"pools.{name}.models[{index}]")
            others.append(name)
    for model, (first, *others) in served_by.items():
        length_class = pools[first].length_class
        if length_class is not None and not others:
            missing = LengthClass.LONG if length_class is LengthClass.SHORT else LengthClass.SHORT
            raise problem(
                f"is {length_class}, and the model {model} has no pool for {missing} prompts",
                fix=f"Add a pool with `length_class: {missing}` that serves it, or remove this line",
                at=f"pools.{first}.length_class",
            )


def _check_second(pools: dict[str, Pool], model: str, name: str, others: list[str], at: str) -> None:
    """Check a pool of a model that others serve: it has the other length class, and both count and reside alike."""
    for other in others:
        one, two = pools[other], pools[name]
        if other == name or None in {one.length_class, two.length_class} or one.length_class is two.length_class:
            raise problem(
                f"is served by the pool {other} already",
                fix="List each model once: it decides the pool of a request; or in two pools, one with "
                "`length_class: short` and one with `length_class: long`",
                at=at,
            )
        for key, why in (("tokenizer", "the count decides the pool"), ("region", "no prompt's length moves its data")):
            if getattr(one, key) != getattr(two, key):
                raise problem(
                    f"is not that of the pool {other}, which serves {model} too",
                    fix=f"State the same {key} for both: {why}",
                    at=f"pools.{name}.{key}",
                )
