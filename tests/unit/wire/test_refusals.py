from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.types import LengthClass, Reason, Refusal, Resource
from gateway.testing.dialect_answers import response_events
from gateway.wire.dialects import Dialect
from gateway.wire.refusals import TABLE, Rendered, render, stream_error
from gateway.wire.sse import StreamTap

# The contract's table, said once more: status, type, code, whether another try may help.
CONTRACT = {
    Reason.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key", False),
    Reason.NOT_ALLOWED: (403, "permission_error", "model_not_allowed", False),
    Reason.BAD_REQUEST: (400, "invalid_request_error", "invalid_request", False),
    Reason.CONTEXT_LENGTH: (400, "invalid_request_error", "context_length_exceeded", False),
    Reason.BODY_TOO_LARGE: (413, "invalid_request_error", "request_too_large", False),
    Reason.UNKNOWN_MODEL: (404, "invalid_request_error", "model_not_found", False),
    Reason.UNKNOWN_ROUTE: (404, "invalid_request_error", "unknown_url", False),
    Reason.QUEUE_FULL: (429, "rate_limit_error", "slow_down", True),
    Reason.TENANT_QUEUE_FULL: (429, "rate_limit_error", "slow_down", True),
    Reason.WAIT_DEADLINE: (429, "rate_limit_error", "slow_down", True),
    Reason.PREDICTED_MISS: (429, "rate_limit_error", "slow_down", True),
    Reason.NO_ENGINE: (503, "service_unavailable_error", "server_is_overloaded", True),
    Reason.DRAINING: (503, "service_unavailable_error", "server_is_overloaded", True),
    Reason.OVERLOADED: (503, "service_unavailable_error", "server_is_overloaded", True),
    Reason.ENGINE_UNREACHABLE: (502, "api_error", "engine_unreachable", True),
    Reason.ENGINE_BROKEN: (502, "api_error", "engine_broken", False),
    Reason.ENGINE_TIMEOUT: (504, "api_error", "engine_timeout", False),
}
ANTHROPIC = {
    400: (400, "invalid_request_error"),
    401: (401, "authentication_error"),
    403: (403, "permission_error"),
    404: (404, "not_found_error"),
    413: (413, "request_too_large"),
    429: (429, "rate_limit_error"),
    502: (502, "api_error"),
    503: (529, "overloaded_error"),
    504: (504, "api_error"),
}
EVERY_REASON = pytest.mark.parametrize("reason", list(Reason))
DETAILS = {"reason", "service_class", "length_class", "limit", "observed", "waited_s", "retry_after_s"}


def rendered(refusal: Refusal, dialect: Dialect = Dialect.OPENAI, **known: Any) -> tuple[Rendered, dict[str, Any]]:
    answer = render(refusal, dialect=dialect, request_id="req-1", **known)
    return answer, json.loads(answer.body)


@EVERY_REASON
def test_every_reason_has_the_contracts_status_type_and_code(reason: Reason) -> None:
    status, kind, code, retryable = CONTRACT[reason]
    answer, body = rendered(Refusal(reason, "why", param="p"))
    assert answer.status == status
    details = body["error"].pop("details")
    assert body == {"error": {"message": "why", "type": kind, "param": "p", "code": code}}
    assert details["reason"] == reason.value == answer.headers["x-gateway-reason"]
    assert answer.headers["x-should-retry"] == ("true" if retryable else "false")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["x-request-id"] == "req-1"
    assert ("Retry-After" in answer.headers) == retryable == ("retry-after-ms" in answer.headers)


@EVERY_REASON
def test_every_reason_has_an_anthropic_envelope(reason: Reason) -> None:
    answer, body = rendered(Refusal(reason, "why"), Dialect.ANTHROPIC)
    status, kind = ANTHROPIC[CONTRACT[reason][0]]
    assert answer.status == status
    details = body["error"].pop("details")
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "req-1"}
    assert details["reason"] == reason.value


@EVERY_REASON
@pytest.mark.parametrize("dialect", list(Dialect))
def test_details_have_all_their_keys_null_where_they_do_not_apply(reason: Reason, dialect: Dialect) -> None:
    answer, body = rendered(Refusal(reason, "why"), dialect)
    details = body["error"]["details"]
    assert set(details) == (DETAILS | {"resource"} if answer.status in (429, 503, 529) else DETAILS)
    assert {name for name, value in details.items() if value is not None} <= {"reason", "retry_after_s"}


@EVERY_REASON
def test_no_refusal_is_a_success_or_a_request_timeout(reason: Reason) -> None:
    for dialect in Dialect:
        assert render(Refusal(reason, "x"), dialect=dialect, request_id="r").status not in (200, 408)


def test_numbers_of_a_full_queue_reach_the_details() -> None:
    refusal = Refusal(
        Reason.QUEUE_FULL, "full", resource=Resource.PROMPT_TOKENS, limit=200000.0, observed=200512, retry_after_s=2.25
    )
    _, body = rendered(refusal, service_class="batch", length_class=LengthClass.LONG)
    assert body["error"]["details"] == {
        "reason": "queue_full",
        "service_class": "batch",
        "length_class": "long",
        "limit": 200000,
        "observed": 200512,
        "waited_s": None,
        "retry_after_s": 2.25,
        "resource": "prompt_tokens",
    }
    assert "200000," in json.dumps(body), "counts carry no fraction"


@pytest.mark.parametrize(
    ("wished", "seconds", "milliseconds"),
    [
        (None, "1", "1000"),
        (0.0, "1", "1000"),
        (1.0, "1", "1000"),
        (1.2345, "2", "1235"),
        (59.9, "60", "59900"),
        (61, "60", "60000"),
        (3600, "60", "60000"),
    ],
)
def test_another_try_is_named_within_what_clients_obey(wished: float | None, seconds: str, milliseconds: str) -> None:
    answer, _ = rendered(Refusal(Reason.QUEUE_FULL, "full", retry_after_s=wished))
    assert (answer.headers["Retry-After"], answer.headers["retry-after-ms"]) == (seconds, milliseconds)


def test_what_was_classified_is_said_in_headers() -> None:
    refusal = Refusal(Reason.WAIT_DEADLINE, "late", waited_s=2.0004)
    answer, _ = rendered(refusal, service_class="standard", length_class=LengthClass.SHORT)
    assert answer.headers["x-gateway-service-class"] == "standard"
    assert answer.headers["x-gateway-length-class"] == "short"
    assert answer.headers["x-gateway-queue-ms"] == "2000"


def test_what_is_not_known_yet_is_not_said() -> None:
    answer, _ = rendered(Refusal(Reason.BAD_REQUEST, "x"), service_class="standard")
    assert answer.headers["x-gateway-service-class"] == "standard"
    assert "x-gateway-length-class" not in answer.headers
    assert "x-gateway-queue-ms" not in answer.headers


@pytest.mark.parametrize(
    ("reason", "code", "status"),
    [
        (Reason.UNKNOWN_ROUTE, "method_not_allowed", 405),
        (Reason.BAD_REQUEST, "unsupported_content_encoding", 415),
        (Reason.BAD_REQUEST, "headers_too_large", 431),
        (Reason.BAD_REQUEST, "invalid_json", 400),
    ],
)
def test_a_precise_code_may_have_its_own_status(reason: Reason, code: str, status: int) -> None:
    answer, body = rendered(Refusal(reason, "x", code=code))
    assert (answer.status, body["error"]["code"]) == (status, code)
    _, anthropic = rendered(Refusal(Reason.BAD_REQUEST, "x", code=code), Dialect.ANTHROPIC)
    assert anthropic["error"]["type"] == "invalid_request_error"


def test_a_wrong_method_names_the_right_one_and_a_missing_key_its_scheme() -> None:
    answer, _ = rendered(Refusal(Reason.UNKNOWN_ROUTE, "x", code="method_not_allowed"), allow="POST")
    assert answer.headers["Allow"] == "POST"
    answer, _ = rendered(Refusal(Reason.UNAUTHENTICATED, "x"))
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_closing_answer_says_so() -> None:
    assert rendered(Refusal(Reason.DRAINING, "x"), close=True)[0].headers["Connection"] == "close"
    assert "Connection" not in rendered(Refusal(Reason.DRAINING, "x"))[0].headers


def test_a_message_of_any_characters_is_plain_json() -> None:
    answer, body = rendered(Refusal(Reason.UNKNOWN_MODEL, 'no model "\ud800\r\n漢"'))
    assert answer.body.isascii()
    assert body["error"]["message"] == 'no model "\ud800\r\n漢"'


BROKEN = Refusal(Reason.ENGINE_BROKEN, "The engine broke off.")


def test_a_broken_openai_stream_ends_with_one_error_chunk() -> None:
    event = stream_error(BROKEN, dialect=Dialect.OPENAI, request_id="r", tap=StreamTap(Dialect.OPENAI))
    assert event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("engine_broken", "api_error")


def test_a_broken_anthropic_stream_ends_with_its_error_event() -> None:
    event = stream_error(BROKEN, dialect=Dialect.ANTHROPIC, request_id="r", tap=StreamTap(Dialect.ANTHROPIC))
    name, data, *_ = event.split(b"\n")
    assert name == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["type"] == "error"


def test_a_broken_responses_stream_ends_as_failed() -> None:
    name, value = the_end_of(StreamTap(Dialect.RESPONSES))
    assert name == b"event: response.failed"
    assert (value["type"], value["response"]["status"]) == ("response.failed", "failed")
    assert value["response"]["error"] == {"code": "engine_broken", "message": "The engine broke off."}
    assert (value["sequence_number"], value["response"]["id"]) == (0, "r")


def test_the_end_of_a_broken_response_is_that_response_and_its_next_event() -> None:
    tap = StreamTap(Dialect.RESPONSES)
    for event in response_events("Hello", " world", response_id="resp_7")[:4]:
        tap.feed(event)
    _, value = the_end_of(tap)
    assert value["sequence_number"] == 4
    assert value["response"] == {
        "id": "resp_7",
        "object": "response",
        "created_at": 1767225600,
        "model": "tiny",
        "status": "failed",
        "error": {"code": "engine_broken", "message": "The engine broke off."},
        "output": [],
    }


def the_end_of(tap: StreamTap) -> tuple[bytes, dict[str, Any]]:
    name, data, *_ = stream_error(BROKEN, dialect=Dialect.RESPONSES, request_id="r", tap=tap).split(b"\n")
    return name, json.loads(data.removeprefix(b"data: "))


@pytest.mark.parametrize("dialect", list(Dialect))
def test_inside_an_event_the_error_comes_after_a_blank_line(dialect: Dialect) -> None:
    between, inside = StreamTap(dialect), StreamTap(dialect)
    inside.feed(b"data: {")
    clean = stream_error(BROKEN, dialect=dialect, request_id="r", tap=between)
    assert stream_error(BROKEN, dialect=dialect, request_id="r", tap=inside) == b"\n\n" + clean
    assert b"[DONE]" not in clean


def test_the_table_covers_every_reason() -> None:
    assert set(TABLE) == set(Reason)
