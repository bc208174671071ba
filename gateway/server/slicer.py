"""The slices of a long prompt: growing prefixes that an engine computes before the caller's own request comes.

Owns what a slice looks like on the wire, and that its answer reaches nobody. How large it is and when it goes is the
core's to say.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import Any

from gateway.engines.target import Target
from gateway.server.heavy import of_body
from gateway.server.reply import Reply
from gateway.server.upstream import Headers, Outgoing, Upstream
from gateway.wire.answers import BodyTap

PATH = "/v1/completions"
ANSWER_BYTES_MAX = 1 << 16
_BYTES_PER_ID = 6


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine will see it. salt: the caller's own `cache_salt`: its slices share that cache alone.

    twin: the request itself on a prompt of one word. is_stated: the caller stated the ids, so that they may be none.
    """

    model: str
    ids: array[int]
    twin: bytes
    salt: Any = None
    is_stated: bool = False

    def prefix_body(self, tokens: int, priority: int | None) -> bytes:
        """The body of a request that computes the first `tokens`; one token is the least that it can ask for."""
        body: dict[str, Any] = {"model": self.model, "prompt": self.ids[:tokens].tolist()}
        body |= {"max_tokens": 1, "temperature": 0}
        if self.salt is not None:
            body["cache_salt"] = self.salt
        if priority is not None:
            body["priority"] = priority
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Computed:
    """A slice whose prefix is in the engine's cache now. cached_tokens: what was there before; None: not said."""

    cached_tokens: int | None


async def send_slice(
    upstream: Upstream, target: Target, prompt: Prompt, tokens: int, *, headers: Headers, priority_in_body: int | None
) -> Computed | None:
    """Have the first `tokens` computed. None: the engine answered, and did not. Raises EngineFailure."""
    body = await of_body(tokens * _BYTES_PER_ID, prompt.prefix_body, tokens, priority_in_body)
    async with upstream.open(target, Outgoing("POST", PATH, headers, body)) as reply:
        return succeeded(reply, await read_small(reply))


async def read_small(reply: Reply) -> bytes:
    """Return an answer that is the gateway's own to read, as far as `ANSWER_BYTES_MAX`. Raises EngineFailure."""
    answer = bytearray()
    while not reply.at_end and len(answer) < ANSWER_BYTES_MAX:
        answer += await reply.read()
    return bytes(answer)


def succeeded(reply: Reply, answer: bytes) -> Computed | None:
    """Read whether the engine did what a request of the gateway's own asked for."""
    tap = BodyTap()
    tap.feed(answer)
    tap.finish()
    if reply.status != 200 or tap.error is not None or tap.given_up or not reply.at_end:
        return None
    return Computed(None if tap.usage is None else tap.usage.cached_tokens)
