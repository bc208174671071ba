"""What each generation route makes of its body: prompts, sampling, and the dialect of the answer.

Owns the differences between the routes. Judges values through `asking`, sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.simulation.emulator.asking import Prompter, Sampling, check, sampling_of
from bench.simulation.emulator.bodies import (
    ChatBody,
    CompletionBody,
    CountTokensBody,
    MessagesBody,
    ResponsesBody,
    Sampled,
    Tool,
)
from bench.simulation.emulator.dialects import Chat, Completions, Dialect, Messages
from bench.simulation.emulator.errors import ApiError, invalid
from bench.simulation.emulator.responses_dialect import Responses
from bench.simulation.emulator.spoken import Spoken
from bench.simulation.emulator.words import Vocabulary

AnyBody = ChatBody | CompletionBody | MessagesBody | ResponsesBody


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, judged. sampling has no room yet: that is each prompt's own."""

    prompts: list[list[int]]
    sampling: Sampling
    stream: bool
    priority: int
    salt: Hashable
    id_prefix: str
    dialect: Callable[[Spoken], Dialect]


class Asker:
    """Reads bodies that have the right form. Slow for long prompts: fit for a thread."""

    def __init__(self, vocabulary: Vocabulary, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self.prompter = Prompter(vocabulary, context_tokens)

    def asked(self, body: AnyBody) -> Asked:
        """Raises ApiError."""
        match body:
            case ChatBody():
                return self._chat(body)
            case CompletionBody():
                return self._completion(body)
            case MessagesBody():
                return self._message(body)
            case ResponsesBody():
                return self._response(body)

    def message_prompt(self, body: CountTokensBody) -> list[int]:
        turns = [each.model_dump() for each in body.messages]
        if body.system is not None:
            system = body.system if isinstance(body.system, str) else [each.model_dump() for each in body.system]
            turns.insert(0, {"role": "system", "content": system})
        return self.prompter.of_chat(turns)

    def _chat(self, body: ChatBody) -> Asked:
        sampling = sampling_of(body)
        tools = body.tools
        if tools and body.tool_choice != "none":
            raise invalid('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        self.prompter.check_output(sampling.max_tokens, name)
        prompt = self.prompter.of_chat(
            body.messages,
            keep=body.truncate_prompt_tokens,
            add_generation_prompt=body.add_generation_prompt,
            add_special_tokens=body.add_special_tokens,
            **shown_tools(tools),
            **(body.chat_template_kwargs or {}),
        )
        check(sampling, body)
        return self._asked(body, sampling, [prompt], lambda spoken: Chat(spoken, **_streamed(body)), "chatcmpl-")

    def _completion(self, body: CompletionBody) -> Asked:
        sampling = sampling_of(body)
        self.prompter.check_output(sampling.max_tokens, "max_tokens")
        keep, prompts, shown = body.truncate_prompt_tokens, [], []
        for prompt in _prompts(body.prompt):
            if isinstance(prompt, str):
                made = self.prompter.of_text(prompt, add_special_tokens=body.add_special_tokens, keep=keep)
            else:
                made = self.prompter.of_ids(prompt, keep=keep)
                self._check_ids(made)
            prompts.append(made)
            shown.append(prompt if isinstance(prompt, str) else self._vocabulary.text(made))
        check(sampling, body)
        echo = shown if body.echo else None

        def dialect(spoken: Spoken) -> Dialect:
            return Completions(spoken, **_streamed(body), echo=echo)

        return self._asked(body, sampling, prompts, dialect, "cmpl-")

    def _message(self, body: MessagesBody) -> Asked:
        sampling = sampling_of(body)
        self.prompter.check_output(sampling.max_tokens, "max_completion_tokens")
        prompt = self.message_prompt(body)
        check(sampling, body)
        return self._asked(body, sampling, [prompt], Messages, "chatcmpl-")

    def _response(self, body: ResponsesBody) -> Asked:
        if body.background:
            raise ApiError(
                400,
                "invalid_request_error",
                "This engine keeps no responses: background is not supported.",
                "background",
            )
        if body.previous_response_id is not None:
            message = f"Response with id '{body.previous_response_id}' not found."
            raise ApiError(404, "invalid_request_error", message, "response_id")
        sampling = sampling_of(body)
        turns = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else list(body.input)
        if body.instructions is not None:
            turns.insert(0, {"role": "system", "content": body.instructions})
        self.prompter.check_output(sampling.max_tokens, "max_output_tokens")
        # vLLM adds the special tokens once more on this route alone.
        prompt = self.prompter.of_chat(turns, add_special_tokens=True)
        check(sampling, body)
        most = body.max_output_tokens
        return self._asked(body, sampling, [prompt], lambda spoken: Responses(spoken, max_output_tokens=most), "resp_")

    def _asked(
        self,
        body: AnyBody,
        sampling: Sampling,
        prompts: list[list[int]],
        dialect: Callable[[Spoken], Dialect],
        id_prefix: str,
    ) -> Asked:
        priority = 0 if isinstance(body, MessagesBody) else body.priority
        return Asked(prompts, sampling, bool(body.stream), priority, body.cache_salt, id_prefix, dialect)

    def _check_ids(self, prompt: list[int]) -> None:
        if (highest := max(prompt, default=0)) >= self._vocabulary.size:
            raise invalid(f"Token id {highest} is out of vocabulary")


def _prompts(prompt: Any) -> list[str] | list[list[int]]:
    """Return a completion's prompts, each for itself. Raises ApiError where there is none."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("You must pass at least one prompt")
    prompts: list[str] | list[list[int]] = [prompt] if isinstance(prompt[0], int) else prompt
    if not all(prompts):
        raise invalid("The decoder prompt cannot be empty")
    return prompts


def _streamed(body: Sampled) -> dict[str, bool]:
    options = body.stream_options
    return {
        "usage": options is not None and bool(options.include_usage),
        "running_usage": options is not None and bool(options.continuous_usage_stats),
        "token_ids": bool(body.return_token_ids),
    }


def shown_tools(tools: Sequence[Tool] | None) -> dict[str, Any]:
    """Return what the template is given of them: nothing where there is none."""
    return {"tools": [tool.shown() for tool in tools]} if tools else {}
