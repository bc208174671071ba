"""One trace before one arm, in virtual time: arrivals become callers, what became of them becomes records.

Owns the way there and back. The records are those of a live bench; what has no meaning here is absent from them:
a connection, a late client, the gaps of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.errors import UsageError
from bench.load.pacing import Windows
from bench.records.request import Outcome, RequestRecord
from bench.simulation.engine_room import START, EngineRoom
from bench.simulation.posts import Caller, Fate
from bench.simulation.quick_engine import QuickEngine
from bench.simulation.setup import Setup
from bench.simulation.virtual_pool import LOOK_EVERY_S, VirtualPool
from bench.trace.arrivals import Arrival, Trace
from gateway.core.classify import classify
from gateway.core.plan import Plan
from gateway.core.ticket import Assignment
from gateway.core.types import Identity, Refusal, Shape
from gateway.core.types import Outcome as GatewayOutcome

BODY_BYTES_PER_TOKEN = 4
_OUTCOMES = {
    GatewayOutcome.COMPLETED: Outcome.COMPLETED,
    GatewayOutcome.REFUSED: Outcome.REFUSED,
    GatewayOutcome.EXPIRED: Outcome.EXPIRED,
    GatewayOutcome.CLIENT_GONE: Outcome.CANCELLED,
    GatewayOutcome.ENGINE_ERROR: Outcome.FAILED,
    GatewayOutcome.TIMED_OUT: Outcome.TIMED_OUT,
}


@dataclass(frozen=True, slots=True)
class Played:
    """What one run gave. shares: the records' indices of each gateway. steps: of all engines."""

    records: list[RequestRecord]
    shares: list[list[int]]
    steps: int


class Judge:
    """Classifies each kind of request once: what is equal is the same assignment. Raises UsageError for a refusal."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, int], Assignment] = {}

    def __call__(self, plan: Plan, caller: Caller) -> Assignment:
        key = caller.service_class, caller.tenant, caller.prompt_tokens, caller.output_tokens
        assignment = self._known.get(key)
        if assignment is None:
            assignment = self._known[key] = _judged(plan, caller)
        return assignment


def _judged(plan: Plan, caller: Caller) -> Assignment:
    shape = Shape(
        prompt_tokens=caller.prompt_tokens,
        longest_prompt_tokens=caller.prompt_tokens,
        output_tokens_stated=caller.output_tokens,
        output_tokens_default=None,
        sequences=1,
        body_bytes=caller.prompt_tokens * BODY_BYTES_PER_TOKEN,
        stream=True,
    )
    identity = Identity(caller.tenant, caller.service_class, caller.tenant)
    assignment = classify(plan, identity, shape, context_tokens=None, is_divisible=True)
    if isinstance(assignment, Refusal):
        raise UsageError(f"policy {plan.name} refuses every such request: {assignment.message}")
    return assignment


def play(setup: Setup, trace: Trace, windows: Windows, seed: int) -> Played:
    """Each gateway has the requests that a blind balancer gives it, and its share of the engines or all of them."""
    random = Random(f"gateways and tenants {seed}")
    shares: list[list[int]] = [[] for _ in range(setup.gateways)]
    callers: list[Caller] = []
    for index, arrival in enumerate(trace.arrivals):
        shares[random.randrange(setup.gateways)].append(index)
        callers.append(_caller(setup, arrival, random.randrange(setup.tenants)))
    pools = _pools(setup)
    for pool, share in zip(pools, shares, strict=True):
        pool.expect([callers[index] for index in share])
    rooms = list(dict.fromkeys(pool.room for pool in pools))
    for room in rooms:
        room.run()
    records: list[RequestRecord] = []
    for pool, share in zip(pools, shares, strict=True):
        for index, fate in zip(share, pool.fates.values(), strict=True):
            records.append(_record(index, trace.arrivals[index], fate, windows))
    records.sort(key=lambda record: record.index)
    return Played(records, shares, sum(room.steps for room in rooms))


def _caller(setup: Setup, arrival: Arrival, tenant: int) -> Caller:
    return Caller(
        arrival.at_s,
        arrival.prompt_tokens,
        arrival.output_tokens,
        setup.service_classes[arrival.class_name],
        f"{arrival.class_name} {tenant}",
        leaves_after_s=arrival.cancel_after_s,
        priority=setup.priority.get(arrival.class_name),
    )


def _pools(setup: Setup) -> list[VirtualPool]:
    names = [f"engine-{number}" for number in range(setup.engines)]
    if not setup.shared_engines:
        return [a_gateway(setup, a_room(setup, names[number :: setup.gateways]), 0) for number in range(setup.gateways)]
    room = a_room(setup, names)
    pools = [a_gateway(setup, room, number) for number in range(setup.gateways)]
    for number, pool in enumerate(pools):
        room.at(room.now + LOOK_EVERY_S * number / setup.gateways, pool.look_at_engines)
    return pools


def a_room(setup: Setup, names: Sequence[str]) -> EngineRoom:
    return EngineRoom(
        {name: QuickEngine(setup.flags, setup.profile.step_time) for name in names},
        batches_in_flight=setup.flags.batches_in_flight,
        network_s=setup.profile.request_s / 2,
    )


def a_gateway(setup: Setup, room: EngineRoom, number: int) -> VirtualPool:
    specs = [setup.spec(name) for name in room.posts]
    pool = VirtualPool(setup.plan, room, specs, Judge(), number=number, tells_cached=setup.flags.prefix_caching)
    for name in room.posts:
        pool.admission.calibrated(name, setup.probes())
    return pool


def _record(index: int, arrival: Arrival, fate: Fate, windows: Windows) -> RequestRecord:
    first_ms, ended_ms = _ms(fate.first_token_at, windows), _ms(fate.ended_at, windows)
    is_open = ended_ms is None or fate.outcome is None
    outcome = Outcome.UNFINISHED if is_open or fate.outcome is None else _OUTCOMES[fate.outcome]
    completed = outcome is Outcome.COMPLETED
    was_sent = fate.engine is not None
    return RequestRecord(
        index=index,
        request_id=f"simulated-{index}",
        class_name=arrival.class_name,
        phase=windows.phase(arrival.at_s),
        outcome=outcome,
        reason=None if is_open or fate.reason is None else str(fate.reason),
        status=200 if first_ms is not None else None,
        planned_ms=arrival.at_s * 1000,
        dispatched_ms=arrival.at_s * 1000,
        prompt_tokens_planned=arrival.prompt_tokens,
        output_tokens_planned=arrival.output_tokens,
        first_token_ms=first_ms,
        last_token_ms=ended_ms if completed else None,
        ended_ms=ended_ms,
        prompt_tokens=arrival.prompt_tokens if completed else None,
        output_tokens=arrival.output_tokens if completed else None,
        gateway_queue_ms=round(fate.waited_s * 1000) if was_sent and fate.waited_s is not None else None,
        gateway_length_class=str(fate.length),
    )


def _ms(at: float | None, windows: Windows) -> float | None:
    """Milliseconds from the start of the run; None: not before the end of the drain."""
    return None if at is None or at - START > windows.cut_s else (at - START) * 1000


def check_served(setup: Setup, class_name: str, prompt_tokens: int, output_tokens: int) -> None:
    """Raise UsageError where the policy refuses such requests whatever the load."""
    service_class = setup.service_classes[class_name]
    _judged(setup.plan, Caller(0.0, prompt_tokens, output_tokens, service_class))
