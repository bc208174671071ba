"""From a body to what the engine is asked: prompts as token ids, how many tokens of answer, where each of them ends.

Owns the checks that vLLM makes once a body has the right form, in its order and words, and how long an answer is.
Made-up text is known beforehand, so a stop string is found before the first token is computed. Reads no clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import jinja2

from bench.simulation.emulator.bodies import ChatBody, CompletionBody, MessagesBody, ResponsesBody, Sampled
from bench.simulation.emulator.errors import invalid
from bench.simulation.emulator.generation import Finish
from bench.simulation.emulator.vocabulary import EOS, SPECIAL_TOKENS
from bench.simulation.emulator.words import MadeUp, Vocabulary

SEQUENCES_MAX = 16_384
EOS_ID = SPECIAL_TOKENS.index(EOS)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides how long an answer is. max_tokens None: as many as the context has room for.

    stop_ids: token ids that end an answer. with_stop: the stop string stays in the answer.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    with_stop: bool = False
    sequences: int = 1
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one sequence is going to say: tokens, the last of them perhaps without text; text up to `visible_chars`.

    visible_tokens: of the tokens, those that have text. visible_chars None: all of it.
    """

    made: MadeUp
    tokens: int
    finish: Finish
    visible_tokens: int
    visible_chars: int | None = None
    stop_reason: str | int | None = None


def check(sampling: Sampling, body: Sampled | MessagesBody | ResponsesBody) -> None:
    """Judge what stands in the body beside its form. Raises ApiError with vLLM's words."""

    def stated(name: str) -> Any:
        return getattr(body, name, None)

    if sampling.sequences < 1:
        raise invalid(f"n must be at least 1, got {sampling.sequences}.")
    if sampling.sequences > SEQUENCES_MAX:
        raise invalid(f"n must be at most {SEQUENCES_MAX}, got {sampling.sequences}.")
    for name in ("presence_penalty", "frequency_penalty"):
        if (value := stated(name)) is not None and not -2 <= value <= 2:
            raise invalid(f"{name} must be in [-2, 2], got {value}.")
    if (value := stated("repetition_penalty")) is not None and value <= 0:
        raise invalid(f"repetition_penalty must be greater than zero, got {value}.")
    _check_temperature(stated("temperature"))
    if (value := stated("top_p")) is not None and not 0 < value <= 1:
        raise invalid(f"top_p must be in (0, 1], got {value}.", "top_p", value)
    if (value := stated("top_k")) is not None and value < -1:
        raise invalid(f"top_k must be 0 (disable), or at least 1, got {value}.")
    if (value := stated("min_p")) is not None and not 0 <= value <= 1:
        raise invalid(f"min_p must be in [0, 1], got {value}.")
    _check_lengths(sampling)


def _check_temperature(value: float | None) -> None:
    if value is None:
        return
    fault = None
    if not math.isfinite(value):
        fault = "must be a finite number"
    elif value < 0:
        fault = "must be non-negative"
    elif value > 2:
        fault = "must be in [0, 2]"
    if fault is not None:
        raise invalid(f"temperature {fault}, got {value}.", "temperature", value)


def _check_lengths(sampling: Sampling) -> None:
    most, least = sampling.max_tokens, sampling.min_tokens
    if most is not None and most < 1:
        raise invalid(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
    if least < 0:
        raise invalid(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise invalid(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    if "" in sampling.stop:
        raise invalid("stop cannot contain an empty string.")


def sampling_of(body: ChatBody | CompletionBody | MessagesBody | ResponsesBody) -> Sampling:
    if isinstance(body, MessagesBody):
        return Sampling(max_tokens=body.max_tokens, stop=tuple(body.stop_sequences or ()))
    if isinstance(body, ResponsesBody):
        return Sampling(max_tokens=body.max_output_tokens, ignore_eos=body.ignore_eos)
    most = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        most = body.max_completion_tokens
    elif isinstance(body, CompletionBody) and most is None:
        most = 16
    return Sampling(
        max_tokens=most,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_ids=frozenset(body.stop_token_ids or ()),
        with_stop=body.include_stop_str_in_output,
        sequences=1 if body.n is None else body.n,
        seed=body.seed,
    )


class Prompter:
    """Makes prompts of bodies, and holds them against the context."""

    def __init__(self, vocabulary: Vocabulary, context_tokens: int) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens

    def room(self, prompt: Sequence[int], sampling: Sampling) -> Sampling:
        """Return the sampling with what the context leaves it; a stated output beyond that is cut, as vLLM does."""
        room = self._context_tokens - len(prompt)
        most = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        if most < 1:
            raise invalid(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
        return replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))

    def check_output(self, stated: int | None, name: str) -> None:
        """Refuse a stated output that is by itself longer than the context."""
        if stated is not None and stated > self._context_tokens:
            message = (
                f"{name}={stated} cannot be greater than max_model_len={self._context_tokens}. "
                "Please request fewer output tokens."
            )
            raise invalid(message, name, stated)

    def of_text(self, text: str, *, add_special_tokens: bool, keep: int | None = None) -> list[int]:
        """Return the tokens of a text; keep: the last so many of them alone, -1 for as many as fit."""
        context, most = self._context_tokens, self._context_tokens * self._vocabulary.chars_per_token_max
        if keep is None and len(text) > most:
            message = (
                f"This model's maximum context length is {context} tokens. However, your prompt contains {len(text)} "
                f"characters (more than {most} characters, which is the upper bound for {context} input tokens). "
                "Please reduce the length of the input prompt."
            )
            raise invalid(message, "input_text", len(text))
        ids = self._vocabulary.ids(text, add_special_tokens=add_special_tokens)
        # The engine's tokenizer stops one token beyond the context: it never knows how long such a text really is.
        return self.of_ids(ids if keep is not None else ids[: context + 1], keep=keep)

    def of_ids(self, ids: Sequence[int], *, keep: int | None = None) -> list[int]:
        kept = list(ids)
        if keep is not None:
            most = self._context_tokens - 1 if keep < 0 else keep
            kept = kept[max(0, len(kept) - most) :]
        if len(kept) > self._context_tokens:
            number = len(kept)
            some = "at least " if number == self._context_tokens + 1 else ""
            message = (
                f"This model's maximum context length is {self._context_tokens} tokens. However, your prompt contains "
                f"{some}{number} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt."
            )
            raise invalid(message, "input_tokens", number)
        return kept

    def of_chat(self, messages: Sequence[dict[str, Any]], *, keep: int | None = None, **options: Any) -> list[int]:
        add_special_tokens = bool(options.pop("add_special_tokens", False))
        return self.of_text(self.rendered(messages, **options), add_special_tokens=add_special_tokens, keep=keep)

    def rendered(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """Return the conversation as text. Raises ApiError where a message is none, or holds no text."""
        try:
            return self._vocabulary.rendered([_flat(message) for message in messages], **options)
        except jinja2.TemplateError as error:
            raise invalid(str(error)) from error


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose parts are joined, as the engine does for a template that takes text alone."""
    role = "system" if message.get("role") == "developer" else message.get("role")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise invalid("The emulator takes text alone.")
        content = "\n".join(part["text"] for part in content if part["text"])
    return {**message, "role": role, "content": content}


def seed_of(prompt: Sequence[int], sampling: Sampling, index: int) -> int:
    """Return the number that decides an answer: by prompt and seed, another one for each sequence."""
    said = array("q", prompt).tobytes() + repr((sampling.seed, index)).encode()
    digest = blake2b(said, digest_size=6)
    return int.from_bytes(digest.digest(), "big")


def answer_of(vocabulary: Vocabulary, prompt: Sequence[int], sampling: Sampling, index: int) -> Answer:
    """Return what is said to a prompt whose `sampling` has its room already."""
    made = MadeUp(vocabulary, seed_of(prompt, sampling, index))
    most = sampling.max_tokens
    assert most is not None
    natural = max(made.natural_tokens, sampling.min_tokens)
    answer = Answer(made, most, Finish.LENGTH, most)
    if not sampling.ignore_eos and natural < most:
        # The token that ends it counts and has no text.
        made.ends_at(natural, EOS_ID)
        answer = Answer(made, natural + 1, Finish.STOP, natural)
    if sampling.stop_ids:
        answer = _cut_at_id(answer, sampling)
    if sampling.stop:
        answer = _cut_at_text(answer, sampling)
    return answer


def _cut_at_id(answer: Answer, sampling: Sampling) -> Answer:
    for place in range(sampling.min_tokens, answer.visible_tokens):
        if (token := answer.made.token(place)) in sampling.stop_ids:
            return Answer(answer.made, place + 1, Finish.STOP, place, None, token)
    return answer


def _cut_at_text(answer: Answer, sampling: Sampling) -> Answer:
    """Where the first of the stop strings is complete, once `min_tokens` are there."""
    text = answer.made.text(0, min(sampling.min_tokens, answer.visible_tokens))
    looked_from, reach = len(text), max(map(len, sampling.stop)) + 64
    for place in range(sampling.min_tokens, answer.visible_tokens):
        text += answer.made.text(place, place + 1)
        begin = max(looked_from, len(text) - reach)
        for stop in sampling.stop:
            if (found := text.find(stop, begin)) >= 0:
                shown = found + (len(stop) if sampling.with_stop else 0)
                return Answer(answer.made, place + 1, Finish.STOP, place + 1, shown, stop)
    return answer
