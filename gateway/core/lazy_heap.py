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

    __slots__ = ("_entries", "_keys", "_pushes")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Member]] = []
        self._keys: dict[Member, tuple[Any, int]] = {}
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, member: Member) -> bool:
        return member in self._keys

    def __iter__(self) -> Iterator[Member]:
        """Yield the members in no order."""
        return iter(self._keys)

    def push(self, member: Member, key: Any) -> None:
        """Insert the member, or move it to a new key."""
        self._pushes += 1
        self._keys[member] = (key, self._pushes)
        heappush(self._entries, (key, self._pushes, member))
        if len(self._entries) > 2 * len(self._keys) + _STALE_ALLOWED:
            self._entries = [(key, push, member) for member, (key, push) in self._keys.items()]
            heapify(self._entries)

    def discard(self, member: Member) -> None:
        self._keys.pop(member, None)

    def peek(self) -> tuple[Member, Any] | None:
        """Return the member with the least key and that key, or None when empty."""
        while self._entries:
            key, push, member = self._entries[0]
            if self._keys.get(member) == (key, push):
                return member, key
            heappop(self._entries)
        return None
