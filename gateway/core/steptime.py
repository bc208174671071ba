"""The engine's step model: how long one scheduler step takes, and so a whole prefill.

A step that computes n tokens on top of a context of c tokens takes τ = a + n/R + q·n·(c + n/2): a fixed cost, a cost
a token, and attention over what is already there. Summed over the chunks of one prompt of p tokens the last term is
q·p²/2 whatever the chunks, so a prefill of k steps takes k·a + p/R + q·p²/2.

Owns the model and its fit: from the probes of an idle engine, then from prefills that pass. Seconds throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Protocol

_FORGETTING = 0.98  # about the last 50 prefills that passed count
_RIDGE = 1e-4
_LOADING = 1e-9  # far above what rounding takes from a pivot
_ANCHOR_WEIGHT = 0.05  # what a probe still counts beside them, for good
_CACHED_SHARE = 0.5
"""A prefill that took less than this share of its prediction found its prefix cached, and tells nothing of steps."""
_BELIEVED_CHANGE = 1.25  # as much as one prefill may differ from what was expected, either way
_OBSERVED_MIN = 8
_PROBED_MIN = 3
_SCALES = (0.01, 1 / 10_000, 1e-8)
_TERMS = range(3)
_FLOORS = (1e-5 / _SCALES[0], 1e-8 / _SCALES[1], 0.0)


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One prefill that had the engine to itself, or a part of one. seconds: from dispatch to its first token.

    prompt_tokens: that were computed. context_tokens: that lay cached before them.
    """

    prompt_tokens: int
    steps: int
    seconds: float
    context_tokens: int = 0

    @property
    def attended(self) -> float:
        """Pairs of tokens that attention went over: n·(c + n/2)."""
        return self.prompt_tokens * (self.context_tokens + self.prompt_tokens / 2)


@dataclass(frozen=True, slots=True)
class StepModel:
    """base_s: a. per_token_s: 1/R. per_token_context_s: q. fitted: of this engine, not the default.

    spread: how far prefills that had the engine to themselves lie from the model, root mean square, as a share of what
    it predicts; None: not known.
    """

    base_s: float = 0.006
    per_token_s: float = 1 / 25_000
    per_token_context_s: float = 0.0
    fitted: bool = False
    spread: float | None = None

    def at_worst(self) -> StepModel:
        """Return the model with every step longer by twice the spread: a few prefills in a hundred take longer yet."""
        factor = 1.0 + 2.0 * (self.spread or 0.0)
        return replace(
            self,
            base_s=factor * self.base_s,
            per_token_s=factor * self.per_token_s,
            per_token_context_s=factor * self.per_token_context_s,
        )

    def step_s(self, tokens: float, context_tokens: float = 0.0) -> float:
        """Predict one step that computes `tokens` on top of `context_tokens`."""
        attention = self.per_token_context_s * tokens * (context_tokens + tokens / 2)
        return self.base_s + self.per_token_s * tokens + attention

    def prefill_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Predict a whole prefill in steps of at most `chunk_tokens` with nothing else in them."""
        steps = -(-prompt_tokens // chunk_tokens)
        attention = self.per_token_context_s * prompt_tokens * prompt_tokens / 2
        return steps * self.base_s + self.per_token_s * prompt_tokens + attention

    def part_s(self, done_tokens: int, end_tokens: int, step_tokens: int) -> float:
        """Predict the prefill of a prompt from one token to another, alone in its steps."""
        tokens = end_tokens - done_tokens
        attention = self.per_token_context_s * tokens * (done_tokens + tokens / 2)
        return ceil(tokens / step_tokens) * self.base_s + self.per_token_s * tokens + attention

    def decode_s(self, output_tokens: float, context_tokens: float) -> float:
        """Predict what decoding adds to the steps that it rides in; their fixed cost is the prefills' or shared."""
        return output_tokens * (self.per_token_s + self.per_token_context_s * (context_tokens + output_tokens / 2))


class Fit(Protocol):
    """What an engine predicts by, and what it tells of prefills that passed."""

    @property
    def model(self) -> StepModel: ...

    def calibrate(self, samples: Sequence[PrefillSample]) -> None: ...

    def observe(self, *, prompt_tokens: int, steps: int, seconds: float, context_tokens: int = 0) -> None: ...


class FollowedFit:
    """The step times that another fit knows. Learns nothing: who follows sends no prefill of its own."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    @property
    def model(self) -> StepModel:
        return self._fit.model

    def calibrate(self, samples: Sequence[PrefillSample]) -> None:
        """Do nothing."""

    def observe(self, *, prompt_tokens: int, steps: int, seconds: float, context_tokens: int = 0) -> None:
        """Do nothing."""


class StepFit:
    """Least squares on relative error: k·a + n/R + q·n·(c + n/2) = seconds, from probes, then from what passes.

    What passes is forgotten by and by, probes are not: they keep a small weight, and so decide what traffic of one
    length leaves open. A ridge toward the model before decides what the probes leave open too.
    """

    def __init__(self, start: StepModel | None = None) -> None:
        self.model = start or StepModel()
        self._observed = 0
        self._passed = _Equations()
        self._anchor = _Equations()
        self._anchor.pull_toward(self.model)
        self._strays = _Strays()

    def calibrate(self, samples: Sequence[PrefillSample]) -> None:
        """Start anew from probes of an idle engine. Few of them move the model; `_PROBED_MIN` make it fitted."""
        samples = [sample for sample in samples if sample.seconds > 0.0 and sample.prompt_tokens > 0]
        self._passed = _Equations()
        self._anchor = _Equations()
        self._anchor.pull_toward(self.model)
        for sample in samples:
            self._passed.add(sample)
        fitted = self.model.fitted or len(samples) >= _PROBED_MIN
        model = _model(_solved(self._passed, self._anchor), fitted=fitted, spread=None)
        self._strays = _Strays()
        for sample in samples:
            self._strays.add(sample.seconds / _prefill_s(model, sample) - 1.0)
        self.model = replace(model, spread=self._strays.spread())
        self._anchor = _Equations()
        self._anchor.pull_toward(self.model)
        for sample in samples:
            self._anchor.add(sample, _ANCHOR_WEIGHT)

    def observe(self, *, prompt_tokens: int, steps: int, seconds: float, context_tokens: int = 0) -> None:
        """Learn from one prefill, or a part on top of its context, that had its steps to itself, or nearly so."""
        if seconds <= 0.0 or prompt_tokens <= 0:
            return
        sample = PrefillSample(prompt_tokens, steps, seconds, context_tokens)
        if self.model.fitted:
            # Traffic may have been beside it: one prefill is no proof of a great change, many are.
            expected_s = _prefill_s(self.model, sample)
            if seconds < _CACHED_SHARE * expected_s:
                return
            within_s = min(max(seconds, expected_s / _BELIEVED_CHANGE), expected_s * _BELIEVED_CHANGE)
            sample = PrefillSample(prompt_tokens, steps, within_s, context_tokens)
            self._strays.fade()
            self._strays.add(within_s / expected_s - 1.0)
        self._passed.fade()
        self._passed.add(sample)
        self._observed += 1
        fitted = self.model.fitted or self._observed >= _OBSERVED_MIN
        self.model = _model(_solved(self._passed, self._anchor), fitted=fitted, spread=self._strays.spread())


class _Strays:
    """How far prefills lie from the model, as shares of what it predicts. As many as it has terms prove nothing."""

    def __init__(self) -> None:
        self._count = self._squares = 0.0

    def add(self, share: float) -> None:
        self._count += 1.0
        self._squares += share * share

    def fade(self) -> None:
        self._count *= _FORGETTING
        self._squares *= _FORGETTING

    def spread(self) -> float | None:
        proving = self._count - len(_SCALES)
        return sqrt(self._squares / proving) if proving >= 1.0 else None


class _Equations:
    """Normal equations of the relative error, in scaled coefficients."""

    def __init__(self) -> None:
        self.square = [[0.0] * 3 for _ in range(3)]
        self.right = [0.0] * 3

    def add(self, sample: PrefillSample, weight: float = 1.0) -> None:
        terms = (float(sample.steps), float(sample.prompt_tokens), sample.attended)
        features = [terms[at] * _SCALES[at] / sample.seconds for at in _TERMS]
        for row in _TERMS:
            self.right[row] += weight * features[row]
            for column in _TERMS:
                self.square[row][column] += weight * features[row] * features[column]

    def fade(self) -> None:
        self.right = [_FORGETTING * value for value in self.right]
        self.square = [[_FORGETTING * value for value in row] for row in self.square]

    def pull_toward(self, model: StepModel) -> None:
        coefficients = (model.base_s, model.per_token_s, model.per_token_context_s)
        for at, (value, scale) in enumerate(zip(coefficients, _SCALES, strict=True)):
            self.square[at][at] += _RIDGE
            self.right[at] += _RIDGE * value / scale


def _prefill_s(model: StepModel, sample: PrefillSample) -> float:
    attention_s = sample.attended * model.per_token_context_s
    return sample.steps * model.base_s + sample.prompt_tokens * model.per_token_s + attention_s


def _model(scaled: Sequence[float], *, fitted: bool, spread: float | None) -> StepModel:
    base_s, per_token_s, per_token_context_s = [scaled[at] * _SCALES[at] for at in _TERMS]
    return StepModel(base_s, per_token_s, per_token_context_s, fitted, spread)


def _solved(passed: _Equations, anchor: _Equations) -> list[float]:
    """Solve both together. What comes out under its floor is put there, and the others are solved anew."""
    values = list(_FLOORS)
    free = [0, 1, 2]
    while free:
        rows = []
        for row in free:
            square = [passed.square[row][at] + anchor.square[row][at] for at in _TERMS]
            square[row] *= 1.0 + _LOADING
            fixed = sum([square[at] * _FLOORS[at] for at in _TERMS if at not in free])
            rows.append([*[square[at] for at in free], passed.right[row] + anchor.right[row] - fixed])
        found = dict(zip(free, _eliminated(rows), strict=True))
        lowest = min(free, key=lambda at: found[at] - _FLOORS[at])
        if found[lowest] >= _FLOORS[lowest]:
            for at in free:
                values[at] = found[at]
            break
        free.remove(lowest)
    return values


def _eliminated(rows: list[list[float]]) -> list[float]:
    """Solve augmented rows in place. The loaded diagonal makes the matrix positive definite: no pivot is 0."""
    for at, row in enumerate(rows):
        pivot = row[at]
        for column in range(len(row)):
            row[column] /= pivot
        for other in rows:
            if other is not row:
                factor = other[at]
                for column in range(len(row)):
                    other[column] -= factor * row[column]
    return [row[-1] for row in rows]
