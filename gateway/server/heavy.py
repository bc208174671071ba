"""Work on a request's body, done where it cannot hold up the other requests.

Owns the size from which a body is worked on in a thread: prose of that size is read in a third of a millisecond, and
one made of nothing but brackets in ten or more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

IN_LOOP_BYTES_MAX = 64 * 1024

_P = ParamSpec("_P")
_R = TypeVar("_R")


async def of_body(body_bytes: int, work: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Return `work(...)`, whose time grows with a body of `body_bytes`. Raises what it raises."""
    if body_bytes <= IN_LOOP_BYTES_MAX:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
