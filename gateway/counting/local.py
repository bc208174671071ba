"""The served model's own tokenizer and chat template, in this process.

Owns the whole way from a call to its count: the rendered prompt, its tokens, the cut that the caller asks for. Counts
as vLLM 0.32 does, on threads of its own, and refuses by size what the engine would refuse by size. Never decodes a
medium: an image's tokens are declared, and a count that holds one says that it is an estimate.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from gateway.core.types import Reason, Refusal
from gateway.counting.bounds import text_bounds
from gateway.counting.chat_template import ChatTemplate
from gateway.counting.conversation import conversation_of, tools_of, variables_of, with_system_for_developer
from gateway.counting.counter import Count, CountingMethod, Uncountable, as_ids, uncountable
from gateway.counting.model_files import (
    DEFAULT_TEMPLATE,
    TOOLS_TEMPLATE,
    ModelFiles,
    TokenizerUnusable,
    read_model_files,
)
from gateway.counting.prompts import (
    MEDIA_TOKENS,
    completion_prompts,
    cut,
    declared_media_tokens,
    kept_tokens_max,
    refuse_uncountable,
)
from gateway.counting.threads import CountingThreads
from gateway.wire.dialects import PromptForm
from gateway.wire.media import Medium
from gateway.wire.requests import Call

REASON_CHARS_MAX = 300
# What a template raises for a conversation that it does not take: it is a model author's code over a caller's values.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class LocalTokenizer:
    """A TokenCounter over one model's files. `close` ends its threads."""

    method = CountingMethod.LOCAL

    def __init__(
        self,
        files: ModelFiles,
        *,
        threads: CountingThreads | None = None,
        media_tokens: Mapping[Medium, int] = MEDIA_TOKENS,
    ) -> None:
        """Compile the templates. Raises jinja2.TemplateSyntaxError."""
        self._tokenizer: Tokenizer = files.tokenizer
        self._templates = {name: ChatTemplate(source) for name, source in files.templates.items()}
        self._special_tokens = files.special_tokens
        self._bounds = text_bounds(files.tokenizer)
        self._threads = CountingThreads() if threads is None else threads
        self._media_tokens = media_tokens

    @classmethod
    def load(cls, path: Path, revision: str | None = None) -> LocalTokenizer:
        """The counter of the model in `path`. Raises TokenizerUnusable."""
        # Its own threads are the parallelism; the library's pool would be one line for short and long prompts alike.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            return cls(read_model_files(path, revision))
        except jinja2.TemplateSyntaxError as error:
            problem = f"the chat template does not compile: {error.message} (line {error.lineno})"
            raise TokenizerUnusable(path, problem, "Copy the model's chat template again") from error

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The count, from a thread. Raises CountingOverloaded and Uncountable."""
        return await self._threads.run(partial(self.count_now, call, context_tokens), len(call.body))

    def count_now(self, call: Call, context_tokens: int | None = None) -> Count:
        """The count, in this thread."""
        refuse_uncountable(call.members)
        kept_max = kept_tokens_max(call, context_tokens)
        match call.route.form:
            case PromptForm.CHAT:
                return self._count_chat(call.members, kept_max, context_tokens)
            case PromptForm.COMPLETION:
                return self._count_completion(call.members, kept_max, context_tokens)
            case PromptForm.NONE:
                raise AssertionError("a route without a prompt is not counted")

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """The ids of a call's one prompt, from a thread; None where a medium stands in it."""
        return await self._threads.run(partial(self._ids_now, call), len(call.body))

    def _ids_now(self, call: Call) -> array[int] | None:
        members = call.members
        if call.route.form is PromptForm.CHAT:
            if declared_media_tokens(members, self._media_tokens):
                return None
            text, special = self._rendered(members), members.get("add_special_tokens") is True
        else:
            (prompt,) = completion_prompts(members)
            if not isinstance(prompt, str):
                return as_ids(prompt)
            text, special = prompt, members.get("add_special_tokens") is not False
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return as_ids(encoding.ids)

    def close(self) -> None:
        self._threads.close()

    def _count_chat(self, members: Mapping[str, Any], kept_max: int | None, context_tokens: int | None) -> Count:
        text = self._rendered(members)
        declared = declared_media_tokens(members, self._media_tokens)
        add_special_tokens = members.get("add_special_tokens") is True
        tokens = cut(self._tokens(text, add_special_tokens, kept_max, context_tokens) + declared, kept_max)
        return Count(tokens, tokens, CountingMethod.ESTIMATE if declared else self.method)

    def _count_completion(self, members: Mapping[str, Any], kept_max: int | None, context_tokens: int | None) -> Count:
        add_special_tokens = members.get("add_special_tokens") is not False
        counts = [
            self._tokens(prompt, add_special_tokens, kept_max, context_tokens)
            if isinstance(prompt, str)
            else cut(len(prompt), kept_max)
            for prompt in completion_prompts(members)
        ]
        return Count(sum(counts), max(counts), self.method)

    def _tokens(self, text: str, add_special_tokens: bool, kept_max: int | None, context_tokens: int | None) -> int:
        if kept_max is None:
            if self._bounds.overruns(text, context_tokens):
                raise self._overrun(text, context_tokens)
        elif self._bounds.tokens_at_least(text) >= kept_max:
            return kept_max
        # The batch form alone lets go of the interpreter lock: one long prompt would else stop the event loop.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return cut(len(encoding), kept_max)

    def _overrun(self, text: str, context_tokens: int | None) -> Uncountable:
        tokens = -(-len(text) // self._bounds.chars_per_token_max)
        message = f"The model's context is {context_tokens} tokens; {len(text)} characters are at least {tokens}."
        return Uncountable(Refusal(Reason.CONTEXT_LENGTH, message, limit=context_tokens, observed=tokens))

    def _rendered(self, members: Mapping[str, Any]) -> str:
        variables = variables_of(members)
        tools = variables.pop("tools") if "tools" in variables else tools_of(members)
        documents = variables.pop("documents", None)
        template = self._template(has_tools=tools is not None)
        try:
            conversation = conversation_of(members["messages"], template.content_format)
            if not template.knows_developer:
                conversation = with_system_for_developer(conversation)
            return template.render(
                conversation,
                tools=tools,
                documents=documents,
                add_generation_prompt=members.get("add_generation_prompt") is not False,
                continue_final_message=members.get("continue_final_message") is True,
                variables={**self._special_tokens, **_looked_up(variables, template)},
            )
        except _TEMPLATE_ERRORS as error:
            reason = str(error)[:REASON_CHARS_MAX]
            raise uncountable(
                "invalid_messages", f"The model's chat template refuses them: {reason}", "messages"
            ) from error

    def _template(self, *, has_tools: bool) -> ChatTemplate:
        names = (TOOLS_TEMPLATE, DEFAULT_TEMPLATE) if has_tools else (DEFAULT_TEMPLATE,)
        template = next((self._templates[name] for name in names if name in self._templates), None)
        if template is None:
            raise uncountable("unsupported_parameter", "The model has no chat template.", "messages")
        return template


def _looked_up(variables: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    return {name: value for name, value in variables.items() if name in template.variables}
