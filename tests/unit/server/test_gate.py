"""What a request comes to that is cancelled around its dispatch."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.admission import Admission
from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.core.ticket import Dispatched, Event, Finished
from gateway.core.types import Outcome
from gateway.server.clock import LoopClock
from gateway.server.ending import Ending, Service
from gateway.server.gate import Gate
from gateway.testing.builders import a_plan, an_admission, an_assignment, an_engine

PLAN = a_plan(admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)))


async def who_waits(gate: Gate, service: Service) -> None:
    async with service, gate.admit(an_assignment(PLAN), lambda: service.outcome_if_cancelled):
        raise AssertionError("it was cancelled before it woke up")


@pytest.mark.parametrize("outcome", [Outcome.ENGINE_ERROR, Outcome.CLIENT_GONE])
async def test_who_ended_it_between_its_dispatch_and_its_waking_up_is_told_apart(outcome: Outcome) -> None:
    ending = Ending()
    seen: list[Event] = []
    waits: list[tuple[asyncio.Task[None], Service]] = []

    def observe(event: Event, _now: float) -> None:
        seen.append(event)
        if isinstance(event, Dispatched) and waits:
            waiting, service = waits.pop()
            if outcome is Outcome.ENGINE_ERROR:
                service.cut()
            else:
                waiting.cancel()

    gate = Gate(Admission(PLAN, [an_engine()]), LoopClock(), observe, lambda _ticket, _ahead: None)
    with ending.serving() as service:
        async with gate.admit(an_assignment(PLAN), lambda: Outcome.CLIENT_GONE):
            waiting = asyncio.get_running_loop().create_task(who_waits(gate, service))
            await asyncio.sleep(0)
            waits.append((waiting, service))
        with pytest.raises(TimeoutError if outcome is Outcome.ENGINE_ERROR else asyncio.CancelledError):
            await waiting
    assert [type(event) for event in seen[-2:]] == [Dispatched, Finished]
    assert [event.outcome for event in seen if isinstance(event, Finished)] == [Outcome.COMPLETED, outcome]
    assert gate.alive == 0
