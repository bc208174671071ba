"""What an engine's answer says about itself: token usage, and an error inside a 200.

Owns the reading of one decoded JSON value of an answer, per dialect, and the tap on answers that are not streams.
Never changes a byte, and an answer that it cannot read has simply no usage and no error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.wire.dialects import Dialect

HEAD_BYTES_MAX = 65536
TAIL_BYTES_MAX = 65536
HEAD_BYTES_TO_JUDGE = 32  # enough to tell an error envelope from an answer

# Where an in-band error has no numeric code: the words of vLLM, of OpenAI and of Anthropic.
STATUS_OF_ERROR_TYPE: Mapping[str, int] = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "Bad Request": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "PermissionDeniedError": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "InternalServerError": 500,
    "NotImplementedError": 501,
    "api_error": 502,
    "service_unavailable_error": 503,
    "Service Unavailable": 503,
    "overloaded_error": 503,
}
STATUS_UNKNOWN = 502
_LEAVING = "cannot schedule new futures after shutdown"
_CACHE_MEMBERS = ("cache_read_input_tokens", "cache_creation_input_tokens")
_TOKENS_MAX = 1 << 40  # beyond any context: a larger count is nonsense

_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RESPONSE_HEAD = re.compile(rb'\s*\{\s*"id"\s*:\s*"([A-Za-z0-9_-]{1,128})"')
_RESPONSE_IN_EVENT = re.compile(rb'"response"\s*:\s*\{\s*"id"\s*:\s*"([A-Za-z0-9_-]{1,128})"')
_ERROR_HEAD = re.compile(rb'\s*\{\s*"(?:error"\s*:\s*+(?!null)|type"\s*:\s*"error"|object"\s*:\s*"error")')
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
# So ends what vLLM gave up itself, as all that runs when it shuts down or is put to sleep, in the form of an answer.
_GIVEN_UP = re.compile(rb'"finish_reason"\s*:\s*"(?:abort|error)"')
# A message that it gave up has no reason: null in a stream's last delta, null or no such member in a whole one.
_NO_STOP_REASON = re.compile(rb'"stop_reason"\s*:\s*null')
_STOP_REASON = re.compile(rb'"stop_reason"\s*:\s*"')
# A response's own status says so; parts of it, and what its caller wrote, may have a status of such a name too.
_STATUS_GIVEN_UP = ("failed", "cancelled")
_MAY_BE_GIVEN_UP = re.compile(rb'"(?:failed|cancelled)"')
_MESSAGE_HEAD = re.compile(rb'\s*\{[^{]{0,256}"type"\s*:\s*"message"')
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them. None: the answer has not said it."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None

    def updated(self, later: Usage) -> Usage:
        """The usage with every number that `later` states: the last one said wins, and none is ever unsaid by a 0."""
        return Usage(
            _last_said(self.prompt_tokens, later.prompt_tokens),
            _last_said(self.output_tokens, later.output_tokens),
            _last_said(self.cached_tokens, later.cached_tokens),
        )


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error that came inside a 200. body: the engine's own envelope, as it sent it."""

    status: int
    body: bytes


def is_given_up(data: bytes) -> bool:
    """Whether a chat completion or a completion, or a chunk of one, ends because its engine gave it up."""
    return _GIVEN_UP.search(data) is not None


def is_delta_given_up(data: bytes) -> bool:
    """Whether the last delta of a message's stream says that its engine gave it up."""
    return _NO_STOP_REASON.search(data) is not None


def is_response_given_up(data: bytes) -> bool:
    """Whether a response, or the event that ends the stream of one, says that its engine gave it up."""
    value = _decoded(data) if _MAY_BE_GIVEN_UP.search(data) else None
    if isinstance(value, dict):
        value = value.get("response", value)
    return isinstance(value, dict) and value.get("status") in _STATUS_GIVEN_UP


def is_leaving(status: int, body: bytes) -> bool:
    """Whether an engine refuses because it is shutting down: it ends what it has and takes nothing new.

    vLLM says so, with `--shutdown-timeout` over 0, by a 500 of these words while it still takes connections. They have
    to be the error's own, from their beginning: an error that quotes what a caller wrote is none.
    """
    value = _decoded(body) if status == 500 else None
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return isinstance(message, str) and message.startswith(_LEAVING)


def read_usage(value: Any) -> Usage | None:
    """The usage in one decoded answer, chunk or event of any dialect."""
    if not isinstance(value, dict):
        return None
    for holder in (value, value.get("message"), value.get("response")):
        usage = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(usage, dict):
            return _usage(usage)
    return None


def read_error(value: Any, body: bytes) -> InBandError | None:
    """The error that one decoded answer, chunk or event is, `body` being its bytes."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if value.get("type") == "error" or value.get("object") == "error":
        error = error or value
    elif value.get("object") == "response" or not error:
        # A Responses object carries its own error and is relayed as the answer that it is.
        return None
    return InBandError(_status(error) if isinstance(error, dict) else STATUS_UNKNOWN, body)


def read_response_head(value: Any) -> Mapping[str, Any]:
    """What an event of a Responses stream says of its response: id, created_at, model; nothing where there is no id."""
    response = value.get("response") if isinstance(value, dict) else None
    if not isinstance(response, dict):
        return {}
    stated = response.get("id")
    if not isinstance(stated, str) or not _RESPONSE_ID.fullmatch(stated):
        return {}
    head: dict[str, Any] = {"id": stated}
    if _is_count(response.get("created_at")):
        head["created_at"] = response["created_at"]
    if isinstance(response.get("model"), str):
        head["model"] = response["model"]
    return head


def read_cut_response_head(data: bytes) -> Mapping[str, Any]:
    """What `read_response_head` gives, as far as the beginning of an event too long to be decoded has it."""
    stated = _RESPONSE_IN_EVENT.search(data)
    return {} if stated is None else {"id": stated[1].decode()}


def last_usage(tail: bytes) -> Usage | None:
    """The usage that the end of an answer, or of an event, states last."""
    # Inside JSON strings quotes are escaped, so this spelling is a member and never text of the answer.
    starts = [match.end() for match in _USAGE.finditer(tail)]
    if not starts:
        return None
    try:
        usage, _ = _DECODER.raw_decode(tail[starts[-1] :].decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return _usage(usage)


class BodyTap:
    """Reads an answer that is no stream while it passes, holding at most its head and its tail.

    After the first bytes `error_suspected` says whether the answer begins as an error envelope does; after the last
    ones `finish` fills `usage`, `error` and `given_up`, this of a response where that is no larger than the head.
    """

    __slots__ = ("_dialect", "_head", "_seen_bytes", "_tail", "error", "given_up", "overflowed", "usage")

    def __init__(self, dialect: Dialect = Dialect.OPENAI) -> None:
        self._dialect = dialect
        self.given_up = False
        self._head = b""
        self._tail = b""
        self._seen_bytes = 0
        self.usage: Usage | None = None
        self.error: InBandError | None = None
        self.overflowed = 0

    @property
    def error_suspected(self) -> bool:
        """Whether the bytes so far may be an error envelope, so that the status should wait for the rest."""
        if self._seen_bytes < HEAD_BYTES_TO_JUDGE:
            return True
        return self._seen_bytes <= HEAD_BYTES_MAX and _ERROR_HEAD.match(self._head) is not None

    @property
    def response_id(self) -> str | None:
        """The id that a whole answer begins with."""
        found = _RESPONSE_HEAD.match(self._head)
        return None if found is None else found[1].decode()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        self._seen_bytes += len(chunk)
        if len(self._head) < HEAD_BYTES_MAX:
            self._head = (self._head + chunk)[:HEAD_BYTES_MAX]
        self._tail = (self._tail + chunk if len(chunk) < TAIL_BYTES_MAX else chunk)[-TAIL_BYTES_MAX:]

    def finish(self) -> None:
        """The body is complete: read what it said."""
        if self.error_suspected:
            self.error = read_error(_decoded(self._head), self._head)
        self.given_up = self._is_given_up()
        self.usage = last_usage(self._tail)
        if self.usage is None and self._seen_bytes > TAIL_BYTES_MAX:
            self.overflowed = 1

    def _is_given_up(self) -> bool:
        match self._dialect:
            case Dialect.OPENAI:
                return is_given_up(self._tail)
            case Dialect.ANTHROPIC:
                return _MESSAGE_HEAD.match(self._head) is not None and _STOP_REASON.search(self._tail) is None
            case Dialect.RESPONSES:
                return is_response_given_up(self._head)


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    prompt_tokens = _count(usage, "prompt_tokens", "input_tokens")
    if prompt_tokens is not None:
        # Messages leave what the cache gave or took out of their number; no other dialect has these members.
        prompt_tokens += sum(_count(usage, name) or 0 for name in _CACHE_MEMBERS)
    return Usage(
        prompt_tokens,
        _count(usage, "completion_tokens", "output_tokens"),
        cached if _is_count(cached) else None,
    )


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((usage[name] for name in names if _is_count(usage.get(name))), None)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _TOKENS_MAX


def _last_said(before: int | None, later: int | None) -> int | None:
    return later if later or before is None else before


def _status(error: Mapping[str, Any]) -> int:
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdigit():
        code = int(code[:4])
    if type(code) is int and 400 <= code <= 599:
        return code
    kind = error.get("type")
    return STATUS_OF_ERROR_TYPE.get(kind, STATUS_UNKNOWN) if isinstance(kind, str) else STATUS_UNKNOWN
