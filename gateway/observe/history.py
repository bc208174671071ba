"""What happened in the last minutes, for whoever looks only now: outcomes and refusals by class, oldest age by line.

Owns a ring for each of these, of buckets of a few seconds. Bounded by time and by the labels there are, never by load;
a ring that has seen nothing for so long is let go. Counts what the counters count, and decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import islice

from gateway.core.types import Outcome, Reason
from gateway.observe.exchange import Labels

BUCKET_S = 5
BUCKETS = 180  # a quarter of an hour
LOOK_BEFORE_END_S = 0.1
_SERIES_AT_ONCE = 32


class Kind(StrEnum):
    """What is kept, and its name in the answer. WAITED: seconds, the most in a bucket; the others are sums."""

    OUTCOMES = "outcomes"
    REFUSALS = "refusals"
    WAITED = "oldest_age_s"


_MEMBERS = {
    Kind.OUTCOMES: ("service_class", "outcome"),
    Kind.REFUSALS: ("service_class", "reason"),
    Kind.WAITED: ("service_class", "length_class", "pool"),
}
_Key = tuple[Kind, tuple[str, ...]]


class _Ring:
    """Values of the last buckets. A place that an older bucket left is known by the number that it still has."""

    __slots__ = ("_numbers", "_values", "newest")

    def __init__(self) -> None:
        self._numbers = array("q", bytes(8 * BUCKETS))
        self._values = array("f", bytes(4 * BUCKETS))
        self.newest = 0

    def put(self, bucket: int, value: float, *, is_sum: bool) -> None:
        place = bucket % BUCKETS
        before = self._values[place] if self._numbers[place] == bucket else 0.0
        self._numbers[place] = self.newest = bucket
        self._values[place] = before + value if is_sum else max(before, value)

    def since(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        """Yield the buckets in which something was, oldest first."""
        for bucket in range(max(first, last - BUCKETS + 1), min(last, self.newest) + 1):
            place = bucket % BUCKETS
            if self._numbers[place] == bucket:
                yield bucket, self._values[place]


class History:
    """now: seconds since the epoch, never going back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rings: dict[_Key, _Ring] = {}
        self._began_at = now()

    @property
    def rings(self) -> int:
        """How many are kept."""
        return len(self._rings)

    def ended(self, service_class: str, outcome: Outcome) -> None:
        self._put(Kind.OUTCOMES, (service_class, outcome.value), 1)

    def refused(self, service_class: str, reason: Reason) -> None:
        self._put(Kind.REFUSALS, (service_class, reason.value), 1)

    def waited(self, labels: Labels, age_s: float) -> None:
        """Take in how old a request is that waits, or was when its wait ended.

        All whose wait ended in a bucket, and the oldest at the bucket's end, hold the most that there was in between.
        """
        if age_s > 0.0:
            self._put(Kind.WAITED, labels, age_s)

    def next_look_in_s(self) -> float:
        """Return how long it is until what still waits has to be told: just before a bucket ends."""
        return BUCKET_S - (self._now() + LOOK_BEFORE_END_S) % BUCKET_S

    def forget(self) -> None:
        """Let go of what has seen nothing for as long as anything is kept."""
        first = self._bucket() - BUCKETS + 1
        self._rings = {key: ring for key, ring in self._rings.items() if ring.newest >= first}

    async def written(self, since: float) -> bytes:
        """Write the buckets that begin at `since` or later as JSON, a few rings at a time. Times: seconds, epoch."""
        last = self._bucket()
        first = max(last - BUCKETS + 1, -int(-since // BUCKET_S))
        kinds: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        rings = iter(sorted(self._rings.items()))
        while batch := list(islice(rings, _SERIES_AT_ONCE)):
            for (kind, key), ring in batch:
                values = [[BUCKET_S * bucket, _number(kind, value)] for bucket, value in ring.since(first, last)]
                if values:
                    kinds[kind].append(json.dumps(dict(zip(_MEMBERS[kind], key, strict=True)) | {"values": values}))
            await asyncio.sleep(0)
        head = {"began_at": self._began_at, "last_at": BUCKET_S * last, "bucket_s": BUCKET_S, "buckets": BUCKETS}
        return f"{json.dumps(head)[:-1]}, {', '.join(_lists(kinds.items()))}}}".encode()

    def _bucket(self) -> int:
        return int(self._now() // BUCKET_S)

    def _put(self, kind: Kind, key: tuple[str, ...], value: float) -> None:
        ring = self._rings.get((kind, key))
        if ring is None:
            ring = self._rings[kind, tuple(key)] = _Ring()
        ring.put(self._bucket(), value, is_sum=kind is not Kind.WAITED)


def _number(kind: Kind, value: float) -> float | int:
    return round(value, 2) if kind is Kind.WAITED else int(value)


def _lists(kinds: Iterable[tuple[Kind, list[str]]]) -> Iterator[str]:
    for kind, texts in kinds:
        yield f'"{kind.value}": [{", ".join(texts)}]'
