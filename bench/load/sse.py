"""Bytes of an event stream into the data of its events, at any split. Owns line ends; knows nothing of what is said."""

from __future__ import annotations

EVENT_BYTES_MAX = 64 * 1024 * 1024


class EventTooLargeError(Exception):
    """One event grew over EVENT_BYTES_MAX."""


class EventSplitter:
    """Feed it chunks as they come; it gives the data of each event that a blank line has ended.

    A line is put together once, when its end comes, so that one of many megabytes in small chunks costs no more.
    """

    __slots__ = ("_after_cr", "_data", "_data_bytes", "_line")

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` ends, `data:` lines joined by a line feed, without comments and names."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if b"\r" in chunk:
            # A CR at the end ends its line now; a LF that comes next belongs to the same line end.
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif chunk:
            self._after_cr = False
        events: list[bytes] = []
        if b"\n" in chunk:
            first, *lines, rest = chunk.split(b"\n")
            self._end_line(bytes(self._line) + first, events)
            for line in lines:
                self._end_line(line, events)
            self._line = bytearray(rest)
        else:
            self._line += chunk
        if len(self._line) + self._data_bytes > EVENT_BYTES_MAX:
            raise EventTooLargeError
        return events

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
                self._data_bytes = 0
        elif line.startswith(b"data:"):
            data = line[6:] if line.startswith(b"data: ") else line[5:]
            self._data.append(data)
            self._data_bytes += len(data)
