"""The one Observer: core events and shell facts in, metrics out.

Owns the counters, the living exchanges and their conservation: every request counted as offered is, at any instant,
receiving, waiting, running or counted in one outcome. Nobody increments a metric elsewhere, which is why this is one
module, over 300 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import chain, product
from typing import assert_never

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics_page

from gateway.core.plan import Plan
from gateway.core.standing import Ahead
from gateway.core.ticket import (
    Assignment,
    Dispatched,
    DividingChanged,
    Event,
    Finished,
    FirstToken,
    Proceed,
    Queued,
    Recalled,
    Refused,
    SliceEnded,
    SliceResult,
    Ticket,
)
from gateway.core.types import FallbackReason, Identity, LengthClass, Outcome, Reason, WaitOutcome
from gateway.observe.counting import CountingReading, counting_families
from gateway.observe.decisions import Decisions
from gateway.observe.exchange import NO_LABELS, UNKNOWN, Exchange, Exchanges, Labels, Phase
from gateway.observe.families import Families
from gateway.observe.gauges import GaugeSources, ScrapedGauges
from gateway.observe.history import History
from gateway.observe.objectives import judged, stated
from gateway.wire.answers import Usage

_WAIT_ENDED = {
    Outcome.EXPIRED: WaitOutcome.EXPIRED,
    Outcome.REFUSED: WaitOutcome.REFUSED,
    Outcome.CLIENT_GONE: WaitOutcome.CLIENT_GONE,
}

_WANTS_ROOM = (
    Reason.QUEUE_FULL,
    Reason.TENANT_QUEUE_FULL,
    Reason.WAIT_DEADLINE,
    Reason.PREDICTED_MISS,
    Reason.NO_ENGINE,
    Reason.OVERLOADED,
)
_WORD = {True: "true", False: "false"}


class Reloaded(StrEnum):
    """What became of a change of configuration."""

    APPLIED = "applied"
    REFUSED = "refused"


class Observer:
    """Counts. `ended` is called once for each request, at its end, after it is counted.

    dividing_changed: called with the engine and the reason when it begins to get long prompts whole; None: in parts.
    """

    def __init__(
        self,
        now: Callable[[], float],
        ended: Callable[[Exchange], None],
        dividing_changed: Callable[[str, FallbackReason | None], None] | None = None,
    ) -> None:
        self.families = Families()
        self.exchanges = Exchanges()
        self.decisions = Decisions(self.exchanges)
        self.history = History(now)
        self._now = now
        self._ended = ended
        self._dividing_changed = dividing_changed
        self._classes: frozenset[str] = frozenset()
        self._gauges: ScrapedGauges | None = None
        self._counting: Callable[[], Mapping[str, CountingReading]] = dict
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def scrape_from(self, sources: GaugeSources) -> None:
        """Say what is computed at scrape."""
        self._gauges = ScrapedGauges(sources, self.exchanges, self._now)
        self.put_in_force(sources.plan(), sources.pools())
        for result in Reloaded:
            self.families.reloads.at(result.value)

    def put_in_force(self, plan: Plan, pools: Iterable[str]) -> None:
        """Label by the plan's classes from here on, and show at zero what alarms: the first is then an increase."""
        self._classes = frozenset(plan.classes)
        for pool in pools:
            for name, class_plan in plan.classes.items():
                for length in LengthClass:
                    for outcome in Outcome:
                        self.families.requests.at(name, length.value, pool, outcome.value)
                    for reason in _WANTS_ROOM:
                        self.families.refusals.at(name, length.value, pool, reason.value)
                for length, slo in class_plan.slo.items():
                    for objective, met in product(stated(slo), (True, False)):
                        self.families.slo.at(name, length.value, pool, objective.value, _WORD[met])

    def totals(self) -> dict[str, dict[str, int]]:
        """Return how many requests ended so far by outcome, and how many answers were refusals by reason."""
        found: dict[str, dict[str, int]] = {"outcomes": {outcome.value: 0 for outcome in Outcome}, "refusals": {}}
        for kind, family in (("outcomes", self.families.requests), ("refusals", self.families.refusals)):
            for labels, series in family.series():
                if not series.value:
                    continue
                found[kind][labels[-1]] = found[kind].get(labels[-1], 0) + series.value
        return found

    def scrape_counting_from(self, readings: Callable[[], Mapping[str, CountingReading]]) -> None:
        """Say where each pool's counter is read at scrape."""
        self._counting = readings

    def exposition(self, *, open_metrics: bool = False) -> bytes:
        """Write all metrics as they are at this instant: in the Prometheus text format, or in OpenMetrics'."""
        scraped = () if self._gauges is None else self._gauges.collect()
        page = self.families.page(chain(scraped, counting_families(self._counting())), open_metrics=open_metrics)
        if not open_metrics:
            return page + generate_latest(self._process)
        process: bytes = open_metrics_page(self._process)  # type: ignore[no-untyped-call]
        return page + process  # with the end mark

    def look(self) -> None:
        """Take in how old the oldest of each line is now: of what waits on, no event tells."""
        if self._gauges is not None:
            for labels, age_s in self._gauges.ages():
                self.history.waited(labels, age_s)
        self.history.forget()

    # ── an offered request ──

    def offered(self, request_id: str, route: str, arrived_at: float, identity: Identity | None) -> Exchange:
        """Count a request on a generation route, once, as soon as its head is judged."""
        labels = Labels(self._known(identity))
        exchange = Exchange(request_id, route, arrived_at, labels, identity=identity)
        self.families.offered.at(*labels).inc()
        self.exchanges.open(exchange)
        return exchange

    def counted(self, exchange: Exchange, prompt_tokens: int, method: str, cost_s: float) -> None:
        exchange.counted_prompt_tokens, exchange.counting_method = prompt_tokens, method
        self.families.tokenize_s.at(method).observe(cost_s)

    def measured(self, exchange: Exchange, length_class: LengthClass, pool: str) -> None:
        """Take note of how long the prompt is and of whose engines serve it: a refusal says so from here on."""
        exchange.labels = Labels(exchange.labels.service_class, length_class.value, pool)

    def assigned(self, exchange: Exchange, assignment: Assignment, pool: str) -> None:
        """Take note before the assignment is offered: core events find the request by it."""
        exchange.stream = assignment.stream
        self.exchanges.assigned(exchange, assignment, pool)

    def stands(self, ticket: Ticket, ahead: Ahead) -> None:
        """Take note of what stands in a request's way, before the event that says that it waits or is refused."""
        exchange = self.exchanges.of(ticket.assignment)
        if exchange.stood is None:
            exchange.stood = ahead
        else:
            exchange.stood_at_end = ahead

    def core_event(self, event: Event, now: float) -> None:
        """Take in one event of Admission, in the instant in which it happened."""
        exchange = self.exchanges.of(event.ticket.assignment)
        if exchange.trace is not None:
            exchange.trace.core_event(event, now)
        match event:
            case Queued(ticket=ticket):
                exchange.phase, exchange.waiting_since = Phase.WAITING, now
                exchange.requeues = ticket.requeues
            case Dispatched(engine=engine, waited_s=waited_s):
                self._wait_ended(exchange, WaitOutcome.DISPATCHED, waited_s, now)
                exchange.phase, exchange.engine = Phase.RUNNING, engine
                exchange.dispatched_at = now
            case SliceEnded() | Recalled() | Proceed() | DividingChanged():
                self._part(event, exchange)
            case FirstToken(engine_ttft_s=engine_ttft_s):
                self._first_token(exchange, engine_ttft_s, now)
            case Refused(refusal=refusal, waited_s=waited_s, outcome=outcome):
                self._wait_ended(exchange, _WAIT_ENDED[outcome], waited_s, now)
                self.refused(refusal.reason, exchange)
                self._count_repeat(event.ticket, exchange)
                self._end(exchange, outcome, now)
            case Finished(outcome=outcome, waited_s=waited_s):
                if waited_s is not None:
                    self._wait_ended(exchange, _WAIT_ENDED.get(outcome, WaitOutcome.CLIENT_GONE), waited_s, now)
                self._count_repeat(event.ticket, exchange)
                self._end(exchange, outcome, now)
            case _:
                assert_never(event)

    def chunk(self, exchange: Exchange, now: float) -> None:
        """Take note of one network chunk of a stream."""
        if exchange.last_chunk_at is not None:
            gap_s = now - exchange.last_chunk_at
            self.families.gap.at(*exchange.labels).observe(gap_s)
            exchange.longest_stall_s = max(exchange.longest_stall_s or 0.0, gap_s)
        exchange.last_chunk_at = now

    def usage(self, exchange: Exchange, usage: Usage) -> None:
        """Take in what the engine counted, once for each answer."""
        prompt_tokens, output_tokens = usage.prompt_tokens, usage.output_tokens
        exchange.prompt_tokens, exchange.output_tokens = prompt_tokens, output_tokens
        if output_tokens is not None:
            self.families.output_tokens.at(*exchange.labels).inc(output_tokens)
        if prompt_tokens is None:
            return
        if exchange.sliced and usage.cached_tokens is not None:
            self.families.slice_cached.at(*exchange.labels).observe(usage.cached_tokens / max(1, prompt_tokens))
        self.families.prompt_tokens.at(*exchange.labels).inc(prompt_tokens)
        if exchange.counted_prompt_tokens is not None and prompt_tokens > 0:
            error = exchange.counted_prompt_tokens - prompt_tokens
            sign = "over" if error > 0 else "under" if error < 0 else "equal"
            labels = exchange.labels.pool, exchange.counting_method, sign
            self.families.count_error.at(*labels).observe(abs(error) / prompt_tokens)
            if exchange.usage_told is not None:
                exchange.usage_told(prompt_tokens)

    def tap_overflowed(self, exchange: Exchange, lines: int) -> None:
        self.families.tap_overflows.at(*exchange.labels).inc(lines)

    def ended_outside(self, exchange: Exchange, outcome: Outcome) -> None:
        """End a request that admission never saw. Does nothing where admission has ended it already."""
        if exchange.phase is Phase.RECEIVING:
            self._end(exchange, outcome, self._now())

    def settled(self, exchange: Exchange) -> None:
        """Hand the request on to the log: it has ended and its answer is written or given up."""
        self._ended(exchange)
        self.decisions.ended(exchange)
        if exchange.trace is not None:
            exchange.trace.settled(exchange)
            exchange.trace = None

    # ── answers ──

    def refused(self, reason: Reason, exchange: Exchange | None) -> None:
        """Count one answer by the gateway itself; `exchange` is None outside the generation routes."""
        labels = NO_LABELS if exchange is None else exchange.labels
        self.families.refusals.at(*labels, reason.value).inc()
        self.history.refused(labels.service_class, reason)
        if exchange is not None:
            exchange.reason = reason

    def answered(self, route: str | None, status: int) -> None:
        """Count one answer on the public port; `route` is None for what is not on the allow-list."""
        self.families.http.at(route or "other", str(status)).inc()

    def loop_lagged(self, lag_s: float) -> None:
        self.families.loop_lag.at().observe(lag_s)

    def reloaded(self, result: Reloaded) -> None:
        self.families.reloads.at(result.value).inc()

    def signing_keys_fetched(self, result: str) -> None:
        """Count one fetch of the token issuer's keys; `result` is from a closed set."""
        self.families.signing_key_fetches.at(result).inc()

    # ── inside ──

    def _known(self, identity: Identity | None) -> str:
        if identity is None or identity.service_class not in self._classes:
            return UNKNOWN
        return identity.service_class

    def _wait_ended(self, exchange: Exchange, outcome: WaitOutcome, age_s: float, now: float) -> None:
        """age_s: since it was offered, which after a try at an engine is longer than this wait."""
        waited_s = 0.0 if exchange.waiting_since is None else now - exchange.waiting_since
        exchange.waiting_since, exchange.waited_s = None, age_s
        self.families.queue_wait.at(*exchange.labels, outcome.value).observe(waited_s, exchange.sampled_trace_id, now)
        self.history.waited(exchange.labels, age_s)

    def _first_token(self, exchange: Exchange, engine_ttft_s: float, now: float) -> None:
        exchange.first_token_at = now
        if exchange.stream and exchange.engine is not None:
            self.families.ttft.at(*exchange.labels).observe(now - exchange.arrived_at, exchange.sampled_trace_id, now)
            self.families.engine_ttft.at(*exchange.labels, exchange.engine).observe(engine_ttft_s)

    def _count_repeat(self, ticket: Ticket, exchange: Exchange) -> None:
        if ticket.is_repeat:
            self.families.repeats.at(*exchange.labels).inc()

    def _part(self, event: SliceEnded | Recalled | Proceed | DividingChanged, exchange: Exchange) -> None:
        match event:
            case SliceEnded(result=result):
                self.families.slices.at(*exchange.labels, result.value).inc()
                exchange.sliced |= result is SliceResult.COMPUTED
            case Recalled():
                self.families.recalls.at(*exchange.labels).inc()
            case Proceed():
                pass
            case DividingChanged(engine=engine, reason=reason):
                if self._dividing_changed is not None:
                    self._dividing_changed(engine, reason)

    def _end(self, exchange: Exchange, outcome: Outcome, now: float) -> None:
        self.exchanges.close(exchange, outcome, now)
        self.families.requests.at(*exchange.labels, outcome.value).inc()
        self.history.ended(exchange.labels.service_class, outcome)
        if outcome is Outcome.COMPLETED:
            self.families.request_s.at(*exchange.labels).observe(now - exchange.arrived_at)
        for objective, met in judged(exchange):
            self.families.slo.at(*exchange.labels, objective.value, _WORD[met]).inc()
        if exchange.longest_stall_s is not None:
            self.families.stall.at(*exchange.labels).observe(exchange.longest_stall_s)
