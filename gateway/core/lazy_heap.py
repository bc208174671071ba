"""A heap whose members may leave or change their key at any time.

Owns nothing but order. Entries of members that left stay in the heap until they surface or until they outnumber
the living, so memory is O(living) and each operation is O(log n) amortised.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)

_STALE_ALLOWED = 64


class LazyHeap(Generic[Member]):
    """Members by ascending key; ties by insertion. Keys of one heap must compare with each other.

    first: (least key, push, its member), or None when empty; it is read far more often than it changes.
    """

    __slots__ = ("_entries", "_living", "_pushes", "first")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Member]] = []
        self._living: dict[Member, int] = {}  # by the push that holds
        self._pushes = 0
        self.first: tuple[Any, int, Member] | None = None

    def __len__(self) -> int:
        return len(self._living)

    def push(self, member: Member, key: Any) -> None:
        """Insert the member, or move it to a new key."""
        self._pushes = number = self._pushes + 1
        self._living[member] = number
        entries, first = self._entries, self.first
        heappush(entries, (key, number, member))
        if entries[0][1] == number:
            self.first = entries[0]
        elif first is not None and first[2] is member:
            self._find_first()
        if len(entries) > 2 * len(self._living) + _STALE_ALLOWED:
            entries[:] = [entry for entry in entries if self._living.get(entry[2]) == entry[1]]
            heapify(entries)

    def discard(self, member: Member) -> None:
        if self._living.pop(member, None) is not None and self.first is not None and self.first[2] is member:
            self._find_first()

    def _find_first(self) -> None:
        entries, living = self._entries, self._living
        while entries:
            first = entries[0]
            if living.get(first[2]) == first[1]:
                self.first = first
                return
            heappop(entries)
        self.first = None
