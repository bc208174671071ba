"""Answers pass as the engine wrote them: bytes, status, headers; and what is seen of them on the way is right."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.server.relay import HELD_BYTES_MAX
from gateway.testing import answers
from gateway.testing.harness import BATCH_KEY, MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine, Wire

LABELS = {"service_class": "interactive", "length_class": "short", "pool": "chat"}
EVENTS = answers.events_of("Hello", " wörld", tail=[answers.usage_event(12, 2)])


async def test_a_stream_arrives_byte_for_byte(tmp_path):
    async with ScriptedEngine(answers.stream_of(*EVENTS)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
    assert (answer.status, answer.body) == (200, b"".join(EVENTS))
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.header("cache-control") == "no-cache, no-transform"
    assert answer.header("x-accel-buffering") == "no"


async def test_a_whole_answer_arrives_byte_for_byte(tmp_path):
    body = (
        b'{"choices": [], "odd":  1.0e3, "text": "caf\\u00e9",\n"usage": {"prompt_tokens": 3, "completion_tokens": 1}}'
    )
    async with (
        ScriptedEngine(answers.plain(200, body, "application/json; charset=utf-8")) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.ask("/v1/completions", {"model": MODEL, "prompt": "Hi"})
        assert await gateway.metric("gateway_prompt_tokens_total", **LABELS) == 3
    assert (answer.status, answer.body) == (200, body)
    assert answer.header("content-type") == "application/json; charset=utf-8"
    assert answer.header("content-length") == str(len(body))


async def test_a_body_that_needs_no_change_reaches_the_engine_byte_for_byte(tmp_path):
    body = b'{ "model":"tiny",  "messages":[{"role":"user","content":"caf\\u00e9"}], "max_tokens":5, "seed":1.0 }'
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        await gateway.ask("/v1/chat/completions", body)
    assert engine.posts[0].body == body


async def test_every_answer_says_how_it_was_classed_and_how_long_it_waited(tmp_path):
    async with ScriptedEngine(answers.completion()) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(key=BATCH_KEY, headers={"X-Request-Id": "mine"})
    assert answer.header("x-gateway-service-class") == "batch"
    assert answer.header("x-gateway-length-class") == "short"
    assert answer.header("x-gateway-queue-ms") == "0"
    assert answer.header("x-request-id").startswith("req-")
    assert engine.posts[0].header("x-request-id") == [answer.header("x-request-id")]


async def test_the_engines_own_headers_pass_but_for_what_is_the_gateways(tmp_path):
    extra = {"server": "uvicorn", "x-request-id": "engine", "x-custom": "yes", "set-cookie": "a=b", "x-gateway-a": "b"}
    extra["date"] = "Thu, 01 Jan 2026 00:00:00 GMT"
    script = answers.json_answer({"choices": []}, extra=extra)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat()
    assert answer.header("x-custom") == "yes"
    assert answer.header("server") == "gateway"
    assert answer.header("set-cookie") is None
    assert answer.header("x-gateway-a") is None
    assert answer.header("date") is not None
    assert answer.header("x-request-id") != "engine"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "outcome"), [(400, "completed"), (404, "completed"), (500, "engine_error")])
async def test_an_engines_own_error_passes_unwrapped(tmp_path, status, outcome, stream):
    async with ScriptedEngine(answers.error(status, "its own words")) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=stream)
        assert await gateway.metric("gateway_requests_total", **LABELS, outcome=outcome) == 1
    assert (answer.status, answer.json()["error"]["message"]) == (status, "its own words")
    assert answer.header("x-gateway-reason") is None


async def test_an_error_as_the_first_event_becomes_the_real_status(tmp_path):
    envelope = {"error": {"message": "out of vocabulary", "type": "BadRequestError", "param": None, "code": 400}}
    script = answers.stream_of(answers.event(envelope), answers.DONE)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        assert await gateway.metric("gateway_requests_total", **LABELS, outcome="completed") == 1
    assert (answer.status, answer.json()) == (400, envelope)
    assert answer.header("content-type") == "application/json"


async def test_an_error_inside_a_stream_is_relayed_and_counted_as_the_engines(tmp_path):
    envelope = {"error": {"message": "died", "type": "InternalServerError", "param": None, "code": 500}}
    events = [answers.token("Hel"), answers.event(envelope), answers.DONE]
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        assert await gateway.metric("gateway_requests_total", **LABELS, outcome="engine_error") == 1
    assert (answer.status, answer.body) == (200, b"".join(events))


async def test_the_200_waits_for_the_first_event_and_a_comment_is_none(tmp_path):
    steps = asyncio.Queue()
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post("/v1/chat/completions", a_chat(stream=True))
        steps.put_nowait(answers.STREAM_HEAD + answers.chunk(b": keep-alive\n\n"))
        await engine.until(lambda: len(engine.posts) == 1)
        assert await gateway.metric("gateway_time_to_first_token_seconds_count", **LABELS) == 0
        (exchange,) = gateway.exchanges
        assert exchange.first_token_at is None
        steps.put_nowait(answers.chunk(answers.token("Hello")))
        await client.read_head()
        assert await client.read_chunk() == b": keep-alive\n\n" + answers.token("Hello")
        assert await gateway.metric("gateway_time_to_first_token_seconds_count", **LABELS) == 1
        steps.put_nowait(answers.chunk(answers.DONE) + answers.CHUNKS_END)
        steps.put_nowait(None)
        assert await client.read_chunk() == answers.DONE
        assert await client.read_chunk() == b""


async def test_each_chunk_passes_before_the_next_one_is_made(tmp_path):
    steps = asyncio.Queue()
    async with (
        ScriptedEngine(answers.step_by_step(steps)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "stream": True})
        steps.put_nowait(answers.STREAM_HEAD)
        for index in range(20):
            steps.put_nowait(answers.chunk(answers.token(str(index))))
            if index == 0:
                await client.read_head()
            assert await client.read_chunk() == answers.token(str(index))
        steps.put_nowait(answers.chunk(answers.DONE) + answers.CHUNKS_END)
        steps.put_nowait(None)
        assert await client.read_chunk() == answers.DONE


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
async def test_events_cut_at_every_byte_arrive_and_count_like_whole_ones(tmp_path, line_end):
    whole = b"".join(EVENTS).replace(b"\n", line_end)
    pieces = [answers.chunk(whole[at : at + 1]) for at in range(len(whole))]
    script = answers.raw(answers.STREAM_HEAD, *pieces, answers.CHUNKS_END)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        assert await gateway.metric("gateway_output_tokens_total", **LABELS) == 2
        assert await gateway.metric("gateway_requests_total", **LABELS, outcome="completed") == 1
    assert answer.body == whole


async def test_a_line_of_eight_megabytes_passes_and_the_stream_stays_well(tmp_path):
    events = [answers.token("a"), answers.token("x" * (8 << 20)), *answers.events_of("b")]
    async with ScriptedEngine(answers.stream_of(*events)) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=True)
        assert await gateway.metric("gateway_tap_overflows_total", **LABELS) == 1
        assert await gateway.metric("gateway_requests_total", **LABELS, outcome="completed") == 1
    assert answer.body == b"".join(events)


async def test_a_whole_answer_beyond_what_is_held_passes_too(tmp_path):
    body = json.dumps({"choices": [{"text": "x" * (3 << 20)}], "usage": {"prompt_tokens": 4, "completion_tokens": 9}})
    async with (
        ScriptedEngine(answers.plain(200, body.encode(), "application/json")) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.ask("/v1/completions", {"model": MODEL, "prompt": "Hi"})
        assert await gateway.metric("gateway_output_tokens_total", **LABELS) == 9
    assert answer.body == body.encode()


async def test_one_connection_serves_many_requests_and_so_does_the_engines(tmp_path):
    async with (
        ScriptedEngine(answers.stream_or_whole("a", "b")) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        opened_before = engine.connections_opened
        for stream in (True, False, True):
            await client.post("/v1/completions", {"model": MODEL, "prompt": "Hi", "stream": stream})
            assert (await client.read_answer()).status == 200
        assert engine.connections_opened - opened_before <= 1


async def test_an_older_http_client_gets_a_stream_that_ends_with_the_connection(tmp_path):
    async with (
        ScriptedEngine(answers.stream_of(*EVENTS)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        body = json.dumps(a_chat(stream=True)).encode()
        head = client.head("POST", "/v1/chat/completions", {"Content-Length": str(len(body))})
        await client.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        answer = await client.read_answer()
    assert (answer.header("transfer-encoding"), answer.body) == (None, b"".join(EVENTS))


@pytest.mark.parametrize("then", [Wire.close, Wire.reset])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_to_an_older_http_client_a_large_answer_that_breaks_looks_broken(tmp_path, path, then):
    """No length is known, so the connection's end would be the answer's: it is reset."""
    piece = answers.chunk(b'{"choices": [], "text": "' + b"a" * HELD_BYTES_MAX)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    goes_on = asyncio.Event()

    async def script(_request, wire):
        await wire.send(head, piece)
        await goes_on.wait()
        then(wire)

    async with (
        ScriptedEngine(script) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        body = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()
        asked = client.head("POST", path, {"Content-Length": str(len(body))})
        await client.send(asked.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        assert (await client.read_head()).header("content-length") is None
        goes_on.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


async def test_an_older_http_client_keeps_its_connection_where_it_asks_for_it(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        body = json.dumps(a_chat()).encode()
        for asked, said in (("keep-alive", "keep-alive"), ("close", None)):
            head = client.head("POST", "/v1/chat/completions", {"Content-Length": str(len(body)), "Connection": asked})
            await client.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
            answer = await client.read_answer()
            assert (answer.status, answer.header("connection"), answer.header("transfer-encoding")) == (200, said, None)
            assert answer.header("content-length") == str(len(answer.body))
        assert await client.read_end() == b""


async def test_keepalive_of_zero_serves_one_request_a_connection(tmp_path):
    async with (
        ScriptedEngine(answers.completion()) as engine,
        running(tmp_path, engine, limits={"keepalive_s": 0}) as gateway,
        gateway.client() as client,
    ):
        await client.post("/v1/completions", {"model": MODEL, "prompt": "Hi"})
        assert (await client.read_answer()).header("connection") == "close"
        assert await client.read_end() == b""


async def test_an_answer_to_head_has_no_body_and_the_connection_lives_on(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway, gateway.client() as client:
        await client.send(client.head("HEAD", "/v1/models", {}))
        assert (await client.read_head()).status == 405
        await client.get("/v1/models")
        assert (await client.read_answer()).status == 200


async def test_a_crash_of_our_own_is_a_500_that_says_nothing_and_loses_nothing(tmp_path, monkeypatch, logged):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        monkeypatch.setattr(gateway.gateway.rooms.pools, "context_tokens", {}.__getitem__)
        answer = await gateway.chat()
        assert await gateway.metric("gateway_requests_total", outcome="refused") == 1
    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "handler_crashed" in logged()


async def test_the_models_are_the_engines_own_cards_without_its_paths(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        listing = (await gateway.ask("/v1/models")).json()
        single = (await gateway.ask(f"/v1/models/{MODEL}")).json()
        assert not engine.posts
    assert [card["id"] for card in listing["data"]] == [MODEL]
    assert listing["data"][0] == single
    assert (single["max_model_len"], single["root"]) == (12288, MODEL)


async def test_nothing_is_lost_between_offer_and_outcome(tmp_path):
    async with ScriptedEngine(answers.stream_or_whole("a")) as engine, running(tmp_path, engine) as gateway:
        for stream in (True, False):
            await gateway.chat(stream=stream)
        await gateway.ask("/v1/chat/completions", b"no json")
        await gateway.ask("/v1/chat/completions", {}, key=None)
        assert await gateway.metric("gateway_offered_total") == 4
        assert await gateway.metric("gateway_requests_total") == 4
        assert await gateway.metric("gateway_http_requests_total", route="/v1/chat/completions") == 4
