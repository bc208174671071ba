"""Seeded Poisson arrivals of a mix of classes. Pure: the same arguments give the same trace in every process.

The times come from one random stream and the classes from another, so that one seed has the same times for every mix,
and the same times but for their scale at every rate. The mix is exact by count and shuffled: a mix drawn at random
would move the offered work by more than the difference between two policies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.errors import UsageError
from bench.trace.arrivals import ARRIVALS_MAX, Arrival, Trace, check
from bench.trace.mix import ClassLoad, shuffled


def for_duration(*, rate_per_s: float, span_s: float, mix: Sequence[ClassLoad], seed: int) -> Trace:
    """Arrivals with exponential gaps until `span_s`; their number varies from seed to seed, as it does in nature."""
    if rate_per_s * span_s > ARRIVALS_MAX:
        raise UsageError(f"{rate_per_s} requests/s over {span_s} s are more than {ARRIVALS_MAX} in one run.")
    rng = random.Random(f"arrival times {seed}")
    times: list[float] = []
    at_s = rng.expovariate(1.0)
    while at_s / rate_per_s < span_s:
        times.append(at_s / rate_per_s)
        at_s += rng.expovariate(1.0)
    return _trace(times, span_s, mix, process="poisson", rate_per_s=rate_per_s, seed=seed)


def for_count(*, rate_per_s: float, requests: int, mix: Sequence[ClassLoad], seed: int) -> Trace:
    """Exactly `requests` arrivals over requests / rate seconds.

    A Poisson process whose count is known has its arrivals spread uniformly: the offered rate is the asked one exactly.
    """
    if requests > ARRIVALS_MAX:
        raise UsageError(f"{requests} requests: at most {ARRIVALS_MAX} in one run.")
    span_s = requests / rate_per_s
    rng = random.Random(f"arrival times {seed}")
    times = sorted(rng.random() * span_s for _ in range(requests))
    return _trace(times, span_s, mix, process="poisson_given_count", rate_per_s=rate_per_s, seed=seed)


def _trace(
    times: Sequence[float], span_s: float, mix: Sequence[ClassLoad], *, process: str, rate_per_s: float, seed: int
) -> Trace:
    classes = shuffled(len(times), mix, random.Random(f"arrival classes {seed}"))
    # Whole microseconds, so that a saved trace reads back as the same numbers.
    arrivals = tuple(
        Arrival(round(at_s, 6), load.name, load.prompt_tokens, load.output_tokens)
        for at_s, load in zip(times, classes, strict=True)
    )
    span_s = max(round(span_s, 6), arrivals[-1].at_s if arrivals else 0.0)
    check(arrivals, span_s, "generated trace")
    origin = {
        "label": "synthetic",
        "process": process,
        "rate_per_s": rate_per_s,
        "seed": seed,
        "mix": {load.name: load.share for load in mix},
        "mix_rule": "exact by count, shuffled",
    }
    return Trace(arrivals, span_s, origin)
