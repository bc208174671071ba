"""What one event of an OpenAI stream says. Pure; strange input is a malformed event, never an exception."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

DONE = b"[DONE]"
_OTHER_CHANNELS = ("reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")
_COUNT_MAX = 10**9
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error inside a 200. Its message may quote the prompt and is not kept."""

    code: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gave them; None where it did not."""

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


class Said(NamedTuple):
    """One event. token: a piece of any channel (text, reasoning, tool call); content: a piece of the answer's text.

    choices: the event is about the answer, not about its usage alone.
    """

    choices: bool = False
    token: bool = False
    content: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: InBandError | None = None
    malformed: bool = False
    done: bool = False


MALFORMED = Said(malformed=True)


def read(payload: bytes) -> Said:
    """`payload` is the data of one event, chat or completions."""
    if payload == DONE:
        return Said(done=True)
    try:
        event = json.loads(payload.decode())
    except (ValueError, RecursionError):
        return MALFORMED
    if not isinstance(event, dict):
        return MALFORMED
    if event.get("error"):
        return Said(error=_error(event["error"]))
    choices = event.get("choices")
    pieces = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    finish = next((each["finish_reason"] for each in pieces if each.get("finish_reason") is not None), None)
    return Said(
        choices=bool(pieces),
        token=any(_has_token(choice) for choice in pieces),
        content=any(_has_content(choice) for choice in pieces),
        finish_reason=word(finish),
        usage=_usage(event.get("usage")),
    )


def error_in(body: bytes) -> InBandError | None:
    """The error of a JSON body, as refusals carry it; None where the body is something else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _error(value["error"]) if isinstance(value, dict) and value.get("error") else None


def word(value: object) -> str | None:
    """A server's word as it may stand in a record: short and plain, or `other`."""
    if not isinstance(value, str):
        return None
    return value if _WORD.fullmatch(value) else "other"


def _has_token(choice: Mapping[str, Any]) -> bool:
    # A chunk with the role alone, or with empty text, is no token: nothing of the answer is in it.
    if _has_content(choice) or choice.get("token_ids"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(channel) for channel in _OTHER_CHANNELS)


def _has_content(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(delta.get("content")) if isinstance(delta, dict) else bool(choice.get("text"))


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(value.get("prompt_tokens")), _count(value.get("completion_tokens")), _count(cached))


def _count(value: object) -> int | None:
    """A number of tokens, or a status: what is beyond belief was not counted."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX else None


def _error(value: object) -> InBandError:
    if not isinstance(value, dict):
        return InBandError(None, "error")
    code = value.get("code")
    details = value.get("details")
    said = details.get("reason") if isinstance(details, dict) else None
    reason = word(said) or (word(code) if isinstance(code, str) else None) or word(value.get("type"))
    return InBandError(_count(code), reason or "error")
