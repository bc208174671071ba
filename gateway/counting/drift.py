"""A local count that is held against the engine's usage, and given up where it drifts.

Owns the judgement over the last answers and the change to the engine's own count. A pool whose engine was given another
template or model revision than the gateway's files is told from one odd answer. The change is for good: files that are
not the engine's do not become so again by themselves. Where the engine cannot count, the local count goes on as the
estimate that it is; the next prompt is asked of it all the same, since another engine or model may be meant. Answers
are compared on the event loop, one at a time.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from gateway.counting.counter import Count, CountingMethod, EngineCannotCount, TokenCounter
from gateway.wire.requests import Call

TOLERANCE = 0.01
ANSWERS_MIN = 16
ANSWERS_MAX = 64
ASKED_AGAIN_EVERY = 64  # prompts; an engine that could not count one may count another: an adapter, another engine


class WatchedCounter:
    """A TokenCounter that counts by `local` until that has drifted from the engine, then by `engine`.

    has_drifted: whether it has. drifted: called once, with the mean error of the last answers.
    """

    def __init__(self, local: TokenCounter, engine: TokenCounter, drifted: Callable[[float], None]) -> None:
        self.local = local
        self.engine = engine
        self._drifted = drifted
        self._errors: deque[float] = deque(maxlen=ANSWERS_MAX)
        self.has_drifted = False
        self._engine_counts = True  # as far as the last prompt that it was asked for has shown
        self._until_asked = 0

    @property
    def method(self) -> CountingMethod:
        if not self.has_drifted:
            return self.local.method
        return self.engine.method if self._engine_counts else CountingMethod.ESTIMATE

    async def count(self, call: Call, *, context_tokens: int | None = None) -> Count:
        """The count of the counter in force. Raises what that raises."""
        if not self.has_drifted:
            return await self.local.count(call, context_tokens=context_tokens)
        if self._until_asked == 0:
            try:
                counted = await self.engine.count(call, context_tokens=context_tokens)
            except EngineCannotCount:
                self._engine_counts, self._until_asked = False, ASKED_AGAIN_EVERY
            else:
                self._engine_counts = True
                return counted
        self._until_asked -= 1
        near = await self.local.count(call, context_tokens=context_tokens)
        return near._replace(method=CountingMethod.ESTIMATE)

    async def prompt_ids(self, call: Call) -> array[int] | None:
        if not self.has_drifted:
            return await self.local.prompt_ids(call)
        try:
            return await self.engine.prompt_ids(call)
        except EngineCannotCount:
            return None

    def learn(self, count: Count, engine_tokens: int) -> None:
        """Take in one answer's usage. Estimates are no drift: they never claimed to be exact."""
        if self.has_drifted or count.method is not CountingMethod.LOCAL or not count.is_comparable:
            return
        self._errors.append(abs(count.prompt_tokens / engine_tokens - 1))
        mean = sum(self._errors) / len(self._errors)
        if len(self._errors) >= ANSWERS_MIN and mean > TOLERANCE:
            self.has_drifted = True
            self._drifted(mean)
