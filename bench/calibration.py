"""Requests of several lengths, each alone, and some that decode together, again and again, in the time there is.

They are what a step model is fitted to.

Owns which request comes next and when it is enough. Fits nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.analysis.step_model import Sample, decode, prefill, together
from bench.engine.lone_requests import Timed, Untimed
from bench.errors import TargetUnreachableError

PROMPT_TOKENS_MAX = 65_536
LENGTHS_MIN = 3
ROUNDS_MAX = 16
REQUEST_S_MAX = 30.0
WARM_UP_S_MAX = 60.0  # kernels are compiled at their first use
PREFILL_OUTPUT_TOKENS = 2  # with one alone, token and end come as one, and a text that is held back shows no time
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 16, 65
TOGETHER = 16  # at once: what each more in a step costs shows only there
_SMALLEST_SHARE = 8  # of a step: there the fixed cost of a step shows best
# Of the median. Where nobody read for a while, tokens of several steps are read as one, and the time from the first to
# the last is cut; a fit of relative errors, which bears times that are far too long, does not bear that.
_READ_LATE_SHARE = 0.5

Ask = Callable[[int, int, float], Awaitable[Timed | Untimed]]


def prompt_lengths(step_tokens: int, context_tokens: int | None) -> list[int]:
    """From a small part of a step to many steps, each twice the last, as far as the context goes."""
    room = PROMPT_TOKENS_MAX if context_tokens is None else min(PROMPT_TOKENS_MAX, context_tokens - 1)
    length = max(1, min(step_tokens, room) // _SMALLEST_SHARE)
    lengths = []
    while length <= room:
        lengths.append(length)
        length *= 2
    return lengths


@dataclass(slots=True)
class Measured:
    """What was timed, and what the engine was sent for it. ttft_s: by prompt length. together: TOGETHER at once."""

    ttft_s: dict[int, list[float]] = field(default_factory=dict)
    prefill: list[Sample] = field(default_factory=list)
    decode: list[Sample] = field(default_factory=list)
    together: list[Sample] = field(default_factory=list)
    prompt_tokens_sent: int = 0
    requests: int = 0

    @property
    def samples(self) -> list[Sample]:
        """What a step model is fitted to."""
        return [*self.prefill, *self.decode, *self.together]


async def measure(
    ask: Ask, lengths: Sequence[int], *, step_tokens: int, seconds: float, clock: Callable[[], float]
) -> Measured:
    """Send until ROUNDS_MAX rounds or `seconds` are over. Raises TargetUnreachableError where too little was timed."""
    measured, draw = Measured(), random.Random(0)
    end_at = clock() + seconds
    await _ask(ask, measured, lengths[0], PREFILL_OUTPUT_TOKENS, WARM_UP_S_MAX)
    await _ask(ask, measured, DECODE_PROMPT_TOKENS, DECODE_TOKENS, WARM_UP_S_MAX)
    measured.ttft_s.clear()
    for number in range(ROUNDS_MAX):
        # Upwards at first, so that it is known what fits; then in any order, so that a change spoils no one length.
        order = list(lengths) if number == 0 else draw.sample(lengths, k=len(lengths))
        for length in order:
            if clock() + _expected_s(measured, length) <= end_at:
                timed = await _ask(ask, measured, length, PREFILL_OUTPUT_TOKENS, REQUEST_S_MAX)
                measured.ttft_s.setdefault(length, []).append(timed.ttft_s)
                measured.prefill.append(prefill(length, step_tokens, timed.ttft_s))
        if clock() < end_at:
            timed = await _ask(ask, measured, DECODE_PROMPT_TOKENS, DECODE_TOKENS, REQUEST_S_MAX)
            measured.decode.append(decode(DECODE_PROMPT_TOKENS, timed.further_tokens, timed.decode_s))
            measured.prefill.append(prefill(DECODE_PROMPT_TOKENS, step_tokens, timed.ttft_s))
        if clock() < end_at:
            await _ask_together(ask, measured)
    if len(measured.ttft_s) < LENGTHS_MIN or not measured.decode:
        raise TargetUnreachableError(
            f"only {len(measured.ttft_s)} prompt lengths could be timed in {seconds:g} s. Give it more with --duration."
        )
    measured.decode, measured.together = _read_in_time(measured.decode), _read_in_time(measured.together)
    if not measured.decode:
        raise TargetUnreachableError(
            f"the {DECODE_TOKENS} tokens of an answer come all at once, so no step can be timed. "
            "Give --engine-url the engine itself: something between holds its answers back."
        )
    return measured


def _read_in_time(samples: Sequence[Sample]) -> list[Sample]:
    least_s = _READ_LATE_SHARE * median(sample.seconds for sample in samples) if samples else 0.0
    return [sample for sample in samples if sample.seconds > least_s]


async def _ask_together(ask: Ask, measured: Measured) -> None:
    asked = [_ask(ask, measured, DECODE_PROMPT_TOKENS, DECODE_TOKENS, REQUEST_S_MAX) for _ in range(TOGETHER)]
    each = await asyncio.gather(*asked)
    if all(timed.decode_s for timed in each):
        spans = [(timed.ttft_s, timed.ttft_s + timed.decode_s) for timed in each]
        measured.together.append(together(DECODE_PROMPT_TOKENS, DECODE_TOKENS - 1, spans))


async def _ask(ask: Ask, measured: Measured, prompt_tokens: int, output_tokens: int, s_max: float) -> Timed:
    measured.requests += 1
    measured.prompt_tokens_sent += prompt_tokens
    timed = await ask(prompt_tokens, output_tokens, s_max)
    if isinstance(timed, Untimed):
        raise TargetUnreachableError(
            f"a lone completion of {prompt_tokens} token ids was not answered as it should ({timed.reason}). "
            "Is it an engine that generates text, and are the credentials right?"
        )
    return timed


def _expected_s(measured: Measured, length: int) -> float:
    """As it took, else as if all of the longest that was timed were attention: more than it can take."""
    if length in measured.ttft_s or not measured.ttft_s:
        return max(measured.ttft_s.get(length, [0.0]))
    nearest = max(measured.ttft_s)
    return max(measured.ttft_s[nearest]) * (length / nearest) ** 2
