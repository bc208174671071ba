"""One request inside the engine: its sequences as the scheduler knows them, and what comes out of them at step ends.

Owns the identity of KV blocks by their content, and the times that metrics are made of. Decides no order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from bench.simulation.emulator.words import MadeUp
from bench.simulation.steps import EngineRequest


class Finish(StrEnum):
    """Why a sequence is over, as vLLM words it."""

    STOP = "stop"
    LENGTH = "length"


class News(NamedTuple):
    """A sequence has `total` tokens now; finish where these are all."""

    sequence: int
    total: int
    finish: Finish | None


class EngineFailedError(Exception):
    """The engine ended, or gave this request up, before its answer was whole."""


@dataclass(eq=False, slots=True)
class Generation:
    """One HTTP request's sequences and what has come of them. Tokens that nobody takes are told in one News.

    max_tokens: as stated, for the metrics.
    """

    arrived_at: float
    max_tokens: int | None
    sequences: list[LiveSequence] = field(default_factory=list)
    _news: dict[int, News] = field(default_factory=dict)
    _failure: EngineFailedError | None = None
    _told: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cached_tokens(self) -> int:
        """Of the first prompt, found in the prefix cache; 0 before it is scheduled."""
        return self.sequences[0].first_cached_tokens

    def tell(self, news: News) -> None:
        self._news[news.sequence] = news
        self._told.set()

    def fail(self, message: str) -> None:
        self._failure = EngineFailedError(message)
        self._told.set()

    async def news(self) -> list[News]:
        """Wait for tokens, and return what every sequence has got since the last call. Raises EngineFailedError."""
        await self._told.wait()
        self._told.clear()
        if self._failure is not None:
            raise self._failure
        taken, self._news = list(self._news.values()), {}
        return taken


class LiveSequence(EngineRequest):
    """What the scheduler handles, with its content. Times are the clock's, None until they come.

    salt: what must be equal, beside the tokens, for a cached prefix to serve it. told: output tokens that were handed
    on. counted_preemptions: of those that it had, how many the metrics have. first_cached_tokens: found in the prefix
    cache when it came in for the first time.
    """

    __slots__ = (
        "_chain",
        "answer",
        "counted_preemptions",
        "finish",
        "first_cached_tokens",
        "first_token_at",
        "generation",
        "ids",
        "index",
        "last_token_at",
        "salt",
        "scheduled_at",
        "told",
    )

    def __init__(
        self,
        ids: Sequence[int],
        answer: MadeUp,
        output_tokens: int,
        *,
        index: int = 0,
        finish: Finish = Finish.LENGTH,
        priority: int = 0,
        salt: Hashable = None,
        generation: Generation | None = None,
    ) -> None:
        super().__init__(0, len(ids), output_tokens, priority)
        self.index = index
        self.ids = ids
        self.answer = answer
        self.finish = finish
        self.salt = salt
        self.generation = generation
        self.told = 0
        self.counted_preemptions = 0
        self.first_cached_tokens = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._chain: list[int] = []

    def block_hash(self, index: int, block_tokens: int) -> Hashable:
        """Return the identity of a full block: its tokens, and all before them."""
        chain = self._chain
        while len(chain) <= index:
            start = len(chain) * block_tokens
            before: Hashable = chain[-1] if chain else self.salt
            chain.append(hash((before, *self._tokens(start, start + block_tokens))))
        return chain[index]

    def _tokens(self, start: int, end: int) -> Sequence[int]:
        if end <= self.prompt_tokens:
            return self.ids[start:end]
        made = self.answer.tokens(max(0, start - self.prompt_tokens), end - self.prompt_tokens)
        return [*self.ids[start:], *made]
