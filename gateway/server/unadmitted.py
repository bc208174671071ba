"""Requests that take no engine time, passed on without admission: token counts, and what an engine keeps of responses.

Owns the bounds of how many are open at once, in all and of one tenant. What is sent is judged as everything else is:
the model has to be the caller's, and nothing in the body may steer the engine or have it fetch something.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.core.types import Identity, Reason, Refusal, Resource
from gateway.engines.watch import EngineWatch
from gateway.server import intake, models
from gateway.server.bodies import HeldBody
from gateway.server.engine_failure import EngineFailure
from gateway.server.engine_turns import EngineTurns
from gateway.server.heavy import of_body
from gateway.server.refusing import Refusing
from gateway.server.rooms import Rooms
from gateway.server.upstream import Outgoing, Reply
from gateway.server.visit import Visit
from gateway.wire import requests
from gateway.wire.dialects import Route, request_id_headers
from gateway.wire.headers import client_headers, engine_headers
from gateway.wire.sse import StreamTap

OPEN_MAX = 64
OPEN_OF_TENANT_MAX = OPEN_MAX // 4  # one tenant, however many its keys, leaves room for others
_QUERY = re.compile(r"stream=(true|false)|starting_after=\d{1,9}")


class Unadmitted:
    """Passes questions on to an engine that serves the model, each engine in its turn."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._turns = EngineTurns(rooms.watches)
        self._open: Counter[str] = Counter()

    async def ask(self, visit: Visit, route: Route, identity: Identity, held: HeldBody) -> None:
        """Judge a question's body and have an engine answer it. Raises what refuses it."""
        rooms = self._rooms
        with self._opening(identity.tenant):
            body = await intake.read_body(visit.request, visit.client, rooms.intake, held)
            draft = await of_body(len(body), requests.read, route, body)
            pools = models.pools_of(rooms.pools, identity, draft.model)
            allowed = rooms.allowed_engine_fields
            call = await of_body(len(body), requests.judge, draft, rooms.plan.request, allowed)
            sent = await of_body(len(body), call.rewritten, set_members={})
            watch = self._turns.next_of(rooms.answering(pools).name)
            if watch is None:
                raise Refusing(Refusal(Reason.NO_ENGINE, "No engine can serve this model now."))
            headers = engine_headers(visit.request.headers.items(), content_type="application/json")
            headers.append(("X-Request-Id", visit.request_id))
            await self._pass_on(visit, watch, Outgoing("POST", route.path, headers, sent))

    async def of_response(self, visit: Visit, route: Route, identity: Identity, held: HeldBody) -> None:
        """Have the engine that made a response tell of it, or cancel it. Raises what refuses it."""
        rooms = self._rooms
        assert route.response_id is not None, "only a route about a response comes here"
        with self._opening(identity.tenant):
            watch = rooms.keeper_of(route.response_id, identity.tenant)
            await intake.read_body(visit.request, visit.client, rooms.intake, held)  # the id says it all
            asked = [pair for pair in visit.request.query_string.split("&") if _QUERY.fullmatch(pair)]
            path = f"{route.path}?{'&'.join(asked)}" if asked else route.path
            headers = [*engine_headers(visit.request.headers.items()), ("X-Request-Id", visit.request_id)]
            await self._pass_on(visit, watch, Outgoing(route.method, path, headers, b""))

    async def _pass_on(self, visit: Visit, watch: EngineWatch, outgoing: Outgoing) -> None:
        try:
            async with self._rooms.upstream.open(watch.target, outgoing) as reply:
                reply.require_for_caller()
                await _relay(reply, visit)
        except EngineFailure as failure:
            if failure.reason is Reason.ENGINE_UNREACHABLE:
                watch.refused()
            raise

    @contextmanager
    def _opening(self, tenant: str) -> Iterator[None]:
        self._refuse_too_many(tenant)
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    def _refuse_too_many(self, tenant: str) -> None:
        open_now = self._open.total()
        if open_now >= OPEN_MAX:
            reason, limit, observed, whose = Reason.OVERLOADED, OPEN_MAX, open_now, ""
        elif self._open[tenant] >= OPEN_OF_TENANT_MAX:
            reason, limit, observed = Reason.TENANT_QUEUE_FULL, OPEN_OF_TENANT_MAX, self._open[tenant]
            whose = " of one tenant"
        else:
            return
        message = f"As many questions without engine time{whose} are open as may be at once."
        raise Refusing(
            Refusal(reason, message, resource=Resource.REQUESTS, limit=limit, observed=observed), closes=True
        )


async def _relay(reply: Reply, visit: Visit) -> None:
    client, chunk = visit.client, await reply.read()
    reply.began()
    is_stream = reply.is_event_stream and reply.status == 200
    client.tap = tap = StreamTap(visit.dialect) if is_stream else None
    headers = client_headers(reply.headers, stream=is_stream) + request_id_headers(visit.dialect, visit.request_id)
    await client.commit(reply.status, headers, content_length=reply.content_length)
    while chunk:
        if tap is not None:
            tap.feed(chunk)
        await client.write(chunk)
        chunk = await reply.read()
    await client.end()
