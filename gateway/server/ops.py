"""The ops port: metrics, health, readiness, state, and the page that shows it. Never on the public port.

Owns its routes. No GET waits for anything: a scrape under full overload is answered like any other.
"""

from __future__ import annotations

from importlib import resources

from aiohttp import web

from gateway.observe.decisions import REFUSED_KEPT, SENT_KEPT
from gateway.observe.exposition import CONTENT_TYPE
from gateway.server.ops_acts import OpsActs
from gateway.server.rooms import Rooms
from gateway.server.state import is_ready, pools_not_ready, state

_PAGE = resources.files("gateway.server.page").joinpath("index.html").read_bytes()
_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


class Ops:
    """The ops port's handlers."""

    def __init__(self, rooms: Rooms, acts: OpsActs) -> None:
        self._rooms = rooms
        self._acts = acts

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/", self._page)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/api/state", self._state)
        application.router.add_get("/api/explain/{request_id}", self._explain)
        self._acts.add_to(application.router)
        return application

    async def _page(self, _request: web.Request) -> web.Response:
        return web.Response(body=_PAGE, headers=_PAGE_HEADERS)

    async def _metrics(self, _request: web.Request) -> web.Response:
        exposition = self._rooms.observer.exposition()
        return web.Response(body=exposition, headers={"Content-Type": CONTENT_TYPE})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        rooms = self._rooms
        ready = is_ready(rooms)
        body = {"ready": ready, "stage": rooms.ending.stage.value, "pools_without_engine": pools_not_ready(rooms)}
        return web.json_response(body, status=200 if ready else 503)

    async def _explain(self, request: web.Request) -> web.Response:
        rooms = self._rooms
        found = rooms.observer.decisions.explain(request.match_info["request_id"], rooms.clock.now())
        if found is not None:
            return web.json_response(found)
        message = "No request of this id is among those that are kept."
        fix = f"Look in the log: kept are the last {SENT_KEPT} that an engine got and {REFUSED_KEPT} that none got."
        return web.json_response({"error": {"message": message, "fix": fix}}, status=404)

    async def _state(self, _request: web.Request) -> web.Response:
        return web.json_response(state(self._rooms))
