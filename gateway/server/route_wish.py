"""The body of `POST /api/route`: which weights are wished for, or which engines' requests are to end.

Owns its reading. A fault names what to write instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.engines.canary import WEIGHT_MAX, CannotShift

_FIX = 'Send {"pool": NAME} with "weights": {ENGINE: NUMBER}, with "rollback": true, or with "end": [ENGINE]'
_WISHES = frozenset({"weights", "rollback", "end"})


@dataclass(frozen=True, slots=True)
class RouteWish:
    """weights: None: those of the file."""

    pool: str
    weights: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class EndWish:
    """End what these engines still have."""

    pool: str
    engines: frozenset[str]


def read(body: bytes) -> RouteWish | EndWish:
    """Raises CannotShift."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise CannotShift("The body is no JSON.", _FIX) from None
    if not isinstance(value, dict) or not isinstance(value.get("pool"), str):
        raise CannotShift("The body names no pool.", _FIX)
    if unknown := sorted(value.keys() - {"pool", *_WISHES}):
        raise CannotShift(f"The body has members that mean nothing here: {', '.join(unknown)}.", _FIX)
    if len(value.keys() & _WISHES) != 1 or value.get("rollback", True) is not True:
        raise CannotShift("The body wants either weights, a rollback, or an end.", _FIX)
    if "end" in value:
        return EndWish(value["pool"], _engines(value["end"]))
    return RouteWish(value["pool"], _weights(value["weights"]) if "weights" in value else None)


def _engines(stated: Any) -> frozenset[str]:
    if not isinstance(stated, list) or not stated or not all(isinstance(each, str) for each in stated):
        raise CannotShift("end names no engine.", _FIX)
    return frozenset(stated)


def _weights(stated: Any) -> dict[str, float]:
    if not isinstance(stated, dict) or not stated:
        raise CannotShift("weights names no engine.", _FIX)
    for engine, weight in stated.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= WEIGHT_MAX:  # nor is NaN in between
            raise CannotShift(f"The weight of {engine} is no number from 0 to {WEIGHT_MAX}.", "0 drains an engine")
    return {engine: float(weight) for engine, weight in stated.items()}
