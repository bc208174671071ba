"""How old the oldest request without a first token was, over the time of a run. Pure.

Seen from the client, so that it is the same for every target: the wait in a queue, the gateway's or the engine's, and
the prefill. A class that is starved shows here as a line that climbs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from bench.records.request import RequestRecord


def oldest_ages_s(records: Sequence[RequestRecord], times_s: Sequence[float]) -> list[float]:
    """At each of the ascending times: seconds since the planned arrival of the oldest that waits, 0 where none does."""
    waiting: list[tuple[float, float]] = []
    arriving = sorted((record.planned_ms, _ends_ms(record)) for record in records)
    following = 0
    ages: list[float] = []
    for now_ms in (at_s * 1000 for at_s in times_s):
        while following < len(arriving) and arriving[following][0] <= now_ms:
            heapq.heappush(waiting, arriving[following])
            following += 1
        while waiting and waiting[0][1] <= now_ms:
            heapq.heappop(waiting)
        ages.append((now_ms - waiting[0][0]) / 1000 if waiting else 0.0)
    return ages


def _ends_ms(record: RequestRecord) -> float:
    """When its wait was over: with its first token, else with its end, else never."""
    if record.first_token_ms is not None:
        return record.first_token_ms
    return float("inf") if record.ended_ms is None else record.ended_ms
