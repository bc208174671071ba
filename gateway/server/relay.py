"""The engine's answer to the client, byte for byte.

Owns what is held back and for how long: a stream until its first event, a whole answer while it may still turn out an
error. What was held is judged once; after that every chunk passes as it comes, and the slow side sets the pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.types import Outcome
from gateway.observe.exchange import Exchange
from gateway.observe.metrics import Observer
from gateway.server import engine_failure
from gateway.server.downstream import Downstream
from gateway.server.engine_failure import EngineFailure
from gateway.server.gate import Lease
from gateway.server.reply import Reply
from gateway.wire.answers import BodyTap, InBandError, Usage, is_leaving
from gateway.wire.dialects import Dialect
from gateway.wire.headers import client_headers
from gateway.wire.sse import StreamTap

HELD_BYTES_MAX = 1 << 20
BUSY_STATUS = frozenset({429, 503})
_JSON = [("Content-Type", "application/json")]


@dataclass(frozen=True, slots=True)
class Busy:
    """The engine had no room: the request goes back to its line."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One dispatched request, and who is told what becomes of it.

    own_headers: the gateway's own on every answer. answered: told once the engine has said something of this request.
    generated: told once it has generated something for it. named: told the id that the engine gave its response.
    leaving: told where the engine takes nothing new because it shuts down.
    """

    exchange: Exchange
    lease: Lease
    dialect: Dialect
    observer: Observer
    now: Callable[[], float]
    own_headers: list[tuple[str, str]]
    answered: Callable[[], None]
    generated: Callable[[], None]
    named: Callable[[str], None]
    leaving: Callable[[], None]

    def begun(self, reply: Reply) -> None:
        """The first token, or the first byte of an answer that is no stream, is here."""
        self.answered()
        self.lease.keep()
        reply.began()
        if reply.status < 300:
            self.lease.first_token()
            self.generated()

    def holds(self, response_id: str | None) -> None:
        """The answer bears this id; only responses are kept by their engine and asked for again."""
        if self.dialect is Dialect.RESPONSES and response_id is not None:
            self.named(response_id)

    def used(self, usage: Usage) -> None:
        """The engine has said what it counted."""
        self.lease.output_tokens = usage.output_tokens
        self.observer.usage(self.exchange, usage)


async def relay(reply: Reply, client: Downstream, passage: Passage) -> Outcome | Busy:
    """Pass an answer on. Raises EngineFailure where it breaks and ClientGone where nobody takes it."""
    if reply.status in BUSY_STATUS:
        passage.answered()
        await reply.discard()
        return Busy()
    reply.require_for_caller()
    if reply.is_event_stream and reply.status == 200:
        return await _Stream(reply, client, passage).relay()
    return await _relay_whole(reply, client, passage)


class _Stream:
    def __init__(self, reply: Reply, client: Downstream, passage: Passage) -> None:
        self._reply = reply
        self._client = client
        self._passage = passage
        self._tap = StreamTap(passage.dialect)

    async def relay(self) -> Outcome | Busy:
        held = await self._hold()
        if self._tap.opens_with_error and self._tap.error is not None:
            return await _send_error(self._reply, self._tap.error, self._client, self._passage)
        self._passage.begun(self._reply)
        self._passage.holds(self._tap.response_id)
        self._client.tap = self._tap
        headers = client_headers(self._reply.headers, stream=True) + self._passage.own_headers
        self._client.commit(self._reply.status, headers)
        try:
            self._pass_on(held)
            await self._pass_on_the_rest()
        finally:
            self._tell_usage()
        await self._client.end()
        return self._outcome

    @property
    def _outcome(self) -> Outcome:
        """What a stream that has said its end came to."""
        tap = self._tap
        return Outcome.ENGINE_ERROR if tap.error is not None or tap.given_up else Outcome.COMPLETED

    async def _hold(self) -> bytes:
        """Keep what comes until the first event: only then is the engine's 200 true."""
        tap, held = self._tap, bytearray()
        while not self._has_spoken() and len(held) < HELD_BYTES_MAX:
            try:
                chunk = await self._reply.read()
            except EngineFailure:
                tap.finish()
                if tap.error is None:
                    raise
                break
            if not chunk:
                tap.finish()
                if not self._has_spoken():
                    raise engine_failure.broken("ended its stream before the first event")
                break
            tap.feed(chunk)
            held += chunk
        return bytes(held)

    def _has_spoken(self) -> bool:
        return self._tap.first_event or self._tap.error is not None

    async def _pass_on_the_rest(self) -> None:
        """Pass on what comes, as it comes; an end that is not the stream's own is a break."""
        tap, reply = self._tap, self._reply
        try:
            while not reply.at_end:
                await self._client.drained()
                if tap.ended:
                    reply.has_ended()
                await reply.pour(self._take)
        except EngineFailure:
            if not _has_said_its_end(tap):
                raise
        tap.finish()
        if not _has_said_its_end(tap):
            raise engine_failure.broken("ended its stream without the stream's own end")

    def _take(self, chunk: bytes) -> bool:
        """Pass one chunk on; False: before the next one there is something to do."""
        self._tap.feed(chunk)
        self._pass_on(chunk)
        return not (self._tap.ended or self._client.is_behind)

    def _pass_on(self, chunk: bytes) -> None:
        """Hand one chunk on. Gaps are counted between these moments, so a client that reads slowly lengthens them."""
        passage = self._passage
        passage.observer.chunk(passage.exchange, passage.now())
        self._client.hand_over(chunk)
        if _has_said_its_end(self._tap):
            # A client that leaves from here on has had everything.
            passage.lease.outcome = self._outcome

    def _tell_usage(self) -> None:
        passage = self._passage
        if self._tap.usage is not None:
            passage.used(self._tap.usage)
        if self._tap.overflowed:
            passage.observer.tap_overflowed(passage.exchange, self._tap.overflowed)


async def read_to_end(reply: Reply, tap: StreamTap) -> bytes:
    """Return a stream's next chunk, or b"" at its end. Behind its own end little is waited for, and no break counts."""
    if tap.ended:
        reply.has_ended()
    try:
        return await reply.read()
    except EngineFailure:
        if _has_said_its_end(tap):
            return b""
        raise


def _has_said_its_end(tap: StreamTap) -> bool:
    """Whether the stream has told what it came to, its end or an error: no break of the connection changes that."""
    return tap.ended or tap.error is not None


async def _relay_whole(reply: Reply, client: Downstream, passage: Passage) -> Outcome | Busy:
    tap, held, begun = BodyTap(passage.dialect), bytearray(), False
    while not reply.at_end and len(held) < HELD_BYTES_MAX:
        chunk = await reply.read()
        tap.feed(chunk)
        held += chunk
        if not begun and chunk and not tap.error_suspected:
            begun = True
            passage.begun(reply)
    reply.require_body(bytes(held))
    is_whole = reply.at_end
    if is_whole:
        tap.finish()
        if not begun and is_leaving(reply.status, bytes(held)):
            passage.leaving()
            return Busy()
        if reply.status < 300 and tap.error is not None:
            return await _send_error(reply, tap.error, client, passage)
    if not begun:
        passage.begun(reply)
    passage.holds(tap.response_id)
    headers = client_headers(reply.headers, stream=False) + passage.own_headers
    client.commit(reply.status, headers, content_length=len(held) if is_whole else reply.content_length)
    await client.write(bytes(held))
    while not reply.at_end:
        chunk = await reply.read()
        tap.feed(chunk)
        await client.write(chunk)
    if not is_whole:
        tap.finish()
    outcome = Outcome.ENGINE_ERROR if reply.status >= 500 or tap.given_up else Outcome.COMPLETED
    passage.lease.outcome = outcome
    if tap.usage is not None:
        passage.used(tap.usage)
    await client.end()
    return outcome


async def _send_error(reply: Reply, error: InBandError, client: Downstream, passage: Passage) -> Outcome | Busy:
    """Turn an error inside a 200 into the status that it has."""
    passage.answered()
    if error.status in BUSY_STATUS and passage.lease.ticket.first_token_at is None:
        await reply.discard()
        return Busy()
    passage.lease.keep()
    await client.send(error.status, _JSON + passage.own_headers, error.body)
    return Outcome.ENGINE_ERROR if error.status >= 500 else Outcome.COMPLETED
