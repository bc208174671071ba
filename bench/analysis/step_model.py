"""How long an engine's steps take, fitted from lone requests. Pure.

A step takes base_s, per_token_s for each token, per_sequence_s for each request in it, per_token_context_s for each
token and token of an earlier step that it attends to, per_token_chunk_s for each and token of the same step. A request
takes request_s beside its steps. The fit is of least absolute relative error, no term below 0: on a machine that does
other things too some times are far too long, and a median is not moved.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

TERMS = ("request_s", "base_s", "per_token_s", "per_token_context_s", "per_sequence_s", "per_token_chunk_s")
_CONTEXT, _CHUNK = TERMS.index("per_token_context_s"), TERMS.index("per_token_chunk_s")
_CONFIDENCE = 0.95
_DRAWS = 200
_ROUNDS, _ROUNDS_OF_A_DRAW = 40, 8
_RESIDUAL_MIN = 1e-3
_LOADING = 1e-9  # keeps what cannot be told apart from dividing by 0


class Sample(NamedTuple):
    """One measured time, and how often each of TERMS is in it."""

    terms: tuple[float, ...]
    seconds: float


def prefill(prompt_tokens: int, step_tokens: int, seconds: float) -> Sample:
    """From sending to the first token. step_tokens: of one step of a request that is alone."""
    steps = -(-prompt_tokens // step_tokens)
    rest = prompt_tokens - (steps - 1) * step_tokens
    chunks = ((steps - 1) * step_tokens**2 + rest**2) / 2
    return Sample((1, steps, prompt_tokens, prompt_tokens**2 / 2 - chunks, steps, chunks), seconds)


def decode(prompt_tokens: int, tokens: int, seconds: float, *, sequences: float = 1) -> Sample:
    """From the first token to the last of `tokens` more. sequences: that decode so beside one another, on average."""
    each = tokens * sequences
    return Sample((0, tokens, each, each * (prompt_tokens + tokens / 2), each, each / 2), seconds)


def together(prompt_tokens: int, tokens: int, spans: Sequence[tuple[float, float]]) -> Sample:
    """All of several that decode at once. spans: when each had its first token, and the last of `tokens` more.

    Who starts later decodes beside fewer at its end; the prompts of those are computed meanwhile.
    """
    mean_s = sum(last - first for first, last in spans) / len(spans)
    overlap_s = sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one in spans for other in spans)
    sample = decode(prompt_tokens, tokens, mean_s, sequences=overlap_s / len(spans) / mean_s)
    later = sum(one[0] < other[0] < one[1] for one in spans for other in spans) / len(spans)
    own = prefill(prompt_tokens, prompt_tokens, 0.0).terms
    beside = (0, 0, *own[2:])
    return Sample(tuple(term + later * more for term, more in zip(sample.terms, beside, strict=True)), mean_s)


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
    """Needs samples of several lengths; times are above 0.

    Where no prompt took several steps nothing tells what earlier steps' tokens cost: as much as those of the same step.
    """
    is_tied = not any(sample.terms[0] and sample.terms[_CONTEXT] for sample in samples)
    if is_tied:
        samples = [_tied(sample) for sample in samples]
    draw = random.Random(seed)
    system = _System(samples)
    start = system.least_absolute([1] * len(samples), [0.0] * len(TERMS), _ROUNDS)
    drawn = [system.least_absolute(_counts(draw, len(samples)), start, _ROUNDS_OF_A_DRAW) for _ in range(_DRAWS)]
    tail = (1 - _CONFIDENCE) / 2
    terms = {}
    for at, (name, value) in enumerate(zip(TERMS, start, strict=True)):
        ordered = sorted(each[at] for each in drawn)
        low, high = _quantile(ordered, tail), _quantile(ordered, 1 - tail)
        terms[name] = Estimate(value, min(low, value), max(high, value))
    if is_tied:
        terms["per_token_chunk_s"] = terms["per_token_context_s"]
    errors = sorted(abs(_predicted(start, each) / each.seconds - 1) for each in samples)
    return StepModel(terms, _quantile(errors, 0.5), _quantile(errors, 0.95))


def _tied(sample: Sample) -> Sample:
    terms = list(sample.terms)
    terms[_CONTEXT], terms[_CHUNK] = terms[_CONTEXT] + terms[_CHUNK], 0.0
    return Sample(tuple(terms), sample.seconds)


def _predicted(coefficients: Sequence[float], sample: Sample) -> float:
    return sum(value * term for value, term in zip(coefficients, sample.terms, strict=True))


def _counts(draw: random.Random, size: int) -> list[int]:
    """How often each of `size` samples is in as many draws of them."""
    counts = [0] * size
    for at in draw.choices(range(size), k=size):
        counts[at] += 1
    return counts


class _System:
    """The samples by column: terms by seconds, each scaled to at most 1, and all products of two of them."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        size = range(len(TERMS))
        self._scales = [max(each.terms[at] / each.seconds for each in samples) or 1.0 for at in size]
        self._columns = [[each.terms[at] / each.seconds / self._scales[at] for each in samples] for at in size]
        self._products = {
            (one, other): list(map(mul, self._columns[one], self._columns[other]))
            for one in size
            for other in range(one + 1)
        }

    def least_absolute(self, counts: Sequence[int], start: Sequence[float], rounds: int) -> list[float]:
        """By least squares, again and again, each sample weighing less the further it is off."""
        values = [value * scale for value, scale in zip(start, self._scales, strict=True)]
        for _ in range(rounds):
            ratios = [sum(map(mul, values, row)) for row in zip(*self._columns, strict=True)]
            weights = [n / max(_RESIDUAL_MIN, abs(ratio - 1)) for n, ratio in zip(counts, ratios, strict=True)]
            values = self._least_squares(weights)
        return [value / scale for value, scale in zip(values, self._scales, strict=True)]

    def _least_squares(self, weights: Sequence[float]) -> list[float]:
        """Weighted, of the relative error. A term that comes out below 0 is 0, and the others are solved anew."""
        square = {at: sum(map(mul, weights, product)) for at, product in self._products.items()}
        right = [sum(map(mul, weights, column)) for column in self._columns]
        for at in range(len(right)):
            square[at, at] *= 1 + _LOADING
        free = [at for at in range(len(right)) if square[at, at] > 0]
        while free:
            rows = [[*(square[max(row, at), min(row, at)] for at in free), right[row]] for row in free]
            found = dict(zip(free, _solved(rows), strict=True))
            lowest = min(free, key=found.__getitem__)
            if found[lowest] >= 0:
                return [found.get(at, 0.0) for at in range(len(right))]
            free.remove(lowest)
        return [0.0] * len(right)


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
