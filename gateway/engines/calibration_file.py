"""A calibration file: what `gateway bench calibrate` measured of an engine, read strictly.

Owns the file's keys and their bounds, and what its numbers mean as prefills. Measures nothing.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.core.steptime import PrefillSample
from gateway.core.types import EngineLimits
from gateway.engines.calibration import prompt_lengths
from gateway.strict_yaml import Strict, problem, read

# Seconds above these are another unit, or another mistake.
_BASE_S_MAX, _PER_TOKEN_S_MAX, _PER_TOKEN_CONTEXT_S_MAX = 10.0, 1.0, 1e-3

Text = Annotated[str, Field(min_length=1, max_length=256)]


class Estimate(Strict):
    """A value and its 95 % interval, in seconds."""

    value: Annotated[float, Field(ge=0)]
    low: Annotated[float, Field(ge=0)]
    high: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _in_its_interval(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise problem("lies outside its interval", fix="Measure again: low ≤ value ≤ high", at="value")
        return self


class Error(Strict):
    """How far the model is from what was measured: |predicted ÷ measured − 1|."""

    median: Annotated[float, Field(ge=0)]
    p95: Annotated[float, Field(ge=0)]


class CalibrationFile(Strict):
    """What a request, a step, a request in it and its tokens take; None: not measured apart.

    Seconds of a prefill = request_s + steps · (base_s + per_sequence_s) + p · per_token_s, and for each token and token
    before it per_token_chunk_s in the same step, per_token_context_s in an earlier one.
    """

    version: Literal[1]
    model: Text
    made_at: Text
    engine_version: Text | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    base_s: Estimate
    per_token_s: Estimate
    per_token_context_s: Estimate
    per_sequence_s: Estimate | None = None
    per_token_chunk_s: Estimate | None = None
    request_s: Estimate
    error: Error
    requests: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _in_seconds(self) -> Self:
        for name, value, highest in (
            ("base_s", self.base_s.value, _BASE_S_MAX),
            ("request_s", self.request_s.value, _BASE_S_MAX),
            ("per_token_s", self.per_token_s.value, _PER_TOKEN_S_MAX),
            ("per_token_context_s", self.per_token_context_s.value, _PER_TOKEN_CONTEXT_S_MAX),
            ("per_sequence_s", _value(self.per_sequence_s, 0.0), _BASE_S_MAX),
            ("per_token_chunk_s", _value(self.per_token_chunk_s, 0.0), _PER_TOKEN_CONTEXT_S_MAX),
        ):
            if value > highest:
                raise problem(f"is above {highest:g} s", fix="Give seconds", at=f"{name}.value")
        if self.per_token_s.value == 0:
            raise problem("is 0", fix="Measure again: a token takes time", at="per_token_s.value")
        return self

    def samples(self, limits: EngineLimits) -> list[PrefillSample]:
        """Return the prefills that its numbers predict for an engine of these limits."""
        return [self._sample(tokens, limits.step_tokens) for tokens in prompt_lengths(limits, None)]

    def _sample(self, tokens: int, step_tokens: int) -> PrefillSample:
        steps = ceil(tokens / step_tokens)
        chunks = ((steps - 1) * step_tokens**2 + (tokens - (steps - 1) * step_tokens) ** 2) / 2
        context_s = self.per_token_context_s.value
        attention_s = context_s * (tokens**2 / 2 - chunks) + _value(self.per_token_chunk_s, context_s) * chunks
        steps_s = steps * (self.base_s.value + _value(self.per_sequence_s, 0.0))
        seconds = self.request_s.value + steps_s + tokens * self.per_token_s.value + attention_s
        return PrefillSample(tokens, steps, seconds)


def _value(estimate: Estimate | None, otherwise: float) -> float:
    return otherwise if estimate is None else estimate.value


def load(path: Path) -> CalibrationFile:
    """Read the file; raises ConfigError naming the file and the key."""
    return read(path, CalibrationFile)
