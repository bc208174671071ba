"""Work on a request's body, done where it cannot hold up the other requests.

Owns the size from which a body is worked on in a thread: prose of that size is read in a third of a millisecond, and
one made of nothing but brackets in ten or more. To say what is wrong with a body takes several times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gateway.wire import requests
from gateway.wire.dialects import Route

IN_LOOP_BYTES_MAX = 64 * 1024

_P = ParamSpec("_P")
_R = TypeVar("_R")


async def of_body(body_bytes: int, work: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return `work(...)`, whose time grows with a body of `body_bytes`. Raises what it raises."""
    if body_bytes <= IN_LOOP_BYTES_MAX:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def drafted(route: Route, body: bytes, content_type: str = "") -> requests.Draft:
    """Read a body; a large or a faulty one in a thread. Raises BadRequest."""
    if len(body) <= IN_LOOP_BYTES_MAX:
        draft = requests.read_quickly(route, body, content_type)
        if draft is not None:
            return draft
    return await asyncio.to_thread(requests.read, route, body, content_type)
