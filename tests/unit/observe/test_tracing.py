"""What of a request becomes a span, where no server is needed to see it."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gateway.core.ticket import Dispatched, Recalled, SliceEnded, SliceResult
from gateway.core.types import Outcome
from gateway.observe.exchange import Exchange
from gateway.observe.tracing import Tracing
from gateway.wire.dialects import CHAT_COMPLETIONS, RERANK


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider.get_tracer("test"))


def an_ended_exchange(outcome):
    return Exchange("r", CHAT_COMPLETIONS.name, 1.0, outcome=outcome, ended_at=9.0)


def test_the_parts_of_a_long_prompt_are_events_of_its_engines_span(tracing, spans):
    trace = tracing.begin("POST", CHAT_COMPLETIONS, [], "r", 1.0)
    trace.model = "tiny"
    trace.core_event(Dispatched(None, "a", 0, 0.0, divided=True), 2.0)
    trace.core_event(SliceEnded(None, SliceResult.COMPUTED), 3.0)
    trace.core_event(Recalled(None), 4.0)
    trace.settled(an_ended_exchange(Outcome.COMPLETED))
    trace.end(200, 9.5)
    by_name = {span.name: span for span in spans.get_finished_spans()}
    told = [(event.name, event.timestamp, dict(event.attributes)) for event in by_name["chat tiny"].events]
    assert told == [
        ("gateway.slice", 3_000_000_000, {"gateway.result": "computed"}),
        ("gateway.recall", 4_000_000_000, {}),
    ]
    ends = {name: span.end_time / 1e9 for name, span in by_name.items()}
    assert ends == {
        "gateway.receive": 2.0,
        "gateway.first_token": 9.0,
        "chat tiny": 9.0,
        "POST /v1/chat/completions": 9.5,
    }


def test_what_is_no_generation_of_text_is_named_by_its_route(tracing, spans):
    trace = tracing.begin("POST", RERANK, [], "r", 1.0)
    trace.core_event(Dispatched(None, "a", 0, 0.0), 2.0)
    trace.settled(an_ended_exchange(Outcome.COMPLETED))
    trace.end(200, 9.0)
    at_engine = next(span for span in spans.get_finished_spans() if "gateway.wait_s" in span.attributes)
    assert at_engine.name == "POST /v1/rerank"
    assert "gen_ai.operation.name" not in at_engine.attributes


def test_a_crash_of_our_own_is_an_error(tracing, spans):
    trace = tracing.begin("POST", CHAT_COMPLETIONS, [], "r", 1.0)
    trace.settled(an_ended_exchange(Outcome.REFUSED))
    trace.end(None, 9.0, crashed=True)
    root = spans.get_finished_spans()[-1]
    assert (root.status.status_code, root.attributes["error.type"]) == (StatusCode.ERROR, "internal_error")


def test_a_method_that_nobody_knows_is_not_written_down(tracing, spans):
    tracing.begin("SECRET", None, [], "r", 1.0).end(404, 2.0)
    (root,) = spans.get_finished_spans()
    assert (root.name, root.attributes["http.request.method"]) == ("HTTP", "_OTHER")
    assert root.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("outcome", Outcome)
def test_only_what_an_engine_or_the_gateway_did_wrong_is_an_error(tracing, spans, outcome):
    trace = tracing.begin("POST", CHAT_COMPLETIONS, [], "r", 1.0)
    trace.settled(an_ended_exchange(outcome))
    trace.end(200, 9.0)
    is_fault = outcome in {Outcome.ENGINE_ERROR, Outcome.TIMED_OUT}
    root = spans.get_finished_spans()[-1]
    assert (root.status.status_code is StatusCode.ERROR, root.attributes.get("error.type")) == (
        is_fault,
        outcome.value if is_fault else None,
    )
