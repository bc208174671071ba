"""What an engine says on the routes beside chat, as bytes: events and whole answers of each dialect.

Owns the shapes of vLLM's answers on these routes, as far as the tests look at them.
"""

from __future__ import annotations

import json
from typing import Any


def named_event(value: dict[str, Any]) -> bytes:
    """Write one event that bears its type as its name."""
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode(), json.dumps(value).encode())


def a_message(text: str = "Hello world", *, prompt_tokens: int = 5, output_tokens: int = 2) -> dict[str, Any]:
    """Return a whole answer to POST /v1/messages."""
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": "tiny",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": prompt_tokens, "output_tokens": output_tokens},
    }


def message_events(*texts: str, prompt_tokens: int = 5, cached_tokens: int = 0) -> list[bytes]:
    """Return the events of a streamed message, to its own end."""
    usage = {"input_tokens": prompt_tokens - cached_tokens, "output_tokens": len(texts)}
    if cached_tokens:
        usage["cache_read_input_tokens"] = cached_tokens
    start = {"id": "chatcmpl-1", "content": [], "model": "tiny", "usage": {"input_tokens": 0, "output_tokens": 0}}
    pieces: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in texts),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return [named_event(piece) for piece in pieces]


def message_error(kind: str, message: str = "no") -> dict[str, Any]:
    """Return the envelope of an error on the Messages routes."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def a_response(
    text: str = "Hello world", *, response_id: str = "resp_1", prompt_tokens: int = 5, output_tokens: int = 2
) -> dict[str, Any]:
    """Return a whole answer to POST /v1/responses."""
    return {
        "id": response_id,
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
        },
    }


def response_events(
    *texts: str, response_id: str = "resp_1", end: str = "completed", instructions: str | None = None
) -> list[bytes]:
    """Return the events of a streamed response, to its own end; the first two come before it is scheduled.

    instructions: the caller's, which whatever bears the response says again.
    """
    begun = {"id": response_id, "object": "response", "created_at": 1767225600, "model": "tiny", "output": []}
    begun |= {"status": "in_progress", "error": None, "instructions": instructions, "usage": None}
    ended = a_response("".join(texts), response_id=response_id, output_tokens=len(texts))
    ended = {"id": response_id, "instructions": instructions, **ended, "status": end}
    pieces: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *({"type": "response.output_text.delta", "delta": text} for text in texts),
        {"type": f"response.{end}", "response": ended},
    ]
    return [named_event({**piece, "sequence_number": number}) for number, piece in enumerate(pieces)]


def embeddings(count: int = 1, *, prompt_tokens: int = 5) -> dict[str, Any]:
    """Return an answer to POST /v1/embeddings."""
    data = [{"index": index, "object": "embedding", "embedding": [0.25]} for index in range(count)]
    return {"object": "list", "data": data, "model": "tiny", "usage": {"prompt_tokens": prompt_tokens}}


def scores(member: str, *, prompt_tokens: int = 5) -> dict[str, Any]:
    """Return an answer to POST /v1/rerank or /v1/score, whose results stand under `member`."""
    return {"id": "x", member: [{"index": 0, "score": 0.5}], "usage": {"prompt_tokens": prompt_tokens}}
