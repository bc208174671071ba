"""What a stream's first and last event mean where the stream does not end as it should."""

from __future__ import annotations

import pytest

from gateway.server import dispatch
from gateway.testing import answers
from gateway.testing.harness import a_chat, running
from gateway.testing.raw_client import BrokenAnswer
from gateway.testing.scripted_engine import ScriptedEngine, Wire

CHAT = "/v1/chat/completions"
WRONG = {"error": {"message": "too hot", "type": "BadRequestError", "param": None, "code": 400}}


def unterminated(event, then):
    end = () if then is not None else (answers.CHUNKS_END,)
    return answers.raw(answers.STREAM_HEAD, answers.chunk(event.rstrip(b"\n")), *end, then=then)


@pytest.mark.parametrize("then", [None, Wire.close, Wire.reset])
async def test_a_first_event_that_is_an_error_is_one_though_no_blank_line_ends_it(tmp_path, then):
    async with (
        ScriptedEngine(unterminated(answers.event(WRONG), then)) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        assert (answer.status, answer.json()) == (400, WRONG)
        await gateway.until_metric("gateway_requests_total", 1, outcome="completed")


async def test_a_lack_of_room_said_without_a_blank_line_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "BUSY_PAUSE_S", 0.01)
    async with ScriptedEngine(answers.streaming("a")) as engine, running(tmp_path, engine) as gateway:
        engine.scripts.append(unterminated(answers.event(answers.BUSY), None))
        assert (await gateway.chat(stream=True)).status == 200
        assert len(engine.posts) == 2


async def test_a_whole_answer_after_a_busy_stream_breaks_off_without_a_streams_words(tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "BUSY_PAUSE_S", 0.01)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000000\r\n\r\n"
    half = b'{"choices": "' + b"x" * 2_000_000
    async with (
        ScriptedEngine(answers.raw(head, half, then=Wire.close)) as engine,
        running(tmp_path, engine) as gateway,
        gateway.client() as client,
    ):
        engine.scripts.append(answers.stream_of(answers.event(answers.BUSY), answers.DONE))
        await client.post(CHAT, a_chat(stream=True))
        with pytest.raises(BrokenAnswer) as broken:
            await client.read_answer()
        assert len(engine.posts) == 2
    assert broken.value.body == half


@pytest.mark.parametrize("end", [(), (answers.DONE,)])
async def test_a_streams_own_error_is_told_once_though_the_engine_then_breaks(tmp_path, end):
    events = [answers.token("a"), answers.event(WRONG), *end]
    async with (
        ScriptedEngine(answers.stream_of(*events, then=Wire.reset)) as engine,
        running(tmp_path, engine) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        assert answer.body == b"".join(events)
        await gateway.until_metric("gateway_requests_total", 1, outcome="engine_error")
