"""Requests that come again after a refusal: the load that refusing makes, so that it can be seen and charged.

Owns the memory of what was refused of late, as hashes, bounded in number and in time. Refuses nothing.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.core.ticket import Assignment

_REMEMBERED = 4096
_REMEMBERED_S = 120.0


class Repeats:
    """What was refused, by class, tenant and fingerprint of the body, and when."""

    def __init__(self) -> None:
        self._refused_at: OrderedDict[tuple[str, str, int], float] = OrderedDict()

    def refused(self, assignment: Assignment, now: float) -> None:
        key = _key(assignment)
        if key is None:
            return
        self._refused_at[key] = now
        self._refused_at.move_to_end(key)
        if len(self._refused_at) > _REMEMBERED:
            self._refused_at.popitem(last=False)

    def is_repeat(self, assignment: Assignment, now: float) -> bool:
        """Tell whether the request was refused before: by the caller's own word, or because its like was."""
        if assignment.says_retry:
            return True
        if not self._refused_at or (key := _key(assignment)) is None:
            return False
        refused_at = self._refused_at.get(key)
        return refused_at is not None and now - refused_at <= _REMEMBERED_S


def _key(assignment: Assignment) -> tuple[str, str, int] | None:
    if assignment.fingerprint is None:
        return None
    return assignment.class_plan.name, assignment.tenant, assignment.fingerprint
