"""Traces: one span for each request, one for each phase, and the caller's context."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.core.plan import AdmissionKind, SlotBudget
from gateway.observe.tracing import Tracing
from gateway.server import handlers
from gateway.testing import answers, raw_client
from gateway.testing.builders import a_class, a_plan, an_admission
from gateway.testing.harness import BATCH_KEY, INTERACTIVE_KEY, a_chat, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
TRACE_ID, CALLERS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01", "tracestate": "vendor=a:1,other=b"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-00"}
STREAM_WITH_USAGE = answers.streaming("Hello", " world", tail=[answers.usage_event(5, 2)])
OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"}


class Spans:
    """The spans that a gateway's requests end in, from here on."""

    def __init__(self, gateway):
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        gateway.gateway.rooms.tracing = Tracing(provider.get_tracer("test"))
        self._gateway = gateway

    def all(self):
        return self._exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.all() if span.name == name]

    async def one_request(self):
        """Wait for the one request's own span, which ends last."""
        await self._gateway.until(lambda: any(span.kind is SpanKind.SERVER for span in self.all()))
        (span,) = [span for span in self.all() if span.kind is SpanKind.SERVER]
        assert all(span.end_time >= each.end_time for each in self.all())
        return span


def one_at_a_time(**members):
    return a_plan(
        a_class("interactive", wait_s_max=(0.05, 0.05), **members),
        a_class("batch", rank=1, wait_s_max=(30, 30)),
        admission=an_admission(AdmissionKind.SLOTS, slots=SlotBudget(1)),
    )


async def test_a_stream_has_a_span_for_each_phase_inside_its_callers_trace(tmp_path):
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        answer = await gateway.chat(stream=True, headers=SAMPLED)
        root = await spans.one_request()
    (at_engine,) = spans.named("chat tiny")
    assert {span.name: span.parent.span_id for span in spans.all()} == {
        f"POST {CHAT}": int(CALLERS_SPAN, 16),
        "gateway.receive": root.context.span_id,
        "chat tiny": root.context.span_id,
        "gateway.first_token": at_engine.context.span_id,
        "gateway.relay": at_engine.context.span_id,
    }
    assert {format_trace_id(span.context.trace_id) for span in spans.all()} == {TRACE_ID}
    (relay,), (first_token,) = spans.named("gateway.relay"), spans.named("gateway.first_token")
    assert first_token.end_time == relay.start_time <= relay.end_time == at_engine.end_time
    assert root.status.status_code is at_engine.status.status_code is StatusCode.UNSET
    said = dict(root.attributes)
    assert said.pop("gateway.wait_s") == 0
    assert said == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "url.path": CHAT,
        "url.scheme": "http",
        "gateway.request_id": answer.header("x-request-id"),
        "gateway.service_class": "interactive",
        "gateway.length_class": "short",
        "gateway.pool": "chat",
        "gateway.outcome": "completed",
        "gateway.engine": "a",
        "gateway.requeues": 0,
        "gateway.stream": True,
        "gateway.prompt_tokens": root.attributes["gateway.prompt_tokens"],
        "gateway.counting_method": "estimate",
    }
    assert (at_engine.kind, dict(at_engine.attributes)) == (
        SpanKind.CLIENT,
        {
            "gen_ai.provider.name": "vllm",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "tiny",
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 2,
            "gateway.engine": "a",
            "gateway.wait_s": 0.0,
        },
    )
    (post,) = engine.posts
    assert post.header("traceparent") == [f"00-{TRACE_ID}-{format_span_id(at_engine.context.span_id)}-01"]
    assert post.header("tracestate") == [SAMPLED["tracestate"]]


async def test_no_span_says_what_was_asked_by_whom_or_with_which_key(tmp_path):
    body = a_chat(stream=True, messages=[{"role": "user", "content": "a secret word"}], user="a-caller")
    headers = {"User-Agent": "secret-agent", "X-Request-Id": "callers-own", "Host": "secret.example"}
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        await gateway.ask(CHAT, body, headers=headers)
        await gateway.ask("/secret-path?secret=query", body)
        await gateway.ask("/v1/responses/resp_secret")
        await gateway.until(lambda: sum(span.kind is SpanKind.SERVER for span in spans.all()) == 3)
    told = " ".join(span.to_json() for span in spans.all())
    for word in ("secret", "a-caller", "callers-own", "tenant-interactive", INTERACTIVE_KEY, "Hello"):
        assert word not in told
    assert {"POST", "GET /v1/responses/{id}", f"POST {CHAT}"} <= {span.name for span in spans.all()}


RESET = answers.raw(then=lambda wire: wire.reset())
BREAK = answers.stream_of(answers.token("Hello"), then=lambda wire: wire.reset())


@pytest.mark.parametrize(
    ("script", "asked", "told"),
    [
        (STREAM_WITH_USAGE, {"model": 7}, (400, "refused", "bad_request", None)),
        (STREAM_WITH_USAGE, {"model": "other"}, (404, "refused", "unknown_model", None)),
        (answers.error(400), {}, (400, "completed", None, None)),
        (answers.error(500), {}, (500, "engine_error", None, "engine_error")),
        (RESET, {}, (502, "engine_error", "engine_broken", "engine_broken")),
        (BREAK, {"stream": True}, (200, "engine_error", "engine_broken", "engine_broken")),
        (answers.hanging(), {}, (504, "timed_out", "engine_timeout", "engine_timeout")),
    ],
)
async def test_every_end_is_one_span_of_the_right_status(tmp_path, script, asked, told):
    timeouts = {"first_byte_s": 0.05 if told[0] == 504 else 60}
    async with ScriptedEngine(script) as engine, running(tmp_path, engine, engine={"timeouts": timeouts}) as gateway:
        spans = Spans(gateway)
        with suppress(BrokenAnswer):
            await gateway.chat(**asked)
        root = await spans.one_request()
    names = ("http.response.status_code", "gateway.outcome", "gateway.reason", "error.type")
    assert tuple(root.attributes.get(name) for name in names) == told
    is_fault = told[3] is not None
    for span in (root, *spans.named("chat tiny")):
        assert (span.status.status_code is StatusCode.ERROR) is is_fault


@pytest.mark.parametrize(("path", "body"), [(CHAT, a_chat()), ("/v1/models", None)])
async def test_a_crash_of_our_own_is_an_error_on_any_route(tmp_path, monkeypatch, path, body):
    async def crash(*_args, **_kwargs):
        raise RuntimeError

    monkeypatch.setattr(handlers, "identify", crash)
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        assert (await gateway.ask(path, body)).status == 500
        root = await spans.one_request()
    assert (root.status.status_code, root.attributes["error.type"]) == (StatusCode.ERROR, "internal_error")
    assert len(spans.named("gateway.receive")) == (path == CHAT)


async def test_a_caller_who_is_not_known_has_a_span_without_a_class(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        await gateway.ask(CHAT, a_chat(), key="gw-nobody")
        root = await spans.one_request()
    assert root.status.status_code is StatusCode.UNSET
    said = {name: root.attributes[name] for name in ("gateway.service_class", "gateway.reason", "gateway.outcome")}
    assert said == {
        "gateway.service_class": "none",
        "gateway.reason": "unauthenticated",
        "gateway.outcome": "refused",
    }


async def test_a_wait_is_a_span_whether_it_ends_at_an_engine_or_at_its_deadline(tmp_path):
    release = asyncio.Event()
    async with (
        ScriptedEngine(answers.held(answers.completion(), release)) as engine,
        running(tmp_path, engine, plan=one_at_a_time()) as gateway,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(gateway.chat(key=BATCH_KEY))
        await engine.until(lambda: len(engine.posts) == 1)
        expired = Spans(gateway)
        assert (await gateway.chat()).header("x-gateway-reason") == "wait_deadline"
        root = await expired.one_request()
        spans = Spans(gateway)
        group.create_task(gateway.chat(key=BATCH_KEY))
        await gateway.until_metric("gateway_queue_requests", 1)
        release.set()
        served = await spans.one_request()
    (queue,) = expired.named("gateway.queue")
    assert (root.attributes["gateway.outcome"], root.status.status_code) == ("expired", StatusCode.UNSET)
    assert root.attributes["gateway.wait_s"] == pytest.approx((queue.end_time - queue.start_time) / 1e9, abs=1e-5)
    assert expired.named("chat tiny") == []
    (queue,), (at_engine,) = spans.named("gateway.queue"), spans.named("chat tiny")
    assert queue.parent.span_id == served.context.span_id
    assert queue.end_time == at_engine.start_time


async def test_an_engine_without_room_is_left_and_the_next_try_is_a_span_of_its_own(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        engine.scripts.append(answers.busy())
        spans = Spans(gateway)
        assert (await gateway.chat()).status == 200
        root = await spans.one_request()
    refused, served = sorted(spans.named("chat tiny"), key=lambda span: span.start_time)
    assert (refused.status.status_code, refused.attributes["error.type"]) == (StatusCode.ERROR, "no_room")
    assert served.status.status_code is root.status.status_code is StatusCode.UNSET
    assert root.attributes["gateway.requeues"] == 1
    (queue,) = spans.named("gateway.queue")
    assert (queue.parent.span_id, queue.start_time) == (root.context.span_id, refused.end_time)
    parents = [post.header("traceparent")[0].split("-")[2] for post in engine.posts]
    assert parents == [format_span_id(span.context.span_id) for span in (refused, served)]


@pytest.mark.parametrize("phase", ["gateway.receive", "gateway.queue", "gateway.first_token", "gateway.relay"])
async def test_a_client_that_leaves_ends_one_span_in_any_phase(tmp_path, phase):
    steps = asyncio.Queue()
    plan = one_at_a_time() if phase == "gateway.queue" else None
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine, plan=plan) as gateway,
        gateway.client(BATCH_KEY) as other,
        gateway.client(BATCH_KEY) as client,
    ):
        if phase == "gateway.queue":
            await other.post(CHAT, a_chat())
            await engine.until(lambda: len(engine.posts) == 1)
        spans = Spans(gateway)
        if phase == "gateway.receive":
            await client.send(client.head("POST", CHAT, {"Content-Length": "100"}) + b"{")
            await gateway.until_metric("gateway_receiving_requests", 1)
        else:
            await client.post(CHAT, a_chat(stream=True))
        if phase == "gateway.queue":
            await gateway.until_metric("gateway_queue_requests", 1)
        elif phase != "gateway.receive":
            await engine.until(lambda: len(engine.posts) == 1)
        if phase == "gateway.relay":
            steps.put_nowait(answers.STREAM_HEAD + answers.chunk(answers.token("Hello")))
            await client.read_head()
        client.leave()
        root = await spans.one_request()
    assert (root.attributes["gateway.outcome"], root.status.status_code) == ("client_gone", StatusCode.UNSET)
    phases = [span for span in spans.all() if span.kind is SpanKind.INTERNAL]
    assert max(phases, key=lambda span: span.start_time).name == phase


async def test_what_the_caller_does_not_sample_is_not_recorded_and_says_so_to_the_engine(tmp_path):
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        await gateway.chat(stream=True, headers=UNSAMPLED)
        await gateway.chat(stream=True, headers={"traceparent": f"00-{TRACE_ID}-zz-01", "tracestate": "a=b"})
        await spans.one_request()
        page = (await raw_client.request(gateway.ops_port, "/metrics", headers=OPEN_METRICS)).body.decode()
    unsampled, malformed = engine.posts
    _, trace_id, parent, flags = unsampled.header("traceparent")[0].split("-")
    assert (trace_id, flags) == (TRACE_ID, "00")
    assert parent != CALLERS_SPAN
    assert TRACE_ID not in malformed.header("traceparent")[0]
    assert malformed.header("tracestate") == []
    assert all(format_trace_id(span.context.trace_id) != TRACE_ID for span in spans.all())
    assert TRACE_ID not in page


async def test_a_question_without_engine_time_goes_on_in_the_requests_own_span(tmp_path):
    async with ScriptedEngine(answers.json_answer({"count": 3})) as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        await gateway.ask("/tokenize", {"model": "tiny", "prompt": "Hi"}, headers=SAMPLED)
        root = await spans.one_request()
    assert engine.posts[0].header("traceparent") == [f"00-{TRACE_ID}-{format_span_id(root.context.span_id)}-01"]
    assert [span.name for span in spans.all()] == ["POST /tokenize"]


async def test_an_engines_5xx_to_such_a_question_is_its_spans_error(tmp_path):
    async with ScriptedEngine(answers.error(500)) as engine, running(tmp_path, engine) as gateway:
        spans = Spans(gateway)
        await gateway.ask("/tokenize", {"model": "tiny", "prompt": "Hi"})
        root = await spans.one_request()
    assert (root.status.status_code, root.attributes["error.type"]) == (StatusCode.ERROR, "500")


async def test_without_tracing_the_callers_context_passes_as_it_came(tmp_path):
    odd = {"traceparent": "00-NOT a context\t!", "tracestate": "a=b ,, c=\xe9"}
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine) as gateway:
        for headers in (SAMPLED, odd):
            await gateway.chat(stream=True, headers=headers)
    for post, headers in zip(engine.posts, (SAMPLED, odd), strict=True):
        sent = {name: post.header(name)[0].encode("latin-1").decode() for name in headers}
        assert sent == headers


async def test_a_histograms_bucket_names_the_trace_that_fell_into_it(tmp_path):
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine) as gateway:
        Spans(gateway)
        await gateway.chat(stream=True, headers=SAMPLED)
        answer = await raw_client.request(gateway.ops_port, "/metrics", headers=OPEN_METRICS)
        plain = await gateway.ops("/metrics")
    assert answer.header("content-type").startswith("application/openmetrics-text; version=1.0.0")
    assert plain.header("content-type").startswith("text/plain; version=0.0.4")
    assert (b"# {" in plain.body, TRACE_ID.encode() in plain.body) == (False, False)
    found = {
        (family.name, sample.exemplar.labels["trace_id"], sample.value)
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert found == {
        ("gateway_queue_wait_seconds", TRACE_ID, 1),
        ("gateway_time_to_first_token_seconds", TRACE_ID, 1),
    }
