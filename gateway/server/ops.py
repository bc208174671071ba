"""The ops port: metrics, health, readiness, state, and the page that shows it. Never on the public port.

Owns its routes and bounds. No GET waits for anything: a scrape under full overload is answered like any other, and
whoever takes no answer is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib import resources
from urllib.parse import unquote

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from gateway.observe.decisions import ASIDES_KEPT, REFUSED_KEPT, SENT_KEPT
from gateway.observe.exposition import CONTENT_TYPE
from gateway.server.downstream import AnswerBrokenOff, ClientGone, Downstream
from gateway.server.front import PortBounds
from gateway.server.ops_acts import OpsActs, is_under_another_name
from gateway.server.ops_answer import JSON, Answer, json_answer, problem
from gateway.server.promises import Promises
from gateway.server.request_ids import is_request_id
from gateway.server.rooms import Rooms
from gateway.server.state import is_ready, pools_not_ready, written
from gateway.settings import Ops as OpsPlace
from gateway.wire.targets import origin_form

EXPLAIN = "/api/explain/"
_OPEN_METRICS = CONTENT_TYPE_LATEST.partition(";")[0]
_PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/history.js": ("history.js", "text/javascript; charset=utf-8"),
    "/rows.js": ("rows.js", "text/javascript; charset=utf-8"),
}
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,6})?")
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
_PAGES = {  # read at import: no file is read on the loop
    path: Answer(
        200,
        {"Content-Type": content_type, **_PAGE_HEADERS},
        resources.files("gateway.server.page").joinpath(name).read_bytes(),
    )
    for path, (name, content_type) in _PAGE_FILES.items()
}


STALL_S_MAX = 30.0
OPS_BOUNDS = PortBounds(
    connections_max=256,
    header_bytes_max=32_768,
    keepalive_s=75.0,  # above any scrape interval: a scraper keeps its connection
    stall_s=STALL_S_MAX,
)


class Ops:
    """The ops port's one handler, and its routes by path and method."""

    def __init__(self, rooms: Rooms, acts: OpsActs, place: OpsPlace) -> None:
        self._rooms = rooms
        self._place = place
        self._promises = Promises(rooms)
        self._routes: dict[str, tuple[str, Callable[[web.BaseRequest], Awaitable[Answer]]]] = {
            **dict.fromkeys(_PAGES, ("GET", self._page)),
            "/metrics": ("GET", self._metrics),
            "/healthz": ("GET", self._healthz),
            "/readyz": ("GET", self._readyz),
            "/api/state": ("GET", self._state),
            "/api/history": ("GET", self._history),
            **{path: ("POST", act) for path, act in acts.routes.items()},
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        client = Downstream(request, stall_s=STALL_S_MAX, is_last_here=lambda: False)
        answer = await self._answer(request)
        if not request.content.is_eof():
            client.close_after()
        try:
            await client.send(answer.status, answer.headers.items(), answer.body)
        except ClientGone as gone:
            raise AnswerBrokenOff from gone
        assert client.response is not None
        return client.response

    async def _answer(self, request: web.BaseRequest) -> Answer:
        if is_under_another_name(request, self._place):
            return problem(403, "This port goes by no such name.", "Ask for localhost or 127.0.0.1")
        path = origin_form(request.raw_path).partition("?")[0]
        route = ("GET", self._explain) if path.startswith(EXPLAIN) else self._routes.get(path)
        if route is None:
            there = ", ".join((*self._routes, f"{EXPLAIN}ID"))
            return problem(404, "There is no such page here.", f"There are {there}")
        method, act = route
        if request.method not in ({"GET", "HEAD"} if method == "GET" else {method}):
            return problem(405, f"This page is there for {method} alone.", f"Use {method}", headers={"Allow": method})
        return await act(request)

    async def _page(self, request: web.BaseRequest) -> Answer:
        return _PAGES[origin_form(request.raw_path).partition("?")[0]]

    async def _metrics(self, request: web.BaseRequest) -> Answer:
        if _asks_for_open_metrics(", ".join(request.headers.getall("Accept", []))):
            page = self._rooms.observer.exposition(open_metrics=True)
            return Answer(200, {"Content-Type": CONTENT_TYPE_LATEST}, page)
        return Answer(200, {"Content-Type": CONTENT_TYPE}, self._rooms.observer.exposition())

    async def _healthz(self, _request: web.BaseRequest) -> Answer:
        return json_answer({"alive": True})

    async def _readyz(self, _request: web.BaseRequest) -> Answer:
        rooms = self._rooms
        ready = is_ready(rooms)
        body = {"ready": ready, "stage": rooms.ending.stage.value, "pools_without_engine": pools_not_ready(rooms)}
        return json_answer(body, status=200 if ready else 503)

    async def _explain(self, request: web.BaseRequest) -> Answer:
        rooms = self._rooms
        request_id = unquote(origin_form(request.raw_path).partition("?")[0].removeprefix(EXPLAIN))
        found = rooms.observer.decisions.explain(request_id, rooms.clock.now())
        if found is not None:
            return json_answer(found)
        if not is_request_id(request_id):
            message = "The gateway gives no such ids."
            return problem(
                404, message, "Give the x-request-id of its answer; one that the caller made is in the log alone"
            )
        message = "No request of this id is among those that are kept."
        kept = (
            f"the last {SENT_KEPT} generations that an engine got and {REFUSED_KEPT} that none got, and {ASIDES_KEPT} "
            "each of the requests without engine time"
        )
        away = "what is no HTTP, or came over the bound of connections, is kept nowhere"
        return problem(404, message, f"Look in the log: kept are {kept}; {away}")

    async def _state(self, request: web.BaseRequest) -> Answer:
        promises = None if request.query.get("promises") == "off" else self._promises
        return Answer(200, JSON, await written(self._rooms, promises))

    async def _history(self, request: web.BaseRequest) -> Answer:
        """Answer with what is kept since `?since`, seconds since the epoch; without it, with all."""
        since = request.query.get("since", "0")
        if not _SECONDS.fullmatch(since):
            return problem(400, "`since` is no time in seconds since the epoch.", "Give the `last_at` of an answer")
        self._rooms.observer.look()
        return Answer(200, JSON, await self._rooms.observer.history.written(float(since)))


def _asks_for_open_metrics(accept: str) -> bool:
    try:
        _, content_type = choose_encoder(accept)
    except TypeError:  # of a version that is no number
        return False
    return content_type.startswith(_OPEN_METRICS)
