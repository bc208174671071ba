"""What a shadow adds to the core's work on one request, as a ratio within one run.

`python tests/benchmark/shadow_cost.py` from the repository's root. One round is offers, first tokens and ends at a load
where some wait, with and without a shadow, taken in turn; seconds are CPU seconds. Compare ratios alone.
"""

# ruff: noqa: T201 - a script that prints

from __future__ import annotations

from collections import deque
from statistics import median
from time import process_time

from gateway.core.admission import Admission
from gateway.core.plan import SlotBudget
from gateway.core.ticket import Dispatched, Event
from gateway.core.types import Outcome
from gateway.shadow.pool import PoolShadow
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine

REQUESTS = 4_000
ROUNDS = 7
SLOTS = 64
SHORT_SLOTS = 56
NEVER_S = 1e9


def one_round(*, with_shadow: bool) -> tuple[float, int]:
    """Return the CPU seconds of all requests, and how many were compared."""
    plan = a_plan(
        a_class(requests_max=1 << 40, prompt_tokens_max=1 << 40, bytes_max=1 << 40, wait_s_max=(NEVER_S, NEVER_S)),
        admission=an_admission(short_prefill_tokens_max=1 << 40, slots=SlotBudget(SLOTS, 8, SLOTS - SHORT_SLOTS)),
    )
    now, compared = 1_000_000.0, 0
    real = Admission(plan, [an_engine()])
    assignments = [an_assignment(plan, tenant=f"t{at % 20}", prompt_tokens=100) for at in range(REQUESTS)]
    twins = [an_assignment(plan, tenant=f"t{at % 20}", prompt_tokens=100) for at in range(REQUESTS)]

    def count(*_: object) -> None:
        nonlocal compared
        compared += 1

    shadow = PoolShadow(plan, real, count, now) if with_shadow else None
    running: deque[Dispatched] = deque()

    def take(events: list[Event]) -> None:
        running.extend(event for event in events if isinstance(event, Dispatched))
        if shadow is not None:
            shadow.events(events, now)

    began = process_time()
    for assignment, twin in zip(assignments, twins, strict=True):
        now += 0.001
        if shadow is not None:
            shadow.judged(assignment, twin)
        take(real.offer(assignment, now)[1])
        if len(running) >= SHORT_SLOTS:
            ticket = running.popleft().ticket
            take(real.first_token(ticket, now))
            take(real.finish(ticket, Outcome.COMPLETED, now, output_tokens=10))
    return process_time() - began, compared


def main() -> None:
    """Print both, and the ratio."""
    bare, shadowed, compared = [], [], 0
    for _ in range(ROUNDS):
        bare.append(one_round(with_shadow=False)[0])
        seconds, compared = one_round(with_shadow=True)
        shadowed.append(seconds)
    one, other = median(bare) / REQUESTS * 1e6, median(shadowed) / REQUESTS * 1e6
    print(f"core, a request: {one:.1f} us; with a shadow {other:.1f} us; {other / one:.2f} times; {compared} compared")


if __name__ == "__main__":
    main()
