"""From a lease to an answer: write the request for its engine, send it, relay what comes.

Owns what is added on the way (the engine's key, the priority, the gateway's own id) and what an engine's failure or
lack of room means for the lease and for the engine's health. Decides no order and no admission.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.core.ticket import Assignment
from gateway.core.types import Outcome, Reason
from gateway.engines.watch import EngineWatch
from gateway.observe.exchange import Exchange
from gateway.server.acceptance import would_take
from gateway.server.downstream import ClientGone, Downstream
from gateway.server.ending import Service
from gateway.server.engine_failure import EngineFailure
from gateway.server.gate import Lease
from gateway.server.heavy import of_body
from gateway.server.parts import TakenBack
from gateway.server.relay import Busy, Passage, relay
from gateway.server.rooms import Rooms
from gateway.server.slicer import Prompt, send_slice
from gateway.server.upstream import Outgoing
from gateway.wire.dialects import COMPLETIONS, Dialect, Route, request_id_headers
from gateway.wire.requests import Call

# The pause holds for the whole engine, so it does not grow with one request's tries: the others would wait with it.
BUSY_PAUSE_S = 0.25
PRIORITY_HEADER = "X-Vllm-Priority"

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Admitted:
    """One request that has been judged and admitted: what is sent of it, and to whom its answer goes.

    call: without its parsed members. headers: the caller's that may go to an engine. prompt: where it may be sliced.
    """

    call: Call
    assignment: Assignment
    headers: Headers
    exchange: Exchange
    client: Downstream
    service: Service
    prompt: Prompt | None = None


async def serve_at_engine(rooms: Rooms, lease: Lease, admitted: Admitted) -> None:
    """Send until an engine answers; sets lease.outcome. Raises what ends it otherwise, the outcome set already."""
    try:
        # The engine that it was dispatched to, for all its parts: a reload may give the name to another.
        watch = rooms.watches[lease.engine]
        while not isinstance(outcome := await _try_engine(rooms, watch, lease, admitted), Outcome):
            if isinstance(outcome, Busy):
                await lease.requeue(BUSY_PAUSE_S)
                watch = rooms.watches[lease.engine]
        lease.outcome = outcome
    except EngineFailure as failure:
        lease.outcome = failure.outcome
        waited = replace(failure.refusal, waited_s=lease.waited_s)
        raise EngineFailure(waited, failure.outcome) from failure
    except ClientGone:
        lease.outcome = lease.outcome or Outcome.CLIENT_GONE
        raise


async def _try_engine(rooms: Rooms, watch: EngineWatch, lease: Lease, admitted: Admitted) -> Outcome | Busy | TakenBack:
    """Send the request to its engine; of a divided prompt its slices before it, and it may be taken back."""
    parts = lease.parts
    if parts is None:
        return await _send_request(rooms, watch, lease, admitted)
    if admitted.prompt is not None:
        lease.accepted(is_accepted=await _would_take(rooms, watch, lease, admitted, admitted.prompt))
    while (tokens := await parts.next()) is not None:
        assert admitted.prompt is not None, "only what has a prompt is sliced"
        headers = _headers_of_own(watch, lease, admitted, COMPLETIONS, suffix=str(tokens))
        watch.dispatched()
        computed = None
        try:
            computed = await send_slice(
                rooms.upstream,
                watch.target,
                admitted.prompt,
                tokens,
                headers=headers,
                priority_in_body=_priority_in_body(watch, lease, COMPLETIONS),
            )
        except EngineFailure as failure:  # the caller's own request says what it comes to
            _tell_health(watch, failure, lease)
        lease.slice_ended(
            computed=computed is not None, cached_tokens=None if computed is None else computed.cached_tokens
        )
    try:
        async with parts.recallable():
            return await _send_request(rooms, watch, lease, admitted)
    except TakenBack as recalled:
        return recalled


async def _would_take(rooms: Rooms, watch: EngineWatch, lease: Lease, admitted: Admitted, prompt: Prompt) -> bool:
    """Ask whether the engine would take the request; where it does not say, the request itself does."""
    route = admitted.call.route
    headers = _headers_of_own(watch, lease, admitted, route, suffix="twin")
    try:
        # A Messages stream wraps the engine's words in others.
        question = await _outgoing(watch, lease, admitted, streams=route.dialect is not Dialect.ANTHROPIC)
        return await would_take(rooms.upstream, watch, prompt, route, question, twin_headers=headers)
    except EngineFailure as failure:
        _tell_health(watch, failure, lease)
        return False


def _headers_of_own(watch: EngineWatch, lease: Lease, admitted: Admitted, route: Route, *, suffix: str) -> Headers:
    """Return the headers of a request that the gateway makes for the caller's."""
    own_id = ("X-Request-Id", f"{admitted.exchange.request_id}-{suffix}")
    headers = [("Content-Type", "application/json"), own_id, *_priority_header(watch, lease, route)]
    return headers if admitted.exchange.trace is None else admitted.exchange.trace.onward(headers)


async def _send_request(rooms: Rooms, watch: EngineWatch, lease: Lease, admitted: Admitted) -> Outcome | Busy:
    passage = Passage(
        exchange=admitted.exchange,
        lease=lease,
        dialect=admitted.call.route.dialect,
        observer=rooms.observer,
        now=rooms.clock.now,
        own_headers=own_headers(admitted.exchange, admitted.call.route.dialect, lease.waited_s),
        answered=watch.answered,
        generated=watch.generated,
        leaving=watch.leaving,
        named=partial(rooms.kept_responses.made, engine=watch.target, tenant=admitted.assignment.tenant),
    )
    outgoing = await _outgoing(watch, lease, admitted)
    watch.dispatched()
    try:
        async with rooms.upstream.open(watch.target, outgoing) as reply:
            outcome = await relay(reply, admitted.client, passage)
            if outcome is Outcome.ENGINE_ERROR and lease.ticket.first_token_at is None:
                watch.failed()
            return outcome
    except EngineFailure as failure:
        _tell_health(watch, failure, lease)
        raise


def _tell_health(watch: EngineWatch, failure: EngineFailure, lease: Lease) -> None:
    if failure.reason is Reason.ENGINE_UNREACHABLE:
        watch.refused()
    elif failure.reason is Reason.ENGINE_TIMEOUT and lease.ticket.first_token_at is None:
        watch.silent()


def own_headers(exchange: Exchange, dialect: Dialect, waited_s: float | None) -> Headers:
    """Return the gateway's own response headers, as far as the request is known."""
    headers = request_id_headers(dialect, exchange.request_id)
    if exchange.assignment is not None:
        headers += [
            ("x-gateway-service-class", exchange.assignment.service_class),
            ("x-gateway-length-class", exchange.assignment.length_class.value),
            ("x-gateway-queue-ms", str(round((waited_s or 0) * 1000))),
        ]
    return headers


async def _outgoing(watch: EngineWatch, lease: Lease, admitted: Admitted, *, streams: bool = True) -> Outgoing:
    """Write the request for its engine. streams: as its caller says; else its answer comes whole."""
    call, assignment = admitted.call, admitted.assignment
    set_members: dict[str, Any] = {}
    if assignment.output_tokens_set is not None:
        assert call.output_member is not None, "only what generates has its output limited"
        set_members[call.output_member] = assignment.output_tokens_set
    trace = admitted.exchange.trace
    headers = admitted.headers if trace is None else trace.onward(admitted.headers)
    headers = [*headers, ("X-Request-Id", admitted.exchange.request_id)]
    headers += _priority_header(watch, lease, call.route)
    priority = _priority_in_body(watch, lease, call.route)
    if priority is not None:
        set_members["priority"] = priority
    if not streams and call.stream:
        set_members["stream"] = False
    body = await of_body(len(call.body), call.rewritten, set_members=set_members)
    return Outgoing("POST", call.route.path, headers, body)


def _priority_header(watch: EngineWatch, lease: Lease, route: Route) -> Headers:
    is_read = watch.priority_effective and watch.priority_in_header and route.priority_in_header
    return [(PRIORITY_HEADER, str(lease.priority))] if is_read else []


def _priority_in_body(watch: EngineWatch, lease: Lease, route: Route) -> int | None:
    is_in_header = watch.priority_in_header and route.priority_in_header
    return lease.priority if watch.priority_effective and route.priority_in_body and not is_in_header else None
