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
from bench.simulation.direct import DirectCallers
from bench.simulation.engine_room import START, EngineRoom
from bench.simulation.posts import Answer, Caller, Fate
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
    each_sender = senders(setup, seed)
    for sender, share in zip(each_sender, shares, strict=True):
        sender.expect([callers[index] for index in share])
    rooms = list(dict.fromkeys(sender.room for sender in each_sender))
    for room in rooms:
        room.run()
    records: list[RequestRecord] = []
    for sender, share in zip(each_sender, shares, strict=True):
        answers = sender.answers if isinstance(sender, DirectCallers) else sender.fates.values()
        for index, answer in zip(share, answers, strict=True):
            records.append(_record(index, trace.arrivals[index], answer, windows))
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


def senders(setup: Setup, seed: int) -> Sequence[VirtualPool | DirectCallers]:
    """The gateways, or in the place of each those who send without one."""
    names = [f"engine-{number}" for number in range(setup.engines)]
    each = range(setup.gateways)
    rooms = [a_room(setup, names)] * setup.gateways if setup.shared_engines else []
    rooms = rooms or [a_room(setup, names[number :: setup.gateways]) for number in each]
    plan = setup.plan
    if plan is None:
        return [DirectCallers(rooms[number], seed=seed + number, first_number=number << 32) for number in each]
    pools = [a_gateway(setup, plan, rooms[number], number if setup.shared_engines else 0) for number in each]
    for number, pool in enumerate(pools):
        pool.room.at(pool.room.now + LOOK_EVERY_S * number / setup.gateways, pool.look_at_engines)
    return pools


def a_room(setup: Setup, names: Sequence[str]) -> EngineRoom:
    return EngineRoom(
        {name: QuickEngine(setup.flags, setup.profile.step_time) for name in names},
        batches_in_flight=setup.flags.batches_in_flight,
        network_s=setup.profile.request_s / 2,
    )


def a_gateway(setup: Setup, plan: Plan, room: EngineRoom, number: int) -> VirtualPool:
    specs = [setup.spec(name) for name in room.posts]
    pool = VirtualPool(plan, room, specs, Judge(), number=number, tells_cached=setup.flags.prefix_caching)
    for name in room.posts:
        pool.admission.calibrated(name, setup.probes())
    return pool


def _record(index: int, arrival: Arrival, answer: Answer, windows: Windows) -> RequestRecord:
    first_ms, ended_ms = _ms(answer.first_token_at, windows), _ms(answer.ended_at, windows)
    is_open = ended_ms is None or answer.outcome is None
    outcome = Outcome.UNFINISHED if is_open or answer.outcome is None else _OUTCOMES[answer.outcome]
    completed = outcome is Outcome.COMPLETED
    fate = answer if isinstance(answer, Fate) else None
    waited_s = None if fate is None or fate.engine is None else fate.waited_s
    return RequestRecord(
        index=index,
        request_id=f"simulated-{index}",
        class_name=arrival.class_name,
        phase=windows.phase(arrival.at_s),
        outcome=outcome,
        reason=None if is_open or fate is None or fate.reason is None else str(fate.reason),
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
        gateway_queue_ms=None if waited_s is None else round(waited_s * 1000),
        gateway_length_class=None if fate is None else str(fate.length),
    )


def _ms(at: float | None, windows: Windows) -> float | None:
    """Milliseconds from the start of the run; None: not before the end of the drain."""
    return None if at is None or at - START > windows.cut_s else (at - START) * 1000


def check_served(setup: Setup, class_name: str, prompt_tokens: int, output_tokens: int) -> None:
    """Raise UsageError where the policy refuses such requests whatever the load."""
    if setup.plan is not None:
        _judged(setup.plan, Caller(0.0, prompt_tokens, output_tokens, setup.service_classes[class_name]))
