"""The engine's step model: how long one scheduler step takes, and so a whole prefill.

A step that computes n tokens on top of a context of c tokens takes τ = a + n/R + q·n·(c + n/2): a fixed cost, a cost
a token, and attention over what is already there. Summed over the chunks of one prompt of p tokens the last term is
q·p²/2 whatever the chunks, so a prefill of k steps takes k·a + p/R + q·p²/2.

Owns the model and its fit from observed prefills. Seconds throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

_FORGETTING = 0.98
_RIDGE = 1e-4
_OBSERVED_MIN = 8
_SCALES = (0.01, 1 / 10_000, 1e-8)
_BASE_S_MIN = 1e-5
_PER_TOKEN_S_MIN = 1e-8


@dataclass(frozen=True, slots=True)
class StepModel:
    """base_s: a. per_token_s: 1/R. per_token_context_s: q. fitted: of this engine, not the default."""

    base_s: float = 0.006
    per_token_s: float = 1 / 25_000
    per_token_context_s: float = 0.0
    fitted: bool = False

    def step_s(self, tokens: float, context_tokens: float = 0.0) -> float:
        """Predict one step that computes `tokens` on top of `context_tokens`."""
        attention = self.per_token_context_s * tokens * (context_tokens + tokens / 2)
        return self.base_s + self.per_token_s * tokens + attention

    def prefill_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Predict a whole prefill in steps of at most `chunk_tokens` with nothing else in them."""
        steps = ceil(prompt_tokens / chunk_tokens)
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


class StepFit:
    """Least squares on relative error with forgetting: k·a + p/R + q·p²/2 = seconds, one observed prefill at a time.

    Keeps the normal equations; a ridge toward the starting model decides what the observations leave open.
    """

    def __init__(self, start: StepModel | None = None) -> None:
        self.model = start or StepModel()
        coefficients = (self.model.base_s, self.model.per_token_s, self.model.per_token_context_s)
        self._start = [value / scale for value, scale in zip(coefficients, _SCALES, strict=True)]
        self._square = [[0.0] * 3 for _ in range(3)]
        self._right = [0.0] * 3
        self._observed = 0

    def observe(self, *, prompt_tokens: int, steps: int, seconds: float) -> None:
        """Learn from one prefill that had its steps to itself."""
        if seconds <= 0.0 or prompt_tokens <= 0:
            return
        terms = (steps, prompt_tokens, prompt_tokens * prompt_tokens / 2)
        features = [term * scale / seconds for term, scale in zip(terms, _SCALES, strict=True)]
        for row in range(3):
            self._right[row] = _FORGETTING * self._right[row] + features[row]
            for column in range(3):
                self._square[row][column] = _FORGETTING * self._square[row][column] + features[row] * features[column]
        self._observed += 1
        base, token, context = (weight * scale for weight, scale in zip(self._solved(), _SCALES, strict=True))
        self.model = StepModel(
            base_s=max(_BASE_S_MIN, base),
            per_token_s=max(_PER_TOKEN_S_MIN, token),
            per_token_context_s=max(0.0, context),
            fitted=self._observed >= _OBSERVED_MIN,
        )

    def _solved(self) -> tuple[float, float, float]:
        (a, b, c), (d, e, f), (g, h, i) = (
            [value + (_RIDGE if row == column else 0.0) for column, value in enumerate(values)]
            for row, values in enumerate(self._square)
        )
        x, y, z = (right + _RIDGE * start for right, start in zip(self._right, self._start, strict=True))
        whole = _determinant(a, b, c, d, e, f, g, h, i)
        return (
            _determinant(x, b, c, y, e, f, z, h, i) / whole,
            _determinant(a, x, c, d, y, f, g, z, i) / whole,
            _determinant(a, b, x, d, e, y, g, h, z) / whole,
        )


def _determinant(  # noqa: PLR0917 - a matrix, row by row
    a: float, b: float, c: float, d: float, e: float, f: float, g: float, h: float, i: float
) -> float:
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
