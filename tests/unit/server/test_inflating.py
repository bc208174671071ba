"""Inflating in bounded chunks, whatever the pieces."""

from __future__ import annotations

import gzip
import random
import struct
import sys
import zlib

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from gateway.server.inflating import (
    FRAMES_MAX,
    INFLATED_CHUNK_BYTES,
    ZSTD_WINDOW_LOG_MAX,
    MalformedEncoding,
    inflater,
)

PLAIN = random.Random(7).randbytes(3000) + b"a" * 300_000 + random.Random(8).randbytes(3000)


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def chunks_of(encoding, data, piece_bytes):
    decoder = inflater(encoding)
    for at in range(0, len(data), piece_bytes):
        yield from decoder.feed(data[at : at + piece_bytes])
    yield from decoder.finish()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", raw_deflate), ("zstd", zstd.compress)],
)
def test_any_pieces_give_the_same_bytes_in_bounded_chunks(encoding, encode, piece_bytes):
    chunks = list(chunks_of(encoding, encode(PLAIN), piece_bytes))
    assert b"".join(chunks) == PLAIN
    assert max(map(len, chunks)) <= INFLATED_CHUNK_BYTES


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: d[:5], lambda d: d[:0], lambda d: d + b"x"])
def test_what_is_cut_short_or_goes_on_is_malformed(encoding, piece_bytes, spoil):
    data = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}[encoding](PLAIN)
    with pytest.raises(MalformedEncoding):
        list(chunks_of(encoding, spoil(data), piece_bytes))


def test_a_zstd_frame_that_asks_for_a_larger_window_is_malformed():
    options = {zstd.CompressionParameter.window_log: ZSTD_WINDOW_LOG_MAX + 1}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(PLAIN) + compressor.flush()
    with pytest.raises(MalformedEncoding):
        list(chunks_of("zstd", data, 1000))


def skippable(data):
    return struct.pack("<II", 0x184D2A53, len(data)) + data


SEVERAL = {
    "gzip members": ("gzip", gzip.compress(PLAIN) + gzip.compress(b"") + gzip.compress(b"end"), PLAIN + b"end"),
    "zstd frames": ("zstd", zstd.compress(PLAIN) + zstd.compress(b"") + zstd.compress(b"end"), PLAIN + b"end"),
    "skippable first": ("zstd", skippable(b"") + skippable(b"an index") + zstd.compress(PLAIN), PLAIN),
    "skippable last": ("zstd", zstd.compress(PLAIN) + skippable(b"an index"), PLAIN),
}


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("name", SEVERAL)
def test_members_and_frames_one_after_the_other_are_one_body(name, piece_bytes):
    encoding, data, plain = SEVERAL[name]
    chunks = list(chunks_of(encoding, data, piece_bytes))
    assert b"".join(chunks) == plain
    assert max(map(len, chunks)) <= INFLATED_CHUNK_BYTES


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("cut_bytes", [1, 8])
def test_the_last_of_several_has_to_come_to_its_end(name, cut_bytes):
    encoding, data, _ = SEVERAL[name]
    with pytest.raises(MalformedEncoding):
        list(chunks_of(encoding, data[:-cut_bytes], 1000))


@pytest.mark.parametrize(
    ("encoding", "empty"),
    [("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b"")), ("zstd", skippable(b""))],
    ids=["gzip", "zstd", "skippable"],
)
def test_there_are_no_more_of_them_than_a_bound(encoding, empty):
    assert b"".join(chunks_of(encoding, empty * FRAMES_MAX, 1 << 16)) == b""
    with pytest.raises(MalformedEncoding):
        list(chunks_of(encoding, empty * (FRAMES_MAX + 1), 1 << 16))


def test_a_zlib_stream_is_followed_by_no_other():
    with pytest.raises(MalformedEncoding):
        list(chunks_of("deflate", zlib.compress(b"{}") * 2, 1 << 16))
