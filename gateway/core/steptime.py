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
_PRIOR_VARIANCE = 100.0
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

    def decode_s(self, output_tokens: float, context_tokens: float) -> float:
        """Predict what decoding adds to the steps that it rides in; their fixed cost is the prefills' or shared."""
        return output_tokens * (self.per_token_s + self.per_token_context_s * (context_tokens + output_tokens / 2))


class StepFit:
    """Recursive least squares on relative error: k·a + p/R + q·p²/2 = seconds, one observed prefill at a time."""

    def __init__(self, start: StepModel | None = None) -> None:
        known = start or StepModel()
        coefficients = (known.base_s, known.per_token_s, known.per_token_context_s)
        self._weights = [value / scale for value, scale in zip(coefficients, _SCALES, strict=True)]
        variance = 1.0 if known.fitted else _PRIOR_VARIANCE
        self._covariance = [[variance if row == column else 0.0 for column in range(3)] for row in range(3)]
        self._observed = 0
        self.model = known

    def observe(self, *, prompt_tokens: int, steps: int, seconds: float) -> None:
        """Learn from one prefill that had its steps to itself."""
        if seconds <= 0.0 or prompt_tokens <= 0:
            return
        terms = (steps, prompt_tokens, prompt_tokens * prompt_tokens / 2)
        features = [term * scale / seconds for term, scale in zip(terms, _SCALES, strict=True)]
        spread = [sum(row[at] * features[at] for at in range(3)) for row in self._covariance]
        scale = _FORGETTING + sum(feature * value for feature, value in zip(features, spread, strict=True))
        gain = [value / scale for value in spread]
        error = 1.0 - sum(weight * feature for weight, feature in zip(self._weights, features, strict=True))
        self._weights = [weight + step * error for weight, step in zip(self._weights, gain, strict=True)]
        self._covariance = [
            [
                min((self._covariance[row][column] - gain[row] * spread[column]) / _FORGETTING, _PRIOR_VARIANCE)
                for column in range(3)
            ]
            for row in range(3)
        ]
        self._observed += 1
        base, token, context = (weight * unit for weight, unit in zip(self._weights, _SCALES, strict=True))
        self.model = StepModel(
            base_s=max(_BASE_S_MIN, base),
            per_token_s=max(_PER_TOKEN_S_MIN, token),
            per_token_context_s=max(0.0, context),
            fitted=self._observed >= _OBSERVED_MIN,
        )
