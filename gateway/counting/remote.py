"""Counts without the model's files: the engine's own, and an estimate from bytes.

Owns what is asked of the engine's /tokenize and how its answers add up. How the question travels is the caller's: it
gives a coroutine that posts JSON to an engine of the pool. Asks nothing where the body itself states the count, and
bounds how many questions are open at once, since the engine answers them on threads that serve real requests too, and
how many calls and bytes wait for their turn, and how long.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.counting.conversation import variables_of
from gateway.counting.counter import Count, CountingMethod, CountingOverloaded, as_ids, uncountable
from gateway.counting.prompts import (
    completion_prompts,
    cut,
    declared_media_tokens,
    kept_tokens_max,
    refuse_uncountable,
)
from gateway.wire import media
from gateway.wire.dialects import PromptForm
from gateway.wire.requests import Call

PostJson = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

TOKENIZE_PATH = "/tokenize"
QUESTIONS_MAX = 8
CALLS_MAX = 1024
CALL_BYTES_MAX = 256 * 1024 * 1024
COUNT_S_MAX = 10.0
BYTES_PER_TOKEN = 3.0
TOKENS_PER_MESSAGE = 8

# What /tokenize reads of a chat request under the same name; the rest it takes as template variables.
_CHAT_MEMBERS = ("tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")


class EngineTokenizer:
    """A TokenCounter that asks the pool's engine. What `post_json` raises passes through to the caller.

    `calls` and `call_bytes` are what is being counted or waits for it now. count_s_max bounds one call's whole count,
    its turns and all its prompts included: a call that is not counted by then finds the counter overloaded.
    """

    method = CountingMethod.ENGINE

    def __init__(
        self,
        post_json: PostJson,
        *,
        questions_max: int = QUESTIONS_MAX,
        calls_max: int = CALLS_MAX,
        call_bytes_max: int = CALL_BYTES_MAX,
        count_s_max: float = COUNT_S_MAX,
    ) -> None:
        self._post_json = post_json
        self._questions = asyncio.Semaphore(questions_max)
        self._calls_max = calls_max
        self._call_bytes_max = call_bytes_max
        self._count_s_max = count_s_max
        self.calls = 0
        self.call_bytes = 0

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The engine's count. Raises CountingOverloaded, Uncountable and whatever `post_json` raises."""
        refuse_uncountable(call.members)
        size_bytes = len(call.body)
        if self.calls >= self._calls_max or self.call_bytes + size_bytes > self._call_bytes_max:
            raise CountingOverloaded
        self.calls += 1
        self.call_bytes += size_bytes
        limit = asyncio.timeout(self._count_s_max)
        try:
            async with limit:
                counts, method = await self._counts(call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CountingOverloaded from None
        finally:
            self.calls -= 1
            self.call_bytes -= size_bytes
        return _total(counts, call, context_tokens, method)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """The ids of a call's one prompt, as the engine tells them; None where a medium stands in it."""
        if call.route.form is PromptForm.CHAT:
            if declared_media_tokens(call.members):
                return None
            question = _chat_question(call, without_media=False)
        else:
            (prompt,) = completion_prompts(call.members)
            if not isinstance(prompt, str):
                return as_ids(prompt)
            question = _prompt_question(call, prompt)
        async with self._questions:
            answer = await self._post_json(TOKENIZE_PATH, question)
        tokens = answer.get("tokens")
        if isinstance(tokens, list) and all(type(token) is int and 0 <= token < 1 << 32 for token in tokens):
            return as_ids(tokens)
        return None

    async def _counts(self, call: Call) -> tuple[list[int], CountingMethod]:
        if call.route.form is not PromptForm.CHAT:
            return [await self._count_prompt(call, prompt) for prompt in completion_prompts(call.members)], self.method
        declared = declared_media_tokens(call.members)
        count = await self._ask(_chat_question(call, without_media=declared > 0))
        return [count + declared], CountingMethod.ESTIMATE if declared else self.method

    async def _count_prompt(self, call: Call, prompt: str | list[int]) -> int:
        if not isinstance(prompt, str):
            return len(prompt)
        return await self._ask(_prompt_question(call, prompt))

    async def _ask(self, question: dict[str, Any]) -> int:
        async with self._questions:
            answer = await self._post_json(TOKENIZE_PATH, question)
        count = answer.get("count")
        if type(count) is not int or count < 0:
            param = "messages" if "messages" in question else "prompt"
            raise uncountable("invalid_prompt", "The engine cannot tell the prompt's length.", param)
        return count


class ByteEstimate:
    """A TokenCounter that divides bytes, for a pool whose model is known to no tokenizer here. Token ids are exact."""

    method = CountingMethod.ESTIMATE

    def __init__(self, *, bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        self._bytes_per_token = bytes_per_token

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The estimate. Raises Uncountable."""
        members = call.members
        refuse_uncountable(members)
        if call.route.form is PromptForm.CHAT:
            counts = [self._of_chat(members)]
        else:
            prompts = completion_prompts(members)
            counts = [self._of_text(prompt) if isinstance(prompt, str) else len(prompt) for prompt in prompts]
        return _total(counts, call, context_tokens, self.method)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """Only those that the body itself states."""
        if call.route.form is PromptForm.CHAT:
            return None
        (prompt,) = completion_prompts(call.members)
        return None if isinstance(prompt, str) else as_ids(prompt)

    def _of_text(self, text: str) -> int:
        return 1 + int(len(text.encode()) / self._bytes_per_token)

    def _of_chat(self, members: Mapping[str, Any]) -> int:
        messages = members["messages"]
        texts = [text for message in messages for text in _texts(message)]
        texts += [json.dumps(members[name]) for name in ("tools", "documents") if members.get(name)]
        around = TOKENS_PER_MESSAGE * (len(messages) + 1)
        return self._of_text("".join(texts)) + around + declared_media_tokens(members)


def _total(counts: Sequence[int], call: Call, context_tokens: int | None, method: CountingMethod) -> Count:
    kept_max = kept_tokens_max(call, context_tokens)
    kept = [cut(count, kept_max) for count in counts]
    return Count(sum(kept), max(kept), method)


def _prompt_question(call: Call, prompt: str) -> dict[str, Any]:
    add_special_tokens = call.members.get("add_special_tokens") is not False
    return {"model": call.model, "prompt": prompt, "add_special_tokens": add_special_tokens}


def _chat_question(call: Call, *, without_media: bool) -> dict[str, Any]:
    members = call.members
    messages = [_text_alone(message) for message in members["messages"]] if without_media else members["messages"]
    stated = {name: members[name] for name in _CHAT_MEMBERS if members.get(name) is not None}
    return {"model": call.model, "messages": messages, **stated, "chat_template_kwargs": variables_of(members)}


def _text_alone(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message without its media: asking for them would make the engine decode them."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [part for part in content if isinstance(part, str) or media.medium(part) is None]}


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if message.get("tool_calls"):
        texts.append(json.dumps(message["tool_calls"]))
    return [text for text in texts if isinstance(text, str)]
