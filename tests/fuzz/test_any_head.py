"""Any bytes at the public port of a live gateway: an answer or an end, never a crash, and nothing uncounted."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack

import structlog
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.testing import answers
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, running
from gateway.testing.raw_client import RawClient
from gateway.testing.scripted_engine import ScriptedEngine

BODY = json.dumps(a_chat(stream=False)).encode()
LIVE = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) [ -~]*\r\n")
TARGETS = [
    "/v1/chat/completions",
    "/v1/models",
    "/v1/models/%2e%2e",
    "*",
    "http://a/v1/completions",
    "//v1",
    "/" + "a" * 300,
]
LINES = [
    "Host: a",
    "Host: b",
    "Host:",
    f"Content-Length: {len(BODY)}",
    "Content-Length: 0",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding : chunked",
    "Expect: 100-continue",
    "Expect: nonsense",
    "Connection: close",
    "Connection: upgrade",
    "Upgrade: h2c",
    "Content-Encoding: zstd",
    "Content-Encoding: gzip",
    "Content-Type: application/json",
    f"Authorization: Bearer {INTERACTIVE_KEY}",
    f"x-api-key: {INTERACTIVE_KEY}",
    "x-api-key: \x80",
    "x-gateway-wait-ms: 10",
    "x-gateway-wait-ms: x",
    " folded",
    "no colon",
    "X: " + "x" * 40_000,
]


@st.composite
def requests(draw):
    """A request of well-known lines in any order and number, then some of its bytes changed."""
    method = draw(
        st.sampled_from(["POST", "POST", "POST", "GET", "HEAD", "OPTIONS", "CONNECT", "PRI", "post", "P{}ST"])
    )
    version = draw(
        st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9", ""])
    )
    lines = draw(st.lists(st.sampled_from(LINES), max_size=8))
    if draw(st.booleans()):
        lines += ["Host: a", f"Authorization: Bearer {INTERACTIVE_KEY}", f"Content-Length: {len(BODY)}"]
    head = "\r\n".join([f"{method} {draw(st.sampled_from(TARGETS))} {version}", *lines, "", ""])
    body = draw(st.sampled_from([b"", BODY, answers.chunk(BODY) + answers.CHUNKS_END, b"zz\r\n", BODY[:9]]))
    data = bytearray(head.encode("latin-1") + body)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data) * draw(st.integers(1, 2))


def live(tmp_path, strategy, visit, script=None):
    """Run visit(gateway, engine, drawn) for drawn values against one live gateway; nothing may be left at its end."""
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.ReturnLoggerFactory()
    )

    async def started(stack):
        engine = await stack.enter_async_context(ScriptedEngine(script or answers.completion()))
        times = {"keepalive_s": 0.05, "body_read_s": 0.05}
        return await stack.enter_async_context(running(tmp_path, engine, limits=times)), engine

    async def at_rest(gateway):
        await gateway.until(lambda: not gateway.exchanges)
        assert await gateway.metric("gateway_offered_total") == await gateway.metric("gateway_requests_total")
        for phase in ("receiving", "queue", "running"):
            assert await gateway.metric(f"gateway_{phase}_requests") == 0
        assert await gateway.metric("gateway_http_requests_total", status="500") == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        gateway, engine = runner.run(started(stack))
        try:
            LIVE(given(strategy)(lambda drawn: runner.run(visit(gateway, engine, drawn))))()
            runner.run(at_rest(gateway))
        finally:
            runner.run(stack.aclose())
            structlog.reset_defaults()


def test_any_request_is_answered_or_ended(tmp_path):
    async def visit(gateway, _engine, data):
        async with RawClient(gateway.port) as client:
            client.writer.write(data)
            heard = await client.read_end()
        if heard:
            assert STATUS_LINE.match(heard), heard[:60]
        assert b"HTTP/1.1 500" not in heard and b"HTTP/1.0 500" not in heard
        assert b"Traceback" not in heard

    live(tmp_path, requests(), visit)


def test_any_stream_passes_byte_for_byte(tmp_path):
    pieces = st.lists(
        st.binary(min_size=1, max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"\r", b"event: error\n"])
    )
    first = answers.token("Hello")

    async def visit(gateway, engine, drawn):
        engine.script = answers.stream_of(first, *drawn, answers.DONE)
        async with gateway.client() as client:
            await client.post("/v1/chat/completions", a_chat(stream=True))
            await client.read_head()
            heard = b""
            try:
                while piece := await client.read_chunk():
                    heard += piece
            except asyncio.IncompleteReadError:
                pass
        given_bytes = first + b"".join(drawn) + answers.DONE
        assert heard.startswith(given_bytes)
        assert heard == given_bytes or b"engine_broken" in heard[len(given_bytes) :]

    live(tmp_path, pieces, visit)
