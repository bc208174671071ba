"""The gateway's own questions to engines: models, version, metrics, token counts, probes.

Owns the bound of an answer's size. Goes the same way as callers' requests do, with the engine's key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from gateway.core.types import Reason
from gateway.engines.target import Answer, EngineNotAsked, EngineSilent, EngineUnreachable, Target
from gateway.server.engine_failure import EngineFailure
from gateway.server.upstream import Outgoing, Upstream

ANSWER_BYTES_MAX = 16 << 20


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class Questions:
    """Implements gateway.engines.target.EngineHttp."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def get(self, target: Target, path: str, *, timeout_s: float) -> Answer:
        return await self._ask(target, Outgoing("GET", path, [], b""), timeout_s)

    async def post_json(
        self, target: Target, path: str, value: Any, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Answer:
        pairs = [("Content-Type", "application/json"), *(headers or {}).items()]
        # A prompt to be counted may be as large as a body: writing it down takes a thread's time, not the loop's.
        body = await asyncio.to_thread(_json_bytes, value)
        return await self._ask(target, Outgoing("POST", path, pairs, body), timeout_s)

    async def _ask(self, target: Target, outgoing: Outgoing, timeout_s: float) -> Answer:
        try:
            async with asyncio.timeout(timeout_s), self._upstream.open(target, outgoing) as reply:
                body = b""
                while chunk := await reply.read():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise EngineSilent(f"its answer to {outgoing.path} is over {ANSWER_BYTES_MAX} bytes")
                return Answer(reply.status, body)
        except TimeoutError as error:
            raise EngineSilent(f"no answer to {outgoing.path} within {timeout_s:g} s") from error
        except EngineFailure as failure:
            if failure.reason is Reason.ENGINE_UNREACHABLE:
                # The system's own words: they are for the operator, who can mend it.
                raise EngineUnreachable(str(failure.__cause__)) from failure
            silence = EngineNotAsked if failure.reason is Reason.OVERLOADED else EngineSilent
            raise silence(failure.refusal.message) from failure
