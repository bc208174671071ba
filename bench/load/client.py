"""One streaming call over aiohttp. Sends once, never retries, limits no connections, follows no redirect.

Notes clock readings on the Flight; every way in which HTTP can fail is an ending of the flight, not an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import aiohttp

from bench.load.bodies import PreparedRequest
from bench.load.events import error_in, word
from bench.load.flight import Flight
from bench.load.outcomes import Ending, of_status, of_stream
from bench.load.sse import EventTooLargeError
from bench.records.request import Outcome

Clock = Callable[[], float]

CONNECT_S_MAX = 10.0
# vLLM closes an idle connection after 5 s: a socket older than this is not used again.
IDLE_SOCKET_S_MAX = 4.0
READ_BUFFER_BYTES = 4 * 1024 * 1024
ERROR_BODY_BYTES_MAX = 64 * 1024
WARM_SOCKETS_MAX = 64
WARM_S_MAX = 10.0


def open_session(clock: Clock) -> aiohttp.ClientSession:
    """A session without the library's hidden limits; its traces note on a Flight how long connecting took."""
    trace = aiohttp.TraceConfig()

    async def begin(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, Flight):
            context.trace_request_ctx.connect_began_at = clock()

    async def end(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        flight = context.trace_request_ctx
        if isinstance(flight, Flight) and flight.connect_began_at is not None:
            flight.connect_s = clock() - flight.connect_began_at

    trace.on_connection_create_start.append(begin)
    trace.on_connection_create_end.append(end)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=IDLE_SOCKET_S_MAX),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER_BYTES,
        trust_env=False,
        trace_configs=[trace],
    )


class StreamingClient:
    """Sends prepared requests to one address."""

    def __init__(self, session: aiohttp.ClientSession, url: str, clock: Clock) -> None:
        self._session = session
        self._url = url
        self._clock = clock

    async def send(self, flight: Flight) -> None:
        """Send the flight's request and follow its answer to the end; returns when it has ended in any way.

        Cancelling it closes the connection and leaves the flight without an ending.
        """
        flight.dispatched_at = self._clock()
        leave = asyncio.timeout(flight.request.arrival.cancel_after_s)
        try:
            async with leave:
                flight.ending = await self._exchange(flight.request, flight)
        except TimeoutError:
            cancelled = Ending(Outcome.CANCELLED, "by_trace")
            flight.ending = cancelled if leave.expired() else Ending(Outcome.TIMED_OUT, "connect")
        except aiohttp.ClientConnectorError:
            flight.ending = Ending(Outcome.FAILED, "connect_failed")
        except EventTooLargeError:
            flight.ending = Ending(Outcome.FAILED, "event_too_large")
        except (aiohttp.ClientError, ConnectionError):
            reason = "connection_lost" if flight.status is None else "stream_cut"
            flight.ending = Ending(Outcome.FAILED, reason)
        finally:
            flight.ended_at = self._clock()

    async def _exchange(self, request: PreparedRequest, flight: Flight) -> Ending:
        headers = {**request.headers, "Content-Type": "application/json", "Accept": "text/event-stream"}
        async with self._session.post(
            self._url, data=request.body, headers=headers, allow_redirects=False, trace_request_ctx=flight
        ) as response:
            flight.headers_at = self._clock()
            flight.status = response.status
            _note_headers(flight, response.headers)
            if response.status != 200:
                said = error_in(await response.content.read(ERROR_BODY_BYTES_MAX))
                ending = of_status(response.status, word(response.headers.get("x-gateway-reason")))
                refined = said is not None and ending.reason is not None and ending.reason.startswith("http_")
                return Ending(ending.outcome, f"{ending.reason}_{said.reason}") if refined and said else ending
            if response.content_type != "text/event-stream":
                return Ending(Outcome.FAILED, "not_a_stream")
            async for chunk in response.content.iter_any():
                flight.reading.feed(chunk, self._clock())
            return of_stream(flight.reading)


async def warm_sockets(session: aiohttp.ClientSession, base_url: str, headers: dict[str, str], number: int) -> int:
    """Open up to `number` connections before the first request pays for one; any answer will do.

    Returns how many were answered: 0 means that nothing listens there.
    """

    async def touch() -> int:
        try:
            limit = aiohttp.ClientTimeout(total=WARM_S_MAX)
            url = f"{base_url}/v1/models"
            async with session.get(url, headers=headers, allow_redirects=False, timeout=limit) as response:
                await response.read()
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            return 0
        return 1

    return sum(await asyncio.gather(*(touch() for _ in range(min(number, WARM_SOCKETS_MAX)))))


def _note_headers(flight: Flight, headers: Mapping[str, str]) -> None:
    queue_ms = headers.get("x-gateway-queue-ms", "")
    flight.gateway_queue_ms = (
        int(queue_ms) if queue_ms.isascii() and queue_ms.isdigit() and len(queue_ms) < 12 else None
    )
    flight.gateway_length_class = word(headers.get("x-gateway-length-class"))
    retry_after = headers.get("retry-after", "")
    flight.retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
