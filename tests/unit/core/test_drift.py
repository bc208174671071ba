"""What an engine's own numbers change of its budgets, and what they never change."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.admission import Admission
from gateway.core.drift import Drift
from gateway.core.ledger import Budget
from gateway.core.plan import Feedback, KvBudget, SlotBudget
from gateway.core.ticket import TicketState
from gateway.core.types import EngineLoad
from gateway.testing.builders import a_plan, an_admission, an_assignment, an_engine

NOW = 1_000_000.0
CAPS = {Budget.SLOTS: 8, Budget.SHORT_SLOTS: 6, Budget.LONG_SLOTS: 5, Budget.KV_TOKENS: 1000, Budget.LONG_PREFILLS: 3}


def load(sequences=0, waiting_for_room=0, preemptions=0):
    return EngineLoad(sequences, waiting_for_room, preemptions)


def test_two_looks_at_foreign_sequences_are_not_believed_and_three_are_by_the_least():
    drift = Drift()
    assert [drift.look(load(seen), 2, NOW) for seen in (9, 5, 7)] == [False, False, True]
    assert drift.foreign_sequences == 3
    assert drift.corrected(CAPS) == {
        Budget.SLOTS: 5,
        Budget.SHORT_SLOTS: 3,
        Budget.LONG_SLOTS: 2,
        Budget.KV_TOKENS: 1000,
    }


def test_one_look_without_foreign_sequences_gives_their_slots_back():
    drift = Drift()
    for seen in (9, 9, 9):
        drift.look(load(seen), 0, NOW)
    assert drift.look(load(4), 4, NOW)
    assert drift.foreign_sequences == 0


def test_however_many_foreign_sequences_there_are_each_budget_leaves_room_for_one():
    drift = Drift()
    for _ in range(3):
        drift.look(load(1000), 0, NOW)
    assert {drift.corrected(CAPS)[slots] for slots in (Budget.SLOTS, Budget.SHORT_SLOTS, Budget.LONG_SLOTS)} == {1}


def test_preemptions_before_the_first_look_say_nothing():
    drift = Drift()
    assert not drift.look(load(preemptions=50), 0, NOW)
    assert drift.kv_share == 1.0


def test_each_look_with_new_preemptions_takes_a_tenth_of_the_kv_down_to_half():
    drift = Drift()
    shares = []
    for at in range(20):
        drift.look(load(preemptions=at), 0, NOW + at)
        shares.append(drift.kv_share)
    assert shares[:3] == [1.0, 0.9, 0.81]
    assert shares[-1] == 0.5
    assert drift.corrected(CAPS)[Budget.KV_TOKENS] == 500


def test_the_kv_share_comes_back_once_a_minute_without_preemptions_and_never_beyond_the_whole():
    drift = Drift()
    drift.look(load(preemptions=0), 0, NOW)
    drift.look(load(preemptions=1), 0, NOW)
    drift.look(load(preemptions=1), 0, NOW + 59)
    assert drift.kv_share == 0.9
    drift.look(load(preemptions=1), 0, NOW + 60)
    drift.look(load(preemptions=1), 0, NOW + 61)
    assert drift.kv_share == 0.92
    for minute in range(2, 12):
        drift.look(load(preemptions=1), 0, NOW + 60 * minute)
    assert drift.kv_share == 1.0


def test_an_engine_that_restarted_with_fewer_preemptions_is_not_held_to_its_past():
    drift = Drift()
    drift.look(load(preemptions=9), 0, NOW)
    assert not drift.look(load(preemptions=0), 0, NOW)


# ── through Admission ──


class Pool:
    def __init__(self, plan, **limits):
        self.plan = plan
        self.admission = Admission(plan, [an_engine(**limits)])
        self.now = NOW

    def offer(self, prompt_tokens=1, **kwargs):
        ticket, _ = self.admission.offer(an_assignment(self.plan, prompt_tokens=prompt_tokens, **kwargs), self.now)
        return ticket

    def see(self, *, times=3, **said):
        for _ in range(times):
            self.admission.observe("a", load(**said), self.now)

    @property
    def budgets(self):
        return dict(self.admission.snapshot().engines["a"].budgets)


def test_foreign_sequences_hold_back_what_the_engine_would_queue_and_their_end_lets_it_go():
    pool = Pool(a_plan(admission=an_admission(slots=SlotBudget(4))))
    running = [pool.offer() for _ in range(2)]
    pool.see(sequences=4)
    waiting = pool.offer()
    assert waiting.state is TicketState.WAITING
    pool.see(sequences=2, times=1)
    assert waiting.state is TicketState.RUNNING
    assert all(ticket.state is TicketState.RUNNING for ticket in running)


def test_foreign_sequences_never_stop_an_engine():
    pool = Pool(a_plan(admission=an_admission(slots=SlotBudget(4))))
    pool.see(sequences=1000)
    assert pool.offer().state is TicketState.RUNNING


def test_preemptions_shrink_the_kv_that_is_planned_with():
    pool = Pool(a_plan(admission=an_admission(kv=KvBudget(100, 100))), kv_tokens=10_000)
    pool.see(preemptions=0, times=1)
    pool.see(preemptions=1, times=1)
    assert (pool.budgets["kv_tokens"], pool.budgets["short_kv_tokens"]) == (9000, 8910)


def fed_back(prefills_max=3):
    plan = a_plan(admission=an_admission(long_prefills_max=prefills_max, slots=SlotBudget(64, 8, 8)))
    pool = Pool(replace(plan, feedback=Feedback(500)))
    control = pool.admission._fleet["a"]._control
    control.allowance = replace(control.allowance, prefills=prefills_max)
    return pool


def test_each_three_looks_on_end_that_find_no_room_take_one_long_away_once_down_to_one():
    pool, seen = fed_back(), []
    for _ in range(10):
        pool.see(sequences=1, waiting_for_room=1, times=1)
        seen.append(pool.admission._fleet["a"]._control.allowance.prefills)
    assert seen == [3, 3, 2, 2, 2, 1, 1, 1, 1, 1]
    assert pool.budgets["long_prefills"] == 1


def test_one_look_at_an_engine_with_room_ends_the_correction_of_the_longs():
    pool = fed_back()
    pool.see(waiting_for_room=1, times=2)
    pool.see(waiting_for_room=0, times=1)
    pool.see(waiting_for_room=1, times=2)
    assert pool.admission._fleet["a"]._control.allowance.prefills == 3


def test_without_feedback_no_room_changes_no_budget():
    pool = Pool(a_plan())
    before = pool.budgets
    pool.see(waiting_for_room=5)
    assert pool.budgets == before


def test_while_an_engine_says_nothing_its_budgets_stay_as_they_were_and_work_goes_on():
    pool = Pool(a_plan(admission=an_admission(slots=SlotBudget(4))))
    pool.see(sequences=2)
    before = pool.budgets
    pool.now += 86_400
    pool.admission.tick(pool.now)
    assert pool.budgets == before
    assert pool.offer().state is TicketState.RUNNING


def test_a_reload_keeps_what_the_engine_said_of_itself():
    pool = Pool(a_plan(admission=an_admission(slots=SlotBudget(4))))
    pool.see(sequences=2)
    pool.admission.reconfigure(pool.plan, [an_engine()], pool.now)
    assert pool.budgets["slots"] == 2
