"""Credentials on every route: either header, nothing fails open, and no key is ever written down."""

from __future__ import annotations

import json

import pytest

from gateway.server import handlers
from gateway.testing import answers
from gateway.testing.harness import INTERACTIVE_KEY, MODEL, a_chat, running
from gateway.testing.raw_client import RawClient
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.wire.dialects import RESPONSE_CANCEL, ROUTES, Dialect


def path_of(route):
    """Return a path that this route serves."""
    if route is RESPONSE_CANCEL:
        return "/v1/responses/resp_1/cancel"
    return route.path + (MODEL if route.path.endswith("/") else "")


PATHS = sorted({path_of(route) for route in ROUTES})
GENERATION = sorted(route.path for route in ROUTES if route.generation)
UNKNOWN = ["/", "/invocations", "/v1/load_lora_adapter", "/sleep", "/v1/../metrics", "/classify", "/pooling"]
GARBAGE = [
    b"Authorization: Bearer",
    b"Authorization: Bearer \xff\xfe\xfd",
    b"Authorization: Bearer " + "ключ".encode(),
    b"Authorization: Bearer a.b.c",
    b"Authorization: Bearer ...",
    b"Authorization: Bearer eyJhbGciOiJub25lIn0.e30.",
    b"Authorization: Negotiate AAAA",
    b"Authorization: " + INTERACTIVE_KEY.encode(),
    b"Authorization: Bearer " + INTERACTIVE_KEY.encode()[:-1],
    b"Authorization: Bearer " + INTERACTIVE_KEY.encode() + b"\xc2\xa0",
    b"Authorization: Bearer " + b"g" * 20_000,
    b"x-api-key: \x80",
    b"x-api-key:",
    b"Authorization: Bearer " + INTERACTIVE_KEY.encode() + b"\r\nAuthorization: Bearer " + INTERACTIVE_KEY.encode(),
    b"Authorization: Bearer " + INTERACTIVE_KEY.encode() + b"\r\nx-api-key: gw-another",
]


async def raw(gateway, method, path, header):
    """Ask with one header, byte for byte as given."""
    async with RawClient(gateway.port) as client:
        body = json.dumps(a_chat()).encode() if method == "POST" else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n".encode()
        await client.send(head + header + b"\r\n\r\n" + body)
        return await client.read_answer()


@pytest.mark.parametrize("header", GARBAGE)
async def test_garbage_for_a_credential_is_401_on_every_route_and_reaches_no_engine(tmp_path, header):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for route in ROUTES:
            path = path_of(route)
            answer = await raw(gateway, route.method, path, header)
            assert (answer.status, answer.header("x-gateway-reason")) == (401, "unauthenticated"), path
            error = answer.json()["error"]
            assert error["type"] == "authentication_error"
            assert (answer.json().get("type") == "error") == (route.dialect is Dialect.ANTHROPIC)
        for path in UNKNOWN:
            assert (await raw(gateway, "POST", path, header)).status == 404
    assert not engine.posts


async def test_a_check_that_crashes_lets_nobody_in_and_loses_no_request(tmp_path, monkeypatch):
    async def crash(*_args, **_kwargs):
        raise RuntimeError(INTERACTIVE_KEY)

    monkeypatch.setattr(handlers, "identify", crash)
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for path in (*GENERATION, "/v1/models"):
            answer = await gateway.ask(path, a_chat() if path in GENERATION else None)
            assert answer.status == 500
        assert await gateway.metric("gateway_offered_total") == len(GENERATION)
        assert await gateway.metric("gateway_requests_total", outcome="refused") == len(GENERATION)
        assert not gateway.exchanges
    assert not engine.posts


async def test_no_key_is_written_to_the_log_or_the_metrics_whatever_goes_wrong(tmp_path, logged, monkeypatch):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        key = INTERACTIVE_KEY
        assert (await gateway.chat()).status == 200
        assert (await gateway.chat(model=key)).status == 404
        assert (await gateway.ask(f"/v1/models/{key}")).status == 404
        assert (await gateway.ask(f"/{key}?api_key={key}", a_chat())).status == 404
        for header in (
            f"Authorization: Bearer {key}\x01".encode(),
            f"{key}: 1".encode(),
            f"X-Request-Id: {key}\r\nAuthorization: Basic {key}".encode(),
            f"Host: {key}\r\nHost: {key}".encode(),
        ):
            assert (await raw(gateway, "POST", GENERATION[0], header)).status in {400, 401}

        def crash(*_args, **_kwargs):
            raise RuntimeError(key)

        monkeypatch.setattr(gateway.gateway.rooms.counters["chat"], "count", crash)
        assert (await gateway.chat()).status == 500
        page = (await gateway.ops("/metrics")).body + (await gateway.ops("/api/state")).body
    lines = [json.loads(line) for line in logged().splitlines()]
    # A caller's own request id is its own words: a key that it puts there is in the log by its own doing.
    written = json.dumps([{**line, "caller_request_id": None} for line in lines])
    assert INTERACTIVE_KEY[:12] not in written
    assert INTERACTIVE_KEY.encode()[:12] not in page
