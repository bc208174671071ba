"""How many long prompts an engine may prefill at once, steered by what the short class gets.

Additive increase, multiplicative decrease on the long-prefill budget, toward the short class's time to first token;
below one long at a time, a pause between longs (the duty). Judged once a second by the share of shorts that missed,
with a binomial margin, on at least 30 of them: never by one slow request, never by end-to-end time. A duty that was
lowered for shorts is raised again where longs wait and no short comes: nobody is left whom the pause would serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

_JUDGED_EVERY_S = 1.0
_SHORTS_MIN = 30
_MISSED_TOLERATED = 0.05
_MISSED_LOW = 0.02
_ONE_SIDED_95 = 1.64
_BACKLOGGED_S_MIN = 5.0
_NO_SHORTS_S = 10.0
DUTY_MIN = 0.2
"""The least share of the time in which a long may be in prefill, whatever the shorts get."""
_DUTY_DOWN = 0.7
_DUTY_UP = 0.1


@dataclass(frozen=True, slots=True)
class LongAllowance:
    """prefills: K, at least 1. duty: share of the time in which a long may be in prefill, in (0, 1]."""

    prefills: int
    duty: float

    def pause_s(self, prefill_s: float) -> float:
        """Return how long the next long waits after one that was in prefill for `prefill_s`."""
        return prefill_s * (1.0 - self.duty) / self.duty


class LongControl:
    """The controller of one engine; it starts cautious, at one long at a time."""

    def __init__(self) -> None:
        self._prefills_max = 1
        self._ttft_s = float("inf")
        self._judge_at: float | None = None
        self._shorts = 0
        self._missed = 0
        self._short_at = float("-inf")
        self._backlogged_since: float | None = None
        self.allowance = LongAllowance(prefills=1, duty=1.0)

    def configure(self, *, prefills_max: int, ttft_s: float) -> None:
        """Set the bound and the objective. ttft_s: from arrival to the first token of a short, seconds."""
        self._prefills_max = prefills_max
        self._ttft_s = ttft_s
        allowed = self.allowance
        self.allowance = LongAllowance(min(allowed.prefills, prefills_max), allowed.duty)

    def short_served(self, now: float, *, waited_s: float, engine_ttft_s: float) -> None:
        """Note one short's first token; its wait in line is admission's, and only narrows what the engine has left."""
        self._short_at = now
        self._shorts += 1
        self._missed += engine_ttft_s > max(0.0, self._ttft_s - waited_s)

    def no_room(self) -> bool:
        """The engine says that it was sent more than it has room for: one long less, down to one. True: it changed."""
        before = self.allowance
        self.allowance = LongAllowance(max(1, before.prefills - 1), before.duty)
        return self.allowance != before

    def judge(self, now: float, *, longs_wait: bool) -> bool:
        """Adjust the allowance where it is time to; True where it changed."""
        if not longs_wait:
            self._backlogged_since = None
        elif self._backlogged_since is None:
            self._backlogged_since = now
        if self._judge_at is None:
            self._judge_at = now + _JUDGED_EVERY_S
        if now < self._judge_at:
            return False
        if self._shorts < _SHORTS_MIN:
            return self._nobody_to_spare(now)
        self._judge_at = now + _JUDGED_EVERY_S
        missed, shorts = self._missed / self._shorts, self._shorts
        self._shorts = self._missed = 0
        before = self.allowance
        margin = _ONE_SIDED_95 * sqrt(_MISSED_TOLERATED * (1 - _MISSED_TOLERATED) / shorts)
        if missed > _MISSED_TOLERATED + margin:
            self.allowance = self._less(before)
        elif missed < _MISSED_LOW and self._backlogged_for(now) >= _BACKLOGGED_S_MIN:
            self.allowance = self._more(before)
        return self.allowance != before

    def _nobody_to_spare(self, now: float) -> bool:
        """Raise a lowered duty where longs wait and no short has come for a while; True where it changed."""
        allowed = self.allowance
        if allowed.duty == 1.0 or min(self._backlogged_for(now), now - self._short_at) < _NO_SHORTS_S:
            return False
        self._judge_at = now + _JUDGED_EVERY_S
        self._shorts = self._missed = 0
        self.allowance = self._more(allowed)
        return True

    def _less(self, allowed: LongAllowance) -> LongAllowance:
        if allowed.prefills > 1:
            return LongAllowance(allowed.prefills - 1, allowed.duty)
        return LongAllowance(1, max(DUTY_MIN, allowed.duty * _DUTY_DOWN))

    def _more(self, allowed: LongAllowance) -> LongAllowance:
        if allowed.duty < 1.0:
            return LongAllowance(allowed.prefills, min(1.0, allowed.duty + _DUTY_UP))
        return LongAllowance(min(self._prefills_max, allowed.prefills + 1), 1.0)

    def _backlogged_for(self, now: float) -> float:
        return 0.0 if self._backlogged_since is None else now - self._backlogged_since
