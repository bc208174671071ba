"""How an answer is written on chat, completions and messages: events while it comes, or one body at its end.

Owns vLLM 0.32's shapes of these. Whether and when something is written is decided by `exchange`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from bench.simulation.emulator.errors import ApiError
from bench.simulation.emulator.spoken import Piece, Spoken

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-emulator"
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class Dialect(Protocol):
    """One route's way of writing one request's answer. Bytes are whole SSE events."""

    spoken: Spoken

    def opening(self) -> bytes:
        """Return what is sent before anything is computed."""
        ...

    def pieces(self, pieces: Iterable[Piece]) -> bytes: ...

    def closing(self) -> bytes: ...

    def broken(self, error: ApiError) -> bytes | None:
        """Return what is sent where the answer ends in an error; None where the connection is just cut."""
        ...

    def body(self, pieces: list[Piece]) -> dict[str, Any]: ...


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def named(value: dict[str, Any]) -> bytes:
    """Return an event that bears its type as its name."""
    return f"event: {value['type']}\n".encode() + event(value)


class OpenAi(ABC):
    """What chat and completions share."""

    object_name = ""
    chunk_name = ""
    running_details: Mapping[str, None] = {}
    cache_details: Mapping[str, int] = {}

    def __init__(self, spoken: Spoken, *, usage: bool, running_usage: bool, token_ids: bool) -> None:
        self.spoken = spoken
        self._usage = usage
        self._running_usage = usage and running_usage
        self._token_ids = token_ids
        self._begun: set[int] = set()

    def opening(self) -> bytes:
        return b""

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join([self._events(piece) for piece in pieces])

    def closing(self) -> bytes:
        return (event(self._head(self.chunk_name) | self._last()) if self._usage else b"") + DONE

    def broken(self, error: ApiError) -> bytes | None:
        return b"data: " + json.dumps(error.body()).encode() + b"\n\n" + DONE

    def body(self, pieces: list[Piece]) -> dict[str, Any]:
        return self._head(self.object_name) | {
            "choices": [self._whole(piece) for piece in pieces],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {"prompt_tokens_details": None} | self.spoken.usage(self.cache_details),
            "kv_transfer_params": None,
        }

    def _head(self, name: str) -> dict[str, Any]:
        spoken = self.spoken
        return {"id": spoken.request_id, "object": name, "created": spoken.created, "model": spoken.model}

    def _last(self) -> dict[str, Any]:
        return {"choices": [], "usage": self.spoken.usage(self.cache_details), "system_fingerprint": FINGERPRINT}

    def _chunk(self, choice: dict[str, Any], index: int, *, is_last: bool) -> dict[str, Any]:
        chunk = self._head(self.chunk_name) | {"choices": [choice]}
        if is_last and not self._usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if self._running_usage:
            chunk["usage"] = {**self.spoken.usage_of(index), **self.running_details}
        return chunk

    @abstractmethod
    def _events(self, piece: Piece) -> bytes: ...

    @abstractmethod
    def _whole(self, piece: Piece) -> dict[str, Any]: ...


class Chat(OpenAi):
    """POST /v1/chat/completions."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    running_details: Mapping[str, None] = {"completion_tokens_details": None}
    cache_details: Mapping[str, int] = {"created_cache_tokens": 0}

    def _events(self, piece: Piece) -> bytes:
        opening = b"" if piece.sequence in self._begun else self._role(piece.sequence)
        choice: dict[str, Any] = {
            "index": piece.sequence,
            "delta": {"content": piece.text},
            "logprobs": None,
            "finish_reason": piece.finish,
            "token_ids": piece.token_ids if self._token_ids else None,
        }
        if piece.finish is not None:
            choice["stop_reason"] = piece.stop_reason
        return opening + event(self._chunk(choice, piece.sequence, is_last=piece.finish is not None))

    def _role(self, index: int) -> bytes:
        self._begun.add(index)
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = self._head(self.chunk_name) | {"choices": [choice]}
        chunk["prompt_token_ids"] = list(self.spoken.prompt_of(index)) if self._token_ids else None
        chunk["prompt_text"] = None
        if self._running_usage:
            tokens = len(self.spoken.prompt_of(index))
            usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
            chunk["usage"] = {**usage, **self.running_details}
        return event(chunk)

    def _whole(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.sequence,
            "message": {"role": "assistant", "content": piece.text, "refusal": None, "reasoning": None},
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
            "token_ids": piece.token_ids if self._token_ids else None,
        }


class Completions(OpenAi):
    """POST /v1/completions. echo: each prompt's text before its answers."""

    object_name = chunk_name = "text_completion"

    def __init__(
        self, spoken: Spoken, *, usage: bool, running_usage: bool, token_ids: bool, echo: list[str] | None
    ) -> None:
        super().__init__(spoken, usage=usage, running_usage=running_usage, token_ids=token_ids)
        self._echo = echo

    def _text(self, piece: Piece) -> str:
        is_first = piece.sequence not in self._begun
        self._begun.add(piece.sequence)
        if self._echo is None or not is_first:
            return piece.text
        spoken = self.spoken
        return self._echo[piece.sequence * len(spoken.prompts) // len(spoken.answers)] + piece.text

    def _events(self, piece: Piece) -> bytes:
        choice = {
            "index": piece.sequence,
            "text": self._text(piece),
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
            "prompt_token_ids": None,
            "token_ids": piece.token_ids if self._token_ids else None,
        }
        if self._token_ids and len(piece.token_ids) == piece.output_tokens:
            choice["prompt_token_ids"] = list(self.spoken.prompt_of(piece.sequence))
        return event(self._chunk(choice, piece.sequence, is_last=piece.finish is not None))

    def _whole(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.sequence,
            "text": self._text(piece),
            "logprobs": None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
            "token_ids": piece.token_ids if self._token_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": list(self.spoken.prompt_of(piece.sequence)) if self._token_ids else None,
        }


class Messages:
    """POST /v1/messages."""

    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken
        self._begun = False
        self._block_open = False
        self._stopped: dict[str, Any] = {}

    def opening(self) -> bytes:
        return b""

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join([self._events(piece) for piece in pieces])

    def closing(self) -> bytes:
        block = named({"type": "content_block_stop", "index": 0}) if self._block_open else b""
        delta = named({"type": "message_delta", "delta": self._stopped, "usage": self._usage()})
        return block + delta + named({"type": "message_stop"})

    def broken(self, error: ApiError) -> bytes | None:
        said = {"type": "internal_error", "message": json.dumps(error.body()["error"])}
        return named({"type": "error", "error": said})

    def body(self, pieces: list[Piece]) -> dict[str, Any]:
        (piece,) = pieces
        return {
            "id": self.spoken.request_id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": piece.text}],
            "model": self.spoken.model,
            **_stopped(piece),
            "usage": self._usage(),
        }

    def _events(self, piece: Piece) -> bytes:
        said = b"" if self._begun else self._start()
        if piece.text:
            if not self._block_open:
                self._block_open = True
                block = {"type": "text", "text": ""}
                said += named({"type": "content_block_start", "index": 0, "content_block": block})
            delta = {"type": "text_delta", "text": piece.text}
            said += named({"type": "content_block_delta", "index": 0, "delta": delta})
        if piece.finish is not None:
            self._stopped = {"stop_reason": None, "stop_sequence": None} | _stopped(piece)
        return said

    def _start(self) -> bytes:
        self._begun = True
        message: dict[str, Any] = {
            "id": self.spoken.request_id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.spoken.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(self.spoken.prompts[0]), "output_tokens": 0},
        }
        return named({"type": "message_start", "message": message})

    def _usage(self) -> dict[str, int]:
        details, cached = self.spoken.details, self.spoken.cached_tokens
        usage = {
            "input_tokens": len(self.spoken.prompts[0]) - (cached if details else 0),
            "output_tokens": self.spoken.output_tokens,
        }
        return usage | ({"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached} if details else {})


def _stopped(piece: Piece) -> dict[str, Any]:
    if isinstance(piece.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": piece.stop_reason}
    return {"stop_reason": _STOP_REASONS[piece.finish or "stop"]}
