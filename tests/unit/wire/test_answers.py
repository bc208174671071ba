from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.answers import (
    HEAD_BYTES_TO_JUDGE,
    TAIL_BYTES_MAX,
    BodyTap,
    Usage,
    is_leaving,
    read_error,
    read_response_head,
    read_usage,
)


def whole(*chunks: bytes) -> BodyTap:
    tap = BodyTap()
    for chunk in chunks:
        tap.feed(chunk)
    tap.finish()
    return tap


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}, Usage(5, 7)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(5, None, 4)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}, Usage(5)),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 0}}}, Usage(3, 0)),
        ({"usage": {"input_tokens": 3, "cache_read_input_tokens": 2}}, Usage(5, None, 2)),
        ({"usage": {"input_tokens": 3, "cache_read_input_tokens": None}}, Usage(3)),
        (
            {"usage": {"input_tokens": 0, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 16}},
            Usage(20, None, 16),
        ),
        (
            {
                "response": {
                    "usage": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 1}}
                }
            },
            Usage(3, 4, 1),
        ),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": "7"}}, Usage()),
        ({"usage": {"prompt_tokens": True}}, Usage()),
        ({"usage": None, "choices": None}, None),
        ({"choices": [{"delta": None}]}, None),
        ([1], None),
    ],
)
def test_usage_is_read_in_every_dialects_words(value: Any, usage: Usage | None) -> None:
    assert read_usage(value) == usage


@pytest.mark.parametrize("tokens", [-1, 1 << 41, 10**400, 1.5, True, "5"])
def test_a_count_that_no_context_can_hold_is_no_count(tokens: Any) -> None:
    assert read_usage({"usage": {"prompt_tokens": tokens, "completion_tokens": 3}}) == Usage(None, 3, None)


def test_a_later_usage_updates_only_what_it_says() -> None:
    assert Usage(5, 1, 2).updated(Usage(None, 9, None)) == Usage(5, 9, 2)
    assert Usage(0, 0, 0).updated(Usage()) == Usage(0, 0, 0)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}}, 503),
        ({"error": {"message": "x", "type": "BadRequestError", "code": 400}}, 400),
        ({"error": {"message": "x", "code": "429"}}, 429),
        ({"error": {"message": "x", "type": "rate_limit_error", "code": "slow_down"}}, 429),
        ({"error": {"message": "x", "type": "NotFoundError", "code": None}}, 404),
        ({"error": {"message": "x", "type": "never heard of", "code": 20}}, 502),
        ({"error": {"message": "x", "type": 5, "code": 200}}, 502),
        ({"error": {"message": "x", "code": "5034"}}, 502),
        ({"error": "Unauthorized"}, 502),
        ({"object": "error", "message": "x", "type": "NotFoundError", "code": 404}, 404),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, 503),
        ({"type": "error", "error": {"type": "internal_error", "message": "x"}}, 502),
        ({"type": "error", "code": "server_error", "message": "x"}, 502),
    ],
)
def test_an_error_inside_a_success_has_a_status(value: dict[str, Any], status: int) -> None:
    error = read_error(value, b"raw")
    assert error is not None
    assert (error.status, error.body) == (status, b"raw")


@pytest.mark.parametrize(
    "value",
    [
        {"error": None, "choices": []},
        {"choices": [{"error": "x"}]},
        {"object": "response", "status": "failed", "error": {"code": "server_error"}},
        {},
        [],
        "error",
    ],
)
def test_an_answer_without_an_error_is_none(value: Any) -> None:
    assert read_error(value, b"") is None


ANSWER = {
    "id": "c",
    "choices": [{"message": {"content": 'say "usage": {"prompt_tokens": 1}'}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}


@pytest.mark.parametrize("size", [1, 3, 64, 10_000])
def test_a_whole_answers_usage_is_read_however_it_comes(size: int) -> None:
    body = json.dumps(ANSWER).encode()
    tap = whole(*(body[at : at + size] for at in range(0, len(body), size)))
    assert (tap.usage, tap.error, tap.overflowed) == (Usage(9, 2), None, 0)


def test_usage_at_the_end_of_a_huge_answer_is_found() -> None:
    body = json.dumps({"choices": ["x" * (3 * TAIL_BYTES_MAX)], "usage": {"prompt_tokens": 9}}).encode()
    assert whole(body).usage == Usage(9)


def test_usage_that_lies_too_far_back_is_counted_as_not_read() -> None:
    body = json.dumps({"usage": {"prompt_tokens": 9}, "choices": ["x" * (3 * TAIL_BYTES_MAX)]}).encode()
    tap = whole(body)
    assert (tap.usage, tap.overflowed) == (None, 1)


@pytest.mark.parametrize("body", [b"", b"WEBVTT\n", b'{"usage": {"prompt', b"\xff" * 100, b'{"usage":{"a":tru}}'])
def test_an_answer_that_cannot_be_read_has_no_usage_and_no_error(body: bytes) -> None:
    tap = whole(body)
    assert (tap.usage, tap.error) == (None, None)


ERROR = b'{"error": {"message": "busy, come again later", "type": "Service Unavailable", "code": 503}}'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_error_envelope_is_suspected_from_its_first_bytes_and_read_at_its_end(size: int) -> None:
    tap = BodyTap()
    for at in range(0, len(ERROR), size):
        tap.feed(ERROR[at : at + size])
        assert tap.error_suspected
    tap.finish()
    assert tap.error is not None
    assert (tap.error.status, tap.error.body) == (503, ERROR)


def test_an_ordinary_answer_is_suspected_only_while_too_little_of_it_came() -> None:
    body = json.dumps(ANSWER).encode()
    tap = BodyTap()
    tap.feed(body[: HEAD_BYTES_TO_JUDGE - 1])
    assert tap.error_suspected
    tap.feed(body[HEAD_BYTES_TO_JUDGE - 1 :])
    assert not tap.error_suspected
    tap.finish()
    assert tap.error is None


def test_an_error_member_that_is_null_is_no_error() -> None:
    tap = BodyTap()
    tap.feed(b'{"error" : null, "choices": [], "object": "chat.completion"}')
    assert not tap.error_suspected


@pytest.mark.parametrize(
    ("value", "response_id"),
    [
        ({"type": "response.created", "response": {"id": "resp_0a-B"}}, "resp_0a-B"),
        ({"response": {"id": "a/../b"}}, None),
        ({"response": {"id": "x" * 129}}, None),
        ({"response": {"id": 5}}, None),
        ({"response": None, "id": "resp_1"}, None),
        ([], None),
    ],
)
def test_a_responses_id_is_read_where_it_is_a_plain_one(value: Any, response_id: str | None) -> None:
    assert read_response_head(value).get("id") == response_id


@pytest.mark.parametrize(
    ("body", "response_id"),
    [
        (b'{"id":"resp_1","object":"response"}', "resp_1"),
        (b' {\n "id" : "resp_1"}', "resp_1"),
        (b'{"text":"{\\"id\\":\\"resp_2\\"}","id":"resp_1"}', None),
        (b'{"id":"a b"}', None),
    ],
)
def test_a_whole_answers_id_is_the_one_that_it_begins_with(body: bytes, response_id: str | None) -> None:
    for size in (1, len(body)):
        tap = BodyTap()
        for at in range(0, len(body), size):
            tap.feed(body[at : at + size])
        assert tap.response_id == response_id


LEAVING = "cannot schedule new futures after shutdown"


@pytest.mark.parametrize(
    ("status", "value", "leaves"),
    [
        (500, {"error": {"message": LEAVING, "type": "InternalServerError", "param": None, "code": 500}}, True),
        (500, {"type": "error", "error": {"type": "internal_error", "message": LEAVING}}, True),
        (400, {"error": {"message": LEAVING}}, False),
        (500, {"error": {"message": f"no such word: {LEAVING}"}}, False),
        (500, {"error": {"message": None, "param": LEAVING}}, False),
        (500, {"error": LEAVING}, False),
        (500, [LEAVING], False),
    ],
)
def test_only_an_engines_own_words_say_that_it_shuts_down(status: int, value: Any, leaves: bool) -> None:
    assert is_leaving(status, json.dumps(value).encode()) is leaves
    assert not is_leaving(status, LEAVING.encode())
