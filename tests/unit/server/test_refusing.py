"""When a refusal of the shell's own says to come back."""

from __future__ import annotations

from gateway.core.types import Reason, Refusal
from gateway.server import refusing
from gateway.server.refusing import draining, spread


def test_refusals_without_a_time_are_spread_over_the_range():
    least, most = refusing.RETRY_AFTER_S
    times = [spread(draining()).retry_after_s for _ in range(200)]
    assert len(set(times)) > 100
    assert all(least <= time_s <= most for time_s in times)


def test_a_measured_time_stays():
    refusal = Refusal(Reason.QUEUE_FULL, "full", retry_after_s=7.0)
    assert spread(refusal) is refusal
