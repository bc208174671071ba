"""What the Observer counts, and when."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.admission import Admission
from gateway.core.types import Identity, LengthClass, Outcome, Reason
from gateway.observe.gauges import EngineReading, GaugeSources
from gateway.observe.metrics import Observer
from gateway.testing.builders import a_class, a_plan, an_admission, an_assignment, an_engine
from gateway.wire.answers import Usage

COMMON = {"service_class": "interactive", "length_class": "short", "pool": "pool"}


def sample(observer, name, labels):
    found = [
        sample.value
        for family in text_string_to_metric_families(observer.exposition().decode())
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return found[0] if found else None


class Pool:
    """One pool under an Observer and a clock that a test moves."""

    def __init__(self, plan=None, readings=None):
        self.now = 1_000.0
        self.plan = plan or a_plan(a_class(wait_s_max=(2, 30)), admission=an_admission(short_prefill_tokens_max=512))
        self.admission = Admission(self.plan, [an_engine("a")])
        self.ended = []
        self.observer = Observer(lambda: self.now, self.ended.append)
        sources = GaugeSources(lambda: self.plan, lambda: {"pool": self.admission.snapshot()}, lambda: readings or {})
        self.observer.scrape_from(sources)

    def value(self, name, **labels):
        return sample(self.observer, name, labels)

    def arrive(self, name="interactive"):
        identity = Identity("key", name, "tenant")
        return self.observer.offered("r", "/v1/chat/completions", self.now, identity)

    def offer(self, prompt_tokens=512, **kwargs):
        exchange = self.arrive()
        assignment = an_assignment(self.plan, prompt_tokens=prompt_tokens, **kwargs)
        self.observer.assigned(exchange, assignment, "pool")
        ticket, events = self.admission.offer(assignment, self.now)
        self.take(events)
        return exchange, ticket

    def take(self, events):
        for event in events:
            self.observer.core_event(event, self.now)


def test_an_offered_request_is_labelled_by_its_key_and_by_nothing_that_the_caller_wrote():
    pool = Pool()
    pool.arrive()
    pool.arrive("class-that-no-policy-has")
    assert pool.value("gateway_offered_total", service_class="interactive", length_class="none", pool="none") == 1
    assert pool.value("gateway_offered_total", service_class="none", length_class="none", pool="none") == 1


def test_a_wait_is_observed_when_it_ends_also_where_it_took_no_time():
    pool = Pool()
    pool.offer()
    pool.offer()
    count = "gateway_queue_wait_seconds_count"
    assert pool.value(count, **COMMON, outcome="dispatched") == 1
    pool.now += 2.0
    pool.take(pool.admission.tick(pool.now))
    assert pool.value(count, **COMMON, outcome="expired") == 1
    assert pool.value("gateway_queue_wait_seconds_sum", **COMMON, outcome="expired") == 2.0


def test_a_wait_after_the_engine_had_no_room_is_a_wait_of_its_own():
    pool = Pool()
    _, ticket = pool.offer()
    pool.now += 1.0
    pool.take(pool.admission.requeue(ticket, pool.now, 0.25))
    pool.now += 0.25
    pool.take(pool.admission.tick(pool.now))
    assert pool.value("gateway_queue_wait_seconds_count", **COMMON, outcome="dispatched") == 2
    assert pool.value("gateway_queue_wait_seconds_sum", **COMMON, outcome="dispatched") == 0.25


def test_the_oldest_age_grows_between_scrapes_and_is_zero_when_none_waits():
    pool = Pool()
    age = "gateway_queue_oldest_age_seconds"
    assert pool.value(age, **COMMON) == 0
    pool.offer()
    _, waiting = pool.offer()
    pool.now += 1.5
    assert pool.value(age, **COMMON) == 1.5
    pool.take(pool.admission.finish(waiting, Outcome.CLIENT_GONE, pool.now))
    assert pool.value(age, **COMMON) == 0


def test_an_answer_of_an_hour_has_a_bucket_so_that_quantiles_can_tell_it_from_minutes():
    pool = Pool()
    _, ticket = pool.offer()
    pool.now += 3_600.0
    pool.take(pool.admission.finish(ticket, Outcome.COMPLETED, pool.now))
    bucket = "gateway_request_seconds_bucket"
    assert [pool.value(bucket, **COMMON, le=le) for le in ("300.0", "1800.0", "3600.0")] == [0, 0, 1]


def test_every_class_and_length_has_its_gauges_also_at_zero():
    pool = Pool(a_plan())
    for name in pool.plan.classes:
        for length in LengthClass:
            labels = {"service_class": name, "length_class": length.value, "pool": "pool"}
            assert pool.value("gateway_queue_requests", **labels) == 0
            assert pool.value("gateway_queue_wait_limit_seconds", **labels) > 0
            assert pool.value("gateway_running_requests", **labels, engine="a") == 0


def test_budgets_and_the_ledger_are_shown_by_engine():
    pool = Pool()
    pool.offer()
    assert pool.value("gateway_prefill_tokens", length_class="short", pool="pool", engine="a") == 512
    assert pool.value("gateway_budget", pool="pool", engine="a", resource="short_prefill_tokens") == 512
    assert pool.value("gateway_long_prefills", pool="pool", engine="a") == 0


@pytest.mark.parametrize(("stream", "observed"), [(True, 1), (False, None)])
def test_a_time_to_first_token_is_a_streams_alone(stream, observed):
    pool = Pool()
    _, ticket = pool.offer(stream=stream)
    pool.now += 0.5
    pool.take(pool.admission.first_token(ticket, pool.now))
    assert pool.value("gateway_time_to_first_token_seconds_count", **COMMON) == observed
    assert pool.value("gateway_engine_time_to_first_token_seconds_count", **COMMON, engine="a") == observed


def test_the_longest_stall_is_the_longest_gap_of_the_stream():
    pool = Pool()
    exchange, ticket = pool.offer()
    for gap_s in (0.0, 0.1, 0.7, 0.2):
        pool.now += gap_s
        pool.observer.chunk(exchange, pool.now)
    pool.take(pool.admission.finish(ticket, Outcome.COMPLETED, pool.now))
    assert pool.value("gateway_stream_gap_seconds_count", **COMMON) == 3
    assert pool.value("gateway_longest_stall_seconds_sum", **COMMON) == pytest.approx(0.7)


def test_usage_feeds_the_token_counters_and_the_error_of_the_count():
    pool = Pool()
    exchange, _ = pool.offer()
    pool.observer.counted(exchange, 110, "local", 0.001)
    pool.observer.usage(exchange, Usage(prompt_tokens=100, output_tokens=7))
    assert pool.value("gateway_prompt_tokens_total", **COMMON) == 100
    assert pool.value("gateway_output_tokens_total", **COMMON) == 7
    ratio = "gateway_token_count_error_ratio_bucket"
    over = {"pool": "pool", "method": "local", "sign": "over"}
    assert (pool.value(ratio, **over, le="0.05"), pool.value(ratio, **over, le="0.25")) == (0, 1)
    assert pool.value("gateway_token_count_error_ratio_sum", **over) == pytest.approx(0.1)


def test_a_late_loop_is_seen():
    pool = Pool()
    for lag_s in (0.0, 0.2):
        pool.observer.loop_lagged(lag_s)
    lag = "gateway_event_loop_lag_seconds_bucket"
    assert (pool.value(lag, le="0.1"), pool.value(lag, le="0.25")) == (1, 2)


def test_usage_without_numbers_counts_nothing():
    pool = Pool()
    exchange, _ = pool.offer()
    pool.observer.usage(exchange, Usage())
    assert pool.value("gateway_prompt_tokens_total", **COMMON) is None


def test_a_refusal_is_counted_with_its_reason():
    pool = Pool(a_plan(a_class(requests_max=0), admission=an_admission(short_prefill_tokens_max=512)))
    pool.offer()
    exchange, _ = pool.offer()
    assert exchange.reason is Reason.QUEUE_FULL
    assert pool.value("gateway_refusals_total", **COMMON, reason="queue_full") == 1
    assert pool.value("gateway_requests_total", **COMMON, outcome="refused") == 1


def test_an_engine_that_said_nothing_yet_has_only_what_the_gateway_knows():
    reading = EngineReading("pool", False, None, None, None, None, 0, None, False)
    pool = Pool(readings={"a": reading})
    assert pool.value("gateway_engine_up", pool="pool", engine="a") == 0
    assert pool.value("gateway_engine_running", pool="pool", engine="a") is None
    assert pool.value("gateway_engine_restarts_total", pool="pool", engine="a") == 0


def test_the_exposition_names_the_policy_the_gateway_and_the_process():
    exposition = Pool().observer.exposition().decode()
    assert 'gateway_policy_info{name="a-plan",sha256=' in exposition
    assert 'gateway_info{version="' in exposition
    assert "process_open_fds" in exposition


def test_no_series_tells_of_another_ones_birth():
    pool = Pool()
    pool.offer()
    exposition = pool.observer.exposition().decode()
    assert "gateway_queue_wait_seconds_count" in exposition
    assert "_created" not in exposition


def test_a_refusal_is_labelled_with_its_length_and_pool_from_when_it_is_measured():
    pool = Pool()
    exchange = pool.arrive()
    assert exchange.length_class is None
    pool.observer.measured(exchange, LengthClass.SHORT, "pool")
    pool.observer.refused(Reason.BAD_REQUEST, exchange)
    pool.observer.ended_outside(exchange, Outcome.REFUSED)
    assert exchange.length_class is LengthClass.SHORT
    assert pool.value("gateway_refusals_total", **COMMON, reason="bad_request") == 1
    assert pool.value("gateway_requests_total", **COMMON, outcome="refused") == 1


def test_the_whole_exposition_is_valid_openmetrics_under_the_same_names():
    pool = Pool()
    exchange, ticket = pool.offer()
    pool.take(pool.admission.first_token(ticket, pool.now))
    pool.observer.usage(exchange, Usage(prompt_tokens=100, output_tokens=7))
    pool.take(pool.admission.finish(ticket, Outcome.COMPLETED, pool.now))
    names = [
        {sample.name for family in read(exposition.decode()) for sample in family.samples}
        for read, exposition in (
            (text_string_to_metric_families, pool.observer.exposition()),
            (open_metrics_families, pool.observer.exposition(open_metrics=True)),
        )
    ]
    assert names[0] == names[1]
    assert "gateway_offered_total" in names[1]
