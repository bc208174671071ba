"""Answers of engines as they are and as they should not be: what passes, what becomes a 502, what harms nobody else."""

from __future__ import annotations

import gzip
import json

import pytest

from gateway.testing import answers
from gateway.testing.answers import CHUNKS_END, STREAM_HEAD, chunk
from gateway.testing.harness import MODEL, a_chat, running
from gateway.testing.scripted_engine import ScriptedEngine, Wire

CHAT = "/v1/chat/completions"
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"content-type: application/json\r\n"
BODY = json.dumps({"id": "x", "choices": [], "usage": answers.usage(5, 2)}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
WHOLE = OK + JSON + LENGTH + b"\r\n" + BODY
CHUNKED = b"transfer-encoding: chunked\r\n"


async def test_whatever_its_type_an_answer_passes_as_it_is_however_it_is_framed(tmp_path):
    long = b'{"a": "' + b"x" * 300_000 + b'"}'
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for kind, body in (
            ("audio/wav", b"RIFF\x00\xffdata: no event\n\n"),
            ("text/vtt; charset=utf-8", b"WEBVTT\n\n"),
            ("application/x-subrip", b"1\n00:00\n"),
            ("text/plain", b""),
            ("application/json", long),
        ):
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n".encode()
            halves = [half for half in (body[:5], body[5:]) if half]
            for script in (
                answers.raw(head + b"content-length: %d\r\n\r\n" % len(body) + body),
                answers.raw(head + CHUNKED + b"\r\n", *map(chunk, halves), CHUNKS_END),
            ):
                engine.script = script
                answer = await gateway.chat(stream=True)
                assert (answer.status, answer.header("content-type"), answer.body) == (200, kind, body)
                assert answer.header("content-length") == str(len(body))
        compressed = gzip.compress(BODY)
        engine.script = answers.plain(200, compressed, "application/json", extra={"content-encoding": "gzip"})
        answer = await gateway.chat()
        assert (answer.header("content-encoding"), answer.body) == ("gzip", compressed)


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "identity\r\ncontent-encoding: zstd"])
async def test_a_stream_that_nobody_here_can_read_is_502_at_once_and_the_engine_hears_it(tmp_path, coding):
    """A compressing proxy before the engine: whether such a stream fails or ends can be told by nobody on the way."""
    head = STREAM_HEAD[:-2] + f"content-encoding: {coding}\r\n\r\n".encode()
    async with (
        ScriptedEngine(answers.hanging(head + chunk(gzip.compress(b"".join(answers.events_of("a")))))) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")
        await engine.until(lambda: len(engine.aborted) == 1)
    assert (answer.status, answer.json()["error"]["code"]) == (502, "engine_broken")
    assert "Content-Encoding" in answer.json()["error"]["message"]


async def test_a_stream_in_no_coding_may_say_so(tmp_path):
    events = answers.events_of("a")
    script = answers.raw(STREAM_HEAD[:-2] + b"content-encoding: identity\r\n\r\n", *map(chunk, events), CHUNKS_END)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        assert (await gateway.chat(stream=True)).body == b"".join(events)


async def test_an_answer_that_says_how_long_it_is_without_a_body_leaves_the_connection_whole(tmp_path):
    async with (
        ScriptedEngine(answers.raw(b"HTTP/1.1 204 No Content\r\n\r\n")) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        await client.post(CHAT, a_chat())
        nothing = await client.read_head()
        assert (nothing.status, nothing.header("content-length"), nothing.header("transfer-encoding")) == (
            204,
            None,
            None,
        )
        engine.script = answers.completion()
        await client.post(CHAT, a_chat())
        assert (await client.read_answer()).status == 200


async def test_an_answer_that_is_none_is_502_and_its_words_do_not_pass(tmp_path):
    of_status = "HTTP/1.1 {} Secret\r\ncontent-length: 0\r\n\r\n"
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for said in (
            *(of_status.format(status).encode() for status in (300, 304, 307, 399, 600, 999)),
            b"HTTP/1.1 101 Secret\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            OK + JSON + LENGTH + b"content-length: 3\r\n\r\n" + BODY,
            OK + JSON + LENGTH + CHUNKED + b"\r\n" + chunk(BODY) + CHUNKS_END,
            OK + JSON + b"content-length: Secret\r\n\r\n" + BODY,
            OK + JSON + b"x-a: Secret\x00\r\n" + LENGTH + b"\r\n" + BODY,
            OK + JSON + b"x-a: Secret\rx-b: c\r\n" + LENGTH + b"\r\n" + BODY,
            OK + JSON + b"x-a: " + b"Secret" * 20_000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
            b"Secret\r\n\r\n",
        ):
            engine.script = answers.raw(said, then=Wire.close)
            for stream in (False, True):
                answer = await gateway.chat(stream=stream)
                assert (answer.status, answer.header("x-gateway-reason")) == (502, "engine_broken"), said[:60]
                assert answer.header("x-should-retry") == "false"
                assert b"Secret" not in answer.body + str(answer.headers).encode()
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == await gateway.metric(
            "gateway_offered_total"
        )


async def test_json_that_is_empty_is_no_answer(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for framing in (b"content-length: 0\r\n\r\n", CHUNKED + b"\r\n" + CHUNKS_END, b"\r\n"):
            engine.script = answers.raw(OK + JSON + framing, then=Wire.close)
            for answer in (
                await gateway.chat(),
                await gateway.chat(stream=True),
                await gateway.ask("/tokenize", {"model": MODEL, "prompt": "hi"}),
            ):
                assert (answer.status, answer.header("x-gateway-reason")) == (502, "engine_broken"), framing
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 6


async def test_what_comes_before_and_behind_an_answer_is_nobody_elses(tmp_path):
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for said in (
            b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE,
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + WHOLE,
            WHOLE + OK + b"content-length: 6\r\n\r\nSecret",
        ):
            engine.script = answers.raw(said)
            answer = await gateway.chat()
            assert (answer.status, answer.body, answer.header("link")) == (200, BODY, None)
            engine.script = answers.completion("mine")
            assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == "mine"


async def test_a_header_that_could_not_be_written_out_again_stays_behind(tmp_path):
    script = answers.raw(OK + JSON + b"x-odd: a\x01b\r\nx-raw: \xe9\r\nx-fine: yes\r\n" + LENGTH + b"\r\n" + BODY)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat()
    assert (answer.status, answer.header("x-fine"), answer.header("x-odd"), answer.header("x-raw")) == (
        *(200, "yes"),
        *(None, None),
    )


async def test_tokens_are_counted_once_wherever_the_engine_says_how_many(tmp_path):
    """Beside a choice, in an event of its own, before the stream's end or without one, and whatever follows."""
    text, last = answers.token("Hello"), answers.token("", finish_reason="stop")
    beside = last.replace(b"}]}", b'}], "usage": ' + json.dumps(answers.usage(5, 3)).encode() + b"}")
    own = answers.usage_event(5, 3)
    empty = answers.event({"id": "x", "choices": [], "usage": None})
    streams = [
        [text, beside, answers.DONE],
        [text, last, own, answers.DONE],
        [text, last, own, empty, b": bye\n\n", answers.DONE],
        [text, last, own + answers.DONE],
        [text, last, answers.usage_event(5, 1), own, answers.DONE],
        [text, last, own],
        [text, last, own, answers.usage_event(0, 0), answers.DONE],
    ]
    async with ScriptedEngine() as engine, running(tmp_path, engine) as gateway:
        for number, events in enumerate(streams, start=1):
            engine.script = answers.raw(STREAM_HEAD, *map(chunk, events), CHUNKS_END)
            async with gateway.client() as client:
                await client.post(CHAT, a_chat(stream=True))
                await client.read_head()
                while await client.read_chunk() and b"".join(client.chunks) != b"".join(events):
                    pass
                await gateway.until(lambda: not gateway.exchanges)
            assert await gateway.metric("gateway_output_tokens_total") == 3 * number
            assert await gateway.metric("gateway_prompt_tokens_total") == 5 * number


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_engine_gives_up_passes_as_it_is_and_counts_as_the_engines_error(tmp_path, stream, reason):
    """So vLLM ends what runs when it shuts down or goes to sleep: in the form of an answer that is whole."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hel"}, "finish_reason": reason}
    whole = {"id": "x", "choices": [choice], "usage": answers.usage(5, 1)}
    events = [answers.token("Hel"), answers.token("", finish_reason=reason), answers.usage_event(5, 1), answers.DONE]
    script = answers.stream_of(*events) if stream else answers.json_answer(whole)
    async with ScriptedEngine(script) as engine, running(tmp_path, engine) as gateway:
        answer = await gateway.chat(stream=stream)
        assert (answer.status, answer.body) == (200, b"".join(events) if stream else json.dumps(whole).encode())
        assert await gateway.metric("gateway_requests_total", outcome="engine_error") == 1
        assert await gateway.metric("gateway_requests_total") == 1
        assert await gateway.metric("gateway_output_tokens_total") == 1
        assert gateway.gateway.rooms.watches["a"].health.is_up


async def test_what_the_engine_may_have_begun_is_never_sent_twice(tmp_path):
    """On a new connection no answer means that the engine had the request, and may have generated."""
    async with ScriptedEngine(answers.raw(then=Wire.close)) as engine, running(tmp_path, engine) as gateway:
        for stream in (False, True):
            await engine.cut_connections()
            before = len(engine.posts)
            assert (await gateway.chat(stream=stream)).status == 502
            assert len(engine.posts) == before + 1
        assert await gateway.metric("gateway_engine_resends_total") == 0


async def test_a_stream_is_what_was_asked_for_and_no_more(tmp_path):
    """The gateway counts from what passes: it asks for no usage that the caller did not ask for."""
    asked = [{}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}]
    async with ScriptedEngine(answers.streaming("a")) as engine, running(tmp_path, engine) as gateway:
        for members in asked:
            body = json.dumps({"model": MODEL, "prompt": "Hi", "stream": True, **members}).encode()
            answer = await gateway.ask("/v1/completions", body)
            assert answer.body == b"".join(answers.events_of("a"))
            assert engine.posts[-1].body == body
