"""Compressed request bodies, piece by piece.

Owns which encodings are taken, and that nothing is inflated beyond one chunk at a time: whoever reads decides after
each chunk whether more is wanted, so a small body that inflates without end costs no memory.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate", "zstd"})
INFLATED_CHUNK_BYTES = 1 << 16
ZSTD_WINDOW_LOG_MAX = 23  # 8 MiB, what the content coding allows; a frame may ask for 2 GiB
FRAMES_MAX = 1 << 12  # a body may be all empty frames, each of which has to be begun
_ZLIB_HEADER_BYTES = 2
_GZIP = zlib.MAX_WBITS | 16


class MalformedEncoding(Exception):  # noqa: N818 - the domain's word
    """The body is not what its content encoding says, or ends too soon."""


class Inflater(Protocol):
    """Inflates one body.

    Its iterators yield chunks of `INFLATED_CHUNK_BYTES` at most, each inflated when it is asked for, and raise
    MalformedEncoding.
    """

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Inflate the next piece, of any length; to be taken to its end."""

    def finish(self) -> Iterator[bytes]:
        """All pieces were fed: inflate what still waits inside the decoder."""


def inflater(encoding: str) -> Inflater:
    """Make the inflater of one of `ENCODINGS`; "deflate" with zlib's header, as the standard says, or without."""
    return _Zstd() if encoding == "zstd" else _Zlib(encoding)


class _Zlib:
    """gzip: one member or several, one after the other. deflate: one stream, and what goes on after it is malformed."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._decoder = zlib.decompressobj(_GZIP) if self._is_gzip else None
        self._members = 1
        self._head = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        rest = self._head + piece
        if self._decoder is None and len(rest) < _ZLIB_HEADER_BYTES:
            self._head = rest
            return
        if self._decoder is None:
            self._head = b""
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(rest) else -zlib.MAX_WBITS)
        while rest:
            if self._decoder.eof:
                self._decoder = self._next_member()
            yield self._next(self._decoder, rest)
            rest = self._decoder.unused_data or self._decoder.unconsumed_tail

    def finish(self) -> Iterator[bytes]:
        if self._decoder is None:
            raise MalformedEncoding
        while not self._decoder.eof:
            chunk = self._next(self._decoder, b"")
            if not chunk:
                raise MalformedEncoding
            yield chunk

    def _next_member(self) -> zlib._Decompress:
        self._members += 1
        if not self._is_gzip or self._members > FRAMES_MAX:
            raise MalformedEncoding
        return zlib.decompressobj(_GZIP)

    def _next(self, decoder: zlib._Decompress, rest: bytes) -> bytes:
        try:
            return decoder.decompress(rest, INFLATED_CHUNK_BYTES)
        except zlib.error as error:
            raise MalformedEncoding from error


class _Zstd:
    """Frames one after the other, those to be skipped among them."""

    def __init__(self) -> None:
        self._frames = 0
        self._decoder = self._next_frame()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        rest = piece
        while rest:
            if self._decoder.eof:
                self._decoder = self._next_frame()
            yield self._next(rest)
            while not (self._decoder.eof or self._decoder.needs_input):
                yield self._next(b"")
            rest = self._decoder.unused_data

    def finish(self) -> Iterator[bytes]:
        if not self._decoder.eof:
            raise MalformedEncoding
        return iter(())

    def _next_frame(self) -> zstd.ZstdDecompressor:
        self._frames += 1
        if self._frames > FRAMES_MAX:
            raise MalformedEncoding
        window: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
        return zstd.ZstdDecompressor(options=window)

    def _next(self, piece: bytes) -> bytes:
        try:
            return self._decoder.decompress(piece, INFLATED_CHUNK_BYTES)
        except zstd.ZstdError as error:
            raise MalformedEncoding from error


def _has_zlib_header(data: bytes) -> bool:
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_ZLIB_HEADER_BYTES]) % 31 == 0
