"""What has been computed of a request's answers, as text and counts: the part of every dialect that is the same.

Owns how far each answer has been written. Writes no bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.simulation.emulator.asking import Answer
from bench.simulation.emulator.generation import Finish, Generation, News


class Piece(NamedTuple):
    """What one sequence says now: new text and token ids; finish and stop_reason with the last of it."""

    sequence: int
    text: str
    token_ids: list[int]
    output_tokens: int
    finish: Finish | None
    stop_reason: str | int | None


def _now() -> int:
    return time.time_ns() // 1_000_000_000


@dataclass(slots=True)
class Spoken:
    """One HTTP request's answers. prompts: each for `len(answers) / len(prompts)` of the answers, in order.

    details: whether `usage` tells the cached tokens.
    """

    request_id: str
    model: str
    prompts: Sequence[Sequence[int]]
    answers: Sequence[Answer]
    generation: Generation
    details: bool
    created: int = field(default_factory=_now)
    told: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.told = [0] * len(self.answers)

    def prompt_of(self, index: int) -> Sequence[int]:
        return self.prompts[index * len(self.prompts) // len(self.answers)]

    def piece(self, news: News) -> Piece:
        """Take what is new of one sequence."""
        answer, start = self.answers[news.sequence], self.told[news.sequence]
        self.told[news.sequence] = news.total
        made, end = answer.made, min(news.total, answer.visible_tokens)
        text = made.text(start, end)
        if answer.visible_chars is not None:
            before = len(made.text(0, start))
            text = text[: max(0, answer.visible_chars - before)]
        stop_reason = answer.stop_reason if news.finish is not None else None
        return Piece(news.sequence, text, made.tokens(start, news.total), news.total, news.finish, stop_reason)

    def whole(self, index: int) -> Piece:
        """Return all that a sequence says."""
        answer = self.answers[index]
        return self.piece(News(index, answer.tokens, answer.finish))

    @property
    def output_tokens(self) -> int:
        return sum(self.told)

    @property
    def cached_tokens(self) -> int:
        return self.generation.cached_tokens

    def usage(self, cache_details: Mapping[str, int]) -> dict[str, Any]:
        """Return the OpenAI routes' usage so far, of all; cache_details: what stands beside the cached tokens."""
        counted: dict[str, Any] = _counted(sum(map(len, self.prompts)), self.output_tokens)
        if self.details:
            counted["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens, **cache_details}
        return counted

    def usage_of(self, index: int) -> dict[str, Any]:
        """Return the usage of one answer so far."""
        return _counted(len(self.prompt_of(index)), self.told[index])


def _counted(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }
