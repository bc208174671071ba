"""What has to hold for any bytes, as functions of bytes: for a fuzzer that is led by coverage, and for drawn examples.

Owns the claims, each an entry of `ENTRIES` that raises where it does not hold. Knows no fuzzer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from types import MappingProxyType
from typing import Any

from gateway.core.plan import RequestBounds
from gateway.testing.forms import FORM_TYPE
from gateway.wire import requests
from gateway.wire.dialects import ROUTES, Dialect, PromptForm, Route
from gateway.wire.fields import BadRequest
from gateway.wire.json_flaws import Malformed
from gateway.wire.sse import StreamTap
from gateway.wire.strict_json import parse, rewrite

EVENT_BYTES_MAX = 64
_BOUNDARY_BYTES = 4
_CUTS = 4
_DIALECTS = tuple(Dialect)
_BODY_ROUTES = tuple(route for route in ROUTES if route.form is not PromptForm.NONE)
_BOUNDS = RequestBounds(sequences_max=16, stop_max=64, list_items_max=1024)


def json_body(data: bytes) -> None:
    """Any bytes are read as the JSON library reads them, or refused by name; what is not changed is not touched."""
    members = _parsed(data)
    if members is None:
        return
    assert members == json.loads(data)
    assert rewrite(data, remove=(), put={}, present=members.keys()) is data
    changed = rewrite(data, remove=("n",), put={"priority": 7}, present=members.keys())
    assert parse(changed) == {name: value for name, value in members.items() if name != "n"} | {"priority": 7}


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        return parse(data)
    except Malformed as malformed:
        named = bool(malformed.code and malformed.param)
    assert named, "refused without a name"
    return None


def request_form(data: bytes) -> None:
    """Any body on any route is judged or refused by name, and what goes on is judged the same again.

    The first byte chooses the route.
    """
    if not data:
        return
    route = _BODY_ROUTES[data[0] % len(_BODY_ROUTES)]
    call = _judged(route, data[1:])
    if call is None:
        return
    assert call.model
    assert call.sequences >= call.prompts >= 1
    again = _judged(route, call.rewritten(set_members={}))
    assert again is not None
    assert (again.model, again.stream, again.sequences) == (call.model, call.stream, call.sequences)


def _judged(route: Route, body: bytes) -> requests.Call | None:
    try:
        return requests.judge(requests.read(route, body, FORM_TYPE), _BOUNDS, frozenset())
    except BadRequest as bad:
        named = bool(bad.refusal.message and bad.refusal.code)
    assert named, "refused without a name"
    return None


def event_stream(data: bytes) -> None:
    """A tap says the same of any bytes however they are cut, never raises, and keeps no more than its bound.

    The first byte chooses the dialect, the next four say how long the chunks are, one after the other.
    """
    if len(data) <= _CUTS:
        return
    dialect, lengths, stream = _DIALECTS[data[0] % len(_DIALECTS)], data[1 : _CUTS + 1], data[_CUTS + 1 :]
    assert _said(dialect, _cut(stream, lengths)) == _said(dialect, iter([stream]))


def _cut(stream: bytes, lengths: bytes) -> Iterator[bytes]:
    at = 0
    for length in cycle(lengths):
        if at >= len(stream):
            return
        yield stream[at : at + length + 1]
        at += length + 1


def _said(dialect: Dialect, chunks: Iterator[bytes]) -> tuple[object, ...]:
    tap = StreamTap(dialect, event_bytes_max=EVENT_BYTES_MAX)
    for chunk in chunks:
        tap.feed(chunk)
        kept = len(tap._buffer)  # noqa: SLF001 - what it keeps is the claim
        assert kept <= EVENT_BYTES_MAX + 2 * _BOUNDARY_BYTES
    state = (tap.first_event, tap.error, tap.opens_with_error, tap.given_up, tap.usage, tap.ended, tap.mid_event)
    tap.finish()
    return (*state, tap.ended, tap.usage)


ENTRIES: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
    {"json_body": json_body, "request_form": request_form, "event_stream": event_stream}
)
