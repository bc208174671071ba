"""An HTTP answer is read the same at any split; what could be read in two ways is no answer."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.answer import HEAD_BYTES_MAX, AnswerReader, MalformedAnswerError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*chunks: bytes) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join(reader.feed(chunk) for chunk in chunks)


WHOLE = {
    "chunks": CHUNKED + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"b \r\nhello world\r\n000\r\nX-T: 1\r\n\r\n",
    "length": HEAD + b"Content-Length: 11\r\n\r\nhello world",
    "after an interim answer": b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    + HEAD
    + b"Content-Length:11\r\n\r\nhello world",
}


@pytest.mark.parametrize("form", WHOLE)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_a_whole_answer_is_the_same_at_any_split(form: str, cuts: list[int]) -> None:
    data = WHOLE[form]
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader, body = read(*(data[a:b] for a, b in pairwise(edges)))
    assert (reader.status, body, reader.whole, reader.keeps_alive) == (200, b"hello world", True, True)
    assert reader.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("form", WHOLE)
def test_an_answer_is_whole_with_its_last_byte_and_not_before(form: str) -> None:
    reader, _ = read(WHOLE[form][:-1])
    assert not reader.whole and not reader.closed()
    reader.feed(WHOLE[form][-1:])
    assert reader.whole


def test_an_answer_without_length_ends_with_its_connection() -> None:
    reader, body = read(HEAD + b"\r\nhello", b" world")
    assert (body, reader.whole, reader.keeps_alive) == (b"hello world", False, False)
    assert reader.closed() and reader.whole


@pytest.mark.parametrize(
    ("head", "keeps_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 429\r\n", True),
    ],
)
def test_a_socket_is_used_again_where_the_head_says_so(head: bytes, keeps_alive: bool) -> None:
    reader, _ = read(head + b"Content-Length: 0\r\n\r\n")
    assert (reader.whole, reader.keeps_alive) == (True, keeps_alive)


def test_a_socket_with_bytes_beyond_the_answer_is_not_used_again() -> None:
    reader, body = read(WHOLE["chunks"] + b"HTTP/1.1 200 OK")
    assert (body, reader.whole, reader.keeps_alive) == (b"hello world", True, False)


def test_an_answer_that_has_no_body_by_its_status_is_whole_at_its_head() -> None:
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n")[0].whole


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        HEAD + b" folded\r\n\r\n",
        HEAD + b"Name : value\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
        CHUNKED + b"0x5\r\nhello\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"5\r\nhelloX\r\n",
        CHUNKED + b"5\r\nhelloX",
        CHUNKED + b"5" * 5000,
    ],
)
def test_what_is_no_answer_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        read(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_body_or_are_malformed(data: bytes) -> None:
    reader = AnswerReader()
    try:
        assert len(reader.feed(CHUNKED)) + len(reader.feed(data)) <= len(data)
    except MalformedAnswerError:
        assert not reader.whole
