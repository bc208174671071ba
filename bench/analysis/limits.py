"""The limits that make a response a good one, by class: the words of `--goodput`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.errors import UsageError
from bench.records.request import Outcome, RequestRecord
from bench.trace.arrivals import CLASS_NAME

# The spelling of `vllm bench serve` first; `e2e` is what most people type.
METRICS = {"ttft": "ttft_ms", "e2el": "e2e_ms", "e2e": "e2e_ms", "tpot": "tpot_ms", "stall": "longest_stall_ms"}


@dataclass(frozen=True, slots=True)
class Limit:
    """`metric` is an attribute of RequestRecord, in milliseconds."""

    metric: str
    at_most_ms: float

    def met(self, record: RequestRecord) -> bool:
        """A value that was not measured meets no limit."""
        value: float | None = getattr(record, self.metric)
        return value is not None and value <= self.at_most_ms


Limits = Mapping[str, tuple[Limit, ...]]


def parse_limits(words: Iterable[str], where: str) -> dict[str, tuple[Limit, ...]]:
    """`short:ttft:500 short:e2el:8000 long:ttft:20000`, milliseconds; raises UsageError naming `where`."""
    limits: dict[str, tuple[Limit, ...]] = {}
    for text in words:
        class_name, _, rest = text.partition(":")
        metric, _, value = rest.partition(":")
        try:
            at_most_ms = float(value)
        except ValueError:
            at_most_ms = math.nan
        if not CLASS_NAME.fullmatch(class_name) or metric not in METRICS or not 0 < at_most_ms < math.inf:
            raise UsageError(f"{where}: {text!r} is not CLASS:METRIC:MS with METRIC one of {', '.join(METRICS)}.")
        limit = Limit(METRICS[metric], at_most_ms)
        if any(other.metric == limit.metric for other in limits.get(class_name, ())):
            raise UsageError(f"{where}: {text!r} limits {metric} of {class_name} a second time. Keep one.")
        limits[class_name] = (*limits.get(class_name, ()), limit)
    return limits


def is_good(record: RequestRecord, limits: Limits) -> bool | None:
    """Completed within all limits of its class; None where the class has no limits and so no answer."""
    own = limits.get(record.class_name)
    if not own:
        return None
    return record.outcome is Outcome.COMPLETED and all(limit.met(record) for limit in own)
