"""Seeded random arrivals of a mix of classes. Pure: the same arguments give the same trace in every process.

Gaps are of a gamma distribution: burstiness is its shape, 1 is Poisson, less comes in clumps, more is steadier. The
times come from one random stream and the classes from another, so that one seed has the same times for every mix, and
the same times but for their scale at every rate. The mix is exact by count and shuffled: a mix drawn at random would
move the offered work by more than the difference between two policies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from bench.errors import UsageError
from bench.trace.arrivals import ARRIVALS_MAX, Arrival, Trace, check
from bench.trace.intensity import Intensity, laid_along
from bench.trace.mix import ClassLoad, shuffled

POISSON = 1.0


def for_duration(
    *, rate: Intensity, span_s: float, mix: Sequence[ClassLoad], seed: int, burstiness: float = POISSON
) -> Trace:
    """Arrivals until `span_s`; their number varies from seed to seed, as it does in nature."""
    if rate.mean_per_s(span_s) * span_s > ARRIVALS_MAX:
        raise UsageError(
            f"{rate.mean_per_s(span_s):g} requests/s over {span_s} s are more than {ARRIVALS_MAX} in one run."
        )
    rng = random.Random(f"arrival times {seed}")
    times = list(laid_along(unit_times(rng, burstiness), rate, span_s))
    process = {"process": "poisson" if burstiness == POISSON else "gamma", **_shape(burstiness), **rate.said()}
    return _trace(times, span_s, mix, process=process, seed=seed)


def for_count(
    *, rate_per_s: float, requests: int, mix: Sequence[ClassLoad], seed: int, burstiness: float = POISSON
) -> Trace:
    """Exactly `requests` arrivals over requests / rate seconds.

    A Poisson process whose count is known has its arrivals spread uniformly: the offered rate is the asked one exactly.
    Other gaps are scaled so that one more than all of them fill the span.
    """
    if requests > ARRIVALS_MAX:
        raise UsageError(f"{requests} requests: at most {ARRIVALS_MAX} in one run.")
    span_s = requests / rate_per_s
    rng = random.Random(f"arrival times {seed}")
    if burstiness == POISSON:
        times = sorted(rng.random() * span_s for _ in range(requests))
    else:
        gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(requests + 1)]
        times = [at * span_s / sum(gaps) for at in accumulate(gaps[:-1])]
    name = "poisson_given_count" if burstiness == POISSON else "gamma_given_count"
    process = {"process": name, **_shape(burstiness), "rate_per_s": rate_per_s}
    return _trace(times, span_s, mix, process=process, seed=seed)


def unit_times(rng: random.Random, burstiness: float = POISSON) -> Iterator[float]:
    """Ascending times without end, one a second on average."""
    at_s = 0.0
    while True:
        poisson = burstiness == POISSON
        at_s += rng.expovariate(1.0) if poisson else rng.gammavariate(burstiness, 1 / burstiness)
        yield at_s


def _shape(burstiness: float) -> dict[str, float]:
    return {} if burstiness == POISSON else {"burstiness": burstiness}


def _trace(
    times: Sequence[float], span_s: float, mix: Sequence[ClassLoad], *, process: dict[str, Any], seed: int
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
        **process,
        "seed": seed,
        "mix": {load.name: load.share for load in mix},
        "mix_rule": "exact by count, shuffled",
    }
    return Trace(arrivals, span_s, origin)
