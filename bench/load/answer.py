"""Bytes of one HTTP/1.1 answer into its head and body, at any split. Pure: knows no socket and nothing of what is said.

It is ours because it is what the client spends its time on: a general client's parser, buffers and tasks cost each read
several times as much. It is strict: what could be read in two ways is malformed.
"""

from __future__ import annotations

import re
from enum import Enum, auto

HEAD_BYTES_MAX = 64 * 1024
LINE_BYTES_MAX = 4 * 1024  # of a chunk's size with its extensions, and of a trailer
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")
_DIGITS = re.compile(r"[0-9]{1,15}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class MalformedAnswerError(Exception):
    """What came is no answer of HTTP/1.1, or one over a bound."""


class _Part(Enum):
    HEAD = auto()
    SIZE = auto()  # of the next chunk
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()
    WHOLE = auto()


class AnswerReader:
    """Feed it what the socket gives; `status` is None until the head is there, `headers` have lower-case names."""

    __slots__ = ("_held", "_left", "_part", "headers", "keeps_alive", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.keeps_alive = True
        self._part = _Part.HEAD
        self._held = b""  # the beginning of a head or a line whose end has not come
        self._left = 0  # bytes of this chunk, or of the body

    @property
    def whole(self) -> bool:
        return self._part is _Part.WHOLE

    def closed(self) -> bool:
        """The socket was closed by the other side; returns whether that is this answer's proper end."""
        if self._part is _Part.UNTIL_CLOSE:
            self._part = _Part.WHOLE
        return self.whole

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in this read; raises MalformedAnswerError."""
        if self._held:
            data = self._held + data
            self._held = b""
        at = 0
        if self._part is _Part.HEAD:
            at = self._head(data)
            if self._part is _Part.HEAD:
                return b""
        if self._part is _Part.UNTIL_CLOSE:
            return data[at:]
        if self._part is _Part.LENGTH:
            return self._length(data, at)
        if self._part is _Part.WHOLE:
            self._surplus(data, at)
            return b""
        return self._chunks(data, at)

    def _head(self, data: bytes) -> int:
        """Returns where the body begins; the part stays HEAD where there is no end of it yet."""
        at = 0
        while (end := data.find(b"\r\n\r\n", at)) >= 0:
            first, *lines = data[at:end].split(b"\r\n")
            at = end + 4
            found = _STATUS_LINE.fullmatch(first)
            if found is None or end > HEAD_BYTES_MAX or found[2] == b"101":
                raise MalformedAnswerError
            if found[2].startswith(b"1"):
                continue  # the answer itself comes after it
            self.status = int(found[2])
            self.headers = _headers(lines)
            self._begin_body(http_1_0=found[1] == b"0")
            return at
        self._hold(data[at:], HEAD_BYTES_MAX)
        return at

    def _begin_body(self, *, http_1_0: bool) -> None:
        connection = self.headers.get("connection", "").lower()
        self.keeps_alive = "keep-alive" in connection if http_1_0 else "close" not in connection
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if self.status in (204, 304):
            self._part = _Part.WHOLE
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise MalformedAnswerError
            self._part = _Part.SIZE
        elif length is not None:
            if _DIGITS.fullmatch(length) is None:
                raise MalformedAnswerError
            self._left = int(length)
            self._part = _Part.LENGTH if self._left else _Part.WHOLE
        else:
            self.keeps_alive = False
            self._part = _Part.UNTIL_CLOSE

    def _length(self, data: bytes, at: int) -> bytes:
        body = data[at : at + self._left]
        self._left -= len(body)
        if not self._left:
            self._part = _Part.WHOLE
            self._surplus(data, at + len(body))
        return body

    def _chunks(self, data: bytes, at: int) -> bytes:
        bodies: list[bytes] = []
        while at < len(data) and self._part is not _Part.WHOLE:
            if self._part is _Part.CHUNK:
                body = data[at : at + self._left]
                bodies.append(body)
                at += len(body)
                self._left -= len(body)
                if not self._left:
                    self._part = _Part.CHUNK_END
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                self._hold(data[at:], LINE_BYTES_MAX)
                break
            self._line(data[at:end])
            at = end + 2
        if self._part is _Part.WHOLE:
            self._surplus(data, at)
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def _line(self, line: bytes) -> None:
        if self._part is _Part.SIZE:
            size = line.partition(b";")[0].rstrip(b" \t")
            if _HEX.fullmatch(size) is None:
                raise MalformedAnswerError
            self._left = int(size, 16)
            self._part = _Part.CHUNK if self._left else _Part.TRAILER
        elif self._part is _Part.CHUNK_END:
            if line:
                raise MalformedAnswerError
            self._part = _Part.SIZE
        elif not line:
            self._part = _Part.WHOLE

    def _hold(self, data: bytes, bytes_max: int) -> None:
        if len(data) > bytes_max or (self._part is _Part.CHUNK_END and data != b"\r"):
            raise MalformedAnswerError
        self._held = data

    def _surplus(self, data: bytes, at: int) -> None:
        # The answer stands; what comes after it belongs to nobody, and such a socket is not used again.
        if at < len(data):
            self.keeps_alive = False


def _headers(lines: list[bytes]) -> dict[str, str]:
    """Repeated ones are joined, so that two lengths are no length."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            raise MalformedAnswerError
        key = name.decode("ascii").lower()
        said = value.strip(b" \t").decode("latin-1")
        headers[key] = f"{headers[key]}, {said}" if key in headers else said
    return headers
