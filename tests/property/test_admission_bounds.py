"""The bounds of fair queueing as theorems: random adversaries against Admission, judged by arithmetic of their own.

Costs are read from the tickets after the fact, so the claims hold in whatever unit Admission charges. A server of
depth K works off what is dispatched at a rate of at least one cost unit a second, in the order that the adversary
likes; arrivals, sizes, tenants and classes are the adversary's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count, groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, OrderKind, Plan, SlotBudget, TenantBounds
from gateway.core.ticket import Dispatched, Event, Refused, Ticket
from gateway.core.types import LengthClass, Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

NEVER_S = 1e12
PLENTY = 1 << 40
OUTPUT_TOKENS = 1
LONGEST_TOKENS = 8192
LANES = ("long", "short", "both")
"""The long lane of token budgets, the short one, and the single lane of plain slots."""

Flow = tuple[str, str]
"""(service class, tenant) in the lane under test."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the adversary: how long after the one before it (in UNIT_S), whose, how long."""

    gap: float
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


@dataclass(frozen=True, slots=True)
class Service:
    """One dispatch, and the flows that waited just before and just after it."""

    story: Story
    waiting_before: frozenset[Flow]
    waiting_after: frozenset[Flow]


class Server:
    """An engine of depth K as the theorem has it: one cost unit a second or more, whichever request it likes next.

    decode_s: how long a request keeps running after its prefill; not at all unless stated. sends_back: how often the engine has no
    room and returns a request before working on it.
    """

    def __init__(
        self,
        plan: Plan,
        random: Random,
        *,
        speed_max: float = 1.0,
        decode_s: Callable[[Ticket], float] = lambda _: 0.0,
        sends_back: float = 0.0,
        stream: bool = True,
    ) -> None:
        self.admission = Admission(plan, [an_engine()])
        self.plan = plan
        self.random = random
        self.speed_max = speed_max
        self.decode_s = decode_s
        self.sends_back = sends_back
        self.stream = stream
        self.now = 1_000_000.0
        self.stories: list[Story] = []
        self.waiting: dict[int, Story] = {}
        self.in_prefill: list[Ticket] = []
        self.decoding: list[tuple[float, int, Ticket]] = []
        self.dispatched_cost = 0.0
        self.services: list[Service] = []
        self.in_flight_most = 0.0
        self.current: tuple[Ticket, float] | None = None

    def in_line(self, flow: Flow) -> tuple[Story, ...]:
        """Return who waits in the flow, first in first."""
        mine = (story for story in self.waiting.values() if story.flow == flow)
        return tuple(sorted(mine, key=lambda story: story.ticket.id))

    def flows_waiting(self) -> frozenset[Flow]:
        return frozenset(story.flow for story in self.waiting.values())

    def offer(self, arrival: Arrival) -> Story:
        assignment = an_assignment(
            self.plan,
            arrival.service_class,
            tenant=arrival.tenant,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=OUTPUT_TOKENS,
            stream=self.stream,
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
                    before = self.flows_waiting()
                    del self.waiting[ticket.id]
                    self.services.append(Service(story, before, self.flows_waiting()))
                    story.dispatched_at, story.cost_before = self.now, self.dispatched_cost
                    self.dispatched_cost += ticket.cost_s
                    self.in_prefill.append(ticket)
                    self.in_flight_most = max(self.in_flight_most, sum(other.cost_s for other in self.in_prefill))
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
                self.current = ticket, ticket.cost_s / self.random.uniform(1.0, self.speed_max)
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
        decode_s = self.decode_s(ticket)
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
        self.dispatched_cost -= ticket.cost_s
        self.waits(Story(ticket, flow, self.now, self.dispatched_cost, ahead))
        self.follow(self.admission.requeue(ticket, self.now, 0.0))

    def run(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.work_until(self.now + arrival.gap * UNIT_S)
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
            largest[story.flow] = max(largest.get(story.flow, 0.0), story.ticket.cost_s)
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


def a_fair_plan(
    weights: Mapping[str, float],
    depth: int,
    *,
    lane: str = "long",
    wait_s_max: float = NEVER_S,
    tenant: TenantBounds | None = None,
) -> Plan:
    """Return a plan whose lane under test holds `depth` of the largest prefills, and where nothing else binds."""
    classes = (
        a_class(
            name,
            rank=rank,
            weight=weight,
            requests_max=PLENTY,
            prompt_tokens_max=PLENTY,
            bytes_max=PLENTY,
            wait_s_max=(wait_s_max, wait_s_max),
            tenant=tenant,
        )
        for rank, (name, weight) in enumerate(weights.items())
    )
    match lane:
        case "long":
            admission = an_admission(long_prefills_max=depth, slots=SlotBudget(PLENTY))
        case "short":
            admission = an_admission(short_prefill_tokens_max=640 * depth, slots=SlotBudget(PLENTY))
        case _:
            admission = an_admission(AdmissionKind.SLOTS, slots=SlotBudget(depth))
    return a_plan(*classes, admission=admission, order=OrderKind.WEIGHTED_FAIR)


@cache
def cost_of(prompt_tokens: int) -> float:
    """Return what Admission charges a request of this length before it has learned anything."""
    admission = Admission(plan := a_fair_plan({"interactive": 1}, 1), [an_engine()])
    assignment = an_assignment(plan, prompt_tokens=prompt_tokens, output_tokens=OUTPUT_TOKENS)
    return admission.offer(assignment, 1.0)[0].cost_s


UNIT_S = cost_of(LONGEST_TOKENS)


def an_adversary(random: Random, lane: str = "long") -> tuple[dict[str, float], int, list[Arrival]]:
    """Draw weights, depth and arrivals: floods, lulls, tenants that come and go, lengths of one to twelve."""
    names = ("interactive", "standard", "batch")[: random.randint(1, 3)]
    weights = {name: random.choice([1, 1, 2, 4, 16]) for name in names}
    tenants = [f"tenant-{number}" for number in range(random.randint(1, 4))]
    flows = [(name, tenant) for name in names for tenant in tenants]
    lengths = {"long": [700, 1024, 4096, LONGEST_TOKENS], "short": [50, 200, 640], "both": [50, 640, LONGEST_TOKENS]}
    longest = {flow: random.choice(lengths[lane]) for flow in flows}
    least = 641 if lane == "long" else 1
    busy = random.choice([0.0, 0.3, 0.6, 0.9])
    arrivals = []
    for _ in range(random.randint(5, 60)):
        name, tenant = random.choice(flows)
        most = longest[name, tenant]
        tokens = most if random.random() < 0.7 else random.randint(least, most)
        gap = 0.0 if random.random() < busy else random.expovariate(LONGEST_TOKENS / most)
        arrivals.append(Arrival(gap, name, tenant, tokens))
    return weights, random.randint(1, 4), arrivals


arrivals_of_two = st.lists(
    st.builds(
        Arrival,
        gap=st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.1, 0.7, 3.0]),
        service_class=st.sampled_from(["interactive", "batch"]),
        tenant=st.sampled_from(["acme", "globex"]),
        prompt_tokens=st.sampled_from([641, 1000, 4096, LONGEST_TOKENS]),
    ),
    min_size=1,
    max_size=40,
)


def wait_ratios(server: Server, *, only: Sequence[str] | None = None) -> Iterator[tuple[float, float]]:
    """Yield (cost that passed ÷ its bound, wait ÷ its bound) of every request, of some tenants or of all."""
    bounds = Bounds.of(server)
    for story in server.stories:
        if only is None or story.flow[1] in only:
            passed_max = bounds.passed_by(story.flow, sum(other.ticket.cost_s for other in story.own_line))
            waited_max = server.in_flight_most + passed_max
            yield story.passed_by / (passed_max or 1.0), story.waited_s / waited_max


# ── the wait bound ──


@given(
    arrivals=arrivals_of_two,
    weight=st.sampled_from([1, 4, 16]),
    depth=st.integers(1, 3),
    sends_back=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_no_wait_exceeds_the_bound_of_its_flow(arrivals, weight, depth, sends_back, seed):
    plan = a_fair_plan({"interactive": weight, "batch": 1}, depth)
    server = Server(plan, Random(seed), speed_max=3.0, sends_back=sends_back)
    server.run(arrivals)
    for passed, waited in wait_ratios(server):
        assert passed <= 1 + 1e-9
        assert waited <= 1 + 1e-9


@pytest.mark.parametrize("lane", LANES)
def test_the_wait_bound_holds_against_random_floods_and_is_nearly_attained(lane):
    worst_passed = 0.0
    for seed in range(150):
        weights, depth, arrivals = an_adversary(Random(seed), lane)
        server = Server(a_fair_plan(weights, depth, lane=lane), Random(seed + 1))
        server.run(arrivals)
        for passed, waited in wait_ratios(server):
            assert passed <= 1 + 1e-9
            assert waited <= 1 + 1e-9
            if len(weights) > 1:
                worst_passed = max(worst_passed, passed)
    assert worst_passed > 0.8, "a bound that nobody comes near proves nothing"


def test_what_is_in_prefill_never_exceeds_the_depth_times_the_largest_cost():
    for seed in range(50):
        weights, depth, arrivals = an_adversary(Random(seed))
        server = Server(a_fair_plan(weights, depth), Random(seed))
        server.run(arrivals)
        assert server.in_flight_most <= depth * max(story.ticket.cost_s for story in server.stories) + 1e-9


def test_a_tenant_held_at_its_running_bound_saves_up_no_claim_on_the_others():
    """Whoever is set aside has no right to the service that went on without it: others keep their wait bound."""
    flows = [("batch", "held"), ("batch", "held"), ("batch", "globex"), ("interactive", "globex")]
    for seed in range(25):
        random = Random(seed)

        def decode_s(ticket: Ticket, random: Random = random) -> float:
            return random.choice([0.0, 0.0, 30 * UNIT_S]) if ticket.assignment.tenant == "held" else 0.0

        plan = a_fair_plan({"interactive": 1, "batch": 1}, 1, tenant=TenantBounds(running_max=2))
        server = Server(plan, random, decode_s=decode_s)
        server.run([Arrival(random.expovariate(1.0), *random.choice(flows), LONGEST_TOKENS) for _ in range(150)])
        for passed, waited in wait_ratios(server, only=("globex",)):
            assert passed <= 1 + 1e-9
            assert waited <= 1 + 1e-9


@pytest.mark.parametrize("others", [("batch", "globex"), ("interactive", "acme")], ids=["tenants", "classes"])
def test_service_missed_at_the_running_bound_is_not_paid_back_in_one_go(others):
    """Two answers that stream for long hold acme back; when they end, it shares again, it does not catch up."""
    plan = a_fair_plan({"interactive": 1, "batch": 1}, 1, tenant=TenantBounds(running_max=2))
    server = Server(plan, Random(0), decode_s=lambda ticket: 40 * UNIT_S if ticket.id <= 2 else 0.0)
    held = [Arrival(0.0, "batch", "acme", LONGEST_TOKENS)] * 30
    server.run(held + [Arrival(0.0, *others, LONGEST_TOKENS)] * 60)
    flows = [service.story.flow for service in server.services if others in service.waiting_before]
    in_a_row = max(len(list(group)) for flow, group in groupby(flows) if flow == ("batch", "acme"))
    assert in_a_row <= 2


# ── fairness ──


def widest_gap(server: Server, one: Flow | str, other: Flow | str, weights: tuple[float, float]) -> float:
    """Return how far the two drift apart, in cost by weight, over any stretch in which both wait throughout.

    `one` and `other`: two flows, or the names of two classes.
    """

    def owner(flow: Flow) -> Flow | str:
        return flow if isinstance(one, tuple) else flow[0]

    gap = lowest = highest = widest = 0.0
    for service in server.services:
        waiting = {owner(flow) for flow in service.waiting_before}
        if not {one, other} <= waiting:
            gap = lowest = highest = 0.0
            continue
        served, cost = owner(service.story.flow), service.story.ticket.cost_s
        gap += cost / weights[0] if served == one else -cost / weights[1] if served == other else 0.0
        lowest, highest = min(lowest, gap), max(highest, gap)
        widest = max(widest, highest - lowest)
        if not {one, other} <= {owner(flow) for flow in service.waiting_after}:
            gap = lowest = highest = 0.0
    return widest


@pytest.mark.parametrize("lane", LANES)
def test_two_backlogged_classes_get_service_by_weight_within_one_request_of_each(lane):
    compared = 0
    for seed in range(100):
        weights, depth, arrivals = an_adversary(Random(seed), lane)
        server = Server(a_fair_plan(weights, depth, lane=lane), Random(seed + 1))
        server.run(arrivals)
        bounds = Bounds.of(server)
        for one, other in combinations(bounds.weights, 2):
            shares = bounds.weights[one], bounds.weights[other]
            gap = widest_gap(server, one, other, shares)
            assert gap <= bounds.largest_of(one) / shares[0] + bounds.largest_of(other) / shares[1] + 1e-9
            compared += gap > 0.0
    assert compared > 30


@pytest.mark.parametrize("lane", LANES)
def test_two_backlogged_tenants_of_a_class_get_service_alike_within_one_request_of_each(lane):
    compared = 0
    for seed in range(100):
        weights, depth, arrivals = an_adversary(Random(seed), lane)
        server = Server(a_fair_plan(weights, depth, lane=lane), Random(seed + 1))
        server.run(arrivals)
        largest = Bounds.of(server).largest
        for one, other in combinations(largest, 2):
            if one[0] == other[0]:
                gap = widest_gap(server, one, other, (1.0, 1.0))
                assert gap <= largest[one] + largest[other] + 1e-9
                compared += gap > 0.0
    assert compared > 30


def max_min_shares(capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Pour `capacity` into the demands, by weight, until each is full: the max-min fair shares."""
    shares = dict.fromkeys(demands, 0.0)
    thirsty = {name for name, demand in demands.items() if demand > 0}
    while thirsty and capacity > 1e-12:
        level = min((demands[name] - shares[name]) / weights[name] for name in thirsty)
        level = min(level, capacity / sum(weights[name] for name in thirsty))
        for name in thirsty:
            shares[name] += level * weights[name]
        capacity -= level * sum(weights[name] for name in thirsty)
        thirsty = {name for name in thirsty if demands[name] - shares[name] > 1e-12}
    return shares


@given(
    backlog=st.dictionaries(
        st.tuples(
            st.sampled_from(["interactive", "standard", "batch"]), st.sampled_from(["acme", "globex", "initech"])
        ),
        st.lists(st.sampled_from([641, 2000, LONGEST_TOKENS]), min_size=1, max_size=15),
        min_size=1,
    ),
    depth=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_backlog_is_served_max_min_fair_by_class_and_inside_a_class_by_tenant(backlog, depth, seed):
    """At every instant: nobody has more than its share and one request, nor less by more than one of each other."""
    weights = {"interactive": 16.0, "standard": 4.0, "batch": 1.0}
    server = Server(a_fair_plan(weights | {"filler": 1.0}, depth), Random(seed), stream=False)
    arrivals = [Arrival(0.0, name, tenant, tokens) for (name, tenant), many in backlog.items() for tokens in many]
    Random(seed).shuffle(arrivals)
    server.run([Arrival(0.0, "filler", "nobody", LONGEST_TOKENS)] * depth + arrivals)
    demands = {flow: sum(map(cost_of, many)) for flow, many in backlog.items()}
    largest = {flow: max(map(cost_of, many)) for flow, many in backlog.items()}
    got = dict.fromkeys(demands, 0.0)
    for service in server.services[depth:]:
        got[service.story.flow] += service.story.ticket.cost_s
        groups = {name: {flow: flow for flow in demands if flow[0] == name} for name, _ in demands}
        assert_fair(
            got={name: sum(got[flow] for flow in flows) for name, flows in groups.items()},
            demands={name: sum(demands[flow] for flow in flows) for name, flows in groups.items()},
            largest={name: max(largest[flow] for flow in flows) for name, flows in groups.items()},
            weights=weights,
        )
        for flows in groups.values():
            assert_fair(
                got={flow: got[flow] for flow in flows},
                demands={flow: demands[flow] for flow in flows},
                largest={flow: largest[flow] for flow in flows},
                weights=dict.fromkeys(flows, 1.0),
            )


def assert_fair(*, got, demands, largest, weights) -> None:
    shares = max_min_shares(sum(got.values()), demands, weights)
    for name, share in shares.items():
        assert -sum(largest.values()) - 1e-9 <= got[name] - share <= largest[name] + 1e-9


# ── the queue that cannot expire ──


def safe_line(bounds: Bounds, flow: Flow, wait_s_max: float, in_flight: float) -> float:
    """Return the most cost ahead in its own flow with which a request is dispatched within `wait_s_max` for certain."""
    empty = bounds.passed_by(flow, 0.0)
    per_cost_ahead = bounds.passed_by(flow, 1.0) - empty
    return (wait_s_max - in_flight - empty) / per_cost_ahead


@pytest.mark.parametrize("wait_s_max", [15 * UNIT_S, 40 * UNIT_S])
def test_who_joins_a_line_within_the_safe_bound_never_expires_whatever_the_others_do(wait_s_max):
    """The flooders expire by the dozen; the careful flow, in the class of least weight, never does."""
    expired, fullest = 0, 0.0
    for seed in range(40):
        random = Random(seed)
        weights = {"interactive": float(random.choice([1, 2])), "batch": 1.0}
        depth = random.randint(1, 3)
        flows = [(name, tenant) for name in weights for tenant in ("acme", "globex")[: random.randint(1, 2)]]
        careful = "batch", "acme"
        bounds = Bounds(dict.fromkeys(flows, UNIT_S), weights)
        safe = safe_line(bounds, careful, wait_s_max, depth * UNIT_S)
        assert safe > 0.0
        server = Server(a_fair_plan(weights, depth, wait_s_max=wait_s_max), random, stream=False)
        for _ in range(250):
            server.work_until(server.now + random.expovariate(2.0) * UNIT_S)
            flow = random.choice(flows)
            tokens = LONGEST_TOKENS if flow != careful else random.choice([641, 4096, LONGEST_TOKENS])
            ahead = sum(cost_of(story.ticket.assignment.prompt_tokens) for story in server.in_line(careful))
            if flow != careful or ahead <= safe:
                server.offer(Arrival(0.0, *flow, tokens))
                fullest = max(fullest, ahead / safe)
        server.work_until(NEVER_S)
        assert not any(story.refused for story in server.stories if story.flow == careful)
        expired += sum(story.refused for story in server.stories)
    assert expired > 100, "the flood was no flood"
    assert fullest > 0.9, "the careful flow never used its bound"


# ── the lanes do not touch ──


def waits_of_shorts(arrivals: Sequence[Arrival], slots: SlotBudget, *, with_longs: bool) -> list[float]:
    """Return each short's wait, in order of arrival, where prefill and decoding take their own time whoever else runs."""
    bounds = {"requests_max": PLENTY, "prompt_tokens_max": PLENTY, "bytes_max": PLENTY}
    plan = a_plan(
        a_class("interactive", wait_s_max=(NEVER_S, NEVER_S), **bounds),
        admission=an_admission(slots=slots, long_prefills_max=4),
    )
    admission = Admission(plan, [an_engine()])
    number = count()
    agenda: list[tuple[float, int, str, Arrival | Ticket]] = []
    now = 1_000_000.0
    for arrival in arrivals:
        now += arrival.gap
        if with_longs or plan.length_class(arrival.prompt_tokens) is LengthClass.SHORT:
            heappush(agenda, (now, next(number), "offer", arrival))
    shorts: list[Ticket] = []
    while agenda:
        now, _, what, whom = heappop(agenda)
        if isinstance(whom, Arrival):
            ticket, events = admission.offer(
                an_assignment(plan, tenant=whom.tenant, prompt_tokens=whom.prompt_tokens, stream=False), now
            )
            if ticket.assignment.length_class is LengthClass.SHORT:
                shorts.append(ticket)
        elif what == "first token":
            events = admission.first_token(whom, now)
            heappush(agenda, (now + 0.5, next(number), "end", whom))
        else:
            events = admission.finish(whom, Outcome.COMPLETED, now)
        for event in events:
            if isinstance(event, Dispatched):
                prefill_s = event.ticket.assignment.prompt_tokens / 10_000
                heappush(agenda, (now + prefill_s, next(number), "first token", event.ticket))
    return [ticket.dispatched_at - ticket.offered_at for ticket in shorts]


def mixed_arrivals(random: Random) -> list[Arrival]:
    """Draw four shorts to a long, enough of both that lines form."""
    tokens = [random.randint(100, 640) if random.random() < 0.8 else LONGEST_TOKENS for _ in range(150)]
    tenants = [random.choice(["acme", "globex"]) for _ in tokens]
    return [Arrival(random.expovariate(20.0), "interactive", *pair) for pair in zip(tenants, tokens, strict=True)]


def test_a_short_waits_exactly_as_long_with_longs_as_without_while_slots_suffice():
    waited = 0
    for seed in range(20):
        arrivals = mixed_arrivals(Random(seed))
        without = waits_of_shorts(arrivals, SlotBudget(PLENTY), with_longs=False)
        assert waits_of_shorts(arrivals, SlotBudget(PLENTY), with_longs=True) == without
        waited += sum(wait > 0 for wait in without)
    assert waited > 100


def test_where_slots_are_short_taking_all_longs_away_never_raises_the_95th_percentile_of_the_shorts_wait():
    slots = SlotBudget(total=12, short_reserve=4, long_reserve=1)
    traces = [mixed_arrivals(Random(seed)) for seed in range(20)]

    def p95(*, with_longs: bool) -> float:
        waits = sorted(wait for trace in traces for wait in waits_of_shorts(trace, slots, with_longs=with_longs))
        return waits[int(0.95 * len(waits))]

    assert p95(with_longs=False) < p95(with_longs=True), "equal would show only that longs took nothing"
