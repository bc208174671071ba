"""Which objectives of its class a request met.

Owns the judgement. Only what the class states is judged, by the plan that the request was pinned to; a caller who
leaves before an objective was decided leaves it undecided, and so does one whose request the engine refuses for what it
is. Anything else that is no whole answer has missed them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from gateway.core.plan import Slo
from gateway.core.types import Outcome
from gateway.observe.exchange import Exchange


class Objective(StrEnum):
    """TTFT and STALL: streams alone. E2E: arrival to the last byte."""

    TTFT = "ttft"
    STALL = "stall"
    E2E = "e2e"


def stated(slo: Slo) -> dict[Objective, float]:
    """Return the limits that a class states, in seconds."""
    limits_ms = {Objective.TTFT: slo.ttft_ms, Objective.STALL: slo.stall_ms, Objective.E2E: slo.e2e_ms}
    return {objective: ms / 1000 for objective, ms in limits_ms.items() if ms is not None}


def judged(exchange: Exchange) -> Iterator[tuple[Objective, bool]]:
    """Yield each objective that is decided at the request's end, and whether it was met.

    Nothing where the request ended before admission saw it: its class promised it nothing yet.
    """
    assignment = exchange.assignment
    if assignment is None:
        return
    for objective, limit_s in stated(assignment.class_plan.slo[assignment.length_class]).items():
        if objective is not Objective.E2E and not assignment.stream:
            continue
        took_s, is_final = _took_s(exchange, objective)
        if exchange.outcome is Outcome.COMPLETED:
            if is_final:
                yield objective, took_s <= limit_s
        elif exchange.outcome is not Outcome.CLIENT_GONE or took_s > limit_s:
            yield objective, False
        elif is_final and objective is Objective.TTFT:
            yield objective, True


def _took_s(exchange: Exchange, objective: Objective) -> tuple[float, bool]:
    """Return how long it took, or has taken at least, and whether that is its last word."""
    assert exchange.ended_at is not None
    started = exchange.first_token_at is not None
    if objective is Objective.STALL:
        return exchange.longest_stall_s or 0.0, started
    if objective is Objective.TTFT and exchange.first_token_at is not None:
        return exchange.first_token_at - exchange.arrived_at, True
    # What ends well without ever having begun is the engine's own 4xx: quick, and no service.
    return exchange.ended_at - exchange.arrived_at, started and objective is Objective.E2E
