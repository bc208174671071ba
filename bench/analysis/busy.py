"""How long an engine was at work in a run: the time in which at least one request that it answered was open. Pure.

Seen from the client. An engine never rests while it has a request, and a gateway keeps none waiting before an engine at
rest: so this says how much work there was and how fast it was done, and nothing of the order in which it was done.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.request import RequestRecord


def busy_s(records: Sequence[RequestRecord]) -> float:
    """Return seconds. Who had no token from the engine does not count."""
    spans = sorted(
        (record.dispatched_ms, record.ended_ms)
        for record in records
        if record.first_token_ms is not None and record.dispatched_ms is not None and record.ended_ms is not None
    )
    total_ms, until_ms = 0.0, float("-inf")
    for began_ms, ended_ms in spans:
        total_ms += max(0.0, ended_ms - max(began_ms, until_ms))
        until_ms = max(until_ms, ended_ms)
    return total_ms / 1000
