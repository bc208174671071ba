"""Offered = outcomes + receiving + waiting + running, at every instant of every history."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.admission import Admission
from gateway.core.ticket import TicketState
from gateway.core.types import Identity, Outcome
from gateway.observe.gauges import GaugeSources
from gateway.observe.metrics import Observer
from gateway.testing.builders import a_class, a_plan, an_assignment, an_engine

CLASSES = (a_class("interactive", wait_s_max=(2, 5), requests_max=3), a_class("batch", rank=1, weight=1))


PARTS = (
    "gateway_requests_total",
    "gateway_receiving_requests",
    "gateway_queue_requests",
    "gateway_running_requests",
)


def totals(observer):
    """Sum the families that conservation is about, each over all its label sets."""
    sums = Counter()
    for family in text_string_to_metric_families(observer.exposition().decode()):
        for sample in family.samples:
            if sample.name in PARTS or sample.name == "gateway_offered_total":
                sums[sample.name] += sample.value
    return sums


class Histories(RuleBasedStateMachine):
    receiving = Bundle("receiving")
    tickets = Bundle("tickets")

    def __init__(self):
        super().__init__()
        self.now = 1_000.0
        self.plan = a_plan(*CLASSES)
        self.ended = []
        self.admission = Admission(self.plan, [an_engine("a"), an_engine("b")])
        self.observer = Observer(lambda: self.now, self.ended.append)
        sources = GaugeSources(lambda: self.plan, lambda: {"pool": self.admission.snapshot()}, dict)
        self.observer.scrape_from(sources)
        self.offers = 0

    def take(self, events):
        for event in events:
            self.observer.core_event(event, self.now)

    @rule(target=receiving, name=st.sampled_from(["interactive", "batch", None]))
    def arrive(self, name):
        identity = None if name is None else Identity("k", name, "tenant")
        self.offers += 1
        exchange = self.observer.offered(f"r{self.offers}", "/v1/completions", self.now, identity)
        return SimpleNamespace(exchange=exchange, name=name)

    @rule(arrived=consumes(receiving), outcome=st.sampled_from([Outcome.REFUSED, Outcome.CLIENT_GONE]))
    def end_before_admission(self, arrived, outcome):
        self.observer.ended_outside(arrived.exchange, outcome)

    @rule(
        target=tickets,
        arrived=consumes(receiving),
        tokens=st.sampled_from([1, 500, 640, 641, 8000]),
        stream=st.booleans(),
    )
    def offer(self, arrived, tokens, stream):
        assignment = an_assignment(self.plan, arrived.name or "batch", prompt_tokens=tokens, stream=stream)
        self.observer.assigned(arrived.exchange, assignment, "pool")
        ticket, events = self.admission.offer(assignment, self.now)
        self.take(events)
        return SimpleNamespace(ticket=ticket, exchange=arrived.exchange)

    @rule(held=tickets)
    def first_token(self, held):
        self.take(self.admission.first_token(held.ticket, self.now))

    @rule(held=tickets, outcome=st.sampled_from(Outcome))
    def finish(self, held, outcome):
        self.take(self.admission.finish(held.ticket, outcome, self.now))
        self.observer.ended_outside(held.exchange, Outcome.CLIENT_GONE)

    @rule(held=tickets, pause_s=st.sampled_from([0.0, 1.0]))
    def engine_has_no_room(self, held, pause_s):
        if held.ticket.state is not TicketState.RUNNING or held.ticket.first_token_at is not None:
            return
        self.take(self.admission.requeue(held.ticket, self.now, pause_s))

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 60.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.admission.tick(self.now))

    @rule(engine=st.sampled_from(["a", "b"]), up=st.booleans())
    def engine_comes_or_goes(self, engine, up):
        self.take(self.admission.set_up(engine, up, self.now))

    @rule(seconds=st.sampled_from([0.0, 2.0]))
    def drain(self, seconds):
        self.take(self.admission.drain(self.now, self.now + seconds))

    @rule()
    def undrain(self):
        self.take(self.admission.undrain(self.now))

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        sums = totals(self.observer)
        assert sums["gateway_offered_total"] == self.offers == sum(sums[part] for part in PARTS)
        assert len(self.observer.exchanges) == self.offers - sums["gateway_requests_total"]


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
