"""One flight while its answer comes in: notes on it what was seen, and once how it ended. Speaks to no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bench.load.events import error_in, word
from bench.load.flight import Flight
from bench.load.outcomes import Ending, of_status, of_stream
from bench.records.request import Outcome

Ended = Callable[[Flight], None]

ERROR_BODY_BYTES_MAX = 64 * 1024
_DIGITS_MAX = 12


class Exchange:
    """ended: told when the flight has its ending. `open` until then; what comes later changes nothing.

    leave: breaks off what carries it. on_waiting: what carries it had waited for it. timer: is not needed any more once
    it has ended.
    """

    __slots__ = ("_ended", "_error_body", "_status", "flight", "leave", "on_waiting", "open", "timer")

    def __init__(self, flight: Flight, ended: Ended) -> None:
        self.flight = flight
        self.open = True
        self.on_waiting = False
        self.leave: Callable[[], None] = _nothing
        self.timer: asyncio.TimerHandle | None = None
        self._ended = ended
        self._error_body = b""
        self._status = 0

    def head(self, status: int, headers: Mapping[str, str], now: float) -> None:
        flight = self.flight
        flight.headers_at = now
        flight.status = self._status = status
        _note_headers(flight, headers)
        if status != 200:
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
            self.end(Ending(Outcome.FAILED, "not_a_stream"), now)
        elif headers.get("content-encoding", "identity").lower() != "identity":
            # Nobody asked for it, and what a compressor holds back has no time of its own.
            self.end(Ending(Outcome.FAILED, "encoded_stream"), now)

    def body(self, data: bytes, now: float) -> None:
        """Take what one network read brought of the body; raises EventTooLargeError."""
        if self._status == 200:
            self.flight.reading.feed(data, now)
            return
        self._error_body += data[: ERROR_BODY_BYTES_MAX - len(self._error_body)]
        if len(self._error_body) == ERROR_BODY_BYTES_MAX:
            self.whole(now)

    def whole(self, now: float) -> None:
        """The answer has ended as HTTP wants it."""
        flight = self.flight
        if self._status == 200:
            self.end(of_stream(flight.reading), now)
            return
        ending = of_status(self._status, flight.gateway_reason)
        said = error_in(self._error_body)
        if said is not None and flight.gateway_reason is None:
            ending = Ending(ending.outcome, f"{ending.reason}_{said.reason}")
        self.end(ending, now)

    def lost(self, now: float) -> None:
        """The connection ended, or what came on it was no HTTP. Who said why before that is believed."""
        if self.flight.reading.error is not None:
            self.end(of_stream(self.flight.reading), now)
            return
        # A server may close a socket that waits just as a request is sent on it: that is no fault under the load.
        unanswered = "waiting_connection_lost" if self.on_waiting else "connection_lost"
        self.end(Ending(Outcome.FAILED, unanswered if self.flight.status is None else "stream_cut"), now)

    def end(self, ending: Ending | None, now: float) -> None:
        """None: it is given up without an ending."""
        if not self.open:
            return
        self.open = False
        if self.timer is not None:
            self.timer.cancel()
        self.flight.ending = ending
        self.flight.ended_at = now
        self.flight.reading.close()
        if ending is not None:
            self._ended(self.flight)


def _nothing() -> None:
    """Before there is a connection."""


def _note_headers(flight: Flight, headers: Mapping[str, str]) -> None:
    flight.answer_id = word(headers.get("x-request-id"))
    flight.gateway_queue_ms = _whole(headers.get("x-gateway-queue-ms", ""))
    flight.gateway_length_class = word(headers.get("x-gateway-length-class"))
    flight.gateway_reason = word(headers.get("x-gateway-reason"))
    retry_after_s = _whole(headers.get("retry-after", ""))
    flight.retry_after_s = None if retry_after_s is None else float(retry_after_s)


def _whole(text: str) -> int | None:
    """What a header says, as long as it is a number that a record can hold."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX else None
