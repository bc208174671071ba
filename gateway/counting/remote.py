"""The engine's own count, for a pool whose model's files are not here.

Owns what is asked of the engine's counting routes and how its answers add up. How the question travels is the caller's:
it gives a coroutine that posts JSON to an engine of the pool. Asks nothing where the body itself states the count, and
bounds how many questions are open at once, since the engine answers them on threads that serve real requests too, and
how many calls and bytes wait for their turn, and how long.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.counting.conversation import variables_of
from gateway.counting.counter import (
    Count,
    CountingMethod,
    CountingOverloaded,
    EngineCannotCount,
    as_ids,
    no_count,
    uncountable,
)
from gateway.counting.prompts import (
    TemplateTraits,
    cut,
    declared_media_tokens,
    kept_tokens_max,
    one_prompt,
    prompts_of,
    refuse_uncountable,
)
from gateway.wire import media
from gateway.wire.dialects import PromptForm
from gateway.wire.prompt_forms import TOKEN_ID_MAX
from gateway.wire.requests import Call

PostJson = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

TOKENIZE_PATH = "/tokenize"
COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
QUESTIONS_MAX = 8
CALLS_MAX = 1024
CALL_BYTES_MAX = 256 * 1024 * 1024
COUNT_S_MAX = 10.0
PROMPT_REFUSED = frozenset({400, 422})  # as a status, or as the code of an error inside of a 200

# What /tokenize reads of a chat request under the same name; the rest it takes as template variables.
_CHAT_MEMBERS = ("tools", "add_generation_prompt", "continue_final_message", "add_special_tokens")
_MESSAGES_MEMBERS = (
    *("model", "messages", "system", "tools", "tool_choice"),
    *("thinking", "output_config", "chat_template_kwargs"),
)


class EngineTokenizer:
    """A TokenCounter that asks the pool's engine. What `post_json` raises passes through to the caller.

    `calls` and `call_bytes` are what is being counted or waits for it now, `refused` how many found no room or were
    not counted in time. count_s_max bounds one call's whole count, its turns and all its prompts included: a call that
    is not counted by then finds the counter overloaded.
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
        self.refused = 0
        self.calls = 0
        self.call_bytes = 0

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The engine's count. Raises CountingOverloaded, Uncountable and whatever `post_json` raises."""
        refuse_uncountable(call.members)
        size_bytes = len(call.body)
        if self.calls >= self._calls_max or self.call_bytes + size_bytes > self._call_bytes_max:
            self.refused += 1
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
            self.refused += 1
            raise CountingOverloaded from None
        finally:
            self.calls -= 1
            self.call_bytes -= size_bytes
        return _total(counts, call, context_tokens, method)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """The ids of a call's one prompt, as the engine tells them; None where they are not the engine's to tell."""
        prompt = None if call.route.form is PromptForm.MESSAGES else one_prompt(prompts_of(call, TemplateTraits()))
        if prompt is None or isinstance(prompt, list):
            return None if prompt is None else as_ids(prompt)
        question = _text_question(call, prompt) if isinstance(prompt, str) else _chat_question(call, prompt, False)
        async with self._questions:
            answer = await self._post_json(TOKENIZE_PATH, question)
        tokens = answer.get("tokens")
        if isinstance(tokens, list) and all(type(token) is int and 0 <= token <= TOKEN_ID_MAX for token in tokens):
            return as_ids(tokens)
        return None

    async def _counts(self, call: Call) -> tuple[list[int], CountingMethod]:
        if call.route.form is PromptForm.MESSAGES:
            return await self._count_messages(call)
        prompts = prompts_of(call, TemplateTraits())
        is_exact, counts = prompts.is_whole and not prompts.pairs, []
        for chat in prompts.chats:
            declared = declared_media_tokens(chat)
            is_exact = is_exact and not declared
            counts.append(await self._ask(TOKENIZE_PATH, _chat_question(call, chat, declared > 0)) + declared)
        counts += [await self._text(call, text) if isinstance(text, str) else len(text) for text in prompts.texts]
        for pair in prompts.pairs:
            query, document = await self._text(call, pair.query), await self._text(call, pair.document)
            counts.append(cut(query, pair.query_tokens_max) + cut(document, pair.document_tokens_max))
        return counts, self.method if is_exact else CountingMethod.ESTIMATE

    async def _count_messages(self, call: Call) -> tuple[list[int], CountingMethod]:
        """By the engine's own route for this form: it alone knows what the template makes of it."""
        (chat,) = prompts_of(call, TemplateTraits()).chats
        declared = declared_media_tokens(chat)
        question = {name: call.members[name] for name in _MESSAGES_MEMBERS if call.members.get(name) is not None}
        if declared:
            question["messages"] = [without_media(message) for message in call.members["messages"]]
        count = await self._ask(COUNT_TOKENS_PATH, question) + declared
        return [count], CountingMethod.ESTIMATE if declared else self.method

    async def _text(self, call: Call, text: str) -> int:
        return await self._ask(TOKENIZE_PATH, _text_question(call, text))

    async def _ask(self, path: str, question: dict[str, Any]) -> int:
        async with self._questions:
            answer = await self._post_json(path, question)
        count = answer.get("count", answer.get("input_tokens"))
        if type(count) is int and count >= 0:
            return count
        error = answer.get("error")
        if isinstance(error, Mapping) and error.get("code") in PROMPT_REFUSED:
            param = "messages" if "messages" in question else "prompt"
            raise uncountable("invalid_prompt", "The engine cannot read this prompt.", param)
        raise EngineCannotCount(no_count())

    def learn(self, count: Count, engine_tokens: int) -> None:
        """Nothing: the engine's count is its own."""


def _total(counts: Sequence[int], call: Call, context_tokens: int | None, method: CountingMethod) -> Count:
    kept_max = kept_tokens_max(call, context_tokens)
    kept = [cut(count, kept_max) for count in counts]
    return Count(sum(kept), max(kept), method)


def _text_question(call: Call, text: str) -> dict[str, Any]:
    add_special_tokens = call.members.get("add_special_tokens") is not False
    return {"model": call.model, "prompt": text, "add_special_tokens": add_special_tokens}


def _chat_question(call: Call, chat: Mapping[str, Any], has_media: bool) -> dict[str, Any]:
    messages = [without_media(message) for message in chat["messages"]] if has_media else chat["messages"]
    stated = {name: chat[name] for name in _CHAT_MEMBERS if chat.get(name) is not None}
    return {"model": call.model, "messages": messages, **stated, "chat_template_kwargs": variables_of(chat)}


def without_media(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message without its media: asking for them would make the engine decode them."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kept = [part for part in content if isinstance(part, str) or not _is_medium(part)]
    # The answers of tools are messages in a message, in one dialect.
    return {**message, "content": [part if isinstance(part, str) else without_media(part) for part in kept]}


def _is_medium(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image" or media.medium(part) is not None
