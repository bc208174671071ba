"""Admission against a dict model, under every interleaving hypothesis finds."""

from __future__ import annotations

from dataclasses import replace

from admission_model import at_depth
from admission_rules import LENGTHS, OLD_CLASSES, TENANTS, EverydayRules
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from gateway.core.plan import (
    AdmissionKind,
    EarlyRejection,
    Feedback,
    OrderKind,
    Slo,
    SlotBudget,
    TenantBounds,
)
from gateway.core.types import EngineLimits, EngineLoad, EngineSpec, LengthClass, Outcome
from gateway.testing.builders import a_class, a_plan, an_admission, an_engine

ENGINES = ("a", "b", "c")


def a_drawn_plan(kind, order, *, requests_max, running_max, queued_max, total, only=None, newest_first=False):
    """Return a plan of two classes, or of `only` one of them."""
    interactive = a_class(
        "interactive",
        requests_max=requests_max,
        tenant=TenantBounds(queued_requests_max=queued_max, running_max=running_max),
        wait_s_max=(2, 6),
    )
    interactive = replace(interactive, queue=replace(interactive.queue, newest_first_in_overload=newest_first))
    batch = a_class("batch", rank=1, weight=1, requests_max=4, prompt_tokens_max=9000, wait_s_max=(3, 9))
    return a_plan(
        *(each for each in (interactive, batch) if only in {None, each.name}),
        admission=an_admission(kind, slots=SlotBudget(total, short_reserve=1, long_reserve=1)),
        order=order,
    )


drawn = {
    "kind": st.sampled_from(AdmissionKind),
    "order": st.sampled_from(OrderKind),
    "requests_max": st.integers(0, 4),
    "running_max": st.sampled_from([None, 1, 3]),
    "queued_max": st.sampled_from([None, 1]),
    "total": st.integers(2, 5),
}
plans = st.builds(a_drawn_plan, **drawn)


class AdmissionMachine(EverydayRules):
    """Two engines that come and go, plans that change; nothing is refused for what is predicted."""

    @initialize(plan=plans)
    def start(self, plan):
        self.engines = [an_engine("a", max_num_seqs=4, kv_tokens=40_000), an_engine("b")]
        self.begin(plan, self.engines)

    @rule(engine=st.sampled_from("ab"), up=st.booleans())
    def engine_changes(self, engine, up):
        self.up[engine] = up
        self.follow(self.admission.set_up(engine, up, self.now))

    @rule(plan=plans)
    def plan_changes(self, plan):
        self.reload(plan, self.engines)


overload_plans = st.builds(
    lambda plan, ttft_ms, confidence, purges, repeat_cost: replace(
        plan,
        classes={name: _with_objective(each, ttft_ms) for name, each in plan.classes.items()},
        early_rejection=None if confidence is None else EarlyRejection(confidence, purges=purges),
        repeat_cost=repeat_cost,
    ),
    plan=st.builds(a_drawn_plan, **(drawn | {"requests_max": st.integers(1, 6)}), newest_first=st.booleans()),
    ttft_ms=st.sampled_from([None, 1.0, 500.0]),
    confidence=st.sampled_from([None, 0.1, 0.9]),
    purges=st.booleans(),
    repeat_cost=st.sampled_from([1.0, 3.0]),
)


def _with_objective(class_plan, ttft_ms):
    return replace(class_plan, slo=dict.fromkeys(LengthClass, Slo(ttft_ms=ttft_ms)))


class OverloadMachine(EverydayRules):
    """What is refused early, purged, taken newest first, repeated: one engine with more before it than it serves."""

    @initialize(plan=overload_plans, seen=st.booleans(), ttft_s=st.sampled_from([0.01, 0.6]))
    def start(self, plan, seen, ttft_s):
        self.engines = [an_engine("a", max_num_seqs=4)]
        self.begin(plan, self.engines)
        if seen:
            for _ in range(20):
                self.rush(waiting=3, ttft_s=ttft_s, prompt_tokens=512)

    @rule(waiting=st.integers(1, 6), ttft_s=st.sampled_from([0.01, 0.6, 3.0]), prompt_tokens=st.sampled_from(LENGTHS))
    def rush(self, waiting, ttft_s, prompt_tokens):
        """Several come at once, and what runs after a while is answered."""
        for number in range(waiting):
            self.ask("interactive", tenant=TENANTS[number % 2], prompt_tokens=prompt_tokens)
        self.let_pass(ttft_s)
        for ticket in [self.live[ticket_id] for ticket_id in sorted(self.at_engine)]:
            self.follow(self.admission.first_token(ticket, self.now))
            self.follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now, output_tokens=16))

    @rule(
        service_class=st.sampled_from(OLD_CLASSES),
        tenant=st.sampled_from(TENANTS),
        fingerprint=st.integers(1, 3),
        says_retry=st.booleans(),
    )
    def come_again(self, service_class, tenant, fingerprint, says_retry):
        ticket = self.ask(service_class, tenant=tenant, fingerprint=fingerprint, says_retry=says_retry)
        if ticket.cost_s:  # of who is refused at once nothing is charged
            factor = self.plan.repeat_cost if ticket.is_repeat else 1.0
            assert ticket.cost_s == factor * self.admission.fleet.cost_s(ticket.assignment)

    @rule(seconds=st.sampled_from([100.0, 130.0]))
    def long_calm(self, seconds):
        self.let_pass(seconds)

    @rule(plan=overload_plans)
    def plan_changes(self, plan):
        self.reload(plan, self.engines)


fleet_plans = st.builds(
    lambda plan, feedback: replace(plan, feedback=feedback),
    plan=st.builds(a_drawn_plan, **drawn, only=st.sampled_from([None, None, *OLD_CLASSES])),
    feedback=st.sampled_from([None, None, Feedback(500.0)]),
)
fleets = st.lists(
    st.builds(
        lambda name, seqs, kv_tokens, block, weight, up: EngineSpec(
            name, EngineLimits(max_num_seqs=seqs, kv_tokens=kv_tokens, kv_block_tokens=block), up, weight
        ),
        name=st.sampled_from(ENGINES),
        seqs=st.sampled_from([None, 1, 4]),
        kv_tokens=st.sampled_from([None, 2_000, 40_000]),
        block=st.sampled_from([1, 16]),
        weight=st.sampled_from([1.0, 1.0, 3.0, 0.0]),
        up=st.sampled_from([True, True, False]),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda spec: spec.name,
)


class FleetMachine(EverydayRules):
    """Engines join, leave, shrink, restart and say what they see; classes are added and taken away."""

    @initialize(plan=fleet_plans, specs=fleets)
    def start(self, plan, specs):
        self.begin(plan, specs)

    @rule(plan=fleet_plans, specs=fleets)
    def reconfigure(self, plan, specs):
        self.reload(plan, specs)

    @rule(specs=fleets)
    def fleet_changes(self, specs):
        self.reload(self.plan, specs)

    @rule(data=st.data(), up=st.booleans())
    def engine_changes(self, data, up):
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self.up[name] = up
        self.follow(self.admission.set_up(name, up, self.now))

    @rule(data=st.data(), goes_back=st.booleans())
    def engine_restarts(self, data, goes_back):
        """It is gone with all it held: who has had no answer goes back in line, or ends as the others do."""
        name = data.draw(st.sampled_from(sorted(self.specs)))
        self.up[name] = False
        self.follow(self.admission.set_up(name, False, self.now))
        for ticket_id in [each for each, at in sorted(self.at_engine.items()) if at == name]:
            if goes_back and ticket_id in self.in_prefill:
                self.send_back(ticket_id, 0.0)
            else:
                self.follow(self.admission.finish(self.live[ticket_id], Outcome.ENGINE_ERROR, self.now))
        assert name not in self.at_engine.values()
        self.up[name] = True
        self.follow(self.admission.set_up(name, True, self.now))

    @rule(data=st.data(), service_class=st.sampled_from(OLD_CLASSES), prompt_tokens=st.sampled_from(LENGTHS))
    def ask_for_one_engine(self, data, service_class, prompt_tokens):
        self.ask(service_class, engine=data.draw(st.sampled_from(ENGINES)), prompt_tokens=prompt_tokens)

    @rule(
        data=st.data(),
        looks=st.integers(1, 4),
        beyond=st.integers(-3, 6),
        waiting_for_room=st.integers(0, 2),
        preemptions=st.integers(0, 3),
    )
    def engine_says(self, data, looks, beyond, waiting_for_room, preemptions):
        """beyond: sequences that the gateway does not know of, or has not heard the end of."""
        name = data.draw(st.sampled_from(sorted(self.specs)))
        for _ in range(looks):
            slots = self.admission.snapshot().engines[name].slots
            load = EngineLoad(max(0, slots + beyond), waiting_for_room, preemptions)
            self.follow(self.admission.observe(name, load, self.now))
            self.let_pass(1.0)

    @rule(shorts=st.integers(1, 40), ttft_s=st.sampled_from([0.01, 2.0]))
    @precondition(lambda self: self.plan.feedback is not None)
    def shorts_are_answered(self, shorts, ttft_s):
        """What feedback judges by, and what costs are learned from."""
        for _ in range(shorts):
            ticket = self.ask("interactive", prompt_tokens=512)
            self.let_pass(ttft_s)
            if ticket.id in self.at_engine:
                self.follow(self.admission.first_token(ticket, self.now))
            self.follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now, output_tokens=16))


TestAdmissionMachine = AdmissionMachine.TestCase
TestAdmissionMachine.settings = at_depth(40)
TestOverloadMachine = OverloadMachine.TestCase
TestOverloadMachine.settings = at_depth(25)
TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = at_depth(25)
