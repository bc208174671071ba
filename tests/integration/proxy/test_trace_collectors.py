"""Traces on their way to a collector, which may take nothing or be dead: no request is hurt by it."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.testing import answers
from gateway.testing.harness import running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
TRACE_ID, CALLERS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01", "tracestate": "vendor=a:1,other=b"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-00"}
STREAM_WITH_USAGE = answers.streaming("Hello", " world", tail=[answers.usage_event(5, 2)])


class Collector:
    """Takes OTLP over HTTP; spans and their resource's attributes as they came."""

    def __init__(self):
        self.spans = []
        self.resources = []
        self.status = 200

    async def handle(self, request):
        assert (request.method, request.path) == ("POST", "/v1/traces")
        batch = ExportTraceServiceRequest.FromString(await request.read())
        if self.status == 200:
            for each in batch.resource_spans:
                self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        return web.Response(status=self.status)


@pytest.fixture
def exporting(monkeypatch):
    """Set what the environment says of the export: to a port, however long a busy machine takes over it."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)

    def to(port, **variables):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return to


@asynccontextmanager
async def a_collector():
    collector = Collector()
    runner = web.ServerRunner(web.Server(collector.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield collector, site.port
    finally:
        await runner.cleanup()


async def test_a_collector_gets_what_was_sampled_by_the_time_the_gateway_has_ended(tmp_path, exporting, logged):
    async with a_collector() as (collector, port), ScriptedEngine(STREAM_WITH_USAGE) as engine:
        exporting(port, OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
        async with running(tmp_path, engine, tracing=True) as gateway:
            assert (await gateway.chat(stream=True, headers=SAMPLED)).status == 200
            assert (await gateway.chat(stream=True, headers=UNSAMPLED)).status == 200
            await gateway.until(lambda: not gateway.exchanges)
            families = gateway.gateway.rooms.observer.families
    assert sorted(span.name for span in collector.spans) == [
        *(f"POST {CHAT}", "chat tiny", "gateway.first_token", "gateway.receive", "gateway.relay"),
    ]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    (resource,) = collector.resources
    assert (resource["service.name"], resource["deployment.environment"]) == ("vllm-admission-gateway", "test")
    assert families.trace_spans.at("exported").value == 5
    lines = [json.loads(line) for line in logged().splitlines()]
    assert TRACE_ID in {line.get("trace_id") for line in lines if line["event"] == "request"}
    assert not [line for line in lines if line["event"] in {"traces_not_exported", "traces_not_flushed"}]


async def test_a_collector_that_takes_nothing_hurts_no_request_and_is_told_of_once(tmp_path, exporting, logged):
    async with a_collector() as (collector, port), ScriptedEngine(STREAM_WITH_USAGE) as engine:
        collector.status = 400
        exporting(port, OTEL_BSP_SCHEDULE_DELAY="1")
        async with running(tmp_path, engine, tracing=True) as gateway:
            failed = gateway.gateway.rooms.observer.families.trace_spans.at("failed")
            for _ in range(3):
                before = failed.value
                assert (await gateway.chat(stream=True)).status == 200
                await gateway.until(lambda before=before: failed.value > before)
            collector.status = 200
            assert (await gateway.chat(stream=True)).status == 200
            await gateway.until(lambda: bool(collector.spans))
    events = [json.loads(line)["event"] for line in logged().splitlines()]
    assert [event for event in events if event != "request"].count("traces_not_exported") == 1
    assert events.count("traces_exported_again") == 1
    assert "library" not in events


async def test_a_gateway_whose_collector_is_not_there_serves_and_ends(tmp_path, exporting, logged):
    async with a_collector() as (_, port):
        pass
    exporting(port, OTEL_EXPORTER_OTLP_TIMEOUT="0.5")
    async with ScriptedEngine(STREAM_WITH_USAGE) as engine, running(tmp_path, engine, tracing=True) as gateway:
        assert (await gateway.chat(stream=True)).status == 200
    assert logged().count("traces_not_exported") == 1
