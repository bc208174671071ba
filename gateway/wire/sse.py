"""A tap on an event stream: it sees the bytes pass and says what they mean.

Owns the incremental reading of server-sent events: the first event, an error inside the stream, usage, the dialect's
own end, and whether the bytes so far stop inside an event. Gives the same answers for any split of the same bytes.
Never changes, delays or holds back a byte, keeps at most EVENT_BYTES_MAX of one event and of a longer one its two ends,
and decodes JSON only where an event can hold something that is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.wire.answers import (
    STATUS_UNKNOWN,
    TAIL_BYTES_MAX,
    InBandError,
    Usage,
    is_delta_given_up,
    is_given_up,
    is_response_given_up,
    last_usage,
    read_cut_response_head,
    read_error,
    read_response_head,
    read_usage,
)
from gateway.wire.dialects import Dialect

EVENT_BYTES_MAX = 1 << 20

# Two line ends in a row end an event; CRLF is one line end, also where a chunk ends between its halves.
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_ENDS = b"\r\n"
_BOUNDARY_BYTES_MAX = 4
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_TYPE = re.compile(rb'"type"\s*:\s*"([a-z_.]+)"')
_TYPE_WITHIN_BYTES = 256
_NUMBER_NAME = b'"sequence_number"'
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})\b')
_NUMBER_WITHIN_BYTES = 48

# Events that come before the engine has scheduled the request, or that say nothing of it.
_BEFORE_FIRST = frozenset({b"response.created", b"response.in_progress", b"response.queued", b"ping"})
_END = {
    Dialect.OPENAI: frozenset({b"[DONE]"}),
    Dialect.ANTHROPIC: frozenset({b"message_stop"}),
    Dialect.RESPONSES: frozenset({b"response.completed", b"response.incomplete", b"response.failed"}),
}
_FAILED = b"response.failed"
_LAST_DELTA = b"message_delta"


@dataclass(slots=True)
class _Event:
    """One event's fields that matter. `data` is None where it has no data line, so that it is none."""

    name: bytes | None
    data: bytes | None


class StreamTap:
    """Reads one stream, chunk by chunk.

    first_event: an event has come that is neither a comment nor one sent before scheduling.
    error: the first error inside the stream; opens_with_error: that error was the first event. given_up: the engine
    ended the answer before its time, and said so in the stream's own form.
    usage: what the engine said of tokens, the last number said wins. ended: the dialect's own end has come.
    overflowed: events longer than the bound, of which only the beginning and the end were read. response: what a
    Responses stream first says of it, for whoever has to end it: id, created_at and model, as far as they are there.
    """

    __slots__ = (
        "_buffer",
        "_dialect",
        "_has_returns",
        "_last_number",
        "_long",
        "_marks",
        "ended",
        "error",
        "event_bytes_max",
        "first_event",
        "given_up",
        "opens_with_error",
        "overflowed",
        "response",
        "usage",
    )

    def __init__(self, dialect: Dialect, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._dialect = dialect
        self._marks = (b'"usage"', b'"error"', b'"abort"', *_END[dialect])
        self._buffer = bytearray()  # bytes since the last end of an event
        self._long: _Event | None = None  # the beginning of an event over the bound, while that goes on
        self._has_returns = False
        self.event_bytes_max = event_bytes_max
        self.first_event = False
        self.error: InBandError | None = None
        self.opens_with_error = False
        self.given_up = False
        self.usage: Usage | None = None
        self.response: Mapping[str, Any] = {}
        self._last_number = b""
        self.ended = False
        self.overflowed = 0

    @property
    def mid_event(self) -> bool:
        """Whether the bytes so far stop inside an event or a comment."""
        return self._long is not None or bool(self._buffer.strip(_LINE_ENDS))

    @property
    def response_id(self) -> str | None:
        return self.response.get("id")

    @property
    def next_number(self) -> int:
        """The sequence number behind the last that a whole event of a Responses stream bore."""
        stated = _NUMBER.match(self._last_number)
        return 0 if stated is None else int(stated[1]) + 1

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream, of any length."""
        if self.first_event and not self._buffer and self._long is None and chunk.endswith(b"\n\n"):
            # The hot path: whole events in one chunk. Searching them is far cheaper than reading them.
            self._note_number(chunk)
            for mark in self._marks:
                if mark in chunk:
                    self._read(chunk)
                    return
            if len(chunk) > self.event_bytes_max:
                self._read(chunk)
            return
        self._has_returns = self._has_returns or b"\r" in chunk
        scan_from = max(0, len(self._buffer) - _BOUNDARY_BYTES_MAX + 1)
        self._buffer += chunk
        if self._long is not None:
            self._skip(self._long, scan_from)
            scan_from = 0
        if self._long is None:
            self._take(scan_from)

    def finish(self) -> None:
        """The stream is over: what is left is its last event, though no blank line ended it."""
        rest = bytes(self._buffer.strip(_LINE_ENDS))
        if self._long is not None:
            self._end_long(self._long, rest)
        elif rest:
            self._judge(_event(rest))

    def _note_number(self, events: bytes) -> None:
        """Keep where the last number stands: it is read only where the gateway has to end the stream."""
        if self._dialect is Dialect.RESPONSES and (at := events.rfind(_NUMBER_NAME)) >= 0:
            self._last_number = events[at : at + _NUMBER_WITHIN_BYTES]

    def _is_marked(self, block: bytes) -> bool:
        return any(mark in block for mark in self._marks)

    def _take(self, scan_from: int) -> None:
        """Read the whole events of the buffer and keep the rest."""
        end = self._last_event_end(scan_from)
        if end:
            block = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._note_number(block)
            if not self.first_event or self._is_marked(block) or len(block) > self.event_bytes_max:
                self._read(block)
        if len(self._buffer) > self.event_bytes_max:
            pending = bytes(self._buffer.strip(_LINE_ENDS))
            if len(pending) > self.event_bytes_max:
                self._long = self._begin_long(pending)
                self._keep_tail()

    def _skip(self, beginning: _Event, scan_from: int) -> None:
        """Drop an event that is too long, up to its end."""
        found = _EVENT_END.search(self._buffer, scan_from)
        if found is None:
            self._keep_tail()
        else:
            self._end_long(beginning, bytes(self._buffer[: found.start()].rstrip(_LINE_ENDS)))
            del self._buffer[: found.end()]
            self._long = None

    def _keep_tail(self) -> None:
        """Keep the end of what has come of a long event, and what may be the beginning of the end behind it."""
        del self._buffer[: -self._tail_bytes_max - _BOUNDARY_BYTES_MAX]

    @property
    def _tail_bytes_max(self) -> int:
        return min(TAIL_BYTES_MAX, self.event_bytes_max - _BOUNDARY_BYTES_MAX)

    def _last_event_end(self, scan_from: int) -> int:
        if not self._has_returns:
            at = self._buffer.rfind(b"\n\n", scan_from)
            return at + 2 if at >= 0 else 0
        end = 0
        for found in _EVENT_END.finditer(self._buffer, scan_from):
            end = found.end()
        return end

    def _read(self, block: bytes) -> None:
        """Read a block of whole events."""
        for piece in _EVENT_END.split(block) if b"\r" in block else block.split(b"\n\n"):
            raw = piece.strip(_LINE_ENDS)
            if len(raw) > self.event_bytes_max:
                self._end_long(self._begin_long(raw), raw)
            elif raw and (not self.first_event or self._is_marked(raw)):
                self._judge(_event(raw))

    def _begin_long(self, raw: bytes) -> _Event:
        """An event is too long to be read; its beginning, of which as much is returned, still says what it is."""
        self.overflowed += 1
        event = _event(raw[: self.event_bytes_max])
        if event.data is None:
            return event
        if self._kind(event) not in _BEFORE_FIRST:
            self.first_event = True
        elif self._dialect is Dialect.RESPONSES:
            self.response = self.response or read_cut_response_head(event.data)
        return _Event(event.name, event.data[:_TYPE_WITHIN_BYTES])

    def _end_long(self, beginning: _Event, rest: bytes) -> None:
        """A long event is over: what it is takes effect, and its end says what the ends of answers do."""
        kind, tail = self._kind(beginning), rest[-self._tail_bytes_max :]
        if beginning.data is None or kind in _BEFORE_FIRST:
            return
        self._take_kind(kind, beginning.data)
        self._note_number(tail)
        if self._is_given_up(kind, tail):
            self.given_up = True
        self._add_usage(last_usage(tail))

    def _judge(self, event: _Event) -> None:
        if event.data is None:
            return
        kind = self._kind(event)
        if kind in _BEFORE_FIRST:
            if self._dialect is Dialect.RESPONSES:
                self.response = self.response or read_response_head(_decoded(event.data))
            return
        is_first, self.first_event = not self.first_event, True
        self._take_kind(event.data.strip() if self._dialect is Dialect.OPENAI else kind, event.data)
        if self._is_given_up(kind, event.data):
            self.given_up = True
        if b'"error"' in event.data or _USAGE.search(event.data):
            self._read_value(event.data, is_first=is_first)

    def _take_kind(self, kind: bytes | None, data: bytes) -> None:
        if kind in _END[self._dialect]:
            self.ended = True
        if kind == _FAILED and self.error is None:
            # It is the dialect's own word for a failure and passes as it is, so it never opens with an error.
            self.error = InBandError(STATUS_UNKNOWN, data)

    def _is_given_up(self, kind: bytes | None, data: bytes) -> bool:
        match self._dialect:
            case Dialect.OPENAI:
                return is_given_up(data)
            case Dialect.ANTHROPIC:
                return kind == _LAST_DELTA and is_delta_given_up(data)
            case Dialect.RESPONSES:
                return kind in _END[Dialect.RESPONSES] and is_response_given_up(data)

    def _read_value(self, data: bytes, *, is_first: bool) -> None:
        value = _decoded(data)
        self._add_usage(read_usage(value))
        if self.error is None:
            self.error = read_error(value, data)
            self.opens_with_error = is_first and self.error is not None

    def _add_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage.updated(usage)

    def _kind(self, event: _Event) -> bytes | None:
        """The event's type: its name, else what its data says in a dialect whose events have types."""
        if event.name is not None or event.data is None or self._dialect is Dialect.OPENAI:
            return event.name
        found = _TYPE.search(event.data, 0, _TYPE_WITHIN_BYTES)
        return found[1] if found else None


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _event(raw: bytes) -> _Event:
    """The fields of one event's lines, without the line ends around it."""
    name: bytes | None = None
    lines: list[bytes] = []
    for line in raw.removeprefix(_BYTE_ORDER_MARK).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return _Event(name, b"\n".join(lines) if lines else None)
