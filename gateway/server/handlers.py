"""The walk of one request, top to bottom: head, identity, body, count, class, line, engine, answer.

Owns the order of the steps, and the one place where a refusal, from whichever step, becomes an answer. Every step is
another room's; nothing is decided here. One module, because the walk is read from top to bottom.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from aiohttp import web

from gateway.core.classify import classify
from gateway.core.plan import LongPrefillMode, Plan
from gateway.core.ticket import Assignment
from gateway.core.types import Identity, LengthClass, Outcome, Reason, Refusal, Shape
from gateway.counting.counter import CountingOverloaded, Uncountable, shape_of
from gateway.counting.prompts import declared_audio
from gateway.engines.pool import Pool
from gateway.identity.callers import identify
from gateway.identity.credentials import CredentialRefused
from gateway.observe.exchange import Aside, Exchange
from gateway.observe.logs import safe_caller_id
from gateway.server import intake, models
from gateway.server.bodies import Bodies, HeldBody
from gateway.server.dispatch import Admitted, serve_at_engine
from gateway.server.downstream import AnswerBrokenOff, ClientGone, Downstream
from gateway.server.engine_failure import EngineFailure
from gateway.server.gate import AdmissionRefused
from gateway.server.heavy import drafted, of_body
from gateway.server.refusing import Refusing, draining, spread
from gateway.server.request_ids import REQUEST_ID, new_request_id
from gateway.server.rooms import Rooms
from gateway.server.slicer import Prompt
from gateway.server.unadmitted import Unadmitted
from gateway.server.visit import Visit
from gateway.shadow.counts import Line
from gateway.wire import refusals, requests
from gateway.wire.dialects import RESPONSES, Dialect, PromptForm, Route, WrongMethod, find_route
from gateway.wire.headers import engine_headers
from gateway.wire.requests import BadRequest, Call
from gateway.wire.targets import origin_form
from gateway.wire.twins import stated_ids, twin

_FAULTS_OF_THE_PROMPT = frozenset({Reason.BAD_REQUEST, Reason.CONTEXT_LENGTH})
_REFUSED = (Refusing, CredentialRefused, BadRequest, Uncountable, AdmissionRefused, EngineFailure)


class Handlers:
    """The public port's one handler."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._bodies = Bodies(rooms.intake.held_bytes_max)
        self._unadmitted = Unadmitted(rooms)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        rooms = self._rooms
        route = find_route(request.method, origin_form(request.raw_path).partition("?")[0])
        client = Downstream(request, stall_s=rooms.client_stall_s, is_last_here=self._connections_end)
        request_id = request[REQUEST_ID] = new_request_id()
        known = route if isinstance(route, Route) else None
        trace = None
        if rooms.tracing is not None:
            now = rooms.clock.now()
            trace = rooms.tracing.begin(request.method, known, request.headers.items(), request_id, now)
        crashed = False
        try:
            with rooms.ending.serving() as service:
                dialect = Dialect.OPENAI if route is None else route.dialect
                visit = Visit(request, request_id, dialect, client, service, trace=trace)
                if isinstance(route, Route) and route.generation:
                    await self._generation(visit, route)
                else:
                    await self._aside(visit, route)
        except AnswerBrokenOff:
            raise
        except Exception:
            crashed = True
            raise
        finally:
            if client.status is not None:
                rooms.observer.answered(None if known is None else known.name, client.status)
            if trace is not None:
                trace.end(client.status, rooms.clock.now(), crashed=crashed)
        assert client.response is not None
        return client.response

    def _connections_end(self) -> bool:
        return self._rooms.one_request_a_connection or not self._rooms.ending.is_serving

    # ── routes without engine time ──

    async def _aside(self, visit: Visit, route: Route | WrongMethod | None) -> None:
        now, name = self._rooms.clock.now, route.name if isinstance(route, Route) else None
        aside = Aside(visit.request_id, name, now())
        try:
            visit.aside = aside
            await self._other(visit, route)
        finally:
            aside.status, aside.ended_at = visit.client.status, now()
            self._rooms.observer.decisions.aside_ended(aside)

    async def _other(self, visit: Visit, route: Route | WrongMethod | None) -> None:
        try:
            async with visit.service:
                intake.judge_head(visit.request, self._rooms.intake)
                if isinstance(route, Route):
                    visit.identity = identity = await self._identify(visit.request)
                    if visit.aside is not None:
                        visit.aside.service_class = identity.service_class
                    await self._without_engine_time(visit, route, identity)
                else:
                    await self._refuse(visit, _no_route(route), allow=None if route is None else route.allow)
        except TimeoutError:
            if not visit.service.is_cut:
                raise
            await self._refuse(visit, draining(), closes=True)
        except ClientGone as gone:
            raise AnswerBrokenOff from gone
        except _REFUSED as error:
            await self._refuse(visit, error.refusal, closes=isinstance(error, Refusing) and error.closes)

    async def _without_engine_time(self, visit: Visit, route: Route, identity: Identity) -> None:
        if self._rooms.ending.refuses:
            raise Refusing(draining())
        if route.response_id is not None or route.method == "POST":
            pass_on = self._unadmitted.ask if route.response_id is None else self._unadmitted.of_response
            with self._bodies.holding() as held:
                await pass_on(visit, route, identity, held)
        else:
            headers = [("Content-Type", "application/json"), ("x-request-id", visit.request_id)]
            await visit.client.send(200, headers, models.answer(self._rooms.pools, identity, route.model_id))

    # ── routes that take engine time ──

    async def _generation(self, visit: Visit, route: Route) -> None:
        """Offer the request: from here to the end it is in exactly one phase."""
        observer, request = self._rooms.observer, visit.request
        arrived_at = self._rooms.clock.now()
        identity: Identity | None = None
        failure: BaseException | None = None
        try:
            intake.judge_head(request, self._rooms.intake)
            identity = await self._identify(request)
        except BaseException as error:  # noqa: BLE001 - raised below, once the request is counted
            failure = error
        exchange = observer.offered(visit.request_id, route.name, arrived_at, identity)
        exchange.trace, exchange.cut = visit.trace, visit.service.cut
        exchange.caller_request_id = safe_caller_id(request.headers.get("X-Request-Id"))
        visit.identity, visit.exchange = identity, exchange
        try:
            await self._walk_or_refuse(visit, route, failure)
        except asyncio.CancelledError:
            observer.ended_outside(exchange, Outcome.CLIENT_GONE)
            raise
        finally:
            # Nothing but a crash of our own leaves a request that admission never saw without an end.
            observer.ended_outside(exchange, Outcome.REFUSED)
            exchange.status = visit.client.status
            observer.settled(exchange)

    async def _walk_or_refuse(self, visit: Visit, route: Route, failure: BaseException | None) -> None:
        assert visit.exchange is not None
        try:
            async with visit.service:
                if failure is not None:
                    raise failure
                assert visit.identity is not None
                await self._walk(visit, visit.exchange, route, visit.identity)
        except ClientGone as gone:
            self._rooms.observer.ended_outside(visit.exchange, Outcome.CLIENT_GONE)
            raise AnswerBrokenOff from gone
        except TimeoutError:
            if not visit.service.is_cut:
                raise
            await self._refuse(visit, visit.service.cut_because or draining(), closes=True)
        except _REFUSED as error:
            counted = isinstance(error, AdmissionRefused)  # its event was
            closes = isinstance(error, Refusing) and error.closes
            await self._refuse(visit, error.refusal, closes=closes, is_counted=counted)

    async def _walk(self, visit: Visit, exchange: Exchange, route: Route, identity: Identity) -> None:
        if self._rooms.ending.refuses:
            raise Refusing(draining(), closes=True)
        with self._bodies.holding() as held:
            pool, admitted = await self._judge(visit, exchange, route, identity, held)
            self._rooms.observer.assigned(exchange, admitted.assignment, pool.name)
            gate, service = self._rooms.gates[pool.name], visit.service
            async with gate.admit(admitted.assignment, lambda: service.outcome_if_cancelled) as lease:
                await serve_at_engine(self._rooms, lease, admitted)

    async def _judge(
        self, visit: Visit, exchange: Exchange, route: Route, identity: Identity, held: HeldBody
    ) -> tuple[Pool, Admitted]:
        """Read, count and classify; nothing but the returned is kept of the request while it waits."""
        rooms, plan, headers = self._rooms, self._rooms.plan, visit.request.headers
        wait_s_wish = intake.wait_s_wish(visit.request)
        content_type = requests.body_type(route, headers.get("Content-Type", ""))
        body = await intake.read_body(visit.request, visit.client, rooms.intake, held)
        draft = await drafted(route, body, content_type)
        pools = rooms.pools  # those that the model is looked up in; a reload in between replaces the whole
        model_pools = models.pools_of(pools, identity, draft.model)
        call = await of_body(len(body), requests.judge, draft, plan.request, rooms.allowed_engine_fields)
        previous = call.members.get("previous_response_id") if route is RESPONSES else None
        keeper = None if previous is None else rooms.keeper_of(previous, identity.tenant, model_pools).target
        counting, longest_tokens = rooms.answering(model_pools), pools.longest_context_tokens(model_pools, call.model)
        shape = await self._measure(exchange, counting, call, longest_tokens)
        length_class = plan.length_class(shape.longest_prompt_tokens)
        # What goes on from a response can go on nowhere but where that is kept, however long it is.
        pool = model_pools.of(length_class) if keeper is None else model_pools.named(keeper.pool)
        rooms.observer.measured(exchange, length_class, pool.name)
        if exchange.trace is not None:
            exchange.trace.model = call.model
        prompt, is_divisible = await self._divisible(plan, pool, call, shape)
        judge = partial(
            classify,
            identity=identity,
            shape=shape,
            context_tokens=pools.context_tokens(pool, call.model),
            wait_s_wish=wait_s_wish,
            output_param=call.output_member or "",
            prompt_param=call.prompt_member,
            fingerprint=hash(body),
            says_retry=intake.says_retry(visit.request),
            is_divisible=is_divisible,
            engine=None if keeper is None else keeper.name,
        )
        judged = judge(plan)
        if (shadow := rooms.shadows.of(pool.name)) is not None:
            line = Line(identity.service_class, length_class)
            shadow.judge(judge, judged, line, rooms.clock.now())
        if not isinstance(judged, Assignment):
            raise Refusing(judged)
        sent_headers = engine_headers(headers.items(), content_type=content_type)
        call.release()
        return pool, Admitted(call, judged, sent_headers, exchange, visit.client, visit.service, prompt)

    # ── steps ──

    async def _identify(self, request: web.BaseRequest) -> Identity:
        rooms, headers = self._rooms, request.headers
        return await identify(
            headers.getall("Authorization", []),
            headers.getall("x-api-key", []),
            keyring=rooms.keyring,
            tokens=rooms.tokens,
            service_classes=rooms.plan.classes,
            now=rooms.clock.wall,
        )

    async def _divisible(self, plan: Plan, pool: Pool, call: Call, shape: Shape) -> tuple[Prompt | None, bool]:
        """Tell whether the prompt may be computed in parts; and its token ids, where they are what is sent."""
        parts = plan.admission.long_prefill
        is_long = plan.length_class(shape.longest_prompt_tokens) is LengthClass.LONG
        if parts is None or not is_long or not call.is_divisible:
            return None, False
        if parts.mode is LongPrefillMode.RECALLED:
            return None, True
        ids = await self._rooms.counters[pool.name].prompt_ids(call)
        if ids is None or len(ids) != shape.prompt_tokens:
            return None, False
        is_stated = stated_ids(call) is not None
        made = await of_body(len(call.body), twin, call)
        return Prompt(call.model, ids, made, call.members.get("cache_salt"), is_stated), True

    async def _measure(self, exchange: Exchange, pool: Pool, call: Call, context_tokens: int | None) -> Shape:
        rooms = self._rooms
        began_at, counter = rooms.clock.now(), rooms.counters[pool.name]
        try:
            if call.route.form is PromptForm.AUDIO:
                count = declared_audio(len(call.body))
            else:
                count = await counter.count(call, context_tokens=context_tokens)
        except CountingOverloaded:
            message = "More prompts are being counted than this gateway counts at once."
            raise Refusing(Refusal(Reason.OVERLOADED, message)) from None
        except (Refusing, Uncountable) as error:
            refusal = error.refusal
            if refusal.reason not in _FAULTS_OF_THE_PROMPT or refusal.param is not None:
                raise
            raise Refusing(replace(refusal, param=call.prompt_member)) from None
        cost_s = rooms.clock.now() - began_at
        rooms.observer.counted(exchange, count.prompt_tokens, count.method.value, cost_s)
        exchange.usage_told = partial(counter.learn, count)
        return shape_of(call, count)

    async def _refuse(
        self,
        visit: Visit,
        refusal: Refusal,
        *,
        closes: bool = False,
        is_counted: bool = False,
        allow: str | None = None,
    ) -> None:
        """Turn a refusal into the answer, or, inside a stream, into its last event. Raises AnswerBrokenOff."""
        observer, client, exchange = self._rooms.observer, visit.client, visit.exchange
        if not is_counted:
            observer.refused(refusal.reason, exchange)
            refusal = spread(refusal)
        if visit.aside is not None:
            visit.aside.refusal = refusal
        if exchange is not None:
            exchange.refusal = refusal
            observer.ended_outside(exchange, Outcome.REFUSED)
        service_class = None if visit.identity is None else visit.identity.service_class
        length_class = None if exchange is None else exchange.length_class
        if client.is_committed:
            words = (
                b""
                if client.tap is None
                else refusals.stream_error(
                    refusal,
                    dialect=visit.dialect,
                    request_id=visit.request_id,
                    tap=client.tap,
                    service_class=service_class,
                    length_class=length_class,
                )
            )
            await client.break_off(words)
            raise AnswerBrokenOff
        # Whoever has not sent the whole body is told not to: what follows on this connection would be the rest of it.
        if closes or not visit.request.content.is_eof():
            client.close_after()
        answer = refusals.render(
            refusal,
            dialect=visit.dialect,
            request_id=visit.request_id,
            service_class=service_class,
            length_class=length_class,
            allow=allow,
        )
        try:
            await client.send(answer.status, answer.headers.items(), answer.body)
        except ClientGone as gone:
            raise AnswerBrokenOff from gone


def _no_route(route: WrongMethod | None) -> Refusal:
    if route is None:
        return Refusal(Reason.UNKNOWN_ROUTE, "There is no such route here.")
    message = f"This route is there for {route.allow} alone."
    return Refusal(Reason.UNKNOWN_ROUTE, message, code="method_not_allowed")
