"""Charges go back once; budgets that both length classes share hold for both."""

from __future__ import annotations

import pytest

from gateway.core.admission import Admission
from gateway.core.lazy_heap import LazyHeap
from gateway.core.ledger import Ledger
from gateway.core.plan import KvBudget, NonStreamRelease, SlotBudget
from gateway.core.ticket import TicketState
from gateway.core.types import Outcome
from gateway.testing.builders import a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0


def held(ledger):
    shorts, _ = ledger._sides
    return [ledger.slots, shorts.slots, ledger.kv_tokens, shorts.kv_tokens, ledger.short_prefill_tokens]


def a_ticket():
    plan = a_plan()
    ticket, _ = Admission(plan, [an_engine()]).offer(an_assignment(plan), NOW)
    return ticket


@pytest.mark.parametrize("prefill_first", [False, True])
def test_a_charge_goes_back_once_however_often_it_is_given_back(prefill_first):
    ledger, ticket, other = Ledger({}), a_ticket(), a_ticket()
    other.id = ticket.id + 1
    ledger.charge(ticket)
    ledger.charge(other)
    one = [amount // 2 for amount in held(ledger)]
    if prefill_first:
        ledger.release_prefill(ticket)
        ledger.release_prefill(ticket)
    for _ in range(2):
        ledger.release(ticket)
        ledger.release_prefill(ticket)
    assert held(ledger) == one
    ledger.release(other)
    assert not any(held(ledger))


def test_a_prefill_that_went_back_by_estimate_does_not_go_back_again_with_the_first_byte():
    plan = a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8), non_stream_release=NonStreamRelease.ESTIMATE))
    pool, now = Admission(plan, [an_engine()]), NOW
    for _ in range(20):
        ticket, _ = pool.offer(an_assignment(plan), now)
        now += 0.05
        pool.first_token(ticket, now)
        pool.finish(ticket, Outcome.COMPLETED, now)
    whole, _ = pool.offer(an_assignment(plan, stream=False), now)
    now = pool.next_tick_at()
    pool.tick(now)
    beside, _ = pool.offer(an_assignment(plan, prompt_tokens=640), now)
    pool.first_token(whole, now)
    assert pool.snapshot().engines["a"].prefill_tokens[beside.assignment.length_class] == 640


def test_the_kv_that_both_share_runs_out_for_both():
    plan = a_plan(admission=an_admission(slots=SlotBudget(64, 8, 8), kv=KvBudget(0, 0), long_prefills_max=4))
    pool = Admission(plan, [an_engine(kv_tokens=10_000)])
    long, _ = pool.offer(an_assignment(plan, prompt_tokens=8192), NOW)
    short, _ = pool.offer(an_assignment(plan, prompt_tokens=600, output_tokens=1000), NOW)
    assert (long.state, short.state) == (TicketState.RUNNING, TicketState.RUNNING)
    more = [pool.offer(an_assignment(plan, prompt_tokens=tokens), NOW)[0] for tokens in (100, 700)]
    assert [ticket.state for ticket in more] == [TicketState.WAITING] * 2
    pool.finish(long, Outcome.COMPLETED, NOW)
    assert [ticket.state for ticket in more] == [TicketState.RUNNING] * 2


def test_a_heap_keeps_no_more_of_what_left_than_of_what_is_there():
    heap = LazyHeap()
    for number in range(1000):
        heap.push(number, number)
    for number in range(990):
        heap.discard(number)
    for number in range(200):
        heap.push(999, -number)
    assert len(heap._entries) < 100
    assert heap.first[2] == 999
    assert len(heap) == 10
