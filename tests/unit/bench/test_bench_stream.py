"""Reading a stream: any split, any line end, and what counts as a token."""

import json
from itertools import pairwise

import bench_kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.load import events, sse
from bench.load.outcomes import Ending, of_status, of_stream
from bench.load.reading import StreamReading
from bench.load.sse import EventSplitter, EventTooLargeError
from bench.records.request import Outcome


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def feed(chunks: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_gives_the_same_events(end: bytes) -> None:
    lines = [
        b": keep-alive",
        b"",
        b"event: x",
        b"data: one",
        b"",
        b"data:two",
        b"data: three",
        b"id: 4",
        b"",
        b"data: cut",
    ]
    assert feed([end.join(lines)]) == [b"one", b"two\nthree"]


@given(end=st.sampled_from([b"\n", b"\r\n", b"\r"]), cuts=st.lists(st.integers(0, 10**6), max_size=30))
def test_events_do_not_depend_on_where_the_network_splits_them(end: bytes, cuts: list[int]) -> None:
    lines = [b'data: {"a": 1}', b"", b": comment", b"data: b", b"data: c", b"", b"", b"data: [DONE]", b"", b""]
    data = end.join(lines)
    assert feed(split(data, cuts)) == [b'{"a": 1}', b"b\nc", b"[DONE]"]


def test_an_event_of_eight_megabytes_is_read_in_small_pieces() -> None:
    big = b"x" * (8 * 1024 * 1024)
    data = b"data: " + big + b"\n\n"
    assert feed([data[i : i + 65536] for i in range(0, len(data), 65536)]) == [big]


def test_an_event_without_end_is_given_up_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    splitter = EventSplitter()
    splitter.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLargeError):
        splitter.feed(b"x" * 900)


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\u000b", "\u001c"])
def test_what_other_readers_take_for_a_line_end_is_part_of_the_text(character: str) -> None:
    event = json.dumps({"choices": [{"text": f"a{character}b"}]}, ensure_ascii=False).encode()
    assert feed([b"data: " + event + b"\n\n"]) == [event]


def test_many_data_lines_without_end_are_given_up_at_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    with pytest.raises(EventTooLargeError):
        EventSplitter().feed(b"data: 0123456789\n" * 200)


def said(value: object) -> events.Said:
    return events.read(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("delta", "token", "content"),
    [
        ({"role": "assistant"}, False, False),
        ({"role": "assistant", "content": ""}, False, False),
        ({"content": "a"}, True, True),
        ({"role": "assistant", "content": "a"}, True, True),
        ({"reasoning": "hm"}, True, False),
        ({"reasoning_content": "hm"}, True, False),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True, False),
        ({"refusal": "no"}, True, False),
        ({"content": None, "tool_calls": []}, False, False),
        ({}, False, False),
    ],
)
def test_a_chat_chunk_is_a_token_where_any_channel_has_something(delta: dict, token: bool, content: bool) -> None:
    read = said({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    assert (read.token, read.content) == (token, content)


def test_a_completion_chunk_is_a_token_where_it_has_text() -> None:
    assert said({"choices": [{"text": "a"}]}).token
    assert not said({"choices": [{"text": ""}]}).token


def test_a_chunk_with_token_ids_alone_is_a_token() -> None:
    assert said({"choices": [{"text": "", "token_ids": [5]}]}).token


@pytest.mark.parametrize(
    "payload", [b"{", b"[1]", b"null", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"choices": 3}', b"{}"]
)
def test_strange_events_are_no_tokens_and_no_exceptions(payload: bytes) -> None:
    read = events.read(payload)
    assert not read.token and read.finish_reason is None and read.error is None


@pytest.mark.parametrize("payload", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_an_event_that_is_no_json_object_is_malformed(payload: bytes) -> None:
    assert events.read(payload).malformed


def test_an_error_keeps_its_code_and_reason_and_never_its_message() -> None:
    error = said({"error": {"message": "your prompt was: secret", "type": "Service Unavailable", "code": 503}}).error
    assert error == events.InBandError(503, "other")
    gateway = {
        "error": {"message": "x", "type": "api_error", "code": "engine_broken", "details": {"reason": "engine_broken"}}
    }
    assert said(gateway).error == events.InBandError(None, "engine_broken")
    assert said({"error": "it broke"}).error == events.InBandError(None, "error")


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "usage", "error", "code", "text", "details", "content"]), inner
            )
        ),
    )
)
def test_no_json_makes_reading_fail(value: object) -> None:
    said(value)


def a_reading(*timed: tuple[float, object]) -> StreamReading:
    reading = StreamReading()
    for now, value in timed:
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        reading.feed(b"data: " + payload + b"\n\n", now)
    return reading


def test_a_role_chunk_is_not_the_first_token() -> None:
    reading = a_reading((0.1, bench_kit.chat_chunk("", role="assistant")), (1.1, bench_kit.chat_chunk("a")))
    assert reading.first_token_at == 1.1


def test_the_first_token_of_reasoning_counts_and_the_first_content_stands_apart() -> None:
    reading = a_reading((1.0, bench_kit.chat_chunk(reasoning="hm")), (2.0, bench_kit.chat_chunk("a")))
    assert (reading.first_token_at, reading.first_content_at) == (1.0, 2.0)


def test_an_answer_that_ends_inside_its_reasoning_has_a_first_token() -> None:
    reading = a_reading((1.0, bench_kit.chat_chunk(reasoning="hm", finish="length")))
    assert (reading.first_token_at, reading.first_content_at) == (1.0, None)
    assert of_stream(reading) == Ending(Outcome.COMPLETED)


def counted(text: str, tokens: int) -> dict:
    return {
        "choices": [{"text": text, "finish_reason": None}],
        "usage": {"prompt_tokens": 9, "completion_tokens": tokens},
    }


def test_a_token_whose_text_is_held_back_shows_in_the_running_count() -> None:
    reading = a_reading((1.0, counted("", 0)), (2.0, counted("", 1)), (3.0, counted("é", 2)))
    assert reading.chunk_times == [2.0, 3.0]


def test_a_count_that_comes_at_the_end_alone_is_no_token() -> None:
    reading = a_reading((1.0, bench_kit.chat_chunk("a", finish="stop")), (9.0, bench_kit.usage_event(9, 1)))
    assert reading.chunk_times == [1.0]
    last = bench_kit.chat_chunk("", finish="stop") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    assert a_reading((1.0, bench_kit.chat_chunk("a")), (9.0, last)).chunk_times == [1.0]


def test_the_longest_stall_includes_the_silence_before_the_end() -> None:
    reading = a_reading(
        (1.0, bench_kit.chat_chunk("a")), (1.5, bench_kit.chat_chunk("b")), (1.75, bench_kit.chat_chunk("c"))
    )
    assert reading.gaps_s() == [0.5, 0.25]
    assert reading.longest_stall_s(ended_at=1.8) == 0.5
    assert reading.longest_stall_s(ended_at=4.75) == 3.0


def test_an_answer_without_a_token_has_no_stall() -> None:
    assert a_reading((1.0, bench_kit.chat_chunk("", role="assistant"))).longest_stall_s(ended_at=5.0) is None


def test_events_that_cannot_be_read_are_counted_and_not_fatal() -> None:
    reading = a_reading((1.0, b'{"choices": [\xff'), (2.0, bench_kit.chat_chunk("a", finish="stop")))
    assert reading.malformed_events == 1
    assert of_stream(reading) == Ending(Outcome.COMPLETED)


@pytest.mark.parametrize(
    ("status", "reason", "ending"),
    [
        (429, "queue_full", (Outcome.REFUSED, "queue_full")),
        (429, "wait_deadline", (Outcome.EXPIRED, "wait_deadline")),
        (429, None, (Outcome.REFUSED, "http_429")),
        (503, None, (Outcome.REFUSED, "http_503")),
        (529, None, (Outcome.REFUSED, "http_529")),
        (503, "draining", (Outcome.REFUSED, "draining")),
        (401, "unauthenticated", (Outcome.REFUSED, "unauthenticated")),
        (504, "engine_timeout", (Outcome.TIMED_OUT, "engine_timeout")),
        (504, None, (Outcome.TIMED_OUT, "http_504")),
        (502, "engine_broken", (Outcome.FAILED, "engine_broken")),
        (400, None, (Outcome.FAILED, "http_400")),
        (500, None, (Outcome.FAILED, "http_500")),
        (307, None, (Outcome.FAILED, "http_307")),
    ],
)
def test_each_status_and_reason_has_one_ending(status: int, reason: str | None, ending: tuple) -> None:
    assert of_status(status, reason) == Ending(*ending)


OVERLOADED = {"error": {"message": "busy", "type": "Service Unavailable", "code": 503}}


def test_an_overload_inside_a_200_is_a_refusal_before_the_first_token_and_a_failure_after_it() -> None:
    assert of_stream(a_reading((1.0, OVERLOADED), (1.0, b"[DONE]"))) == Ending(Outcome.REFUSED, "in_band_503")
    late = a_reading((1.0, bench_kit.chat_chunk("a")), (2.0, OVERLOADED), (2.0, b"[DONE]"))
    assert of_stream(late) == Ending(Outcome.FAILED, "in_band_503")


def test_an_error_after_the_finish_reason_is_still_a_failure() -> None:
    reading = a_reading((1.0, bench_kit.chat_chunk("a", finish="stop")), (2.0, {"error": {"code": 500, "type": "x"}}))
    assert of_stream(reading) == Ending(Outcome.FAILED, "in_band_500")


@pytest.mark.parametrize("word", ["abort", "error", "cancelled"])
def test_an_answer_that_the_engine_gave_up_is_none_although_its_stream_ends_well(word: str) -> None:
    reading = a_reading(
        (1.0, bench_kit.chat_chunk("a")), (2.0, bench_kit.chat_chunk("", finish=word)), (2.0, b"[DONE]")
    )
    assert of_stream(reading) == Ending(Outcome.FAILED, f"finish_{word}")


@pytest.mark.parametrize("word", ["stop", "length", "tool_calls", "content_filter", "repetition"])
def test_every_other_finish_reason_is_an_end_of_the_answer(word: str) -> None:
    assert of_stream(a_reading((1.0, bench_kit.chat_chunk("a", finish=word)))) == Ending(Outcome.COMPLETED)


@pytest.mark.parametrize("count", [-1, 10**10, 10**400, 2.5, "12", True, None], ids=lambda count: str(count)[:12])
def test_a_count_that_is_beyond_belief_was_not_given(count: object) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    last = bench_kit.chat_chunk("a", finish="stop") | {"usage": usage}
    flight = bench_kit.a_flight()
    flight.dispatched_at, flight.ended_at, flight.ending = 0.0, 3.0, Ending(Outcome.COMPLETED)
    flight.reading = a_reading((1.0, bench_kit.chat_chunk("a")), (2.0, last))
    row = flight.record(0.0).to_row()
    assert not {"prompt_tokens", "output_tokens", "cached_tokens", "tpot_ms"} & set(row)
    json.dumps(row, allow_nan=False)


def test_done_without_a_finish_reason_is_no_completion() -> None:
    reading = a_reading((1.0, bench_kit.chat_chunk("a")), (2.0, b"[DONE]"))
    assert of_stream(reading) == Ending(Outcome.FAILED, "no_finish_reason")


def test_a_gateway_time_limit_inside_a_200_is_a_time_out() -> None:
    error = {"error": {"type": "api_error", "code": "engine_timeout", "details": {"reason": "engine_timeout"}}}
    reading = a_reading((1.0, bench_kit.chat_chunk("a")), (2.0, error))
    assert of_stream(reading) == Ending(Outcome.TIMED_OUT, "in_band_engine_timeout")
