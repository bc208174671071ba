"""The bounds of fair queueing as theorems: random adversaries against Admission, judged by arithmetic of their own.

Costs are read from the tickets after the fact, so the claims hold in whatever unit Admission charges. A server of
depth K works off what is dispatched at a rate of at least one cost unit a second, in the order that the adversary
likes; arrivals, sizes, tenants and classes are the adversary's too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import Admission
from gateway.core.plan import OrderKind, Plan, SlotBudget, TenantBounds
from gateway.core.types import Dispatched, Event, Outcome, Refused, Ticket
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NEVER_S = 1e12
PLENTY = 1 << 40
SHORT_TOKENS_MAX = 640

Flow = tuple[str, str]
"""(service class, tenant) in the lane under test."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the adversary: how long after the one before it, whose, how long."""

    gap_s: float
    service_class: str
    tenant: str
    prompt_tokens: int

    @property
    def flow(self) -> Flow:
        return self.service_class, self.tenant


@dataclass(eq=False, slots=True)
class Story:
    """One wait of one request, and what was dispatched in the lane before it (cost that came back not counted)."""

    ticket: Ticket
    flow: Flow
    offered_at: float
    cost_before_offer: float
    own_line: tuple[Story, ...]
    dispatched_at: float | None = None
    cost_before: float | None = None
    refused: bool = False

    @property
    def waited_s(self) -> float:
        assert self.dispatched_at is not None
        return self.dispatched_at - self.offered_at

    @property
    def passed_by(self) -> float:
        """Cost dispatched in the lane while this one waited."""
        assert self.cost_before is not None
        return self.cost_before - self.cost_before_offer


class Server:
    """An engine of depth K as the theorem has it: one cost unit a second or more, whichever request it likes next.

    decode_s: how long a tenant's requests keep running after their prefill. sends_back: how often the engine has no
    room and returns a request before working on it.
    """

    def __init__(
        self,
        plan: Plan,
        random: Random,
        *,
        speed_max: float = 1.0,
        decode_s: Mapping[str, float] | None = None,
        sends_back: float = 0.0,
    ) -> None:
        self.admission = Admission(plan, [an_engine()])
        self.plan = plan
        self.random = random
        self.speed_max = speed_max
        self.decode_s = decode_s or {}
        self.sends_back = sends_back
        self.now = 1_000_000.0
        self.stories: list[Story] = []
        self.waiting: dict[int, Story] = {}
        self.in_prefill: list[Ticket] = []
        self.decoding: list[tuple[float, int, Ticket]] = []
        self.dispatched_cost = 0.0
        self.served: list[Story] = []
        self.current: tuple[Ticket, float] | None = None

    def in_line(self, flow: Flow) -> tuple[Story, ...]:
        return tuple(self.waiting[ticket_id] for ticket_id in sorted(self.waiting) if self.waiting[ticket_id].flow == flow)

    def offer(self, arrival: Arrival) -> Story:
        assignment = an_assignment(
            self.plan,
            arrival.service_class,
            tenant=arrival.tenant,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=1,
        )
        own_line, before = self.in_line(arrival.flow), self.dispatched_cost
        ticket, events = self.admission.offer(assignment, self.now)
        story = self.waits(Story(ticket, arrival.flow, self.now, before, own_line))
        self.follow(events)
        return story

    def waits(self, story: Story) -> Story:
        self.stories.append(story)
        self.waiting[story.ticket.id] = story
        return story

    def follow(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Dispatched(ticket=ticket):
                    story = self.waiting[ticket.id]
                    assert self.in_line(story.flow)[0] is story, "first in, first out inside a flow"
                    del self.waiting[ticket.id]
                    story.dispatched_at, story.cost_before = self.now, self.dispatched_cost
                    self.dispatched_cost += ticket.cost
                    self.served.append(story)
                    self.in_prefill.append(ticket)
                case Refused(ticket=ticket):
                    self.waiting.pop(ticket.id).refused = True
                case _:
                    pass

    def work_until(self, end: float) -> None:
        """Serve, one request at a time and in any order, until `end` or until nothing is left to serve."""
        while self.in_prefill or self.decoding:
            if self.current is None and self.in_prefill:
                ticket = self.random.choice(self.in_prefill)
                if self.random.random() < self.sends_back:
                    self.send_back(ticket)
                    continue
                self.current = ticket, ticket.cost / self.random.uniform(1.0, self.speed_max)
            prefill_ends_at = NEVER_S * 2 if self.current is None else self.now + self.current[1]
            decode_ends_at = self.decoding[0][0] if self.decoding else NEVER_S * 2
            next_at = min(prefill_ends_at, decode_ends_at, end)
            if self.current is not None:
                self.current = self.current[0], prefill_ends_at - next_at
            self.now = next_at
            if next_at == decode_ends_at:
                self.follow(self.admission.finish(heappop(self.decoding)[2], Outcome.COMPLETED, self.now))
            elif next_at == prefill_ends_at:
                assert self.current is not None
                self.end_prefill(self.current[0])
            else:
                return
        if end < NEVER_S:
            self.now = end

    def end_prefill(self, ticket: Ticket) -> None:
        self.current = None
        self.in_prefill.remove(ticket)
        decode_s = self.decode_s.get(ticket.assignment.tenant, 0.0)
        if decode_s:
            heappush(self.decoding, (self.now + decode_s, ticket.id, ticket))
            self.follow(self.admission.first_token(ticket, self.now))
        else:
            self.follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now))

    def send_back(self, ticket: Ticket) -> None:
        """Have no room for it. What it was charged comes back, and its wait begins anew at the head of its flow."""
        self.in_prefill.remove(ticket)
        flow = ticket.assignment.service_class, ticket.assignment.tenant
        ahead = tuple(story for story in self.in_line(flow) if story.ticket.id < ticket.id)
        self.dispatched_cost -= ticket.cost
        self.waits(Story(ticket, flow, self.now, self.dispatched_cost, ahead))
        self.follow(self.admission.requeue(ticket, self.now, 0.0))

    def run(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.work_until(self.now + arrival.gap_s)
            self.offer(arrival)
        self.work_until(NEVER_S)
        assert not self.waiting, "whoever waits is dispatched once the server has caught up"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Theorem 3 for classes that share by weight and tenants that share a class alike, computed from what was charged.

    A request that finds Y of its own flow ahead, in a class of N tenants, sees at most
    X_class = N·Y + (N-1)·l_own + Σ l_other dispatched in its class before it, and in the lane at most
    X = X_class/φ + (1/φ-1)·l_class + Σ l_other class, φ being the class's share of all weights.
    """

    largest: Mapping[Flow, float]
    weights: Mapping[str, float]

    @classmethod
    def of(cls, server: Server) -> Bounds:
        largest: dict[Flow, float] = {}
        for story in server.stories:
            largest[story.flow] = max(largest.get(story.flow, 0.0), story.ticket.cost)
        present = {name for name, _ in largest}
        return cls(largest, {name: server.plan.classes[name].weight for name in present})

    def largest_of(self, service_class: str) -> float:
        return max(cost for (name, _), cost in self.largest.items() if name == service_class)

    def passed_by(self, flow: Flow, own_cost_ahead: float) -> float:
        service_class, _ = flow
        tenants = [other for other in self.largest if other[0] == service_class]
        in_class = len(tenants) * own_cost_ahead + (len(tenants) - 1) * self.largest[flow]
        in_class += sum(self.largest[other] for other in tenants if other != flow)
        share = self.weights[service_class] / sum(self.weights.values())
        others = sum(self.largest_of(name) for name in self.weights if name != service_class)
        return in_class / share + (1 / share - 1) * self.largest_of(service_class) + others

    def in_flight(self, depth: int) -> float:
        return depth * max(self.largest.values())


def a_fair_plan(weights: Mapping[str, float], depth: int, **class_bounds: object) -> Plan:
    """Return a plan whose long lane holds `depth` prefills and where nothing else binds."""
    classes = (
        a_class(
            name,
            rank=rank,
            weight=weight,
            requests_max=PLENTY,
            prompt_tokens_max=PLENTY,
            bytes_max=PLENTY,
            wait_s_max=(NEVER_S, NEVER_S),
            **class_bounds,
        )
        for rank, (name, weight) in enumerate(weights.items())
    )
    admission = an_admission(long_prefills_max=depth, slots=SlotBudget(PLENTY))
    return a_plan(*classes, admission=admission, order=OrderKind.WEIGHTED_FAIR)


def an_adversary(random: Random) -> tuple[dict[str, float], int, list[Arrival]]:
    """Draw weights, depth and arrivals: floods, lulls, tenants that come and go, lengths of one to eight."""
    names = ("interactive", "standard", "batch")[: random.randint(1, 3)]
    weights = {name: random.choice([1, 1, 2, 4, 16]) for name in names}
    tenants = [f"tenant-{number}" for number in range(random.randint(1, 4))]
    flows = [(name, tenant) for name in names for tenant in tenants]
    longest = {flow: random.choice([700, 1024, 4096, 8192]) for flow in flows}
    busy = random.choice([0.0, 0.3, 0.6, 0.9])
    arrivals = []
    for _ in range(random.randint(5, 60)):
        name, tenant = random.choice(flows)
        most = longest[name, tenant]
        tokens = most if random.random() < 0.7 else random.randint(SHORT_TOKENS_MAX + 1, most)
        gap_s = 0.0 if random.random() < busy else random.expovariate(1.0 / 6000.0)
        arrivals.append(Arrival(gap_s, name, tenant, tokens))
    return weights, random.randint(1, 4), arrivals


arrivals_of_two = st.lists(
    st.builds(
        Arrival,
        gap_s=st.sampled_from([0.0, 0.0, 0.0, 1.0, 700.0, 5000.0, 20_000.0]),
        service_class=st.sampled_from(["interactive", "batch"]),
        tenant=st.sampled_from(["acme", "globex"]),
        prompt_tokens=st.sampled_from([641, 1000, 4096, 8192]),
    ),
    min_size=1,
    max_size=40,
)


def wait_ratios(server: Server, depth: int) -> Iterator[tuple[float, float]]:
    """Yield (cost that passed ÷ its bound, wait ÷ its bound) of every request that had to wait."""
    bounds = Bounds.of(server)
    for story in server.stories:
        if not story.passed_by and not story.waited_s:
            continue
        passed_max = bounds.passed_by(story.flow, sum(other.ticket.cost for other in story.own_line))
        yield story.passed_by / max(passed_max, 1.0), story.waited_s / (bounds.in_flight(depth) + passed_max)


# ── the wait bound ──


@given(arrivals=arrivals_of_two, weight=st.sampled_from([1, 4, 16]), depth=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_no_wait_exceeds_the_bound_of_its_flow(arrivals, weight, depth, seed):
    server = Server(a_fair_plan({"interactive": weight, "batch": 1}, depth), Random(seed), speed_max=3.0)
    server.run(arrivals)
    for passed, waited in wait_ratios(server, depth):
        assert passed <= 1 + 1e-9
        assert waited <= 1 + 1e-9


def test_the_wait_bound_holds_against_random_floods_and_is_nearly_attained():
    worst_passed = worst_waited = 0.0
    for seed in range(400):
        weights, depth, arrivals = an_adversary(Random(seed))
        server = Server(a_fair_plan(weights, depth), Random(seed + 1))
        server.run(arrivals)
        for passed, waited in wait_ratios(server, depth):
            worst_passed, worst_waited = max(worst_passed, passed), max(worst_waited, waited)
    print(worst_passed, worst_waited)
    assert worst_passed <= 1 + 1e-9
    assert worst_waited <= 1 + 1e-9
    assert worst_passed > 0.9, "a bound that nobody comes near proves nothing"
