"""What a trace looks like in figures: rates, lengths, how clumped its arrivals are, how much prompts share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev

from bench.trace.arrivals import Arrival, Trace
from bench.trace.shaping import tick_s

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class ClassPortrait:
    """Tokens are the quantiles of QUANTILES, and the highest."""

    requests: int
    share: float
    rate_per_s: float
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    cancelled: int


@dataclass(frozen=True, slots=True)
class Portrait:
    """gap_variation: standard deviation of the gaps over their mean; 1 for Poisson, None for fewer than two gaps.

    peak_in_one_second: the most arrivals in any second that begins with one. shared_tokens_share: of all prompt tokens,
    those in a prefix block that an earlier prompt had too.
    """

    classes: dict[str, ClassPortrait]
    gap_variation: float | None
    peak_in_one_second: int
    tick_s: float | None
    shared_tokens_share: float


def portrait(trace: Trace) -> Portrait:
    arrivals = trace.arrivals
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(arrivals)]
    varies = len(gaps) > 1 and fmean(gaps) > 0
    return Portrait(
        classes={name: _class(name, trace) for name in trace.class_names()},
        gap_variation=pstdev(gaps) / fmean(gaps) if varies else None,
        peak_in_one_second=_peak([each.at_s for each in arrivals]),
        tick_s=tick_s(arrivals),
        shared_tokens_share=_shared(trace),
    )


def _class(name: str, trace: Trace) -> ClassPortrait:
    own = [each for each in trace.arrivals if each.class_name == name]
    return ClassPortrait(
        requests=len(own),
        share=len(own) / len(trace.arrivals),
        rate_per_s=len(own) / trace.span_s,
        prompt_tokens=_spread(own, "prompt_tokens"),
        output_tokens=_spread(own, "output_tokens"),
        cancelled=sum(each.cancel_after_s is not None for each in own),
    )


def _spread(arrivals: Sequence[Arrival], name: str) -> tuple[int, ...]:
    ordered = sorted(getattr(each, name) for each in arrivals)
    return (*(ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in QUANTILES), ordered[-1])


def _peak(times: Sequence[float]) -> int:
    most = first = 0
    for last, at_s in enumerate(times):
        while times[first] <= at_s - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


def _shared(trace: Trace) -> float:
    """By the name alone a block is known, whatever stands before it: so traces write them."""
    if trace.prefix_block_tokens is None:
        return 0.0
    seen: Counter[str] = Counter()
    shared = 0
    for arrival in trace.arrivals:
        shared += sum(name in seen for name in arrival.prefix)
        seen.update(arrival.prefix)
    return shared * trace.prefix_block_tokens / sum(each.prompt_tokens for each in trace.arrivals)
