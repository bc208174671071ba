"""How long an engine's steps take, fitted from lone requests. Pure.

A request of p prompt tokens has its first token after request_s + k·base_s + p·per_token_s + p²/2·per_token_context_s
seconds, k the steps that its prompt takes; n further tokens then take n steps. The fit is of least absolute relative
error, no term below 0: on a machine that does other things too some times are far too long, and a median is not moved.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TERMS = ("request_s", "base_s", "per_token_s", "per_token_context_s")
_CONFIDENCE = 0.95
_DRAWS = 200
_ROUNDS, _ROUNDS_OF_A_DRAW = 40, 8
_RESIDUAL_MIN = 1e-3
_LOADING = 1e-9  # keeps what cannot be told apart from dividing by 0


class Sample(NamedTuple):
    """One measured time, and how often each of TERMS is in it."""

    terms: tuple[float, float, float, float]
    seconds: float


def prefill(prompt_tokens: int, step_tokens: int, seconds: float) -> Sample:
    """From sending to the first token. step_tokens: of one step of a request that is alone."""
    return Sample((1, -(-prompt_tokens // step_tokens), prompt_tokens, prompt_tokens * prompt_tokens / 2), seconds)


def decode(prompt_tokens: int, tokens: int, seconds: float) -> Sample:
    """From the first token to the last of `tokens` more."""
    return Sample((0, tokens, tokens, tokens * (prompt_tokens + tokens / 2)), seconds)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval, by drawing the samples anew."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """Estimates by term, and the error |predicted ÷ measured − 1| over the samples it was fitted to."""

    terms: Mapping[str, Estimate]
    error_median: float
    error_p95: float

    def seconds(self, sample: Sample) -> float:
        return _predicted([self.terms[name].value for name in TERMS], sample)


def fit(samples: Sequence[Sample], seed: int = 0) -> StepModel:
    """Needs samples of several lengths; times are above 0."""
    draw = random.Random(seed)
    start = _least_absolute(samples, [0.0] * len(TERMS), _ROUNDS)
    drawn = [_least_absolute(draw.choices(samples, k=len(samples)), start, _ROUNDS_OF_A_DRAW) for _ in range(_DRAWS)]
    tail = (1 - _CONFIDENCE) / 2
    terms = {}
    for at, (name, value) in enumerate(zip(TERMS, start, strict=True)):
        ordered = sorted(each[at] for each in drawn)
        low, high = _quantile(ordered, tail), _quantile(ordered, 1 - tail)
        terms[name] = Estimate(value, min(low, value), max(high, value))
    errors = sorted(abs(_predicted(start, each) / each.seconds - 1) for each in samples)
    return StepModel(terms, _quantile(errors, 0.5), _quantile(errors, 0.95))


def _predicted(coefficients: Sequence[float], sample: Sample) -> float:
    return sum(value * term for value, term in zip(coefficients, sample.terms, strict=True))


def _least_absolute(samples: Sequence[Sample], start: Sequence[float], rounds: int) -> list[float]:
    """By least squares, again and again, each sample weighing less the further it is off."""
    coefficients = list(start)
    for _ in range(rounds):
        errors = [abs(_predicted(coefficients, each) / each.seconds - 1) for each in samples]
        coefficients = _least_squares(samples, [1 / max(_RESIDUAL_MIN, error) for error in errors])
    return coefficients


def _least_squares(samples: Sequence[Sample], weights: Sequence[float]) -> list[float]:
    """Weighted, of the relative error. A term that comes out below 0 is 0, and the others are solved anew."""
    size = len(TERMS)
    scales = [max(each.terms[at] / each.seconds for each in samples) or 1.0 for at in range(size)]
    square = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for sample, weight in zip(samples, weights, strict=True):
        features = [term / sample.seconds / scale for term, scale in zip(sample.terms, scales, strict=True)]
        for row, own in enumerate(features):
            right[row] += weight * own
            for column, other in enumerate(features):
                square[row][column] += weight * own * other
    for at in range(size):
        square[at][at] *= 1 + _LOADING
    values = [0.0] * size
    free = [at for at in range(size) if square[at][at] > 0]
    while free:
        found = dict(zip(free, _solved([[*(square[row][at] for at in free), right[row]] for row in free]), strict=True))
        lowest = min(free, key=found.__getitem__)
        if found[lowest] >= 0:
            return [found.get(at, 0.0) / scale for at, scale in enumerate(scales)]
        free.remove(lowest)
    return values


def _solved(rows: list[list[float]]) -> list[float]:
    """Gauss and Jordan, in place; positive definite, so no pivot is 0."""
    for at, row in enumerate(rows):
        row[:] = [value / row[at] for value in row]
        for other in rows:
            if other is not row:
                factor = other[at]
                other[:] = [value - factor * own for value, own in zip(other, row, strict=True)]
    return [row[-1] for row in rows]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]
