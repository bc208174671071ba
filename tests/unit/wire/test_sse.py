from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.answers import Usage
from gateway.wire.dialects import Dialect
from gateway.wire.sse import StreamTap


def chunk(**members: Any) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [], **members}).encode() + b"\n\n"


def named(name: str, value: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def fed(*chunks: bytes, dialect: Dialect = Dialect.OPENAI, event_bytes_max: int = 1 << 20) -> StreamTap:
    tap = StreamTap(dialect, event_bytes_max=event_bytes_max)
    for piece in chunks:
        tap.feed(piece)
    return tap


ROLE = chunk(choices=[{"delta": {"role": "assistant", "content": ""}}])
TOKEN = chunk(choices=[{"delta": {"content": "hi"}}])
USAGE = chunk(usage={"prompt_tokens": 5, "completion_tokens": 7})
DONE = b"data: [DONE]\n\n"


def test_a_comment_is_no_event() -> None:
    tap = fed(b": keep-alive\n\n", b":\n\n", b": x\r\n\r\n")
    assert not tap.first_event
    tap.feed(ROLE)
    assert tap.first_event


@pytest.mark.parametrize("name", ["response.created", "response.in_progress", "response.queued"])
def test_events_from_before_scheduling_are_not_the_first(name: str) -> None:
    by_name = named(name, {"type": name, "response": {"status": "queued", "error": None}})
    by_type = b"data: " + json.dumps({"type": name, "response": {}}).encode() + b"\n\n"
    tap = fed(by_name, by_type, dialect=Dialect.RESPONSES)
    assert not tap.first_event
    tap.feed(named("response.output_text.delta", {"type": "response.output_text.delta", "delta": "x"}))
    assert tap.first_event


def test_a_ping_is_not_the_first_event() -> None:
    tap = fed(named("ping", {"type": "ping"}), dialect=Dialect.ANTHROPIC)
    assert not tap.first_event
    tap.feed(
        named("message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 0}}})
    )
    assert tap.first_event
    assert tap.usage == Usage(3, 0)


def test_an_event_without_data_is_none() -> None:
    assert not fed(b"event: x\nid: 1\nretry: 5\n\n").first_event


def test_an_event_counts_when_it_is_whole_not_before() -> None:
    tap = fed(ROLE[:-1])
    assert not tap.first_event
    tap.feed(b"\n")
    assert tap.first_event


@pytest.mark.parametrize(
    "spelling",
    [b"data:%s\n\n", b"data: %s\n\n", b"event: x\nid: 1\ndata: %s\n\n", b"data: %s\r\n\r\n", b"data: %s\r\r"],
)
def test_every_spelling_of_an_event_is_read(spelling: bytes) -> None:
    value = json.dumps({"usage": {"prompt_tokens": 5}}).encode()
    assert fed(spelling % value).usage == Usage(5)


def test_data_lines_are_joined() -> None:
    assert fed(b'data: {"usage":\ndata: {"prompt_tokens": 5}}\n\n').usage == Usage(5)


def test_usage_stays_whatever_comes_after_it() -> None:
    for later in (DONE, TOKEN, chunk(usage=None), chunk(choices=None), b'data: {"usage": {}}\n\n'):
        tap = fed(TOKEN, USAGE, later)
        assert tap.usage == Usage(5, 7)


def test_usage_beside_choices_is_read_and_the_last_one_wins() -> None:
    first = chunk(choices=[{"finish_reason": "stop"}], usage={"prompt_tokens": 5, "completion_tokens": 1})
    assert fed(first).usage == Usage(5, 1)
    assert fed(first, USAGE).usage == Usage(5, 7)


def test_a_zero_unsays_no_count() -> None:
    zeros = chunk(usage={"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}})
    cached = chunk(usage={"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}})
    assert fed(zeros).usage == Usage(0, 0, 0)
    assert fed(zeros, cached).usage == fed(cached, zeros).usage == Usage(5, 7, 4)


@pytest.mark.parametrize("reason", [None, "end_turn"])
def test_a_message_that_the_engine_gave_up_has_no_stop_reason(reason: str | None) -> None:
    start = named("message_start", {"type": "message_start", "message": {"stop_reason": None, "usage": {}}})
    delta = named("message_delta", {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}})
    stop = named("message_stop", {"type": "message_stop"})
    tap = fed(start, delta, stop, dialect=Dialect.ANTHROPIC)
    assert (tap.ended, tap.given_up) == (True, reason is None)


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("spelling", [(", ", ": "), (",", ":")])
def test_an_answer_that_the_engine_gave_up_is_known_by_its_finish_reason(
    reason: str, spelling: tuple[str, str]
) -> None:
    value = {"choices": [{"delta": {"content": ""}, "finish_reason": reason}]}
    given_up = b"data: " + json.dumps(value, separators=spelling).encode() + b"\n\n"
    for chunks in ([given_up], [ROLE, TOKEN, given_up, DONE], [ROLE, TOKEN + given_up + DONE]):
        tap = fed(*chunks)
        assert (tap.given_up, tap.error) == (True, None)
    quoted = chunk(choices=[{"delta": {"content": f'"finish_reason": "{reason}"'}}])
    assert not fed(ROLE, quoted, chunk(choices=[{"delta": {}, "finish_reason": "stop"}]), DONE).given_up


def test_the_word_usage_in_an_answers_text_is_no_usage() -> None:
    assert (
        fed(
            ROLE, chunk(choices=[{"delta": {"content": '"usage": {"prompt_tokens": 1}, "error": {"code": 503}'}}])
        ).usage
        is None
    )


@pytest.mark.parametrize(
    "value", ["not json", '{"usage": {"prompt', "[1]", '{"choices": null, "usage": {"prompt_tokens": "x"}}']
)
def test_a_chunk_that_cannot_be_read_is_passed_over(value: str) -> None:
    tap = fed(TOKEN, f'data: "error" {value}\n\n'.encode(), f"data: {value}\n\n".encode(), USAGE)
    assert (tap.usage, tap.error) == (Usage(5, 7), None)


def test_an_error_as_the_first_event_has_its_status_and_envelope() -> None:
    envelope = b'{"error": {"message": "busy", "type": "Service Unavailable", "param": null, "code": 503}}'
    tap = fed(b": keep-alive\n\n", b"data: " + envelope + b"\n\n" + DONE)
    assert tap.first_event and tap.opens_with_error and tap.error is not None
    assert (tap.error.status, tap.error.body) == (503, envelope)


def test_an_anthropic_error_event_is_an_error() -> None:
    value = {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}
    tap = fed(named("error", value), dialect=Dialect.ANTHROPIC)
    assert tap.opens_with_error and tap.error is not None and tap.error.status == 503


def test_an_error_after_the_first_event_does_not_open_the_stream() -> None:
    tap = fed(ROLE + chunk(error={"message": "dead", "code": 500}))
    assert tap.error is not None
    assert (tap.error.status, tap.opens_with_error) == (500, False)


def test_a_failed_response_is_an_error_that_passes_as_it_is() -> None:
    value = {
        "type": "response.failed",
        "response": {"object": "response", "status": "failed", "error": {"code": "server_error"}},
    }
    tap = fed(named("response.failed", value), dialect=Dialect.RESPONSES)
    assert tap.error is not None
    assert (tap.error.status, tap.opens_with_error, tap.ended) == (502, False, True)


@pytest.mark.parametrize(
    ("dialect", "end"),
    [
        (Dialect.OPENAI, DONE),
        (Dialect.OPENAI, b"data:[DONE]\n\n"),
        (Dialect.OPENAI, b"data: [DONE] \n\n"),
        (Dialect.ANTHROPIC, named("message_stop", {"type": "message_stop"})),
        (
            Dialect.RESPONSES,
            named("response.completed", {"type": "response.completed", "response": {"usage": {"input_tokens": 1}}}),
        ),
        (Dialect.RESPONSES, named("response.incomplete", {"type": "response.incomplete", "response": {}})),
    ],
)
def test_each_dialect_has_its_own_end(dialect: Dialect, end: bytes) -> None:
    tap = fed(TOKEN, TOKEN, dialect=dialect)
    assert not tap.ended
    tap.feed(end)
    assert tap.ended and tap.error is None


def test_an_end_that_is_only_spoken_of_is_none() -> None:
    assert not fed(ROLE, chunk(choices=[{"delta": {"content": "[DONE]"}}])).ended


def test_a_last_event_without_its_blank_line_is_read_when_the_stream_is_over() -> None:
    tap = fed(TOKEN, b"data: [DONE]\n")
    assert not tap.ended
    tap.finish()
    assert tap.ended


@pytest.mark.parametrize(
    ("sent", "inside"),
    [
        (b"", False),
        (TOKEN, False),
        (TOKEN + b"\n", False),
        (TOKEN[:-1], True),
        (TOKEN[:-2], True),
        (TOKEN + TOKEN[:9], True),
        (TOKEN + b": keep", True),
        (b"data: x\r\n\r\n", False),
        (b"data: x\r\n\r", False),
        (b"data: x\r\n", True),
    ],
)
def test_a_break_inside_an_event_is_told_from_one_between(sent: bytes, inside: bool) -> None:
    assert fed(sent).mid_event is inside


def test_a_line_beyond_the_bound_is_counted_and_passed_over() -> None:
    long = chunk(choices=["x" * 500])
    for pieces in ([long], [long[:300], long[300:]], [long[at : at + 1] for at in range(len(long))]):
        tap = fed(*pieces, USAGE, DONE, event_bytes_max=200)
        assert tap.first_event and tap.ended
        assert (tap.overflowed, tap.usage) == (1, Usage(5, 7))


def test_whole_events_beyond_the_bound_are_counted_after_the_first_one_too() -> None:
    tap = fed(ROLE, chunk(choices=["x" * 500]), chunk(choices=["x" * 500]), event_bytes_max=200)
    assert (tap.overflowed, tap.usage) == (2, None)


LONG = "x" * 500
ENDS_OF_A_RESPONSE = [f"response.{status}" for status in ("completed", "incomplete", "failed")]


@pytest.mark.parametrize("pieces_bytes", [1, 7, 300, 10_000])
@pytest.mark.parametrize("name", ENDS_OF_A_RESPONSE)
def test_the_end_of_a_stream_is_its_end_however_long_it_is(name: str, pieces_bytes: int) -> None:
    said = {"id": "resp_1", "instructions": LONG, "usage": {"input_tokens": 5, "output_tokens": 7}, "user": None}
    end = named(name, {"response": said, "sequence_number": 8, "type": name})
    tap = fed(
        named("response.output_text.delta", {"type": "response.output_text.delta", "delta": "x"}),
        *(end[at : at + pieces_bytes] for at in range(0, len(end), pieces_bytes)),
        dialect=Dialect.RESPONSES,
        event_bytes_max=200,
    )
    assert (tap.ended, tap.overflowed, tap.usage) == (True, 1, Usage(5, 7))
    assert (tap.error is not None) is (name == "response.failed")
    assert tap.next_number == 9


def test_the_end_of_a_stream_is_no_end_before_it_is_whole() -> None:
    end = named("response.completed", {"type": "response.completed", "response": {"instructions": LONG}})
    tap = fed(end[:-2], dialect=Dialect.RESPONSES, event_bytes_max=200)
    assert tap.mid_event and not tap.ended


@pytest.mark.parametrize("pieces_bytes", [1, 300, 10_000])
def test_what_the_end_of_a_long_chunk_says_is_read(pieces_bytes: int) -> None:
    last = {"logprobs": [LONG], "finish_reason": "abort"}
    said = chunk(choices=[{"delta": {}, **last}], usage={"prompt_tokens": 5, "completion_tokens": 7})
    pieces = (said[at : at + pieces_bytes] for at in range(0, len(said), pieces_bytes))
    tap = fed(ROLE, *pieces, DONE, event_bytes_max=200)
    assert (tap.given_up, tap.usage, tap.ended) == (True, Usage(5, 7), True)


def test_a_responses_id_is_known_however_long_its_beginning_is() -> None:
    value = {"response": {"id": "resp_1", "instructions": LONG}, "type": "response.created"}
    assert fed(named("response.created", value), dialect=Dialect.RESPONSES, event_bytes_max=200).response_id == "resp_1"


def test_while_a_line_beyond_the_bound_is_passed_over_the_stream_is_inside_an_event() -> None:
    tap = fed(b"data: " + b"x" * 500, event_bytes_max=200)
    assert tap.mid_event and tap.first_event
    tap.feed(b"x" * 500)
    tap.feed(b"\n\n")
    assert not tap.mid_event
    assert tap.overflowed == 1


def test_a_long_event_from_before_scheduling_is_still_not_the_first() -> None:
    value = {"type": "response.created", "response": {"instructions": "x" * 500}}
    assert not fed(named("response.created", value), dialect=Dialect.RESPONSES, event_bytes_max=200).first_event


def test_memory_is_bounded_by_the_bound() -> None:
    tap = fed(*[b"x" * 1000] * 50, event_bytes_max=2000)
    assert len(tap._buffer) <= 2000


def test_a_responses_id_is_known_before_its_first_event() -> None:
    tap = StreamTap(Dialect.RESPONSES)
    tap.feed(named("response.created", {"type": "response.created", "response": {"id": "resp_1"}}))
    assert (tap.response_id, tap.first_event) == ("resp_1", False)
    tap.feed(named("response.in_progress", {"type": "response.in_progress", "response": {"id": "resp_2"}}))
    assert tap.response_id == "resp_1"


@pytest.mark.parametrize("head", [{"id": "resp 1"}, {"id": 1}, {}, {"id": "resp_1", "created_at": -1, "model": ["m"]}])
def test_of_a_response_only_what_can_be_said_again_is_kept(head: dict[str, Any]) -> None:
    tap = fed(named("response.created", {"type": "response.created", "response": head}), dialect=Dialect.RESPONSES)
    assert tap.response in ({}, {"id": "resp_1"})


def test_the_next_number_follows_the_last_whole_event_however_the_stream_is_cut() -> None:
    deltas = [
        named("response.output_text.delta", {"sequence_number": number, "delta": '"sequence_number": 99'})
        for number in (7, 8)
    ]
    whole = b"".join([*deltas, b": comment\n\n"])
    cut = fed(*(whole[at : at + 1] for at in range(len(whole))), dialect=Dialect.RESPONSES)
    assert fed(whole, dialect=Dialect.RESPONSES).next_number == cut.next_number == 9
    assert fed(deltas[0], deltas[1][:-2], dialect=Dialect.RESPONSES).next_number == 8
    assert fed(named("response.output_text.delta", {"delta": "x"}), dialect=Dialect.RESPONSES).next_number == 0


def test_no_other_dialect_has_a_responses_id() -> None:
    tap = StreamTap(Dialect.OPENAI)
    tap.feed(named("response.created", {"response": {"id": "resp_1"}}))
    assert tap.response_id is None
