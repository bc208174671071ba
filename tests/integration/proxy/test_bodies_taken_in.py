"""Bodies: how many bytes of them are held at once, in which encodings they come, and where they are worked on."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import threading
import zlib
from contextlib import AsyncExitStack

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from gateway.server.tasks import spawn
from gateway.testing import answers
from gateway.testing.harness import INTERACTIVE_KEY, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine
from gateway.wire import requests

CHAT = "/v1/chat/completions"


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def halves(data):
    middle = len(data) // 2
    return data[:middle], data[middle:]


ENCODED = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("Deflate", raw_deflate),
    ("zstd", zstd.compress),
    ("gzip", lambda data: b"".join(map(gzip.compress, halves(data)))),
    ("zstd", lambda data: b"".join(map(zstd.compress, halves(data)))),
]


async def test_all_bodies_together_are_bounded_and_what_is_over_is_503(tmp_path):
    limits = {"body_bytes_max": 1000, "inflated_bytes_max": 1000}
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, limits=limits) as gateway,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(gateway.client()) for _ in range(18)]
        for client in clients:
            await client.send(client.head("POST", CHAT, {"Content-Length": "1000"}) + b" " * 900)
        reads = {spawn(client.read_answer(), name="read"): client for client in clients}
        done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [task.result() for task in done]
        error = refused.json()["error"]
        assert (refused.status, refused.header("x-gateway-reason")) == (503, "overloaded")
        assert (error["details"]["resource"], error["details"]["limit"]) == ("bytes", 16_000)
        assert refused.header("connection") == "close"
        for task in waiting:
            task.cancel()
            reads[task].leave()
        await gateway.until_metric("gateway_requests_total", len(waiting), outcome="client_gone")
        # What was held is given back: as much fits again, one after the other.
        for _ in range(18):
            padded = json.dumps(a_chat()).encode().ljust(900)
            assert (await gateway.ask(CHAT, padded)).status == 200


@pytest.mark.parametrize(("encoding", "encode"), ENCODED)
async def test_a_compressed_body_goes_on_plain(tmp_path, encoding, encode):
    body = json.dumps(a_chat(messages=[{"role": "user", "content": "word " * 40_000}])).encode()
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, encode(body), headers={"Content-Encoding": encoding})
        assert answer.status == 200
    assert engine.posts[0].json()["messages"] == json.loads(body)["messages"]
    assert engine.posts[0].header("content-encoding") == []


@pytest.mark.parametrize(("encoding", "encode"), ENCODED)
async def test_a_body_that_inflates_over_the_bound_is_413(tmp_path, encoding, encode):
    limits = {"body_bytes_max": 100_000, "inflated_bytes_max": 200_000}
    async with ScriptedEngine() as engine, running(tmp_path, engine, limits=limits) as gateway:
        answer = await gateway.ask(CHAT, encode(b" " * 20_000_000), headers={"Content-Encoding": encoding})
    details = answer.json()["error"]["details"]
    assert (answer.status, details["reason"], details["limit"]) == (413, "body_too_large", 200_000)
    assert details["observed"] <= 200_000 + (1 << 16)
    assert not engine.posts


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "zstd, gzip", "gzip, deflate", "compress", ""])
async def test_another_encoding_is_415(tmp_path, encoding):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, a_chat(), headers={"Content-Encoding": encoding})
    assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    "body",
    [b"", b"\x1f", b"no gzip at all", gzip.compress(b"{}")[:-3], gzip.compress(b"{}") + b"{}"],
    ids=["nothing", "one byte", "no gzip", "cut short", "more behind it"],
)
async def test_a_body_that_is_not_what_its_encoding_says_is_400(tmp_path, body):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, body, headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "malformed_body")


async def test_a_compressed_body_of_nobody_is_not_inflated(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.ask(CHAT, b"no gzip at all", key=None, headers={"Content-Encoding": "gzip"})
    assert answer.status == 401


@pytest.mark.parametrize(("characters", "is_in_loop"), [(1000, True), (400_000, False)])
async def test_a_large_body_is_judged_and_rewritten_outside_the_loop(tmp_path, monkeypatch, characters, is_in_loop):
    threads = []

    def noting(function):
        def noted(*args, **kwargs):
            threads.append(threading.current_thread() is threading.main_thread())
            return function(*args, **kwargs)

        return noted

    steps = ((requests, "read"), (requests, "read_quickly"), (requests, "judge"), (requests.Call, "rewritten"))
    for owner, name in steps:
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        content = [{"role": "user", "content": "x" * characters}]
        answer = await gateway.chat(messages=content, key=INTERACTIVE_KEY)
        assert answer.status == 200
    assert threads == [is_in_loop] * 3
