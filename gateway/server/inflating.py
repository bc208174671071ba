"""Compressed request bodies, piece by piece.

Owns which encodings are taken, and that nothing is inflated beyond one chunk at a time: whoever reads decides after
each chunk whether more is wanted, so a small body that inflates without end costs no memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
INFLATED_CHUNK_BYTES = 1 << 16
_ZLIB_HEADER_BYTES = 2
_GZIP = zlib.MAX_WBITS | 16


class MalformedEncoding(Exception):  # noqa: N818 - the domain's word
    """The body is not what its content encoding says, or ends too soon."""


class Inflater:
    """Inflates one body. encoding: one of `ENCODINGS`; "deflate" with zlib's header, as the standard says, or without.

    Its iterators yield chunks of `INFLATED_CHUNK_BYTES` at most, each inflated when it is asked for, and raise
    MalformedEncoding.
    """

    def __init__(self, encoding: str) -> None:
        self._decoder = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._head = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Inflate the next piece, of any length; to be taken to its end."""
        rest = self._head + piece
        if self._decoder is None and len(rest) < _ZLIB_HEADER_BYTES:
            self._head = rest
            return
        if self._decoder is None:
            self._head = b""
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS if _has_zlib_header(rest) else -zlib.MAX_WBITS)
        while rest:
            if self._decoder.eof:
                raise MalformedEncoding
            yield self._next(self._decoder, rest)
            rest = self._decoder.unconsumed_tail

    def finish(self) -> Iterator[bytes]:
        """All pieces were fed: inflate what still waits inside the decoder."""
        if self._decoder is None:
            raise MalformedEncoding
        while not self._decoder.eof:
            chunk = self._next(self._decoder, b"")
            if not chunk:
                raise MalformedEncoding
            yield chunk

    def _next(self, decoder: zlib._Decompress, rest: bytes) -> bytes:
        try:
            chunk = decoder.decompress(rest, INFLATED_CHUNK_BYTES)
        except zlib.error as error:
            raise MalformedEncoding from error
        if decoder.unused_data:
            raise MalformedEncoding
        return chunk


def _has_zlib_header(data: bytes) -> bool:
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:_ZLIB_HEADER_BYTES]) % 31 == 0
