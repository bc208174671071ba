"""Heads of requests, byte by byte: where they are sent to, and how they say that their body is framed."""

from __future__ import annotations

import json

import pytest

from gateway.testing import answers
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
BODY = json.dumps(a_chat()).encode()
CHUNKED = answers.chunk(BODY) + answers.CHUNKS_END


def a_head(target, *lines, version="1.1"):
    given = ("Host: gateway", f"Authorization: Bearer {INTERACTIVE_KEY}", "Content-Type: application/json", *lines)
    return "\r\n".join([f"POST {target} HTTP/{version}", *given, "", ""]).encode()


@pytest.mark.parametrize("host", ["http://gateway", "HTTP://other.example:8080", "https://[::1]:1"])
async def test_a_whole_address_is_judged_by_its_path_and_that_path_is_what_the_engine_gets(tmp_path, host):
    head = a_head(f"{host}{CHAT}?a=b", f"Content-Length: {len(BODY)}")
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.send(head + BODY)
        assert (await client.read_answer()).status == 200
    assert [post.path for post in engine.posts] == [CHAT]


@pytest.mark.parametrize(
    "target",
    [
        "http://gateway/metrics",
        "http://gateway/v1/chat/completions/",
        "http://gateway/v1/%63hat/completions",
        "http://gateway//v1/chat/completions",
        "http://user@gateway/v1/chat/completions",
        "http://gateway/v1/../v1/chat/completions",
    ],
)
async def test_an_address_whose_path_is_not_on_the_list_does_not_exist(tmp_path, target):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(a_head(target, f"Content-Length: {len(BODY)}") + BODY)
        answer = await client.read_answer()
    assert (answer.status, answer.json()["error"]["code"]) == (404, "unknown_url")
    assert not engine.posts


async def test_ops_takes_a_whole_address_too(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        assert (await gateway.ops(f"http://127.0.0.1:{gateway.ops_port}/healthz")).status == 200
        assert (await gateway.ops(f"http://127.0.0.1:{gateway.ops_port}/nothing")).status == 404


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_a_chunked_body_is_taken(tmp_path, coding):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.send(a_head(CHAT, f"Transfer-Encoding:{coding}") + CHUNKED)
        assert (await client.read_answer()).status == 200
    assert [post.json()["messages"] for post in engine.posts] == [a_chat()["messages"]]


async def test_a_transfer_coding_that_is_not_known_is_501_and_its_body_is_nobodys_next_request(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(a_head(CHAT, "Transfer-Encoding: gzip, chunked") + CHUNKED)
        answer = await client.read_answer()
        assert await client.read_end() == b""
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    assert (answer.status, answer.json()["error"]["code"]) == (501, "unsupported_transfer_encoding")
    assert (answer.header("connection"), answer.header("x-should-retry")) == ("close", "false")
    assert not engine.posts


@pytest.mark.parametrize(
    "lines",
    [
        ["Transfer-Encoding: gzip"],
        ["Transfer-Encoding: chunked, gzip"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
    ],
)
async def test_a_body_whose_end_cannot_be_told_is_400_and_the_connection_is_closed(tmp_path, lines):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(a_head(CHAT, *lines) + CHUNKED)
        answer = await client.read_answer()
        assert await client.read_end() == b""
    assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_http")
    assert not engine.posts


async def test_an_older_http_has_no_transfer_encoding(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(a_head(CHAT, "Transfer-Encoding: chunked", version="1.0") + CHUNKED)
        answer = await client.read_answer()
        assert await client.read_end() == b""
    assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_http")
    assert not engine.posts


@pytest.mark.parametrize("version", ["2.0", "0.9"])
async def test_another_version_of_http_is_505_in_our_own(tmp_path, version):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(a_head(CHAT, f"Content-Length: {len(BODY)}", version=version) + BODY)
        heard = await client.read_end()
    assert heard.startswith(b"HTTP/1.1 505 ")
    assert b'"unsupported_http_version"' in heard
    assert not engine.posts
