"""The drills: a load, a fault that the embedded engine commits, and what is expected of it. Data; runs nothing.

An end is written `outcome` or `outcome:reason`; `*` stands for any part of a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bench.options import LONG, SHORT
from bench.trace import random_arrivals
from bench.trace.arrivals import Arrival, Trace, check
from bench.trace.mix import ClassLoad

SHORT_TOKENS, LONG_TOKENS, OUTPUT_TOKENS = 128, 2048, 16
CONTEXT_TOKENS = 4096
TTFT_LIMITS = ("short:ttft:1500", "long:ttft:15000")
SEED = 1

# Nobody's stream is cut without a word: one that broke ends with an error event, whose reason counts.
_BROKEN = ("failed:*engine_broken", "failed:engine_unreachable")
# What vLLM itself says when its core dies, before the first token and after it.
_DEAD = ("failed:http_500*", "failed:in_band_500")
_SILENT = ("timed_out:*engine_timeout",)
_NO_ENGINE = ("refused:no_engine", "expired:wait_deadline", "refused:predicted_miss")
_FULL = ("refused:queue_full", "refused:tenant_queue_full", "refused:predicted_miss", "expired:wait_deadline")


@dataclass(frozen=True, slots=True)
class Drill:
    """faults and engine: words of `gateway emulate`; a drill without them can be held against a live target.

    may: ends beside `completed`. must: each has to occur, or nothing was drilled. served_again_s_max: from the first
    request that the fault ended to the first token of one that was planned after it. in_time: class to the share of it
    that meets TTFT_LIMITS. is_late: the engine starts with the first request, and the fault counts from there.
    """

    name: str
    about: str
    trace: Callable[[], Trace]
    faults: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    must: tuple[str, ...] = ("completed",)
    served_again_s_max: float | None = None
    in_time: Mapping[str, float] = field(default_factory=dict)
    is_late: bool = False

    @property
    def needs_emulator(self) -> bool:
        return bool(self.faults or self.engine)


def _mixed(rate_per_s: float, requests: int, *, shorts: int = 80, output_tokens: int = OUTPUT_TOKENS) -> Trace:
    loads = [
        ClassLoad(SHORT, shorts, SHORT_TOKENS, output_tokens),
        ClassLoad(LONG, 100 - shorts, LONG_TOKENS, output_tokens),
    ]
    mix = [load for load in loads if load.share]
    return random_arrivals.for_count(rate_per_s=rate_per_s, requests=requests, mix=mix, seed=SEED)


def _with(trace: Trace, label: str, more: list[Arrival]) -> Trace:
    arrivals = tuple(sorted((*trace.arrivals, *more), key=lambda each: each.at_s))
    check(arrivals, trace.span_s, label)
    return replace(trace, arrivals=arrivals, origin={**trace.origin, "drill": label})


def _everyday() -> Trace:
    return _mixed(6.0, 24)


def _longer() -> Trace:
    """Everyday load that outlasts the fault."""
    return _mixed(4.0, 72)


def _leaving() -> Trace:
    """Every third client leaves: soon, in prefill or in the line, or late, in mid stream."""
    trace = _mixed(5.0, 45, shorts=60, output_tokens=64)
    after_s = (0.02, 0.2, 0.5)
    arrivals = tuple(
        replace(each, cancel_after_s=after_s[number // 3 % 3]) if number % 3 == 0 else each
        for number, each in enumerate(trace.arrivals)
    )
    return replace(trace, arrivals=arrivals, origin={**trace.origin, "drill": "client-leaves"})


def _burst() -> Trace:
    return _with(_mixed(4.0, 40), "long-burst", [Arrival(3.0, LONG, LONG_TOKENS, OUTPUT_TOKENS)] * 12)


def _flood() -> Trace:
    """Shorts far beyond what is served, and a few longs of the lowest class that must not starve."""
    longs = [Arrival(1.0 + number, LONG, LONG_TOKENS, OUTPUT_TOKENS) for number in range(6)]
    return _with(_mixed(60.0, 480, shorts=100, output_tokens=64), "flood", longs)


def _at_the_limit() -> Trace:
    whole = CONTEXT_TOKENS - OUTPUT_TOKENS
    return _with(
        _mixed(4.0, 40), "context-limit", [Arrival(float(at_s), LONG, whole, OUTPUT_TOKENS) for at_s in (2, 4, 6)]
    )


DRILLS = (
    Drill("engine-dies", "the engine ends in mid stream and stays away", _everyday, ("die@8req",),
          may=(*_DEAD, *_BROKEN, *_NO_ENGINE), must=("completed", "failed:*", "refused:no_engine")),
    Drill("engine-hangs", "steps stop for 10 s while everything else answers", _longer,
          ("hang@14req+10s",),
          may=(*_SILENT, *_BROKEN, *_NO_ENGINE, *_FULL), must=("completed", "timed_out:*"), served_again_s_max=15.0),
    Drill("engine-restarts", "all is cut, and 2 s later a fresh engine listens", _longer,
          ("restart@14req+2s",),
          may=(*_BROKEN, *_NO_ENGINE), must=("completed", "failed:*"), served_again_s_max=10.0),
    Drill("slow-start", "nobody listens until 4 s after the first request", _longer, ("slow-start+4s",),
          may=(*_BROKEN, *_NO_ENGINE), must=("completed", "refused:no_engine"), served_again_s_max=15.0, is_late=True),
    Drill("in-band-error", "one stream breaks with an error inside its 200", _everyday, ("in-band-error@8req",),
          may=("failed:*",), must=("completed", "failed:*"), in_time={SHORT: 0.9, LONG: 0.8}),
    Drill("stale-metrics", "the engine's /metrics stands still: nothing else may", _everyday, ("stale-metrics@5req",),
          in_time={SHORT: 0.95, LONG: 1.0}),
    Drill("client-leaves", "clients leave in the line, in prefill and in mid stream", _leaving,
          may=("cancelled",), must=("completed", "cancelled"), in_time={SHORT: 0.6, LONG: 0.6}),
    Drill("long-burst", "a dozen long prompts at once beside everyday load", _burst,
          may=_FULL, in_time={SHORT: 0.9}),
    Drill("flood", "shorts of the highest class without end: those of the lowest go on", _flood,
          may=_FULL, must=("completed", "refused:*"), in_time={LONG: 1.0}),
    Drill("decode-pressure", "long answers fill every sequence", lambda: _mixed(6.0, 48, output_tokens=128),
          engine=("--max-num-seqs", "8"), may=_FULL),
    Drill("kv-pressure", "KV for little more than one whole context",
          lambda: _mixed(4.0, 40, shorts=50, output_tokens=64),
          engine=("--num-gpu-blocks-override", "36", "--max-model-len", str(CONTEXT_TOKENS)), may=_FULL),
    Drill("context-limit", "prompts that leave room for their answer alone", _at_the_limit,
          engine=("--max-model-len", str(CONTEXT_TOKENS)), may=_FULL, in_time={SHORT: 0.9}),
)  # fmt: skip
