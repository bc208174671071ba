"""The last requests that were decided on, to be explained one by one: `gateway explain`.

Owns four rings, of requests that an engine got and of those that none got, each of those that take engine time and of
those that take none: a flood of one does not push the others out. Holds no prompt, no answer, no key and no tenant's
words; costs one append a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from gateway.core.ledger import Budget
from gateway.core.standing import Ahead, Standing
from gateway.core.types import Refusal
from gateway.observe.exchange import Aside, Exchange, Exchanges

SENT_KEPT = 4096
REFUSED_KEPT = 4096
ASIDES_KEPT = 1024


class Decisions:
    """living: the requests that have not ended."""

    def __init__(self, living: Exchanges) -> None:
        self._living = living
        self._sent: deque[Exchange] = deque(maxlen=SENT_KEPT)
        self._refused: deque[Exchange] = deque(maxlen=REFUSED_KEPT)
        self._passed_on: deque[Aside] = deque(maxlen=ASIDES_KEPT)
        self._answered_here: deque[Aside] = deque(maxlen=ASIDES_KEPT)

    def __iter__(self) -> Iterator[Exchange]:
        return chain(self._living, reversed(self._sent), reversed(self._refused))

    def ended(self, exchange: Exchange) -> None:
        exchange.usage_told = exchange.cut = None  # they may hold what was counted, and its connection
        (self._refused if exchange.engine is None else self._sent).append(exchange)

    def aside_ended(self, aside: Aside) -> None:
        (self._answered_here if aside.engine is None else self._passed_on).append(aside)

    def explain(self, request_id: str, now: float) -> dict[str, Any] | None:
        """Return what was decided on a request and why; None where it is not among the last ones."""
        found = next((exchange for exchange in self if exchange.request_id == request_id), None)
        if found is not None:
            return explanation(found, now)
        asides = chain(reversed(self._passed_on), reversed(self._answered_here))
        aside = next((each for each in asides if each.request_id == request_id), None)
        return None if aside is None else _explained(aside)


def explanation(exchange: Exchange, now: float) -> dict[str, Any]:
    """Return it as `/api/explain` shows it. Times are seconds; what does not apply, or not yet, is null."""
    assignment, waiting_since = exchange.assignment, exchange.waiting_since
    return {
        "request_id": exchange.request_id,
        "route": exchange.route,
        "takes_engine_time": True,
        "phase": exchange.phase.value,
        **exchange.labels._asdict(),
        "stream": exchange.stream,
        "arrived_at": exchange.arrived_at,
        "count": {
            "prompt_tokens": exchange.counted_prompt_tokens,
            "method": exchange.counting_method or None,
            "engine_prompt_tokens": exchange.prompt_tokens,
        },
        "judged": None
        if assignment is None
        else {
            "policy": assignment.plan.name,
            "sha256": assignment.plan.sha256,
            "short_prompt_tokens_max": assignment.plan.short_prompt_tokens_max,
            "prompt_tokens": assignment.prompt_tokens,
            "output_tokens_max": assignment.output_tokens_max,
            "sequences": assignment.sequences,
            "kv_tokens": assignment.kv_tokens,
            "wait_s_max": assignment.wait_s_max,
        },
        "line": _ahead(exchange.stood),
        "line_at_end": _ahead(exchange.stood_at_end),
        "waited_s": exchange.waited_s if waiting_since is None else now - waiting_since,
        "requeues": exchange.requeues,
        "engine": exchange.engine,
        "ttft_s": _between(exchange.arrived_at, exchange.first_token_at),
        "engine_ttft_s": _between(exchange.dispatched_at, exchange.first_token_at),
        "longest_stall_s": exchange.longest_stall_s,
        "output_tokens": exchange.output_tokens,
        "took_s": (now if exchange.ended_at is None else exchange.ended_at) - exchange.arrived_at,
        "outcome": None if exchange.outcome is None else exchange.outcome.value,
        "status": exchange.status,
        "refusal": _refusal(exchange.refusal, says=assignment is not None),
    }


def _explained(aside: Aside) -> dict[str, Any]:
    """Return what there is to say of a request without engine time: no line, no budget, no count."""
    assert aside.ended_at is not None, "it is kept from its end on"
    return {
        "request_id": aside.request_id,
        "route": aside.route,
        "takes_engine_time": False,
        "service_class": aside.service_class,
        "engine": aside.engine,
        "arrived_at": aside.arrived_at,
        "took_s": aside.ended_at - aside.arrived_at,
        "status": aside.status,
        "refusal": _refusal(aside.refusal, says=False),
    }


def _refusal(refusal: Refusal | None, *, says: bool) -> Mapping[str, Any] | None:
    """says: with its words. Those about a body may hold some of it; admission's own never do."""
    if refusal is None:
        return None
    return {
        "reason": refusal.reason.value,
        "message": refusal.message if says else None,
        "code": refusal.code,
        "param": refusal.param,
        "resource": None if refusal.resource is None else refusal.resource.value,
        "limit": refusal.limit,
        "observed": refusal.observed,
        "retry_after_s": refusal.retry_after_s,
    }


def _ahead(ahead: Ahead | None) -> Mapping[str, Any] | None:
    if ahead is None:
        return None
    return {
        "in_line": ahead.in_line,
        "in_lane": ahead.in_lane,
        "engines": [_standing(standing) for standing in ahead.engines],
    }


def _standing(standing: Standing) -> Mapping[str, Any]:
    return {
        "engine": standing.engine,
        "takes_work": standing.takes_work,
        "lacks": [budget.name.lower() for budget in standing.lacks()],
        "budgets": {
            budget.name.lower(): {"used": standing.used[budget], "cap": standing.caps[budget]}
            for budget in Budget
            if budget in standing.caps
        },
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
