"""One request as a trace: its own span, a span for each of its phases, and the trace context that goes to the engine.

Owns what becomes a span and what is said on it: what metrics and the request's log line show, in the words of
OpenTelemetry's semantic conventions where they have one. Never a prompt, an answer, a key, a tenant, an address or a
caller's own text. Wants the extra `tracing`: nothing imports this while tracing is off. Exports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.core.ticket import Dispatched, Event, FirstToken, Queued, Recalled, SliceEnded
from gateway.core.types import Outcome
from gateway.observe.exchange import Exchange
from gateway.wire.dialects import PromptForm, Route

Headers = Iterable[tuple[str, str]]
Attributes = dict[str, str | int | float]

_W3C = TraceContextTextMapPropagator()
_PARENT, _STATE = "traceparent", "tracestate"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_OPERATIONS = {
    PromptForm.CHAT: "chat",
    PromptForm.RESPONSES: "chat",
    PromptForm.MESSAGES: "chat",
    PromptForm.COMPLETION: "text_completion",
    PromptForm.EMBEDDING: "embeddings",
}
_FAULTS = frozenset({Outcome.ENGINE_ERROR, Outcome.TIMED_OUT})
_NO_ROOM = "no_room"


class Tracing:
    """Begins traces. A request goes on in its caller's trace, and is sampled as the tracer's sampler says of that."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, method: str, route: Route | None, headers: Headers, request_id: str, now: float) -> Trace:
        """Begin a request's trace. route: None for what is not on the allow-list. headers: all of the caller's."""
        known = method if method in _METHODS else "_OTHER"
        attributes: Attributes = {
            "http.request.method": known,
            "url.scheme": "http",
            "gateway.request_id": request_id,
        }
        name = "HTTP" if known == "_OTHER" else known
        if route is not None:
            name = f"{name} {route.name}"
            attributes["http.route"] = route.name
            if "{" not in route.name:  # else a caller's own text is part of it
                attributes["url.path"] = route.path
        root = self._tracer.start_span(
            name, _callers(headers), SpanKind.SERVER, attributes=attributes, start_time=_ns(now)
        )
        trace = Trace(self._tracer, root, route)
        if route is not None and route.generation:
            trace.receives(now)
        return trace


class Trace:
    """One request's spans. model: the served model that it is for, once that is known.

    A phase's span ends where the next begins; the request's own ends last, once, in `end`.
    """

    def __init__(self, tracer: Tracer, root: Span, route: Route | None) -> None:
        self._tracer = tracer
        self._root = root
        self._route = route
        self._is_recorded = root.is_recording()
        self._phase: Span | None = None
        self._at_engine: Span | None = None
        self._fault: str | None = None
        self.model: str | None = None

    @property
    def id(self) -> str:
        return format_trace_id(self._root.get_span_context().trace_id)

    @property
    def sampled_id(self) -> str | None:
        """The trace's id where it can be looked up: what an exemplar may name."""
        return self.id if self._root.get_span_context().trace_flags.sampled else None

    def onward(self, headers: Headers) -> list[tuple[str, str]]:
        """Return headers for an engine, names in lower case, with this trace's context in place of the caller's."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._at_engine or self._root, Context()))
        return [pair for pair in headers if pair[0] not in {_PARENT, _STATE}] + list(carrier.items())

    def receives(self, now: float) -> None:
        """Begin to read and count."""
        self._turn_to("gateway.receive", now)

    def core_event(self, event: Event, now: float) -> None:
        """Take in what admission did; the request's end is told by `settled`."""
        if not self._is_recorded:
            return
        match event:
            case Queued():
                self._leave_engine(now, _NO_ROOM)
                self._turn_to("gateway.queue", now)
            case Dispatched(engine=engine, waited_s=waited_s):
                self._go_to_engine(engine, waited_s, now)
            case FirstToken():
                self._turn_to("gateway.relay", now)
            case SliceEnded(result=result) if self._at_engine is not None:
                self._at_engine.add_event("gateway.slice", {"gateway.result": result.value}, _ns(now))
            case Recalled() if self._at_engine is not None:
                self._at_engine.add_event("gateway.recall", timestamp=_ns(now))
            case _:
                pass

    def settled(self, exchange: Exchange) -> None:
        """Say what is known of a request that has ended, and end its phases."""
        if exchange.outcome in _FAULTS or (exchange.status or 0) >= 500:
            self._fault = str(exchange.outcome if exchange.reason is None else exchange.reason)
        if not self._is_recorded:
            return
        assert exchange.ended_at is not None, "only what has ended is settled"
        if self._at_engine is not None:
            self._at_engine.set_attributes(_usage(exchange))
        self._leave_engine(exchange.ended_at, self._fault)
        self._end_phase(exchange.ended_at)
        self._root.set_attributes(_known(exchange))

    def end(self, status: int | None, now: float, *, crashed: bool = False) -> None:
        """End the request's span. status: None where no answer began. crashed: by an error of the gateway's own."""
        fault = "internal_error" if crashed else self._fault
        if status is not None:
            self._root.set_attribute("http.response.status_code", status)
            if status >= 500:
                fault = fault or str(status)
        if fault is not None:
            _failed(self._root, fault)
        self._end_phase(now)  # one is left where a crash came before the request was counted
        self._root.end(_ns(now))

    def _turn_to(self, name: str, now: float) -> None:
        if not self._is_recorded:
            return
        self._end_phase(now)
        inside = set_span_in_context(self._at_engine or self._root, Context())
        self._phase = self._tracer.start_span(name, inside, start_time=_ns(now))

    def _end_phase(self, now: float) -> None:
        if self._phase is not None:
            self._phase.end(_ns(now))
            self._phase = None

    def _go_to_engine(self, engine: str, waited_s: float, now: float) -> None:
        assert self._route is not None, "only a route's request is dispatched"
        self._end_phase(now)
        operation = _OPERATIONS.get(self._route.form)
        attributes: Attributes = {
            "gen_ai.provider.name": "vllm",
            "gateway.engine": engine,
            "gateway.wait_s": waited_s,
        }
        if operation is not None:
            attributes["gen_ai.operation.name"] = operation
        if self.model is not None:
            attributes["gen_ai.request.model"] = self.model
        self._at_engine = self._tracer.start_span(
            f"{operation} {self.model}" if operation is not None else f"POST {self._route.name}",
            set_span_in_context(self._root, Context()),
            SpanKind.CLIENT,
            attributes=attributes,
            start_time=_ns(now),
        )
        self._turn_to("gateway.first_token", now)

    def _leave_engine(self, now: float, fault: str | None) -> None:
        if self._at_engine is None:
            return
        self._end_phase(now)
        if fault is not None:
            _failed(self._at_engine, fault)
        self._at_engine.end(_ns(now))
        self._at_engine = None


def _callers(headers: Headers) -> Context:
    """Read the caller's trace context; one that is malformed or stated twice is none."""
    said: dict[str, list[str]] = {_PARENT: [], _STATE: []}
    for name, value in headers:
        if (lower := name.lower()) in said:
            said[lower].append(value)
    if len(said[_PARENT]) != 1:
        return Context()
    return _W3C.extract({_PARENT: said[_PARENT][0], _STATE: ",".join(said[_STATE])}, Context())


def _known(exchange: Exchange) -> Mapping[str, str | int | float]:
    """Return what is known of an ended request: of what does not apply, nothing."""
    found: dict[str, str | int | float | None] = {
        "gateway.service_class": exchange.labels.service_class,
        "gateway.length_class": exchange.labels.length_class,
        "gateway.pool": exchange.labels.pool,
        "gateway.outcome": exchange.outcome,
        "gateway.reason": exchange.reason,
        "gateway.engine": exchange.engine,
        "gateway.wait_s": exchange.waited_s,
        "gateway.requeues": exchange.requeues,
        "gateway.stream": exchange.stream,
        "gateway.prompt_tokens": exchange.counted_prompt_tokens,
        "gateway.counting_method": exchange.counting_method or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _usage(exchange: Exchange) -> Mapping[str, int]:
    said = {
        "gen_ai.usage.input_tokens": exchange.prompt_tokens,
        "gen_ai.usage.output_tokens": exchange.output_tokens,
    }
    return {name: tokens for name, tokens in said.items() if tokens is not None}


def _failed(span: Span, fault: str) -> None:
    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", fault)


def _ns(now: float) -> int:
    return int(now * 1e9)
