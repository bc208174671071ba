"""What one request costs Admission, as ratios within one run: pairs a second, growth with the line, bytes a ticket.

`python tests/benchmark/admission_cost.py [--profile]` from the repository's root. A pair is one offer and one finish
while N others wait: the offered request joins the line and the finished one makes room for the head of it, so the
line keeps its length. The plan is the default policy's, early rejection and the tenants' running bound included, with
queues that hold any depth and no bound on short prefill tokens, since a pair has no first token. Every figure is the
median of several rounds, the depths taken in turn, so that a busy machine weighs on all of them alike; seconds are CPU
seconds. Compare ratios; absolute rates are this machine's.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import sys
import tracemalloc
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from statistics import median
from time import process_time

from gateway.core.admission import Admission
from gateway.core.plan import Plan, QueueBounds, TenantBounds
from gateway.core.ticket import Assignment, Dispatched, Event, Ticket, TicketState
from gateway.core.types import EngineSpec, LengthClass, Outcome
from gateway.policy.source import load
from gateway.testing.builders import an_assignment, an_engine

DEPTHS = (10, 10_000, 100_000)
PAIRS_PER_ROUND = 2_000
ROUNDS = 9
TENANTS = 50
CALL_EVERY_S = 0.001
NEVER_S = 1e9
PLENTY = 1 << 40
RATIO_MAX, PAIRS_PER_S_MIN, TICKET_BYTES_MAX = 2.0, 30_000, 1024


def the_plan() -> Plan:
    """Return the default policy with queues that hold any depth for any time."""
    plan = load("short-first")
    classes = {
        name: replace(
            class_plan,
            queue=QueueBounds(requests_max=PLENTY, prompt_tokens_max=PLENTY, bytes_max=PLENTY),
            wait_s_max=dict.fromkeys(LengthClass, NEVER_S),
            tenant=TenantBounds(queued_requests_max=PLENTY, running_max=class_plan.tenant.running_max),
        )
        for name, class_plan in plan.classes.items()
    }
    return replace(plan, classes=classes, admission=replace(plan.admission, short_prefill_tokens_max=PLENTY))


def the_engine() -> EngineSpec:
    return an_engine(max_num_batched_tokens=2048, long_prefill_token_threshold=640, max_num_seqs=128, kv_tokens=200_000)


class Line:
    """An Admission with an engine full to its slots and `depth` requests waiting behind it."""

    def __init__(self, depth: int) -> None:
        self.random = Random(depth)
        self.plan = the_plan()
        self.kinds = [
            an_assignment(self.plan, name, tenant=f"tenant-{tenant}", prompt_tokens=512)
            for name in self.plan.classes
            for tenant in range(TENANTS)
        ]
        self.admission = Admission(self.plan, [the_engine()])
        self.now = 1_000_000.0
        self.running: deque[Ticket] = deque()
        while self.offer(self.random.choice(self.kinds)) is TicketState.RUNNING:
            pass
        for _ in range(depth - 1):
            self.offer(self.random.choice(self.kinds))

    def offer(self, assignment: Assignment) -> TicketState:
        self.now += CALL_EVERY_S
        ticket, events = self.admission.offer(assignment, self.now)
        self.follow(events)
        return ticket.state

    def follow(self, events: Iterable[Event]) -> None:
        self.running += [event.ticket for event in events if type(event) is Dispatched]

    def pairs(self, count: int, *, first_tokens: bool = False) -> float:
        """Offer and finish `count` times; return the seconds it took, drawing of requests not counted."""
        drawn = [self.random.choice(self.kinds) for _ in range(count)]
        admission, running = self.admission, self.running
        started = process_time()
        for assignment in drawn:
            self.offer(assignment)
            self.now += CALL_EVERY_S
            ticket = running.popleft()
            if first_tokens:
                self.follow(admission.first_token(ticket, self.now))
            self.follow(admission.finish(ticket, Outcome.COMPLETED, self.now))
        return process_time() - started


def a_body_of_its_own(line: Line) -> Assignment:
    """Return an assignment that shares with others only what requests share in service: plan, class and tenant."""
    kind = line.random.choice(line.kinds)
    return replace(kind, prompt_tokens=line.random.randint(300, 640), body_bytes=line.random.randint(1000, 4000))


def pair_costs_s(*, first_tokens: bool) -> dict[int, float]:
    """Return the median seconds of one pair at each depth."""
    lines = {depth: Line(depth) for depth in DEPTHS}
    gc.collect()
    gc.freeze()
    costs: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for _ in range(ROUNDS):
        for depth, line in lines.items():
            costs[depth].append(line.pairs(PAIRS_PER_ROUND, first_tokens=first_tokens) / PAIRS_PER_ROUND)
    gc.unfreeze()
    return {depth: median(rounds) for depth, rounds in costs.items()}


def bytes_a_ticket(depth: int) -> float:
    """Return the memory that each waiting request adds, its assignment included and its body not."""
    line = Line(10)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(depth):
        line.offer(a_body_of_its_own(line))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / depth


def profile() -> None:
    """Print where the time of a pair goes at the middle depth."""
    line = Line(DEPTHS[1])
    profiler = cProfile.Profile()
    profiler.runcall(line.pairs, 10 * PAIRS_PER_ROUND)
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(18)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    asked = parser.parse_args()
    costs = pair_costs_s(first_tokens=False)
    shallow = costs[DEPTHS[0]]
    for depth, cost_s in costs.items():
        print(f"{depth:>7} waiting: {1 / cost_s:>9,.0f} pairs/s   cost ratio to {DEPTHS[0]}: {cost_s / shallow:.2f}")
    with_first = pair_costs_s(first_tokens=True)[DEPTHS[1]]
    print(f"{DEPTHS[1]:>7} waiting: {1 / with_first:>9,.0f} pairs/s with a first token each")
    ticket_bytes = bytes_a_ticket(DEPTHS[-1])
    print(f"{DEPTHS[-1]:>7} waiting: {ticket_bytes:>9,.0f} bytes a ticket beside the body")
    if asked.profile:
        profile()
    ratio = costs[DEPTHS[1]] / shallow
    met = {
        f"cost ratio {ratio:.2f} <= {RATIO_MAX}": ratio <= RATIO_MAX,
        f"{1 / costs[DEPTHS[1]]:,.0f} pairs/s >= {PAIRS_PER_S_MIN:,} (an idle core)": 1 / costs[DEPTHS[1]]
        >= PAIRS_PER_S_MIN,
        f"{ticket_bytes:,.0f} bytes < {TICKET_BYTES_MAX:,}": ticket_bytes < TICKET_BYTES_MAX,
    }
    for target, holds in met.items():
        print(f"{'met   ' if holds else 'missed'} {target}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
