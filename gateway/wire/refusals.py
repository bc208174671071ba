"""The gateway's own answers: a refusal in the envelope, the headers and the stream event of each dialect.

Owns the one table from reason to status, type and code. Decides nothing: who is refused, why and for how long is the
refusal's own. Never echoes anything but what the refusal states, and never answers 200 or 408.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.types import LengthClass, Reason, Refusal
from gateway.wire.dialects import Dialect, request_id_headers
from gateway.wire.sse import StreamTap

RETRY_AFTER_S_MIN = 1
RETRY_AFTER_S_MAX = 60
ANTHROPIC_OVERLOADED_STATUS = 529


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. retryable: another try may help, so the answer says when."""

    status: int
    type: str
    code: str
    retryable: bool = False


TABLE: Mapping[Reason, Row] = {
    Reason.UNAUTHENTICATED: Row(401, "authentication_error", "invalid_api_key"),
    Reason.NOT_ALLOWED: Row(403, "permission_error", "model_not_allowed"),
    Reason.BAD_REQUEST: Row(400, "invalid_request_error", "invalid_request"),
    Reason.CONTEXT_LENGTH: Row(400, "invalid_request_error", "context_length_exceeded"),
    Reason.BODY_TOO_LARGE: Row(413, "invalid_request_error", "request_too_large"),
    Reason.UNKNOWN_MODEL: Row(404, "invalid_request_error", "model_not_found"),
    Reason.UNKNOWN_ROUTE: Row(404, "invalid_request_error", "unknown_url"),
    Reason.QUEUE_FULL: Row(429, "rate_limit_error", "slow_down", retryable=True),
    Reason.TENANT_QUEUE_FULL: Row(429, "rate_limit_error", "slow_down", retryable=True),
    Reason.WAIT_DEADLINE: Row(429, "rate_limit_error", "slow_down", retryable=True),
    Reason.PREDICTED_MISS: Row(429, "rate_limit_error", "slow_down", retryable=True),
    Reason.NO_ENGINE: Row(503, "service_unavailable_error", "server_is_overloaded", retryable=True),
    Reason.DRAINING: Row(503, "service_unavailable_error", "server_is_overloaded", retryable=True),
    Reason.OVERLOADED: Row(503, "service_unavailable_error", "server_is_overloaded", retryable=True),
    Reason.ENGINE_UNREACHABLE: Row(502, "api_error", "engine_unreachable", retryable=True),
    Reason.ENGINE_BROKEN: Row(502, "api_error", "engine_broken"),
    Reason.ENGINE_TIMEOUT: Row(504, "api_error", "engine_timeout"),
}

# A precise code may have a status of its own within its reason.
STATUS_OF_CODE: Mapping[str, int] = {
    "method_not_allowed": 405,
    "unsupported_content_encoding": 415,
    "unsupported_content_type": 415,
    "headers_too_large": 431,
    "unsupported_transfer_encoding": 501,
    "unsupported_http_version": 505,
}

_ANTHROPIC_TYPE_OF_STATUS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
    504: "api_error",
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A whole answer but for its framing headers."""

    status: int
    headers: dict[str, str]
    body: bytes


def render(
    refusal: Refusal,
    *,
    dialect: Dialect,
    request_id: str,
    service_class: str | None = None,
    length_class: LengthClass | None = None,
    close: bool = False,
    allow: str | None = None,
) -> Rendered:
    """The answer to a refused request; the same whether it asked for a stream or not.

    service_class and length_class are what is known of the request by then. allow: the Allow header of a 405.
    """
    row = TABLE[refusal.reason]
    status = _status(refusal, row)
    envelope = _envelope(
        refusal, dialect=dialect, request_id=request_id, service_class=service_class, length_class=length_class
    )
    headers = {
        "Content-Type": "application/json",
        **dict(request_id_headers(dialect, request_id)),
        "x-gateway-reason": refusal.reason.value,
        "x-should-retry": "true" if row.retryable else "false",
    }
    if row.retryable:
        retry_after_s = _retry_after_s(refusal)
        headers["Retry-After"] = str(math.ceil(retry_after_s))
        headers["retry-after-ms"] = str(math.ceil(retry_after_s * 1000))
    if service_class is not None:
        headers["x-gateway-service-class"] = service_class
    if length_class is not None:
        headers["x-gateway-length-class"] = length_class.value
        headers["x-gateway-queue-ms"] = str(round((refusal.waited_s or 0) * 1000))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if allow is not None:
        headers["Allow"] = allow
    if close:
        headers["Connection"] = "close"
    if dialect is Dialect.ANTHROPIC and status == 503:
        status = ANTHROPIC_OVERLOADED_STATUS
    return Rendered(status, headers, _dumps(envelope))


def stream_error(
    refusal: Refusal,
    *,
    dialect: Dialect,
    request_id: str,
    tap: StreamTap,
    service_class: str | None = None,
    length_class: LengthClass | None = None,
) -> bytes:
    """The one event that ends a broken stream, which goes on from what `tap` has seen of it."""
    envelope = _envelope(
        refusal, dialect=dialect, request_id=request_id, service_class=service_class, length_class=length_class
    )
    # A client reads up to a blank line: without one the error would be taken for the end of the broken event.
    return (b"\n\n" if tap.mid_event else b"") + _event(envelope, dialect, request_id, tap)


def _event(envelope: Mapping[str, Any], dialect: Dialect, request_id: str, tap: StreamTap) -> bytes:
    match dialect:
        case Dialect.OPENAI:
            return b"data: %s\n\n" % _dumps(envelope)
        case Dialect.ANTHROPIC:
            return b"event: error\ndata: %s\n\n" % _dumps(envelope)
        case Dialect.RESPONSES:
            error = {name: envelope["error"][name] for name in ("code", "message")}
            failed = {"id": request_id, "object": "response", **tap.response, "status": "failed", "error": error}
            # Clients that read by a schema want the number, in order, and the output, though what came of it is theirs.
            event = {
                "type": "response.failed",
                "sequence_number": tap.next_number,
                "response": {**failed, "output": []},
            }
            return b"event: response.failed\ndata: %s\n\n" % _dumps(event)


def _status(refusal: Refusal, row: Row) -> int:
    return STATUS_OF_CODE.get(refusal.code, row.status) if refusal.code is not None else row.status


def _envelope(
    refusal: Refusal,
    *,
    dialect: Dialect,
    request_id: str,
    service_class: str | None,
    length_class: LengthClass | None,
) -> dict[str, Any]:
    row = TABLE[refusal.reason]
    details = _details(refusal, row, service_class, length_class)
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPE_OF_STATUS.get(_status(refusal, row), "invalid_request_error")
        error = {"type": kind, "message": refusal.message, "details": details}
        return {"type": "error", "error": error, "request_id": request_id}
    return {
        "error": {
            "message": refusal.message,
            "type": row.type,
            "param": refusal.param,
            "code": refusal.code or row.code,
            "details": details,
        }
    }


def _details(refusal: Refusal, row: Row, service_class: str | None, length_class: LengthClass | None) -> dict[str, Any]:
    details: dict[str, Any] = {
        "reason": refusal.reason.value,
        "service_class": service_class,
        "length_class": None if length_class is None else length_class.value,
        "limit": _number(refusal.limit),
        "observed": _number(refusal.observed),
        "waited_s": _number(refusal.waited_s),
        "retry_after_s": _number(_retry_after_s(refusal)) if row.retryable else None,
    }
    if row.status in (429, 503):
        details["resource"] = None if refusal.resource is None else refusal.resource.value
    return details


def _retry_after_s(refusal: Refusal) -> float:
    """Seconds until another try, within what client SDKs obey."""
    wished = RETRY_AFTER_S_MIN if refusal.retry_after_s is None else refusal.retry_after_s
    return min(max(wished, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)


def _number(value: float | None) -> float | None:
    """A JSON number without a spurious fraction: counts are whole, times keep milliseconds."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else round(value, 3)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
