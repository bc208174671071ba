"""Spans on their way to a collector: OTLP over HTTP, in batches, from a thread of their own.

Owns the tracer provider, set up by the standard OTEL_* environment variables alone, and what is told of a collector
that takes nothing: one line where that begins and one where it ends. The queue before it is bounded, and gives up the
oldest first; no request ever waits for it. Wants the extra `tracing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from gateway.observe.release import RELEASE

SERVICE_NAME = "vllm-admission-gateway"
_UNNAMED = "unknown_service"
_LIBRARY = logging.getLogger("opentelemetry")


class Sent(StrEnum):
    """What became of a span that was to be exported."""

    EXPORTED = "exported"
    FAILED = "failed"


class TraceExport:
    """The way out of all spans. counted: told how many spans went or did not, from the exporting thread.

    Raises ValueError where an OTEL_* variable is no good.
    """

    def __init__(self, counted: Callable[[Sent, int], None]) -> None:
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith(_UNNAMED):
            resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
        # The end of the process is the gateway's to time.
        self._provider = TracerProvider(
            resource=resource.merge(Resource({"service.version": RELEASE})), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Watched(OTLPSpanExporter(), counted)))
        # It writes a line for each try that fails; what is to be known is said once, here.
        _LIBRARY.setLevel(logging.CRITICAL + 1)

    def tracer(self) -> Tracer:
        return self._provider.get_tracer("gateway", RELEASE)

    def flush_and_end(self) -> None:
        """Export what waits, and end; blocks for as long as the collector makes it."""
        self._provider.shutdown()


class _Watched(SpanExporter):
    """An exporter of whose failures are told the first and the last. Its calls come one at a time."""

    def __init__(self, exporter: SpanExporter, counted: Callable[[Sent, int], None]) -> None:
        self._exporter = exporter
        self._counted = counted
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._tell(result is SpanExportResult.SUCCESS, len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _tell(self, is_taken: bool, spans: int) -> None:
        self._counted(Sent.EXPORTED if is_taken else Sent.FAILED, spans)
        if is_taken is not self._is_failing:
            return
        self._is_failing = not is_taken
        log = structlog.get_logger()
        if is_taken:
            log.info("traces_exported_again")
        else:
            fix = (
                "see that a collector takes OTLP over HTTP at OTEL_EXPORTER_OTLP_ENDPOINT; requests are served as ever"
            )
            log.warning("traces_not_exported", problem="the collector takes no spans: they are dropped", fix=fix)
