"""In what two policies differ, value by value.

Owns the naming of a policy's values by their key path in its file. Compares what is in force: defaults included,
comments and order of writing not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.policy.schema import Policy

_NAMES_OF_THE_POLICY = ("version", "name")
_AUTO = "admission.long_prefill.hold_max_s"


def differences(one: Policy, other: Policy) -> list[tuple[str, str | None, str | None]]:
    """Return (key path, value in one, value in other); None where a policy has no such value."""
    first, second = (dict(_values(policy.model_dump(mode="json"), "")) for policy in (one, other))
    paths = [path for path in dict.fromkeys((*first, *second)) if path not in _NAMES_OF_THE_POLICY]
    return [(path, first.get(path), second.get(path)) for path in paths if first.get(path) != second.get(path)]


def _values(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _values(inner, f"{path}.{key}" if path else key)
    else:
        yield path, _written(value, path)


def _written(value: Any, path: str) -> str:
    """Write a value as the file would have it."""
    if value is None:
        return "auto" if path == _AUTO else "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
