"""From rows of a file to arrivals: who they are, which are kept, how fast they come, who leaves. Pure and seeded.

Every step that changes what the file says adds its words to the trace's origin, so that a record tells what was sent.
Steps draw from streams of their own: one more step does not change what another one draws.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from bench.errors import UsageError
from bench.trace.arrivals import CLASS_NAME, Arrival, Trace, check
from bench.trace.foreign import Row

# At a share of equal times like this, times are not what a clock said but what it was rounded to.
TICK_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Prompts of up to so many tokens are of that class; the last one has no bound."""

    bounds: tuple[tuple[str, int | None], ...]

    def class_of(self, prompt_tokens: int) -> str:
        return next(name for name, most in self.bounds if most is None or prompt_tokens <= most)

    def __str__(self) -> str:
        return " ".join(name if most is None else f"{name}:{most}" for name, most in self.bounds)


def parse_rule(words: Sequence[str], where: str) -> ClassRule:
    """`short:640 long`: prompts of at most 640 tokens are short, all others long. Raises UsageError."""
    bounds: list[tuple[str, int | None]] = []
    for number, word in enumerate(words):
        name, colon, most = word.partition(":")
        is_last = number == len(words) - 1
        bound = int(most) if most.isascii() and most.isdigit() and len(most) < 9 else None
        grows = bound is None or all(other is not None and other < bound for _, other in bounds)
        if not CLASS_NAME.fullmatch(name) or bool(colon) == is_last or (colon and bound is None) or not grows:
            raise UsageError(
                f"{where}: {word!r}: give bounds that grow and a last class without one, as short:640 long."
            )
        bounds.append((name, bound))
    return ClassRule(tuple(bounds))


@dataclass(frozen=True, slots=True)
class Cancels:
    """Of a class, which share leaves, and after how long on average (exponential)."""

    class_name: str
    share: float
    mean_s: float


def parse_cancels(words: Sequence[str], where: str) -> list[Cancels]:
    """`agent:0.1:5`: one in ten leaves, after 5 s on average. Raises UsageError."""
    found = []
    for word in words:
        name, _, rest = word.partition(":")
        try:
            share, mean_s = (float(text) for text in rest.split(":"))
        except ValueError:
            share = mean_s = 0.0
        if not CLASS_NAME.fullmatch(name) or not 0 < share <= 1 or not 0 < mean_s < 1e6:
            raise UsageError(f"{where}: {word!r} is not CLASS:SHARE:MEAN_S, as agent:0.1:5.")
        found.append(Cancels(name, share, mean_s))
    return found


def arrivals_of(rows: Sequence[Row], rule: ClassRule) -> list[Arrival]:
    """In order of time, the first at 0. A class that the row itself names stays."""
    ordered = sorted(rows, key=lambda row: row.at_s)
    return [
        Arrival(
            at_s=row.at_s - ordered[0].at_s,
            class_name=row.class_name or rule.class_of(row.prompt_tokens),
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            cancel_after_s=row.cancel_after_s,
            prefix=row.prefix,
            tenant=row.tenant,
            service_class=row.service_class,
            session=row.session,
        )
        for row in ordered
    ]


def tick_s(arrivals: Sequence[Arrival]) -> float | None:
    """The tick that the times fall on: the median of the gaps that are none; None where most times differ."""
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    if not gaps or sum(gap == 0 for gap in gaps) < TICK_SHARE_MIN * len(gaps):
        return None
    steps = sorted(gap for gap in gaps if gap > 0)
    return steps[len(steps) // 2] if steps else None


def spread(arrivals: Sequence[Arrival], tick: float, seed: int) -> list[Arrival]:
    """Each arrival uniformly within the tick that begins at its time."""
    rng = random.Random(f"tick {seed}")
    return sorted(
        (replace(each, at_s=each.at_s + rng.random() * tick) for each in arrivals), key=lambda each: each.at_s
    )


def thinned(arrivals: Sequence[Arrival], share: float, seed: int) -> list[Arrival]:
    """Each arrival with probability `share`, whatever became of the others: a Poisson process stays one."""
    rng = random.Random(f"thin {seed}")
    return [each for each in arrivals if rng.random() < share]


def stretched(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    return [replace(each, at_s=each.at_s * factor) for each in arrivals]


def cut(arrivals: Sequence[Arrival], from_s: float, until_s: float) -> list[Arrival]:
    return [replace(each, at_s=each.at_s - from_s) for each in arrivals if from_s <= each.at_s < until_s]


def within(arrivals: Sequence[Arrival], least: int, most: int) -> list[Arrival]:
    """Prompts shorter than `least` tokens are made that long, those longer than `most` left out."""
    kept = (each for each in arrivals if each.prompt_tokens <= most)
    return [replace(each, prompt_tokens=max(each.prompt_tokens, least)) for each in kept]


def with_cancels(arrivals: Sequence[Arrival], cancels: Sequence[Cancels], seed: int) -> list[Arrival]:
    by_class = {each.class_name: each for each in cancels}
    rng = random.Random(f"cancel {seed}")
    changed = []
    for arrival in arrivals:
        leaves, after = rng.random(), rng.expovariate(1.0)
        said = by_class.get(arrival.class_name)
        if said is not None and leaves < said.share:
            # No sooner than a millisecond: the trace writes whole microseconds, and 0 is no time.
            changed.append(replace(arrival, cancel_after_s=max(0.001, round(after * said.mean_s, 3))))
        else:
            changed.append(arrival)
    return changed


def merged(traces: Sequence[Trace], origin: Mapping[str, Any]) -> Trace:
    """All at once, each from its own beginning. Raises UsageError where their prefix blocks differ in length."""
    blocks = {trace.prefix_block_tokens for trace in traces if trace.prefix_block_tokens is not None}
    if len(blocks) > 1:
        raise UsageError(f"Traces with prefix blocks of {sorted(blocks)} tokens cannot become one.")
    arrivals = sorted((each for trace in traces for each in trace.arrivals), key=lambda each: each.at_s)
    return finished(arrivals, max(trace.span_s for trace in traces), origin, min(blocks, default=None))


def finished(
    arrivals: Sequence[Arrival], span_s: float, origin: Mapping[str, Any], prefix_block_tokens: int | None
) -> Trace:
    """A trace in whole microseconds, so that it reads back from its file as the same."""
    rounded = tuple(replace(each, at_s=round(each.at_s, 6)) for each in arrivals)
    span_s = max(round(span_s, 6), rounded[-1].at_s if rounded else 0.0)
    check(rounded, span_s, "trace")
    return Trace(rounded, span_s, origin, prefix_block_tokens if any(each.prefix for each in rounded) else None)
