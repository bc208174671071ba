"""Whoever is refused early would have waited its limit or nearly so: the same history, with one of the refused let in.

It is no proof of the stated confidence. A refusal is of whoever is just over the limit by the prediction, and while load
changes the prediction trails it, so many of these would have gone in the last tenth of their limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from gateway.core.admission import Admission
from gateway.core.early_rejection import _PROBE_EACH
from gateway.core.plan import AdmissionKind, EarlyRejection, SlotBudget
from gateway.core.ticket import Dispatched, Event, Refused, Ticket
from gateway.core.types import Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

START, WAIT_S, SLOTS = 1_000_000.0, 2.0, 4
PER_TOKEN_S = 1 / 1500
ANYONE = a_class(wait_s_max=(WAIT_S, WAIT_S), requests_max=1 << 30, prompt_tokens_max=1 << 40, bytes_max=1 << 50)
PLAN = a_plan(ANYONE, admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(SLOTS)))

Request = tuple[float, int, float]
"""When it comes, its prompt tokens, and how long an engine is at it, seconds."""


def history(seed: int, load: float) -> list[Request]:
    """Draw calm and rush by turns, 10 s each; what a request takes is its length's, more or less."""
    random, at, requests = Random(seed), START, []
    while at < START + 40.0:
        rush = int((at - START) / 10.0) % 2
        at += random.expovariate((load if rush else 0.5) * SLOTS / (300 * PER_TOKEN_S))
        tokens = random.randint(20, 580)
        requests.append((at, tokens, tokens * PER_TOKEN_S * random.uniform(0.7, 1.3)))
    return requests


def fates(
    requests: Sequence[Request], confidence: float, let_in: int | None = None
) -> list[tuple[Outcome | Reason, float]]:
    """Play a history and return how each ended and its wait; `let_in` is the probe that goes though predicted late."""
    admission = Admission(replace(PLAN, early_rejection=EarlyRejection(confidence)), [an_engine()])
    ended: dict[int, tuple[Outcome | Reason, float]] = {}
    takes: dict[int, float] = {}
    tickets: dict[int, int] = {}
    number = count()
    agenda: list[tuple[float, int, Ticket | int | None]] = [
        (at, next(number), which) for which, (at, _, _) in enumerate(requests)
    ]

    def follow(events: list[Event], now: float) -> None:
        for event in events:
            match event:
                case Dispatched(ticket=ticket, waited_s=waited_s):
                    ended[tickets[ticket.id]] = Outcome.COMPLETED, waited_s
                    heappush(agenda, (now + takes[ticket.id], next(number), ticket))
                case Refused(ticket=ticket, refusal=refusal, outcome=outcome, waited_s=waited_s):
                    ended[tickets[ticket.id]] = outcome if outcome is Outcome.EXPIRED else refusal.reason, waited_s
                case _:
                    pass

    timer = None
    while agenda:
        now, _, what = heappop(agenda)
        if isinstance(what, Ticket):
            admission.first_token(what, now)
            events = admission.finish(what, Outcome.COMPLETED, now)
        elif what is None:
            events = admission.tick(now)
        else:
            if what == let_in:
                admission._early._misses = _PROBE_EACH - 1
            tickets[what + 1], takes[what + 1] = what, requests[what][2]
            _, events = admission.offer(an_assignment(PLAN, prompt_tokens=requests[what][1]), now)
        follow(events, now)
        due = admission.next_tick_at()
        if due is not None and due != timer:
            timer = due
            heappush(agenda, (due, next(number), None))
    return [ended[which] for which in range(len(requests))]


@cache
def refused_early(load: float, confidence: float) -> list[int]:
    ends = fates(history(0, load), confidence)
    return [which for which, (end, _) in enumerate(ends) if end is Reason.PREDICTED_MISS]


@pytest.mark.parametrize(("load", "confidence"), [(1.6, 0.9), (2.5, 0.9)])
def test_who_is_refused_early_would_have_waited_its_limit_or_nearly_so(load, confidence):
    refused = refused_early(load, confidence)
    assert len(refused) > 20, "the rush was no rush"
    for which in Random(0).sample(refused, 6):
        end, waited_s = fates(history(0, load), confidence, let_in=which)[which]
        assert end in {Outcome.EXPIRED, Outcome.COMPLETED}, "it was let in"
        assert waited_s >= 0.75 * WAIT_S


def test_where_nobody_would_be_late_nobody_is_refused_early():
    assert refused_early(0.8, 0.9) == []
