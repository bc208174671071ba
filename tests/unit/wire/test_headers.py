from __future__ import annotations

import pytest

from gateway.wire.headers import HOP_BY_HOP, STREAM_HEADERS, client_headers, engine_headers

KEPT = [("Content-Type", "application/json"), ("Accept", "text/event-stream"), ("traceparent", "00-1-2-01")]


def test_what_the_engine_reads_and_a_caller_may_set_reaches_it() -> None:
    assert engine_headers(KEPT) == [(name.lower(), value) for name, value in KEPT]


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "x-api-key", "Cookie", "Proxy-Authorization"),
        *("X-Vllm-Priority", "X-data-parallel-rank", "X-Session-ID", "endpoint-load-metrics-format", "X-Request-Id"),
        *("x-gateway-wait-ms", "X-Gateway-Anything"),
        *("X-Forwarded-For", "Forwarded", "X-Real-IP", "Host", "Expect", "Content-Length", "Content-Encoding"),
        *sorted(HOP_BY_HOP),
    ],
)
def test_control_credentials_and_connection_headers_never_reach_the_engine(name: str) -> None:
    assert engine_headers([(name, "1"), *KEPT]) == engine_headers(KEPT)


def test_headers_that_connection_names_stay_behind_both_ways() -> None:
    headers = [("Connection", "close, TraceParent"), ("traceparent", "1"), ("X-Foo", "2")]
    assert engine_headers(headers) == []
    assert client_headers(headers, stream=False) == [("X-Foo", "2")]


def test_of_a_repeated_header_the_engine_gets_the_first() -> None:
    assert engine_headers([("accept", "a"), ("Accept", "b")]) == [("accept", "a")]


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\x00b", "a\x7f", "a\udcff"])
def test_a_value_that_would_split_a_header_goes_nowhere(value: str) -> None:
    assert engine_headers([("accept", value)]) == []
    assert client_headers([("X-Error", value)], stream=False) == []


def test_the_engines_content_type_and_own_headers_reach_the_client_in_order() -> None:
    headers = [("Content-Type", "text/vtt"), ("X-Custom", "é"), ("Vary", "Origin"), ("X-Custom", "2")]
    assert client_headers(headers, stream=False) == headers


@pytest.mark.parametrize(
    "name",
    [
        "Date",
        "Server",
        "Content-Length",
        "Set-Cookie",
        "X-Request-Id",
        "request-id",
        "x-gateway-reason",
        "Trailer",
        "Keep-Alive",
    ],
)
def test_framing_and_what_the_gateway_states_itself_is_not_passed_back(name: str) -> None:
    assert client_headers([(name, "1")], stream=False) == []


def test_a_stream_states_that_nobody_may_hold_or_change_it() -> None:
    passed = client_headers([("Cache-Control", "max-age=9"), ("Content-Type", "text/event-stream")], stream=True)
    assert passed == [("Content-Type", "text/event-stream"), *STREAM_HEADERS.items()]
