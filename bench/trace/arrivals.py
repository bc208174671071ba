"""One request to come and a whole trace of them. Owns what a valid trace is; knows no file and no generator."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.errors import UsageError

CLASS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
PREFIX_BLOCKS_MAX = 20_000
ARRIVALS_MAX = 200_000
TOKENS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace.

    at_s: planned arrival, seconds from the start of the run, whole microseconds.
    cancel_after_s: the client leaves this long after it has sent; None: it stays to the end.
    prefix: names of the blocks that the prompt begins with; prompts whose first names are equal begin with equal text.
    tenant, service_class, session: labels; a credential may be stated for either of the first two.
    """

    at_s: float
    class_name: str
    prompt_tokens: int
    output_tokens: int
    cancel_after_s: float | None = None
    prefix: tuple[str, ...] = ()
    tenant: str | None = None
    service_class: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Sorted arrivals over `span_s` seconds. `origin` says how they were made, and goes into every record.

    prefix_block_tokens: the length of each block that a prefix names; None where no arrival has a prefix.
    """

    arrivals: tuple[Arrival, ...]
    span_s: float
    origin: Mapping[str, Any]
    prefix_block_tokens: int | None = None

    def class_names(self) -> list[str]:
        """The classes that occur, in order of first arrival."""
        return list(dict.fromkeys(arrival.class_name for arrival in self.arrivals))


def check(arrivals: Sequence[Arrival], span_s: float, source: str) -> None:
    """Raise UsageError, naming the first arrival that makes the trace unusable."""
    if not arrivals:
        raise UsageError(f"{source}: no arrivals. Ask for a longer duration or a higher rate.")
    if len(arrivals) > ARRIVALS_MAX:
        raise UsageError(f"{source}: {len(arrivals)} arrivals, at most {ARRIVALS_MAX} in one run.")
    last = 0.0
    for number, arrival in enumerate(arrivals):
        problem = _problem(arrival, last, span_s)
        if problem:
            raise UsageError(f"{source}: arrival {number}: {problem}.")
        last = arrival.at_s


def _problem(arrival: Arrival, last_at_s: float, span_s: float) -> str | None:
    if not math.isfinite(arrival.at_s) or arrival.at_s < last_at_s:
        return f"at {arrival.at_s} s, which is not in order of time"
    if arrival.at_s > span_s:
        return f"at {arrival.at_s} s, after the end of the trace at {span_s} s"
    if not (1 <= arrival.prompt_tokens <= TOKENS_MAX and 1 <= arrival.output_tokens <= TOKENS_MAX):
        return f"token counts lie between 1 and {TOKENS_MAX}"
    if arrival.cancel_after_s is not None and not 0 < arrival.cancel_after_s < math.inf:
        return "a cancel time is positive"
    return _label_problem(arrival)


def _label_problem(arrival: Arrival) -> str | None:
    if any(label is not None and not LABEL.fullmatch(label) for label in (arrival.tenant, arrival.session)):
        return "tenant and session are words of at most 40 letters, digits, `_`, `.` and `-`"
    if not CLASS_NAME.fullmatch(arrival.class_name):
        return "a class is a lower-case word of at most 40 characters"
    if arrival.service_class is not None and not CLASS_NAME.fullmatch(arrival.service_class):
        return "a service class is a lower-case word of at most 40 characters"
    if len(arrival.prefix) > PREFIX_BLOCKS_MAX or not all(LABEL.fullmatch(name) for name in arrival.prefix):
        return f"a prefix is a list of at most {PREFIX_BLOCKS_MAX} words of letters, digits, `_`, `.` and `-`"
    return None
