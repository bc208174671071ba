"""What counting a prompt means, whoever does it.

Owns the counter's face and the words of its outcomes. A counter gives the number that the engine will use, or says that
it cannot: never a number that it does not stand behind. Where a part is estimated, the method says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple, Protocol

from gateway.core.types import Reason, Refusal, Shape
from gateway.wire.requests import Call


class CountingMethod(StrEnum):
    """How a count came about: the closed label of gateway_tokenize_seconds."""

    LOCAL = "local"
    ENGINE = "engine"
    ESTIMATE = "estimate"


class Count(NamedTuple):
    """Prompt tokens after the chat template. prompt_tokens: over all prompts; longest_prompt_tokens: of the longest.

    is_comparable: whether the engine's usage, where it differs, says something of the counter.
    """

    prompt_tokens: int
    longest_prompt_tokens: int
    method: CountingMethod
    is_comparable: bool = True


class CountingOverloaded(Exception):  # noqa: N818  a state of the counter
    """More counting is under way than its bounds allow."""


class Uncountable(Exception):  # noqa: N818  a property of the request
    """The prompt has no count: the engine would refuse it, or no exact rule covers it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineCannotCount(Uncountable):
    """The engine has no route that counts, not this model, or no number in its answer: whatever the prompt."""


class TokenCounter(Protocol):
    """Counts the prompt of one call. `method` is how it counts where nothing has to be estimated."""

    @property
    def method(self) -> CountingMethod: ...

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The count. context_tokens: the engine's context, where known. Raises CountingOverloaded, Uncountable."""
        ...

    async def prompt_ids(self, call: Call) -> array[int] | None:
        """The token ids of a call's one prompt as the engine will have them; None where that is not known.

        Raises what `count` does.
        """
        ...

    def learn(self, count: Count, engine_tokens: int) -> None:
        """Take in what the engine's usage said of a prompt that was counted here: more than 0 tokens."""
        ...


def as_ids(tokens: Iterable[int]) -> array[int]:
    """Token ids, four bytes each."""
    return array("I", tokens)


def uncountable(code: str, message: str, param: str) -> Uncountable:
    """An Uncountable about one member of the body."""
    return Uncountable(Refusal(Reason.BAD_REQUEST, message, code=code, param=param))


def no_count() -> Refusal:
    """The refusal of a prompt that an engine would have to count, and does not."""
    return Refusal(Reason.NO_ENGINE, "No engine can serve this model now; the prompt could not be counted.")


def shape_of(call: Call, count: Count) -> Shape:
    """The size of a counted call, as admission judges it."""
    return Shape(
        prompt_tokens=count.prompt_tokens,
        longest_prompt_tokens=count.longest_prompt_tokens,
        output_tokens_stated=call.output_tokens_stated,
        output_tokens_default=call.output_tokens_default,
        sequences=call.sequences,
        body_bytes=len(call.body),
        stream=call.stream,
        is_exact=count.method is not CountingMethod.ESTIMATE,
    )
