"""The client over TCP: one attempt a request, no limits of its own, and every way HTTP ends has its place."""

import asyncio
import json
import time

import bench_kit
import pytest
from bench_kit import Asked, Reply, a_flight, scripted

from bench.corpus.prompts import Corpus
from bench.corpus.tokenizer import PromptForm
from bench.load.bodies import BodyStyle, body, prepare
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.pacing import Windows
from bench.load.target import PATHS, Target
from bench.records.request import Outcome, Phase, RequestRecord
from bench.trace.arrivals import Arrival, Trace

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


async def test_three_hundred_requests_are_in_flight_at_once() -> None:
    all_here = asyncio.Event()
    here = 0

    async def script(_: Asked, reply: Reply) -> None:
        nonlocal here
        here += 1
        if here == 300:
            all_here.set()
        await all_here.wait()
        await reply.answer(32, ["a"])

    async with scripted(script) as server:
        records = await sent(server.url, *(a_flight(index=i) for i in range(300)))
    assert {record.outcome for record in records} == {Outcome.COMPLETED}


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


async def test_warm_sockets_are_used_by_the_first_requests() -> None:
    async with (
        scripted(lambda _asked, reply: reply.answer(32, ["a"])) as server,
        StreamingClient(server.url, PATH, time.perf_counter) as client,
    ):
        assert await client.warm(4) == 4
        flight = a_flight()
        await client.send(flight)
    assert flight.record(0.0).connect_ms is None


async def test_warming_tells_that_nothing_listens() -> None:
    async with scripted(lambda _asked, reply: reply.whole(200)) as server:
        url = server.url
    async with StreamingClient(url, PATH, time.perf_counter) as client:
        assert await client.warm(4) == 0


TARGET = Target(
    name="t",
    base_url="http://h",
    key_names={"short": "A"},
    priority={"short": -3, "long": 10},
    keys={"short": "gw-secret"},
)
STYLE = BodyStyle(PromptForm.CHAT, "m", cache_salt="run-1")


def prepared(run_id: str) -> list:
    trace = Trace((Arrival(0.5, "short", 4, 8), Arrival(1.5, "long", 4, 8)), 2.0, {})
    return prepare(
        trace, Corpus(("one", "two"), ""), style=STYLE, target=TARGET, windows=Windows(1.0, 1.0, 5.0), run_id=run_id
    )


def test_each_class_has_its_own_credential_and_priority() -> None:
    short, long = prepared("r")
    assert short.headers == {"Authorization": "Bearer gw-secret", "X-Vllm-Priority": "-3", "X-Request-Id": "r-0"}
    assert long.headers == {"X-Vllm-Priority": "10", "X-Request-Id": "r-1"}
    assert [request.phase for request in (short, long)] == [Phase.WARMUP, Phase.WINDOW]


def test_two_runs_never_send_the_same_request_id() -> None:
    first, second = prepared("run-a"), prepared("run-b")
    assert not {each.request_id for each in first} & {each.request_id for each in second}


def test_a_key_shows_in_no_repr_and_no_record() -> None:
    assert "gw-secret" not in repr(TARGET) + json.dumps(TARGET.public())


def test_bodies_ask_for_an_exact_output_and_a_running_count() -> None:
    chat = body("hello", 8, STYLE)
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    assert (chat["max_tokens"], chat["min_tokens"], chat["ignore_eos"], chat["cache_salt"]) == (8, 8, True, "run-1")
    assert chat["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    completion = body("hello", 8, BodyStyle(PromptForm.COMPLETIONS, "m", cache_salt=None))
    assert completion["prompt"] == "hello"
    assert "cache_salt" not in completion


async def test_sixty_four_prompts_of_fifty_thousand_tokens_are_at_the_server_together() -> None:
    """Nobody is answered before the last body is there: a connection limit or a full buffer would keep it away."""
    here = 0
    all_here = asyncio.Event()

    async def script(_asked: Asked, reply: Reply) -> None:
        nonlocal here
        here += 1
        if here == 64:
            all_here.set()
        await all_here.wait()
        await reply.answer(50_000, ["a", "b"])

    flights = [a_flight(index=index, prompt="word " * 50_000) for index in range(64)]
    async with scripted(script) as server:
        records = await sent(server.url, *flights)
    assert {record.outcome for record in records} == {Outcome.COMPLETED}
