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
from gateway.server.heavy import drafted, of_body
from gateway.server.refusing import Refusing
from gateway.server.relay import read_to_end
from gateway.server.reply import Reply
from gateway.server.rooms import Rooms
from gateway.server.slicer import read_small
from gateway.server.upstream import Outgoing
from gateway.server.visit import Visit
from gateway.wire import requests
from gateway.wire.answers import is_leaving
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
        self._turns = EngineTurns(rooms.watches, rooms.canary)
        self._open: Counter[str] = Counter()

    async def ask(self, visit: Visit, route: Route, identity: Identity, held: HeldBody) -> None:
        """Judge a question's body and have an engine answer it. Raises what refuses it."""
        rooms = self._rooms
        content_type = requests.body_type(route, visit.request.headers.get("Content-Type", ""))
        with self._opening(identity.tenant):
            body = await intake.read_body(visit.request, visit.client, rooms.intake, held)
            draft = await drafted(route, body)
            pools = models.pools_of(rooms.pools, identity, draft.model)
            allowed = rooms.allowed_engine_fields
            call = await of_body(len(body), requests.judge, draft, rooms.plan.request, allowed)
            sent = await of_body(len(body), call.rewritten, set_members={})
            outgoing = Outgoing("POST", route.path, _sent_headers(visit, content_type=content_type), sent)
            pool = rooms.answering(pools).name
            while (watch := self._turns.next_of(pool)) is not None:
                if await self._pass_on(visit, watch, outgoing):
                    return
            raise Refusing(Refusal(Reason.NO_ENGINE, "No engine can serve this model now."))

    async def of_response(self, visit: Visit, route: Route, identity: Identity, held: HeldBody) -> None:
        """Have the engine that made a response tell of it, or cancel it. Raises what refuses it."""
        rooms = self._rooms
        assert route.response_id is not None, "only a route about a response comes here"
        with self._opening(identity.tenant):
            watch = rooms.keeper_of(route.response_id, identity.tenant)
            await intake.read_body(visit.request, visit.client, rooms.intake, held)  # the id says it all
            asked = [pair for pair in visit.request.query_string.split("&") if _QUERY.fullmatch(pair)]
            path = f"{route.path}?{'&'.join(asked)}" if asked else route.path
            if not await self._pass_on(visit, watch, Outgoing(route.method, path, _sent_headers(visit), b"")):
                raise Refusing(Refusal(Reason.NO_ENGINE, "The engine that made this response is shutting down."))

    async def _pass_on(self, visit: Visit, watch: EngineWatch, outgoing: Outgoing) -> bool:
        """Pass it on, and back what the engine says; False: that was only that it shuts down."""
        assert visit.aside is not None, "only what takes no engine time comes here"
        visit.aside.engine = watch.target.name
        try:
            async with self._rooms.upstream.open(watch.target, outgoing) as reply:
                reply.require_for_caller()
                chunk = await (read_small(reply) if reply.status >= 500 else reply.read())
                if is_leaving(reply.status, chunk):
                    watch.leaving()
                    return False
                reply.require_body(chunk)
                await _relay(reply, visit, chunk)
                return True
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


def _sent_headers(visit: Visit, *, content_type: str | None = None) -> list[tuple[str, str]]:
    headers = engine_headers(visit.request.headers.items(), content_type=content_type)
    if visit.trace is not None:
        headers = visit.trace.onward(headers)
    return [*headers, ("X-Request-Id", visit.request_id)]


async def _relay(reply: Reply, visit: Visit, chunk: bytes) -> None:
    """chunk: what was read of the answer already."""
    client = visit.client
    reply.began()
    is_stream = reply.is_event_stream and reply.status == 200
    client.tap = tap = StreamTap(visit.dialect) if is_stream else None
    headers = client_headers(reply.headers, stream=is_stream) + request_id_headers(visit.dialect, visit.request_id)
    client.commit(reply.status, headers, content_length=reply.content_length)
    while chunk:
        if tap is not None:
            tap.feed(chunk)
        await client.write(chunk)
        chunk = await (reply.read() if tap is None else read_to_end(reply, tap))
    await client.end()
