"""Whoever is refused early stands behind more work than its engine does within the limit, as often as is promised.

What would have been is computed, not predicted: those in line at the refusal, one after another, in the seconds that
each really takes. Nobody gives up there. In a line that is too long somebody always does, and whoever is let in beyond
the line may then be dispatched in the place of another; that refusing costs nothing is shown by counting services.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from random import Random

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, EarlyRejection, SlotBudget
from gateway.core.ticket import Dispatched, Event, Queued, Refused, Ticket
from gateway.core.types import Outcome, Reason
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

START, WAIT_S, SLOTS = 1_000_000.0, 2.0, 4
PER_TOKEN_S = 1 / 1500
ANYONE = a_class(wait_s_max=(WAIT_S, WAIT_S), requests_max=1 << 30, prompt_tokens_max=1 << 40, bytes_max=1 << 50)
PLAN = a_plan(ANYONE, admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(SLOTS)))
MARGIN = 0.05
"""Of what a share of some hundred refusals may lie beside what it is of very many."""


@dataclass(frozen=True, slots=True)
class Request:
    """When it comes, whose it is, its prompt tokens, and how long an engine is at it, seconds."""

    at: float
    tenant: str
    prompt_tokens: int
    takes_s: float


def requests_of(seed: int, tenant: str, load: float, *, changing: bool = False) -> list[Request]:
    """Draw 40 s at a load, or calm and rush by turns, 10 s each; what a request takes is its length's, more or less."""
    random, at, requests = Random(seed), START, []
    while at < START + 40.0:
        rush = not changing or int((at - START) / 10.0) % 2
        at += random.expovariate((load if rush else 0.5) * SLOTS / (300 * PER_TOKEN_S))
        tokens = random.randint(20, 580)
        requests.append(Request(at, tenant, tokens, tokens * PER_TOKEN_S * random.uniform(0.7, 1.3)))
    return requests


@dataclass(slots=True)
class Played:
    """How a history ended. would_have_waited_s: of each who was refused early, behind all that stood before it."""

    ends: Counter[tuple[str, Outcome | Reason]] = field(default_factory=Counter)
    would_have_waited_s: list[float] = field(default_factory=list)

    @property
    def late(self) -> float:
        return sum(waited_s > WAIT_S for waited_s in self.would_have_waited_s) / len(self.would_have_waited_s)


class History:
    """One history through Admission, in virtual time."""

    def __init__(self, requests: Sequence[Request], confidence: float | None) -> None:
        early = None if confidence is None else EarlyRejection(confidence)
        self.admission = Admission(replace(PLAN, early_rejection=early), [an_engine()])
        self.played = Played()
        self.request: dict[int, Request] = {}
        self.in_line: dict[int, Ticket] = {}
        self.busy_until: dict[int, float] = {}
        self.number = count()
        self.agenda: list[tuple[float, int, Ticket | Request | None]] = [
            (request.at, next(self.number), request) for request in requests
        ]
        heapify(self.agenda)

    def play(self) -> Played:
        timer = None
        while self.agenda:
            now, _, what = heappop(self.agenda)
            if isinstance(what, Request):
                self.follow(self.admission.tick(now), now)
                would_wait_s = self.would_wait_s(now)
                ticket, events = self.admission.offer(
                    an_assignment(PLAN, tenant=what.tenant, prompt_tokens=what.prompt_tokens), now
                )
                self.request[ticket.id] = what
                self.follow(events, now)
                if any(isinstance(event, Refused) for event in events):
                    self.played.would_have_waited_s.append(would_wait_s)
            elif what is None:
                self.follow(self.admission.tick(now), now)
            else:
                del self.busy_until[what.id]
                self.admission.first_token(what, now)
                self.follow(self.admission.finish(what, Outcome.COMPLETED, now), now)
            due = self.admission.next_tick_at()
            if due is not None and due != timer:
                timer = due
                heappush(self.agenda, (due, next(self.number), None))
        return self.played

    def would_wait_s(self, now: float) -> float:
        free_at = [*self.busy_until.values(), *[now] * (SLOTS - len(self.busy_until))]
        heapify(free_at)
        for ticket_id in self.in_line:
            heapreplace(free_at, free_at[0] + self.request[ticket_id].takes_s)
        return free_at[0] - now

    def follow(self, events: Sequence[Event], now: float) -> None:
        for event in events:
            ticket = event.ticket
            match event:
                case Queued():
                    self.in_line[ticket.id] = ticket
                case Dispatched():
                    self.in_line.pop(ticket.id, None)
                    request = self.request[ticket.id]
                    self.busy_until[ticket.id] = now + request.takes_s
                    heappush(self.agenda, (now + request.takes_s, next(self.number), ticket))
                    self.played.ends[request.tenant, Outcome.COMPLETED] += 1
                case Refused(refusal=refusal):
                    self.in_line.pop(ticket.id, None)
                    self.played.ends[self.request[ticket.id].tenant, refusal.reason] += 1
                case _:
                    pass


@cache
def played(load: float, confidence: float | None, *, changing: bool) -> Played:
    found = Played()
    for seed in range(2):
        one = History(requests_of(seed, "acme", load, changing=changing), confidence).play()
        found.ends += one.ends
        found.would_have_waited_s += one.would_have_waited_s
    return found


LOADS = pytest.mark.parametrize(("load", "changing"), [(1.6, True), (2.5, True), (1.4, False), (2.5, False)], ids=str)


@LOADS
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_who_is_refused_early_stands_behind_more_than_goes_within_its_limit(load, changing, confidence):
    found = played(load, confidence, changing=changing)
    assert len(found.would_have_waited_s) >= 200, "the rush was no rush"
    assert found.late >= confidence - MARGIN


@LOADS
def test_refusing_early_leaves_as_many_to_be_served_and_few_to_wait_in_vain(load, changing):
    early, never = (played(load, confidence, changing=changing).ends for confidence in (0.9, None))
    assert early["acme", Outcome.COMPLETED] >= 0.98 * never["acme", Outcome.COMPLETED]
    assert early["acme", Reason.WAIT_DEADLINE] < 0.35 * never["acme", Reason.WAIT_DEADLINE]


def test_where_nobody_would_be_late_nobody_is_refused_early():
    assert not played(0.8, 0.9, changing=True).would_have_waited_s


def test_a_flood_of_one_tenant_refuses_nobody_of_another():
    requests = requests_of(1, "flood", 2.5) + requests_of(2, "light", 0.05)
    ends = History(requests, 0.9).play().ends
    assert ends["flood", Reason.PREDICTED_MISS] > 1000
    assert ends["light", Reason.PREDICTED_MISS] == ends["light", Reason.WAIT_DEADLINE] == 0
