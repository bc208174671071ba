"""Requests whose bytes could be read in two ways, do not end, or ask for another protocol: nothing slips through."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from contextlib import suppress

from gateway.testing import answers
from gateway.testing.answers import CHUNKS_END, chunk
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = json.dumps(a_chat(max_tokens=5)).encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + INTERACTIVE_KEY.encode() + b"\r\n\r\n"


def head(lines, *, host=b"Host: h\r\n", target=CHAT):
    start = f"POST {target} HTTP/1.1\r\n".encode() + host
    return start + b"Authorization: Bearer " + INTERACTIVE_KEY.encode() + b"\r\n" + lines + b"\r\n"


AMBIGUOUS = {
    "a list of lengths": head(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))) + BODY,
    "a signed length": head(b"Content-Length: +%d\r\n" % len(BODY)) + BODY,
    "a negative length": head(b"Content-Length: -1\r\n") + BODY,
    "a length in hexadecimal": head(b"Content-Length: 0x10\r\n") + BODY,
    "a length in other digits": head("Content-Length: ٤\r\n".encode()) + BODY,
    "a length beyond numbers": head(b"Content-Length: 99999999999999999999999\r\n") + BODY,
    "an unknown coding": head(b"Transfer-Encoding: xchunked\r\n") + chunk(BODY) + CHUNKS_END,
    "a coding after a control byte": head(b"Transfer-Encoding: \x0bchunked\r\n") + chunk(BODY) + CHUNKS_END,
    "a space before the colon": head(b"Transfer-Encoding : chunked\r\n") + chunk(BODY) + CHUNKS_END,
    "bare line feeds": (head(LENGTH) + BODY).replace(b"\r\n", b"\n"),
    "one bare line feed": head(b"X-A: b\n" + LENGTH) + BODY,
    "one bare carriage return": head(b"X-A: b\rX-B: c\r\n" + LENGTH) + BODY,
    "a folded line": head(b"X-A: b\r\n c\r\n" + LENGTH) + BODY,
    "a zero byte": head(b"X-A: a\x00b\r\n" + LENGTH) + BODY,
    "a control byte": head(b"X-A: a\x01b\r\n" + LENGTH) + BODY,
    "a line without a colon": head(b"X-A\r\n" + LENGTH) + BODY,
    "a header without a name": head(b": b\r\n" + LENGTH) + BODY,
    "no host": head(LENGTH, host=b"") + BODY,
    "two hosts": head(LENGTH, host=b"Host: a\r\nHost: b\r\n") + BODY,
    "a chunk size with a sign": head(CHUNKED) + b"+%x\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKS_END,
    "a chunk size with a prefix": head(CHUNKED) + b"0x%x\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKS_END,
    "a chunk size beyond numbers": head(CHUNKED) + b"fffffffffffffffff\r\n" + BODY,
    "a line feed in a chunk's extension": head(CHUNKED) + b"%x;a\nb\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKS_END,
    "a chunk that is longer than it says": head(CHUNKED) + b"%x\r\n" % (len(BODY) - 1) + BODY + b"\r\n" + CHUNKS_END,
    "a length among the trailers": head(CHUNKED) + chunk(BODY) + b"0\r\nContent-Length: 5\r\n\r\n",
    "a path of raw bytes": head(LENGTH, target="/v1/chat/completions\xff").replace(b"\xc3\xbf", b"\xff") + BODY,
}


async def test_what_could_be_read_in_two_ways_is_400_and_nothing_behind_it_is_read(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for name, request in AMBIGUOUS.items():
            async with gateway.client() as client:
                await client.send(request + SMUGGLED)
                answer = await client.read_answer()
                assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_http"), name
                assert answer.header("connection") == "close"
                assert await client.read_end() == b"", name
        assert (await gateway.chat()).status == 200
    assert len(engine.posts) == 1


async def test_framing_that_goes_wrong_inside_of_a_body_ends_it_at_once(tmp_path):
    """Not when the body's time is up: whoever reads it hears of what came in a later segment."""
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for well, wrong in (
            (chunk(BODY[:10]), b"zz\r\n"),
            (b"5\r\nabcde", b"XX"),
            (chunk(BODY) + b"0\r\n", b"no colon\r\n\r\n"),
            (chunk(BODY) + b"0\r\n", b"Content-Length: 5\r\n\r\n"),
        ):
            async with gateway.client() as client:
                await client.send(head(CHUNKED) + well)
                await gateway.until(lambda: len(gateway.exchanges) == 1)
                await client.send(wrong + SMUGGLED)
                answer = await client.read_answer()
                assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_body"), wrong
                assert await client.read_end() == b""
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 4
    assert not engine.posts


async def test_an_upgrade_that_is_asked_for_is_not_made_and_the_connection_serves_on(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        for asked in (
            b"Connection: notupgrade\r\nUpgrade: foo\r\n",
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n",
        ):
            for framed in (head(asked + LENGTH) + BODY, head(asked + CHUNKED) + chunk(BODY) + CHUNKS_END):
                await client.send(framed)
                assert (await client.read_answer()).status == 200
    assert [post.body for post in engine.posts] == [BODY] * 6
    names = {name for post in engine.posts for name, _ in post.headers}
    assert names == {"host", "accept-encoding", "content-type", "x-request-id", "content-length"}


async def test_headers_and_trailers_without_end_are_cut_off_within_their_bound(tmp_path):
    limits = {"header_bytes_max": 8192}
    async with ScriptedEngine() as engine, running(tmp_path, engine, limits=limits) as gateway:
        for beginning, piece in (
            (head(b"")[:-2] + b"X-A: ", b"a" * 1024),
            (head(b"")[:-2], b"".join(b"X-%d: b\r\n" % index for index in range(100))),
            (head(CHUNKED) + chunk(BODY) + b"0\r\nX-A: ", b"a" * 1024),
            (head(CHUNKED) + chunk(BODY) + b"0\r\n", b"".join(b"X-%d: b\r\n" % index for index in range(100))),
        ):
            async with gateway.client() as client:
                sent = 0
                client.writer.write(beginning)
                with suppress(ConnectionError):  # who goes on sending may lose the answer
                    while not client.reader._buffer and sent < 16 << 20:
                        sent += len(piece)
                        await client.send(piece)
                        await asyncio.sleep(0)
                assert sent < 1 << 20
        await gateway.until(lambda: not gateway.exchanges)
    assert not engine.posts


async def test_a_chunk_that_is_announced_and_does_not_come_ends_with_the_bodys_time(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"body_read_s": 0.05}) as gateway,
        gateway.client() as client,
    ):
        await client.send(head(CHUNKED) + b"10\r\nabc")
        answer = await client.read_answer()
        assert (answer.status, answer.json()["error"]["code"]) == (400, "body_timeout")
        assert await client.read_end() == b""
        assert await gateway.metric("gateway_running_requests") == 0
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    assert not engine.posts


async def test_a_compressed_body_that_is_refused_unread_is_not_inflated_either(tmp_path, monkeypatch):
    """A server that throws a body away may inflate it on the way: this one does not."""
    made = []
    make = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *args: made.append(args) or make(*args))
    bomb = gzip.compress(bytes(20 << 20))
    encoded = {"Content-Encoding": "gzip"}
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path, key, status in (
            ("/v1/unknown", INTERACTIVE_KEY, 404),
            ("/v1/models", INTERACTIVE_KEY, 405),
            (CHAT, "gw-nobody", 401),
        ):
            assert (await gateway.ask(path, bomb, key=key, headers=encoded)).status == status
        assert made == []
        answer = await gateway.ask(CHAT, gzip.compress(BODY), headers=encoded)
        assert (answer.status, len(made)) == (200, 1)


async def test_what_trails_a_body_is_no_header_of_the_next_request(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        for end in (b"0\r\nx-api-key: gw-another\r\n\r\n", b"0\r\n", CHUNKS_END):
            async with gateway.client() as client:
                await client.send(head(CHUNKED) + chunk(BODY))
                await client.send(end)
                if end == b"0\r\n":
                    await client.send(b"x-gateway-wait-ms: soon\r\n")
                    await client.send(b"\r\n")
                answer = await client.read_answer()
                assert answer.status == 200
                if end == CHUNKS_END:
                    assert answer.header("connection") is None
                    await client.post(CHAT, a_chat())
                    assert (await client.read_answer()).status == 200
                else:
                    assert answer.header("connection") == "close"
                    assert await client.read_end() == b""
