"""One streamed answer as it comes in: when tokens came, what was counted, whether it ended as it should.

Owns the clock readings of one stream. Pure: `now` is an argument. Judges nothing; `bench.load.outcomes` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from bench.load.events import InBandError, Said, read
from bench.load.sse import EventSplitter


@dataclass(slots=True)
class StreamReading:
    """What one stream has said so far. Times are readings of the caller's clock, in seconds.

    chunk_times: one for each network read that brought a token; several tokens of one read share it.
    """

    chunk_times: list[float] = field(default_factory=list)
    first_content_at: float | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error: InBandError | None = None
    malformed_events: int = 0
    _splitter: EventSplitter = field(default_factory=EventSplitter)

    @property
    def first_token_at(self) -> float | None:
        return self.chunk_times[0] if self.chunk_times else None

    @property
    def last_token_at(self) -> float | None:
        return self.chunk_times[-1] if self.chunk_times else None

    def feed(self, chunk: bytes, now: float) -> None:
        """Take one network read; raises EventTooLargeError."""
        token = False
        for payload in self._splitter.feed(chunk):
            said = read(payload)
            token |= said.token or self._counts_up(said)
            self._note(said, now)
        if token:
            self.chunk_times.append(now)

    def close(self) -> None:
        """Nothing more comes: what was not a whole event is dropped."""
        self._splitter = EventSplitter()

    def gaps_s(self) -> list[float]:
        """Between reads that brought tokens: chunk gaps, which are token times only where each token is a chunk."""
        return [later - earlier for earlier, later in pairwise(self.chunk_times)]

    def longest_stall_s(self, ended_at: float) -> float | None:
        """The longest silence after the first token, that before the end included; None without a token."""
        if not self.chunk_times:
            return None
        return max([*self.gaps_s(), ended_at - self.chunk_times[-1]])

    def _counts_up(self, said: Said) -> bool:
        """A running count that grew proves a token whose text the server still holds back (half a character).

        A count that comes with the end alone proves nothing about when its tokens came.
        """
        if said.usage is None or said.usage.output_tokens is None or not said.choices:
            return False
        running = self.output_tokens is not None or said.finish_reason is None
        return running and said.usage.output_tokens > (self.output_tokens or 0)

    def _note(self, said: Said, now: float) -> None:
        self.malformed_events += said.malformed
        if said.content and self.first_content_at is None:
            self.first_content_at = now
        self.finish_reason = said.finish_reason or self.finish_reason
        self.error = self.error or said.error
        if said.usage is not None:
            self.prompt_tokens = _or(said.usage.prompt_tokens, self.prompt_tokens)
            self.output_tokens = _or(said.usage.output_tokens, self.output_tokens)
            self.cached_tokens = _or(said.usage.cached_tokens, self.cached_tokens)


def _or(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
