"""Would the engine take this request? Asked before its prompt is computed in slices, so that none is for nothing.

Owns the question: the caller's own bytes, for a rank that no engine has, or where that cannot be known the request's
twin. No engine time, or one step of a few tokens. What an engine would not take goes to it whole, and is refused in the
engine's own words.
"""

from __future__ import annotations

from gateway.engines import rank
from gateway.engines.watch import EngineWatch
from gateway.server.slicer import Prompt, read_small, succeeded
from gateway.server.upstream import Headers, Outgoing, Upstream
from gateway.wire.dialects import Dialect, Route


async def would_take(
    upstream: Upstream, watch: EngineWatch, prompt: Prompt, route: Route, outgoing: Outgoing, *, twin_headers: Headers
) -> bool:
    """Ask. outgoing: the request as it would be sent. Raises EngineFailure."""
    if route.dialect is not Dialect.RESPONSES and not prompt.is_stated and await watch.judges_rank():
        question = Outgoing("POST", outgoing.path, [*outgoing.headers, rank.HEADER], outgoing.body)
        async with upstream.open(watch.target, question) as reply:
            return rank.is_refused_alone(await read_small(reply))
    async with upstream.open(watch.target, Outgoing("POST", outgoing.path, twin_headers, prompt.twin)) as reply:
        return succeeded(reply, await read_small(reply)) is not None
