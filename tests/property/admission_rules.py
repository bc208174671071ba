"""What happens to any pool: requests come, are answered, end or are cut, engines refuse, time passes, a drain begins.

Owns the rules that every machine has. What they must lead to is the model's.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from admission_model import AdmissionModel
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.core.ticket import Finished, FirstToken, Queued, TicketState
from gateway.core.types import Outcome
from gateway.testing.builders import an_assignment

OLD_CLASSES = ("interactive", "batch")
TENANTS = ("acme", "globex")
LENGTHS = (1, 512, 640, 641, 8192)
STEPS_END_S = 10_000.0
"""However slow the steps that were learned of."""


class EverydayRules(AdmissionModel):
    @rule(
        service_class=st.sampled_from(OLD_CLASSES),
        tenant=st.sampled_from(TENANTS),
        prompt_tokens=st.sampled_from(LENGTHS),
        sequences=st.sampled_from([1, 1, 1, 3]),
        wait_s=st.sampled_from([None, None, 0.0, 0.5]),
        stream=st.booleans(),
    )
    def offer(self, service_class, tenant, *, prompt_tokens, sequences, wait_s, stream):
        self.ask(
            service_class,
            tenant=tenant,
            prompt_tokens=prompt_tokens,
            sequences=sequences,
            wait_s_max=wait_s,
            stream=stream,
        )

    def ask(self, service_class, *, says_retry=False, **request):
        """Offer a request of the class, or of the plan's first where a reload has taken the class away."""
        name = service_class if service_class in self.plan.classes else min(self.plan.classes)
        assignment = replace(an_assignment(self.plan, name, **request), says_retry=says_retry)
        is_repeat = self.is_repeat(assignment)
        self.offered += 1
        ticket, events = self.admission.offer(assignment, self.now)
        self.live[ticket.id] = self.in_line[ticket.id] = ticket
        self.follow(events)
        assert ticket.needs == self.needs(assignment)
        assert ticket.is_repeat == is_repeat
        if ticket.id in self.in_line:
            assert any(isinstance(event, Queued) and event.ticket is ticket for event in events)
            self.within_queue_bounds(ticket)
        return ticket

    @rule(
        data=st.data(),
        outcome=st.sampled_from([Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.ENGINE_ERROR, Outcome.TIMED_OUT]),
        output_tokens=st.sampled_from([None, 0, 1, 128, 10_000]),
    )
    @precondition(lambda self: self.live)
    def finish(self, data, outcome, output_tokens):
        """output_tokens: less than was charged, as much, or more."""
        ticket = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        self.follow(self.admission.finish(ticket, outcome, self.now, output_tokens=output_tokens))
        assert ticket.id in self.ended

    @rule(data=st.data())
    @precondition(lambda self: self.at_engine)
    def first_token(self, data):
        """The first one, or one more, which nobody counts."""
        ticket = self.live[data.draw(st.sampled_from(sorted(self.at_engine)))]
        events = self.admission.first_token(ticket, self.now)
        assert any(isinstance(event, FirstToken) for event in events) == (ticket.id in self.in_prefill)
        self.follow(events)

    @rule(data=st.data(), end=st.booleans())
    @precondition(lambda self: self.ended)
    def late_word_of_one_that_ended(self, data, end):
        """An abort and the engine's first token, or two ends, crossed on their way."""
        ticket = self.ended[data.draw(st.sampled_from(sorted(self.ended)))]
        if end:
            events = self.admission.finish(ticket, Outcome.COMPLETED, self.now, output_tokens=1)
        else:
            events = self.admission.first_token(ticket, self.now)
        assert not any(isinstance(event, Finished | FirstToken) for event in events)
        assert ticket.state is TicketState.ENDED
        self.follow(events)

    @rule(data=st.data(), pause_s=st.sampled_from([0.0, 0.25, 5.0]))
    @precondition(lambda self: self.in_prefill)
    def engine_refuses(self, data, pause_s):
        self.send_back(data.draw(st.sampled_from(sorted(self.in_prefill))), pause_s)

    def send_back(self, ticket_id, pause_s):
        ticket, engine = self.live[ticket_id], self.at_engine.pop(ticket_id)
        self.in_prefill.discard(ticket_id)
        self.paused_until[engine] = max(self.paused_until[engine], self.now + pause_s)
        self.in_line[ticket_id] = ticket
        self.sent_back.add(ticket_id)
        place = ticket.offered_at, ticket.deadline, ticket.cost_s
        self.follow(self.admission.requeue(ticket, self.now, pause_s))
        assert place == (ticket.offered_at, ticket.deadline, ticket.cost_s)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 10.0]))
    def time_passes_unnoticed(self, seconds):
        """The loop was busy: deadlines pass before anybody calls."""
        self.now += seconds
        self.ask("interactive", prompt_tokens=512)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 10.0]))
    def time_passes(self, seconds):
        """Of itself, time leaves every budget as it is: an engine that says nothing changes nothing."""
        budgets = {name: engine.budgets for name, engine in self.admission.snapshot().engines.items()}
        self.let_pass(seconds)
        after = {name: engine.budgets for name, engine in self.admission.snapshot().engines.items()}
        assert after.items() <= budgets.items()

    def let_pass(self, seconds):
        end = self.now + seconds
        while (at := self.admission.next_tick_at()) is not None and at <= end:
            assert at >= self.now, "a timer is never set in the past"
            self.now = at
            self.follow(self.admission.tick(self.now))
        self.now = end

    @rule(deadline_s=st.sampled_from([0.0, 3.0]))
    def drain(self, deadline_s):
        self.draining_until = self.now + deadline_s
        self.follow(self.admission.drain(self.now, self.draining_until))
        assert all(ticket.deadline <= self.draining_until for ticket in self.in_line.values())

    @rule()
    def undrain(self):
        self.draining_until = None
        self.follow(self.admission.undrain(self.now))

    def reload(self, plan, specs):
        lines = {ticket_id: (ticket.deadline, ticket.assignment) for ticket_id, ticket in self.in_line.items()}
        self.plan = plan
        self.configured(specs)
        self.sent_back.clear()
        self.follow(self.admission.reconfigure(plan, specs, self.now))
        assert all(lines[ticket_id] == (t.deadline, t.assignment) for ticket_id, t in self.in_line.items())

    def teardown(self):
        """Whatever happened: when all have ended and the last abort has taken effect nothing is left in any count."""
        if not hasattr(self, "admission"):
            return
        for ticket in [*self.live.values()]:
            self.follow(self.admission.finish(ticket, Outcome.COMPLETED, self.now))
        assert not self.live
        self.let_pass(STEPS_END_S)
        snapshot = self.admission.snapshot()
        assert snapshot.engines.keys() == self.specs.keys()
        for line in snapshot.lines.values():
            assert (line.requests, line.prompt_tokens, line.body_bytes, line.oldest_offered_at) == (0, 0, 0, None)
        for engine in snapshot.engines.values():
            assert engine.slots == engine.long_prefills == engine.kv_reserved_tokens == 0
            assert not any(engine.prefill_tokens.values()) and not any(engine.running.values())
        assert not [*self.admission._tenants]
        assert self.admission.next_tick_at() is None or self.paused(inf)

    def paused(self, until):
        return any(self.now < at <= until for at in self.paused_until.values())
