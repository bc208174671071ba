"""Which headers pass, both ways.

Owns the two lists as facts. Towards the engine it is an allow-list: what the engine reads and a caller may set;
credentials, the engine's own control headers, forwarding claims and cookies are simply not on it. Towards the client
everything passes but framing, connection state and what the gateway states itself. Sets no header of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# vLLM reads content-type and the trace headers; accept and user-agent serve whoever reads the engine's access log.
TO_ENGINE = ("content-type", "accept", "user-agent", "traceparent", "tracestate")

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# content-length: framing is the gateway's. date, server, request ids: one of each, the gateway's. set-cookie: the
# engine is shared between tenants.
_STATED_HERE = ("content-length", "date", "server", "set-cookie", "x-request-id", "request-id", "alt-svc")
NOT_TO_CLIENT = HOP_BY_HOP.union(_STATED_HERE)
OWN_PREFIX = "x-gateway-"

STREAM_HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}

# What a header value may hold when it is written out again: no control characters, no undecodable bytes.
_VALUE = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")

Headers = Iterable[tuple[str, str]]


def engine_headers(headers: Headers, *, content_type: str | None = None) -> list[tuple[str, str]]:
    """The caller's headers that go to the engine: allowed names, the first of each, none that Connection names.

    content_type: what the body was judged to be; None: there is none.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    refused = _named_by_connection(pairs)
    chosen: dict[str, str] = {}
    for name, value in pairs:
        if name in TO_ENGINE and name not in refused and _VALUE.fullmatch(value):
            chosen.setdefault(name, value)
    if content_type is not None:
        chosen["content-type"] = content_type
    return list(chosen.items())


def client_headers(headers: Headers, *, stream: bool) -> list[tuple[str, str]]:
    """The engine's headers that go to the client, in order, names as the engine wrote them.

    `stream`: the answer is an event stream; its caching headers are the gateway's and are included. A value that
    cannot be written out as one header line is left out.
    """
    pairs = list(headers)
    refused = _named_by_connection((name.lower(), value) for name, value in pairs) | NOT_TO_CLIENT
    if stream:
        refused |= {name.lower() for name in STREAM_HEADERS}
    passed = [
        (name, value)
        for name, value in pairs
        if name.lower() not in refused and not name.lower().startswith(OWN_PREFIX) and _VALUE.fullmatch(value)
    ]
    return passed + list(STREAM_HEADERS.items()) if stream else passed


def _named_by_connection(pairs: Headers) -> set[str]:
    return {token.strip().lower() for name, value in pairs if name == "connection" for token in value.split(",")}
