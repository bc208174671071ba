"""Engines that speak TLS: bytes, breaks, departures and connections are as without it."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp.connector
import pytest

from gateway.testing import answers
from gateway.testing.certificate import certificate
from gateway.testing.harness import a_chat, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine, Wire

CHAT = "/v1/chat/completions"
TOKEN = answers.token("Hello")


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """What engines serve with; the gateway trusts it, as it does where SSL_CERT_FILE names it before its start."""
    tls, path = certificate(tmp_path)
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=path))
    return tls


@pytest.mark.parametrize("way", ["leave", "reset", "half_close"])
@pytest.mark.parametrize("said", [(), (answers.STREAM_HEAD, answers.chunk(TOKEN))], ids=["in prefill", "mid stream"])
async def test_a_client_that_leaves_ends_the_engines_work(tmp_path, tls, said, way):
    async with (
        ScriptedEngine(answers.hanging(*said), tls=tls) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await engine.until(lambda: engine.posts)
        if said:
            await client.read_head()
        getattr(client, way)()
        await engine.until(lambda: engine.aborted)
        await gateway.until(lambda: not gateway.exchanges)
        assert await gateway.metric("gateway_running_requests") == 0
        assert await gateway.metric("gateway_requests_total", outcome="client_gone") == 1


async def test_answers_pass_byte_for_byte_over_a_connection_that_is_kept(tmp_path, tls):
    events = answers.events_of("Hello", " world")
    async with ScriptedEngine(answers.stream_of(*events), tls=tls) as engine, running(tmp_path, engine) as gateway:
        for _ in range(3):
            answer = await gateway.chat(stream=True)
            assert (answer.status, answer.body) == (200, b"".join(events))
        # The watch's own connection is among those that are kept.
        assert len({post.connection for post in engine.posts}) <= 2


@pytest.mark.parametrize("way", [Wire.close, Wire.reset])
async def test_a_break_is_a_502_before_the_first_event_and_the_streams_last_event_after_it(tmp_path, tls, way):
    async with ScriptedEngine(tls=tls) as engine, running(tmp_path, engine) as gateway:
        for said in ((), (answers.STREAM_HEAD,)):
            engine.scripts += [answers.raw(*said, then=way)] * 2  # on a kept connection the first may be resent
            early = await gateway.chat(stream=True)
            assert (early.status, early.header("x-gateway-reason")) == (502, "engine_broken")
            engine.scripts.clear()
        engine.scripts.append(answers.raw(answers.STREAM_HEAD, answers.chunk(TOKEN), then=way))
        async with gateway.client() as client:
            await client.post(CHAT, a_chat(stream=True))
            with pytest.raises(BrokenAnswer) as broken:
                await client.read_answer()
        assert broken.value.body.startswith(TOKEN) and b'"engine_broken"' in broken.value.body
        await gateway.until_metric("gateway_requests_total", 3, outcome="engine_error")


async def test_what_is_no_chunk_behind_one_that_is_breaks_the_stream_at_once(tmp_path, tls):
    """Not when the engine has agreed to the connection's end, which this one never does."""
    release, idle = asyncio.Event(), {"timeouts": {"connect_s": 5, "first_byte_s": 5, "idle_s": 5}}

    async def script(_request, wire):
        wire._writer.transport.pause_reading()
        await wire.send(answers.STREAM_HEAD + answers.chunk(TOKEN))
        await release.wait()
        await wire.send(answers.chunk(TOKEN) + b"no chunk\r\n")
        await asyncio.Event().wait()

    async with (
        ScriptedEngine(script, tls=tls) as engine,
        running(tmp_path, engine, engine=idle) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat(stream=True))
        await client.read_head()
        assert await client.read_chunk() == TOKEN
        release.set()
        assert await client.read_chunk() == TOKEN
        assert b'"engine_broken"' in await client.read_chunk()


async def test_an_engine_whose_certificate_nobody_vouches_for_gets_nothing(tmp_path):
    tls, _ = certificate(tmp_path)
    async with ScriptedEngine(tls=tls) as engine, running(tmp_path, engine, ready=False) as gateway:
        await gateway.gateway.rooms.watches["a"].look()
        answer = await gateway.chat()
        assert (answer.status, answer.header("x-gateway-reason")) == (503, "no_engine")
        assert not engine.requests
