"""How many connections each port carries, how long one may be slow, and what whoever is over it hears."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack

import pytest

from gateway.server import app, ops, turned_away
from gateway.server.front import PortBounds
from gateway.testing import answers
from gateway.testing.harness import a_chat, running
from gateway.testing.raw_client import RawClient
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.testing.skipping_loop import skip

CHAT = "/v1/chat/completions"
KEEPALIVE_S = 75


@pytest.fixture
def ops_bounds(monkeypatch):
    def state(connections_max=256, keepalive_s=75.0):
        monkeypatch.setattr(app, "OPS_BOUNDS", PortBounds(connections_max, 32_768, keepalive_s, 30.0))

    return state


async def sending_for_ever(client, data):
    while True:
        await client.send(data)
        await asyncio.sleep(0)


def everything(sock):
    """Read to a clean end; a reset is an error."""
    heard = b""
    while piece := sock.recv(4096):
        heard += piece
    return heard


async def test_who_is_over_the_bound_hears_it_though_it_has_sent_a_whole_request(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, limits={"connections_max": 1}) as gateway,
        gateway.client() as first,
    ):
        await first.post(CHAT, a_chat())
        assert (await first.read_answer()).status == 200
        for _ in range(5):
            # Its request is there before the gateway can look: closing on it would be a reset.
            with socket.create_connection(("127.0.0.1", gateway.port)) as second:
                second.sendall(first.head("POST", CHAT, {"Content-Length": "50000"}) + b" " * 50_000)
                head, _, body = (await asyncio.to_thread(everything, second)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert {b"Connection: close", b"Server: gateway"} <= set(head.split(b"\r\n"))
            assert json.loads(body)["error"]["details"]["reason"] == "overloaded"
        assert await gateway.metric("gateway_connections_refused_total") == 5
        await first.post(CHAT, a_chat())
        assert (await first.read_answer()).status == 200


async def test_who_is_over_the_bound_and_stays_or_sends_on_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(turned_away, "LINGER_S_MAX", 0.05)
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"connections_max": 1}) as gateway,
        gateway.client() as first,
        gateway.client() as silent,
        gateway.client() as flooding,
    ):
        await gateway.until(lambda: len(gateway.gateway._front.connections) == 1)
        with pytest.raises(ConnectionError):
            await sending_for_ever(flooding, b"x" * (1 << 20))
        assert (await silent.read_answer()).status == 503
        told = gateway.gateway._front.turned_away._told
        await gateway.until(lambda: not told)
        assert first.reader.at_eof() is False


async def test_those_who_are_being_told_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(turned_away, "TOLD_MAX", 2)
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"connections_max": 1}) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(gateway.client()) for _ in range(5)]
        await gateway.until_metric("gateway_connections_refused_total", 4)
        ends = [await client.read_end() for client in clients[1:]]
    assert sum(b" 503 " in end for end in ends) == 2
    assert sorted(map(bool, ends)) == [False, False, True, True]


async def test_the_ops_port_has_a_bound_of_its_own_and_says_so(tmp_path, ops_bounds):
    ops_bounds(connections_max=2)
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine) as gateway,
        RawClient(gateway.ops_port) as first,
        RawClient(gateway.ops_port) as second,
    ):
        for client in (first, second):
            await client.get("/healthz")
            assert (await client.read_answer()).status == 200
        async with RawClient(gateway.ops_port) as third:
            await third.get("/healthz")
            assert (await third.read_answer()).status == 503
        await first.get("/metrics")
        page = (await first.read_answer()).body
    assert b"gateway_connections_refused_total 1" in page


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127", b"GET /healthz HTTP/1.1\r\nX: "])
async def test_a_head_that_does_not_come_to_its_end_ends_the_ops_connection(tmp_path, ops_bounds, sent):
    ops_bounds(keepalive_s=0.05)
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine) as gateway,
        RawClient(gateway.ops_port) as client,
    ):
        await client.send(sent)
        assert await client.read_end() == b""


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127"])
async def test_a_head_that_does_not_come_to_its_end_ends_the_public_connection_however_it_drips(tmp_path, sent):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine, limits={"keepalive_s": KEEPALIVE_S}) as gateway,
        gateway.client() as client,
    ):
        await client.send(sent)
        await gateway.until(lambda: gateway.gateway._front.connections)
        skip(KEEPALIVE_S - 10)
        await client.send(sent[-1:])
        await gateway.ops("/healthz")
        assert gateway.gateway._front.connections
        skip(10)
        assert await client.read_end() == b""
        assert await gateway.metric("gateway_offered_total") == 0


async def test_a_body_that_does_not_come_holds_no_ops_connection(tmp_path):
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine) as gateway,
        RawClient(gateway.ops_port) as client,
    ):
        await client.send(client.head("POST", "/api/drain?off=1", {"Content-Length": "1000"}) + b"x")
        answer = await client.read_answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await client.read_end() == b""


async def test_who_does_not_take_its_page_is_cut_from_the_ops_port(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "STALL_S_MAX", 0.1)
    async with (
        ScriptedEngine() as engine,
        running(tmp_path, engine) as gateway,
        RawClient(gateway.ops_port, receive_buffer_bytes=4096) as client,
    ):
        monkeypatch.setattr(gateway.gateway.rooms.observer, "exposition", lambda: b"x" * (16 << 20))
        client.writer.transport.pause_reading()
        await client.get("/metrics")
        await gateway.until(lambda: len(gateway.gateway._ops_front.connections) == 1)
        await gateway.until(lambda: not gateway.gateway._ops_front.connections)
        assert (await gateway.ops("/healthz")).status == 200


@pytest.mark.parametrize("keepalive_s", [0, 1])
async def test_who_does_not_take_the_end_of_its_answer_keeps_no_connection(tmp_path, keepalive_s):
    """So little is left that nothing waits for it: its answer has ended, and the connection is only kept or closed."""
    connections = set()

    script = answers.until_some_waits(lambda: any(each.transport.get_write_buffer_size() for each in connections))
    limits = {"keepalive_s": keepalive_s, "client_stall_s": 0.2}
    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine, limits=limits) as gateway,
        gateway.client(receive_buffer_bytes=4096) as client,
    ):
        front = gateway.gateway._front
        await gateway.until(lambda: len(front.connections) == 1)
        connections.update(front.connections)
        await client.post(CHAT, a_chat(stream=True))
        await gateway.until_metric("gateway_requests_total", 1)
        await gateway.until(lambda: not front.connections)


async def test_the_ops_port_names_no_library_and_refuses_in_json(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        async with RawClient(gateway.ops_port) as client:
            await client.send(b"this is not HTTP\r\n\r\n")
            malformed = await client.read_answer()
            assert await gateway.metric("gateway_http_requests_total") == 0
        async with RawClient(gateway.ops_port) as client:
            await client.send(client.head("HEAD", "/metrics", {}))
            head = await client.read_head()
            await client.send(client.head("DELETE", "/metrics", {}))
            wrong_method = await client.read_answer()
            await client.get("/nothing")
            unknown = await client.read_answer()
    assert [answer.status for answer in (malformed, head, wrong_method, unknown)] == [400, 200, 405, 404]
    assert {answer.header("server") for answer in (malformed, head, wrong_method, unknown)} == {"gateway"}
    assert wrong_method.header("allow") == "GET"
    assert all(answer.json()["error"]["message"] for answer in (malformed, wrong_method, unknown))
