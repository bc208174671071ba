"""Short reads of a page: whole, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bench.direct import page, page_object

HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def answering(answer: bytes, heard: list[bytes]) -> AsyncIterator[str]:
    """The URL of a server that answers so, whatever it is asked, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (HEAD + b'Content-Length: 9\r\n\r\n{"a": 1}\n', '{"a": 1}\n'),
        (HEAD + b"Content-Length: 2\r\n\r\n\xff.", "\ufffd."),
        (HEAD + b'Content-Length: 99\r\n\r\n{"a": 1}', None),  # it broke off
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", None),
        (b"no HTTP at all", None),
        (b"", None),
    ],
)
async def test_a_page_is_whole_or_none(answer: bytes, text: str | None) -> None:
    heard: list[bytes] = []
    async with answering(answer, heard) as url:
        assert await asyncio.to_thread(page, url, "secret") == text
        assert await asyncio.to_thread(page_object, url) == ({"a": 1} if text and "a" in text else {})
    assert b"Authorization: Bearer secret" in heard[0] and b"Authorization" not in heard[1]


@pytest.mark.parametrize("text", [b"[1, 2]", b"null", b"{"])
async def test_what_is_no_object_is_an_empty_one(text: bytes) -> None:
    async with answering(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(text), text), []) as url:
        assert await asyncio.to_thread(page_object, url) == {}
