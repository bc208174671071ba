"""Requests that an engine is to compute with nothing beside them: token ids that no earlier prompt begins with.

Owns the bodies and what of an answer counts as measured. How many go at once is the caller's.
"""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import dataclass
from typing import Any

from bench.corpus.tokenizer import PromptForm
from bench.load.bodies import PreparedRequest
from bench.load.client import StreamingClient
from bench.load.flight import Flight
from bench.load.pacing import Clock
from bench.load.target import PATHS, Target
from bench.records.request import Outcome, Phase
from bench.trace.arrivals import Arrival

# A range of ids that every vocabulary has, above the usual special ones.
_IDS = range(32, 224)
LONE_PATH = PATHS[PromptForm.COMPLETIONS]


@dataclass(frozen=True, slots=True)
class Timed:
    """ttft_s: from sending to the first token. decode_s: from there to the last of `further_tokens` more."""

    prompt_tokens: int
    ttft_s: float
    further_tokens: int
    decode_s: float


@dataclass(frozen=True, slots=True)
class Untimed:
    """Why a request gave no times, in a word; `by_trace` where it took longer than it may."""

    reason: str


class LoneRequests:
    """To one engine, for one model, by a client for the path LONE_PATH of it."""

    def __init__(self, client: StreamingClient, target: Target, model: str, clock: Clock) -> None:
        self._client = client
        self._target = target
        self._model = model
        self._draw = random.Random(secrets.randbits(64))
        self._sent = 0
        self._clock = clock

    async def ask(self, prompt_tokens: int, output_tokens: int, *, s_max: float) -> Timed | Untimed:
        """Send one request and follow it to its end, for at most `s_max` seconds."""
        self._sent += 1
        flight = Flight(self._prepared(prompt_tokens, output_tokens, s_max), planned_at=self._clock())
        await self._client.send(flight)
        return _timed(flight, prompt_tokens, output_tokens)

    def _prepared(self, prompt_tokens: int, output_tokens: int, s_max: float) -> PreparedRequest:
        request_id = f"calibrate-{secrets.token_hex(8)}"
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": self._draw.choices(_IDS, k=prompt_tokens),
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_salt": request_id,
        }
        return PreparedRequest(
            index=self._sent,
            request_id=request_id,
            arrival=Arrival(0.0, "lone", prompt_tokens, output_tokens, s_max),
            phase=Phase.WINDOW,
            headers={**self._target.headers("lone"), "X-Request-Id": request_id},
            body=json.dumps(body).encode(),
        )


def _timed(flight: Flight, prompt_tokens: int, output_tokens: int) -> Timed | Untimed:
    reading, ending = flight.reading, flight.ending
    if ending is None or ending.outcome is not Outcome.COMPLETED:
        return Untimed("no_end" if ending is None else ending.reason or ending.outcome)
    if (reading.prompt_tokens, reading.output_tokens) != (prompt_tokens, output_tokens):
        return Untimed("other_lengths")
    if reading.cached_tokens:
        return Untimed("prompt_was_cached")
    first_at, last_at = reading.first_token_at, reading.last_token_at
    if first_at is None or last_at is None or flight.dispatched_at is None:
        return Untimed("no_token")
    return Timed(prompt_tokens, first_at - flight.dispatched_at, output_tokens - 1, last_at - first_at)
