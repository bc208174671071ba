"""The ops port's POST routes: reload, drain and route, and who may use them.

Owns the guard. A browser that some other page drives is refused; beyond loopback only a bearer token opens, and
without a token file there the routes are off. The token is read at each use, so that a new one needs no restart.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from gateway.engines.canary import Canary, CannotShift
from gateway.observe.metrics import Reloaded
from gateway.server import route_wish
from gateway.server.ending import Ending
from gateway.server.ops_answer import Answer, json_answer, problem
from gateway.server.reload import Applied
from gateway.server.route_wish import EndWish, RouteWish
from gateway.settings import Ops
from gateway.strict_yaml import ConfigError

TOKEN_CHARS_MIN = 16
BODY_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Acts:
    """What may be done from the ops port. drain and undrain return at once; route and end raise CannotShift."""

    reload: Callable[[], Awaitable[Applied | ConfigError]]
    drain: Callable[[], None]
    undrain: Callable[[], None]
    route: Callable[[RouteWish], None]
    end: Callable[[EndWish], int]


class OpsActs:
    """The handlers of the POST routes."""

    def __init__(self, acts: Acts, ending: Ending, canary: Canary, place: Ops) -> None:
        self._acts = acts
        self._canary = canary
        self._ending = ending
        self._place = place

    @property
    def routes(self) -> Mapping[str, Callable[[web.BaseRequest], Awaitable[Answer]]]:
        """The handlers of POST, by path."""
        return {"/api/reload": self._reload, "/api/drain": self._drain, "/api/route": self._route}

    async def _reload(self, request: web.BaseRequest) -> Answer:
        if (no := await self._why_not(request)) is not None:
            return no
        done = await self._acts.reload()
        if isinstance(done, ConfigError):
            refused = {
                "result": Reloaded.REFUSED.value,
                "file": done.file,
                "key_path": done.key_path,
                "problem": done.problem,
                "fix": done.fix,
                "faults": done.lines(),
            }
            return json_answer(refused, status=400)
        policy = {"name": done.policy, "sha256": done.sha256}
        return json_answer(
            {"result": Reloaded.APPLIED.value, "policy": policy, "needs_restart": list(done.needs_restart)}
        )

    async def _drain(self, request: web.BaseRequest) -> Answer:
        if (no := await self._why_not(request)) is not None:
            return no
        off = request.query.get("off", "0")
        if off not in {"0", "1"}:
            return problem(400, "off is 1 or 0.", "Use ?off=1 to serve again")
        (self._acts.undrain if off == "1" else self._acts.drain)()
        return json_answer({"stage": self._ending.stage.value})

    async def _route(self, request: web.BaseRequest) -> Answer:
        if (no := await self._why_not(request)) is not None:
            return no
        try:
            async with asyncio.timeout(BODY_S_MAX):
                wish = route_wish.read(await request.read())
            if isinstance(wish, EndWish):
                return json_answer({"pool": wish.pool, "ended": self._acts.end(wish)})
            self._acts.route(wish)
        except CannotShift as cannot:
            return problem(400, cannot.problem, cannot.fix)
        except (TimeoutError, web.HTTPRequestEntityTooLarge):
            return problem(400, "The body is too large, or does not come.", "Send the weights alone")
        weights, shifted = self._canary.weights(wish.pool), self._canary.is_shifted(wish.pool)
        return json_answer({"pool": wish.pool, "weights": weights, "shifted": shifted})

    async def _why_not(self, request: web.BaseRequest) -> Answer | None:
        if _is_from_another_page(request, loopback_only=self._place.is_loopback):
            return problem(403, "Requests from other pages are refused.", "Use curl, or this port's own page")
        if self._place.token_file is None:
            if self._place.is_loopback:
                return None
            return problem(403, "This route is off: ops listens beyond loopback.", "Set ops.token_file")
        try:
            token = (await asyncio.to_thread(self._place.token_file.read_bytes)).strip()
        except OSError as error:
            why = f"This route is off: the token cannot be read ({error.strerror})."
            return problem(403, why, "Mend ops.token_file")
        return _why_not_with(token, request)


def _why_not_with(token: bytes, request: web.BaseRequest) -> Answer | None:
    if len(token) < TOKEN_CHARS_MIN:
        return problem(403, "This route is off: the token is short.", f"Use {TOKEN_CHARS_MIN} characters or more")
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    presented = given.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "bearer" and hmac.compare_digest(presented, token):
        return None
    return problem(401, "This route wants the ops token.", "Send it as 'Authorization: Bearer TOKEN'")


def is_under_another_name(request: web.BaseRequest, place: Ops) -> bool:
    """Whether a browser asks by a name that only resolves to this machine: its page would read what is answered.

    Whoever names no host is no browser. Beyond loopback any name may be the right one.
    """
    host = request.headers.get("Host")
    return place.is_loopback and host is not None and not _is_loopback(host)


def _is_from_another_page(request: web.BaseRequest, *, loopback_only: bool) -> bool:
    """A browser says whose page sends; a name that only resolves to loopback is somebody else's page too."""
    host = request.headers.get("Host", "")
    if loopback_only and not _is_loopback(host):
        return True
    if request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        return True
    origin = request.headers.get("Origin")
    return origin is not None and _place_of(origin) != host.lower()


def _place_of(origin: str) -> str | None:
    """Return the host and port of an origin; None where it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
