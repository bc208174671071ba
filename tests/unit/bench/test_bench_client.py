"""The client over TCP: one attempt a request, no limits of its own, and every way HTTP ends has its place."""

import asyncio
import json
import time

import bench_kit
import pytest
from bench_kit import Asked, Reply, a_flight, scripted

from bench.corpus.tokenizer import PromptForm
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.target import PATHS
from bench.records.request import Outcome, RequestRecord

PATH = PATHS[PromptForm.CHAT]


async def sent(url: str, *flights: Flight) -> list[RequestRecord]:
    async with StreamingClient(url, PATH, time.perf_counter) as client:
        await asyncio.gather(*(client.send(flight) for flight in flights))
    return [flight.record(0.0) for flight in flights]


async def one(script: bench_kit.Script) -> RequestRecord:
    async with scripted(script) as server:
        (record,) = await sent(server.url, a_flight())
    return record


async def test_a_whole_answer_is_completed_with_its_counts_and_headers() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.answer(32, ["a", "b", "c"], {"x-gateway-queue-ms": "17", "x-gateway-length-class": "short"})

    record = await one(script)
    assert (record.outcome, record.reason, record.status) == (Outcome.COMPLETED, None, 200)
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (32, 3, "length")
    assert (record.gateway_queue_ms, record.gateway_length_class) == (17, "short")
    assert record.dispatched_ms < record.first_token_ms <= record.last_token_ms <= record.ended_ms
    assert record.connect_ms is not None and record.accepted


async def test_a_refusal_keeps_status_reason_and_retry_after() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        error = {"error": {"code": "slow_down", "type": "rate_limit_error", "details": {"reason": "queue_full"}}}
        headers = {"x-gateway-reason": "queue_full", "Retry-After": "3"}
        await reply.whole(429, json.dumps(error).encode(), headers)

    record = await one(script)
    assert (record.outcome, record.reason, record.status) == (Outcome.REFUSED, "queue_full", 429)
    assert record.retry_after_s == 3.0
    assert not record.accepted and record.ttft_ms is None and record.e2e_ms is None


async def test_an_error_of_the_engine_is_told_by_status_and_code() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.whole(404, json.dumps({"error": {"type": "NotFoundError", "code": 404}}).encode())

    record = await one(script)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "http_404_NotFoundError")


async def test_a_refused_request_is_never_sent_again() -> None:
    answers = iter([503, 503, 200])

    async def script(_: Asked, reply: Reply) -> None:
        status = next(answers)
        if status == 503:
            await reply.whole(503)
        else:
            await reply.answer(32, ["a"])

    async with scripted(script) as server:
        records = [(await sent(server.url, a_flight(index=i)))[0] for i in range(3)]
        assert len(server.asked) == 3
    assert [record.outcome for record in records] == [Outcome.REFUSED, Outcome.REFUSED, Outcome.COMPLETED]


async def test_a_connection_lost_before_the_answer_is_not_tried_again() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        reply.cut()

    async with scripted(script) as server:
        (record,) = await sent(server.url, a_flight())
        assert len(server.asked) == 1
    assert (record.outcome, record.reason) == (Outcome.FAILED, "connection_lost")


async def test_a_stream_cut_in_the_middle_is_failed_and_keeps_what_was_seen() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event(bench_kit.chat_chunk("a"))
        reply.writer.close()

    record = await one(script)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "stream_cut")
    assert record.ttft_ms is not None and record.e2e_ms is None


async def test_a_stream_cut_after_its_finish_reason_is_not_taken_for_whole() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event(bench_kit.chat_chunk("a", finish="stop"))
        reply.writer.close()

    assert (await one(script)).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("engine_broken", (Outcome.FAILED, "in_band_engine_broken")),
        ("engine_timeout", (Outcome.TIMED_OUT, "in_band_engine_timeout")),
    ],
)
async def test_a_cut_after_an_error_event_has_the_reason_of_the_event(code: str, end: tuple[Outcome, str]) -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event(bench_kit.chat_chunk("a"))
        await reply.event({"error": {"message": "m", "type": "api_error", "code": code, "details": {"reason": code}}})
        reply.writer.close()

    record = await one(script)
    assert (record.outcome, record.reason) == end


async def test_an_error_inside_a_200_is_no_completion() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}})
        await reply.end()

    record = await one(script)
    assert (record.outcome, record.reason, record.status) == (Outcome.REFUSED, "in_band_503", 200)
    assert not record.accepted


async def test_a_200_that_is_no_stream_is_failed() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.whole(200, b'{"choices": []}')

    record = await one(script)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "not_a_stream")


async def test_a_redirect_is_not_followed() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.whole(307, headers={"Location": "/elsewhere"})

    record = await one(script)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "http_307")


async def test_a_server_that_is_not_there_is_a_failed_request() -> None:
    async with scripted(lambda _asked, reply: reply.whole(200)) as server:
        url = server.url
    (record,) = await sent(url, a_flight())
    assert (record.outcome, record.reason, record.status) == (Outcome.FAILED, "connect_failed", None)


async def test_an_event_of_eight_megabytes_arrives() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event(bench_kit.chat_chunk("x" * (8 * 1024 * 1024)))
        await reply.event(bench_kit.chat_chunk("", finish="stop"))
        await reply.end()

    record = await one(script)
    assert (record.outcome, record.malformed_events) == (Outcome.COMPLETED, 0)


async def test_a_stream_in_single_bytes_reads_as_the_whole_one() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        events = [bench_kit.chat_chunk("a"), bench_kit.chat_chunk("é", finish="stop"), bench_kit.usage_event(32, 2)]
        for event in events:
            for byte in b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n":
                await reply.raw(bytes([byte]))
        await reply.end()

    record = await one(script)
    assert (record.outcome, record.output_tokens, record.malformed_events) == (Outcome.COMPLETED, 2, 0)


async def test_text_that_is_no_utf8_is_counted_and_not_fatal() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.raw(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n')
        await reply.event(bench_kit.chat_chunk("a", finish="stop"))
        await reply.end()

    record = await one(script)
    assert (record.outcome, record.malformed_events) == (Outcome.COMPLETED, 1)


async def test_a_client_that_leaves_by_the_trace_is_cancelled_and_the_server_sees_it() -> None:
    left = asyncio.Event()

    async def script(_: Asked, reply: Reply) -> None:
        await reply.begin()
        await reply.event(bench_kit.chat_chunk("a"))
        await reply.client_left()
        left.set()

    async with scripted(script) as server:
        (record,) = await sent(server.url, a_flight(cancel_after_s=0.05))
        await left.wait()
    assert (record.outcome, record.reason) == (Outcome.CANCELLED, "by_trace")


async def test_a_cancelled_send_leaves_the_flight_unfinished() -> None:
    began = asyncio.Event()

    async def script(_: Asked, reply: Reply) -> None:
        began.set()
        await reply.client_left()

    async with scripted(script) as server:
        flight = a_flight()
        sending = asyncio.get_running_loop().create_task(sent(server.url, flight))
        await began.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    record = flight.record(0.0)
    assert (record.outcome, record.reason) == (Outcome.UNFINISHED, None)
    assert record.ended_ms is not None and record.e2e_ms is None


async def test_the_kind_of_an_answer_is_read_in_any_case_and_with_its_parameters() -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.answer(32, ["a"], {"Content-Type": "Text/Event-Stream; charset=UTF-8"})

    assert (await one(script)).outcome is Outcome.COMPLETED


async def test_a_stream_that_was_compressed_unasked_says_so() -> None:
    async def script(asked: Asked, reply: Reply) -> None:
        assert "accept-encoding" not in asked.headers
        await reply.answer(32, ["a"], {"Content-Encoding": "gzip"})

    record = await one(script)
    assert (record.outcome, record.reason) == (Outcome.FAILED, "encoded_stream")


@pytest.mark.parametrize("seconds", ["9" * 400, "-3", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT"])
async def test_a_pause_that_is_no_number_of_seconds_is_not_recorded(seconds: str) -> None:
    async def script(_: Asked, reply: Reply) -> None:
        await reply.whole(429, b"", {"Retry-After": seconds, "x-gateway-queue-ms": seconds})

    record = await one(script)
    assert (record.outcome, record.retry_after_s, record.gateway_queue_ms) == (Outcome.REFUSED, None, None)
    json.dumps(record.to_row(), allow_nan=False)
