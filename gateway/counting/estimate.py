"""An estimate from bytes, for a pool whose model is known to no tokenizer here.

Owns the tokens in a byte and what the engine's usage teaches of them. One answer moves the estimate little, and all of
them within bounds: a caller's odd texts must not make the others' prompts look short.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.counting.conversation import variables_of
from gateway.counting.counter import Count, CountingMethod, as_ids
from gateway.counting.prompts import (
    TemplateTraits,
    cut,
    declared_media_tokens,
    kept_tokens_max,
    one_prompt,
    prompts_of,
    refuse_uncountable,
)
from gateway.wire.requests import Call

BYTES_PER_TOKEN = 3.0
BYTES_PER_TOKEN_LEAST = 1.0
BYTES_PER_TOKEN_MOST = 8.0
TOKENS_PER_MESSAGE = 8
IN_LOOP_BYTES_MAX = 64 * 1024
LEARNING_RATE = 0.02
LEARNED_TOKENS_MIN = 64  # below, what surrounds a text outweighs it
_ONE_ANSWER_MOST = 2.0
# Of a part, whatever its type; a reference to a tool is its name.
_TEXT_MEMBERS = ("text", "refusal", "thinking", "name")
_WRITTEN_MEMBERS = ("name", "task", "tool_call_id", "tool_calls", "tools")  # of a message


class ByteEstimate:
    """A TokenCounter that divides bytes. Token ids are exact. `bytes_per_token` is what it has learned so far."""

    method = CountingMethod.ESTIMATE

    def __init__(self, *, bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        self.bytes_per_token = bytes_per_token

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The estimate; a large body's in a thread. Raises Uncountable."""
        if len(call.body) <= IN_LOOP_BYTES_MAX:
            return self._count_now(call, context_tokens)
        return await asyncio.to_thread(self._count_now, call, context_tokens)

    def _count_now(self, call: Call, context_tokens: int | None) -> Count:
        refuse_uncountable(call.members)
        kept_max = kept_tokens_max(call, context_tokens)
        prompts = prompts_of(call, TemplateTraits())
        declared = sum(map(declared_media_tokens, prompts.chats))
        counts = [self._of_chat(chat) + declared_media_tokens(chat) for chat in prompts.chats]
        counts += [self._of_text(text) if isinstance(text, str) else len(text) for text in prompts.texts]
        counts += [
            cut(self._of_text(pair.query), pair.query_tokens_max)
            + cut(self._of_text(pair.document), pair.document_tokens_max)
            for pair in prompts.pairs
        ]
        kept = [cut(count, kept_max) for count in counts]
        is_learnable = prompts.is_whole and not declared and kept == counts
        return Count(sum(kept), max(kept), self.method, is_comparable=is_learnable)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """Only those that the body itself states."""
        prompt = one_prompt(prompts_of(call, TemplateTraits()))
        return as_ids(prompt) if isinstance(prompt, list) else None

    def learn(self, count: Count, engine_tokens: int) -> None:
        """Move toward what the engine counted. Media, cut prompts and short ones teach nothing."""
        if count.is_comparable and engine_tokens >= LEARNED_TOKENS_MIN:
            ratio = min(max(count.prompt_tokens / engine_tokens, 1 / _ONE_ANSWER_MOST), _ONE_ANSWER_MOST)
            moved = self.bytes_per_token * ratio**LEARNING_RATE
            self.bytes_per_token = min(max(moved, BYTES_PER_TOKEN_LEAST), BYTES_PER_TOKEN_MOST)

    def _of_text(self, text: str) -> int:
        return 1 + int(len(text.encode()) / self.bytes_per_token)

    def _of_chat(self, members: Mapping[str, Any]) -> int:
        messages = members["messages"]
        texts = [text for message in messages for text in _texts(message)]
        texts += map(_written, (members.get("tools"), *variables_of(members).values()))
        around = TOKENS_PER_MESSAGE * (len(messages) + 1)
        return self._of_text("".join(texts)) + around


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """All that a template may write of one message."""
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        stated = map(part.get, _TEXT_MEMBERS) if isinstance(part, dict) else (part,)
        yield from (text for text in stated if isinstance(text, str))
    reasoning = message.get("reasoning")
    yield _written(message.get("reasoning_content") if reasoning is None else reasoning)
    yield from (_written(message.get(name)) for name in _WRITTEN_MEMBERS)


def _written(value: Any) -> str:
    """A value as a template writes it; numbers and truth values are switches, and nothing."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if value and isinstance(value, (list, dict)) else ""
