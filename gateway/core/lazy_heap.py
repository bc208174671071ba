"""A heap whose members may leave or change their key at any time.

Owns nothing but order. Entries of members that left stay in the heap until they surface or until they outnumber
the living, so memory is O(living) and each operation is O(log n) amortised.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)

_STALE_ALLOWED = 64


class LazyHeap(Generic[Member]):
    """Members by ascending key; ties by insertion. Keys of one heap must compare with each other."""

    __slots__ = ("_entries", "_living", "_pushes")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Member]] = []
        self._living: dict[Member, tuple[Any, int, Member]] = {}
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._living)

    def __contains__(self, member: Member) -> bool:
        return member in self._living

    def __iter__(self) -> Iterator[Member]:
        """Yield the members in no order."""
        return iter(self._living)

    def push(self, member: Member, key: Any) -> None:
        """Insert the member, or move it to a new key."""
        self._pushes += 1
        entry = self._living[member] = (key, self._pushes, member)
        heappush(self._entries, entry)
        if len(self._entries) > 2 * len(self._living) + _STALE_ALLOWED:
            self._entries = list(self._living.values())
            heapify(self._entries)

    def discard(self, member: Member) -> None:
        self._living.pop(member, None)

    def peek(self) -> tuple[Any, int, Member] | None:
        """Return (least key, push, its member), or None when empty."""
        entries = self._entries
        while entries:
            first = entries[0]
            if self._living.get(first[2]) is first:
                return first
            heappop(entries)
        return None
