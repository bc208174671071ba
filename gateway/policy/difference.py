"""In what two plans differ, value by value.

Owns the naming of a plan's values by their path. Compares what is in force after compilation: defaults included,
comments and order of writing not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.core.plan import Plan

_NAMES_OF_THE_PLAN = ("name", "sha256")


def differences(one: Plan, other: Plan) -> list[tuple[str, str | None, str | None]]:
    """Return (path, value in one, value in other); None where a plan has no such value."""
    first, second = dict(_values(one, "")), dict(_values(other, ""))
    paths = [path for path in dict.fromkeys((*first, *second)) if path not in _NAMES_OF_THE_PLAN]
    return [(path, first.get(path), second.get(path)) for path in paths if first.get(path) != second.get(path)]


def _values(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if is_dataclass(value):
        for field in fields(value):
            yield from _values(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{key}")
    else:
        yield path, "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
